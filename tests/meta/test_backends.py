"""What depends on a backend asks its table (`parity/core/backends`), so that another device is one more file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import layers
import pytest

from parity.core.devices import BACKENDS, Backend, all_backends, backend_of

PACKAGE = Path(__file__).parents[2] / "parity"
TABLES = "core/backends"
# Modules that may hold the name of a backend, each with the reason.
ALLOWED = {
    "catalog/opinfo_rules.py": "why ops of torch's tests are left out",
    "catalog/optimizer_entries.py": "torch's OpInfo is asked for the optimizers that it has for CUDA",
    "core/devices.py": "what stands for a device in the examples of messages",
    "locating/auditing.py": "it answers for MPS alone, and calls the simulated device so",
    "prove/reach.py": "it counts what was reached of MPS's operators",
    "report/short_script.py": "a device for a script of a finding on a simulated one, of which only the text is written",
}
KEYS = re.compile(rf"\b({'|'.join(b.key for b in all_backends() if b.key != 'MPS')})\b")
MODULES = {p.relative_to(PACKAGE).as_posix(): p for p in sorted(PACKAGE.rglob("*.py"))}


def names(tree: ast.AST) -> list[str]:
    """The literals that are the name of a backend, with or without an index, or that have a dispatch key as one of their
    words, as messages have; but for MPS, which the audit of a model is about."""
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docs]
    return [f"{n.lineno}: {n.value!r}" for n in found if isinstance(n.value, str) and is_name(n.value)]


def is_name(text: str) -> bool:
    """Whether a text is the name of a backend or of one of its devices."""
    kind, _, index = text.lower().partition(":")
    return (kind in BACKENDS and (not index or index.isdigit())) or bool(KEYS.search(text))


def test_no_module_names_a_backend() -> None:
    """Give the table a field instead, and ask `backend_of` or the device for it; what names none is not in ALLOWED."""
    found = {p: names(layers.tree(file)) for p, file in MODULES.items() if not p.startswith(TABLES)}
    assert {p: places for p, places in found.items() if bool(places) != (p in ALLOWED)} == {}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('if kind == "cuda":\n    pass', True),
        ('KEYS = {"XPU": 1}', True),
        ('x = torch.device("mps:0")', True),
        ('name.startswith("mps")', True),
        ('"""mps"""', False),
        ('x = "sim:mps"', False),
        ('x = "mps is a device"', False),
        ('if "CUDA error" in text:\n    pass', True),
        ('"""CUDA"""', False),
    ],
)
def test_a_name_is_seen(text: str, seen: bool) -> None:
    assert bool(names(ast.parse(text))) == seen


def test_every_file_is_a_table() -> None:
    assert [b.name for b in all_backends()] == [*BACKENDS]
    assert {"cuda", "mps", "xpu"} <= {*BACKENDS}
    assert [p.stem for p in sorted((PACKAGE / TABLES).glob("[a-z]*.py"))] == [*BACKENDS]


@pytest.mark.parametrize("name", ["cpu", "sim:mps", "nobody:1"])
def test_a_backend_without_a_table_is_as_torch_takes_every_other(name: str) -> None:
    assert backend_of(name) == Backend(name=name.partition(":")[0])
