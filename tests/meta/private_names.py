"""The private names of torch that a module uses: torch promises none of them to anybody, and may rename them in any version."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import layers


def used_in(path: Path) -> set[str]:
    """The private names that a module uses, each up to the part after its last private one: torch._C.DispatchKey of
    torch._C.DispatchKey.CPU, because what a private module holds may change as well as its name."""
    nodes = list(ast.walk(layers.tree(path)))
    bound = dict(_bindings(nodes))
    found = {*bound.values(), *_imported(nodes)}
    found |= {_dotted(n, bound) for n in nodes if isinstance(n, ast.Attribute)}
    names = {cut for name in found if (cut := _cut(name))}
    return {n for n in names if not any(other.startswith(f"{n}.") for other in names)}


def _bindings(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """(name in the module, what it is of torch)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.partition(".")[0] == "torch":
                    yield (a.asname, a.name) if a.asname else ("torch", "torch")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").partition(".")[0] == "torch":
            for a in node.names:
                yield a.asname or a.name, f"{node.module}.{a.name}"


def _imported(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Modules that are imported by their whole name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("torch."))


def _dotted(node: ast.expr, bound: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    if isinstance(node, ast.Attribute) and (of := _dotted(node.value, bound)):
        return f"{of}.{node.attr}"
    return ""


def _cut(name: str) -> str:
    parts = name.split(".")
    private = [k for k, p in enumerate(parts) if p.startswith("_") and not p.startswith("__")]
    if not private:
        return ""
    return ".".join(parts[: private[-1] + 2])
