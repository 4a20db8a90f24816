"""The few lines of plain torch that a bug report begins with: literal values, plain view calls, one call on the CPU and on the
device, and what both give."""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from parity.checks import transfer
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.errors import ParityError
from parity.core.results import Aspect
from parity.report.script import (
    CaseScript,
    Unwritable,
    arguments_text,
    base_text,
    cotangents,
    data_of,
    function_of,
    in_mode,
    into_text,
    operands_text,
    view_text,
)

Block = TypeVar("Block", ast.FunctionDef, ast.With, ast.If)
SHOWN_BITS = 32  # of dtypes whose differences may not show in the four digits that torch prints
LONGEST = 4000  # most characters of a script that is worth reading
LINES = 15  # of a script, not counted those that are empty, beyond which short statements share one
WIDTH = 120
FEW = 8  # numbers of an operand that are not drawn anew
SHOWN = 64  # most elements of results that are printed whole
SPREAD = 1e4  # of numbers that are drawn anew, largest to middle size
PRINT_STRIDES = [
    "    result = run(device)",
    "    print(device, [t.stride() for t in (result if isinstance(result, (list, tuple)) else [result])])",
]
ON_ERROR = ["    except Exception as e:", "        print(device, type(e).__name__, e)"]
PRINT_REFUSAL = ["    try:", "        print(device, run(device))", *ON_ERROR]
PRINT_WORST = """\
devices = "cpu", {place}
here, there = (torch.cat([t.detach().cpu().flatten() for t in {each}]).{wide} for r in map(run, devices))
worst = (there.nan_to_num() - here.nan_to_num()).abs().argmax()
for device, x in zip(devices, (here, there)):
    print(device, "at", worst.item(), x[worst].item())"""
# What is computed of a case for each of the aspects that a few lines show.
WRITTEN_AS = {Aspect.INPLACE: Aspect.INPLACE, Aspect.OUT: Aspect.OUT}
WRITTEN_AS |= dict.fromkeys((Aspect.FORWARD, Aspect.TRANSFER, Aspect.REPEAT, Aspect.REFUSAL), Aspect.FORWARD)
WRITTEN_AS |= dict.fromkeys((Aspect.BACKWARD, Aspect.DOUBLE), Aspect.BACKWARD)


def minimal(
    case: Case, aspect: str, device: str, operands: bool = False, strides: bool = False, *, tried: bool = False
) -> str | None:
    """The script, which takes the device as its argument; None if there are more than a few lines, or if it cannot be written
    in torch alone.

    A destination and an operand that is written are printed whole, so that a write outside the view shows; of large results the
    element that differs most. operands: print the operands after the call instead of its result; strides: print the strides of
    its result; tried: whether it will be seen if it shows the finding: then many numbers are drawn anew, and the calls before
    the case are left out.
    """
    written = WRITTEN_AS.get(aspect)  # type: ignore[call-overload]
    if written is None:
        return None
    if tried or aspect == Aspect.REFUSAL:
        case = replace(case, after="", history=(), refused="" if aspect == Aspect.REFUSAL else case.refused)
    try:
        data = data_of(case, written)
        text = "" if data is None else _few_lines(replace(data, strides=strides), Aspect(aspect), device, operands, tried)
    except (Unwritable, ParityError):
        return None
    return text if text and len(text) <= LONGEST and "unpacked(" not in text else None


def _few_lines(t: CaseScript, aspect: Aspect, device: str, operands: bool, tried: bool) -> str:
    function, sources = ("", []) if aspect == Aspect.TRANSFER else function_of(t)
    definitions = _compact([s for s in sources if not s.startswith(("from ", "import "))], function)
    used = set(re.findall(r"\w+", "\n".join(definitions)))
    imports = [s for s in sources if s.startswith(("from ", "import ")) and (used & set(re.findall(r"\w+$", s)) or "KEPT" in s)]
    imports += [s for s in sources if s.startswith("import ") and function.startswith(s.split()[1]) and s not in imports]
    body = _body(t, aspect, function, operands)
    lines = _anew(body, t) if tried else body
    drawn = any(re.search(r"torch\.rand|uniform_\(", line) for line in lines)
    lines = in_mode(t.case, [*(["torch.manual_seed(0)"] if drawn else []), *lines])
    default = device if not device.startswith("sim") else "mps"
    place = f'sys.argv[1] if sys.argv[1:] else "{default}"'
    last = _printed(t, aspect, place)
    head = ["import sys", "", "import torch", *imports]
    if len(lines) + len("\n".join((*head[2:], *definitions, *last)).splitlines()) + 2 > LINES:
        lines = _sharing(lines)
    parts = ["\n".join(head), *definitions, "\n".join(["def run(device):", *(f"    {line}" for line in lines)])]
    text = "\n\n\n".join(parts) + "\n\n" + "\n".join(last) + "\n"
    if re.search(r"\b(nan|inf)\b", text):
        text = text.replace("import torch\n", "import torch\nfrom math import inf, nan\n", 1)
    if sum(map(bool, text.splitlines())) > LINES:
        text = text.replace("import sys\n\nimport torch\n", "import sys, torch\n", 1)
    compile(text, "script", "exec")
    return text


def _printed(t: CaseScript, aspect: Aspect, place: str) -> list[str]:
    """The statements that run it on both sides, and print."""
    digits = [] if FACTS[t.case.dtype].bits < SHOWN_BITS else ["torch.set_printoptions(precision=9)"]
    loop = f'for device in ("cpu", {place}):'
    if t.strides:
        return [*digits, loop, *PRINT_STRIDES]
    if aspect == Aspect.REFUSAL:
        return [*digits, loop, *PRINT_REFUSAL]
    results = [x for name, x in t.result if not name.startswith("base[")]
    made = [o.view for o in t.inputs.operands] if aspect in (Aspect.BACKWARD, Aspect.DOUBLE) else results
    if sum(x.numel() for x in made) > SHOWN and aspect in (Aspect.FORWARD, Aspect.BACKWARD, Aspect.DOUBLE):
        wide = "to(torch.complex128)" if any(x.is_complex() for x in made) else "double()"
        each = "r if t is not None" if len(made) > 1 or aspect != Aspect.FORWARD else "[r]"
        return PRINT_WORST.format(place=place, each=each, wide=wide).splitlines()
    again = ", run(device)" if aspect == Aspect.REPEAT else ""
    return [*digits, loop, f"    print(device, run(device){again})"]


def _compact(sources: Sequence[str], function: str) -> list[str]:
    """The definitions that a function needs, without docstrings and annotations."""
    trees = {_defined(tree): tree for source in sources for tree in ast.parse(source).body}
    needed = [function]
    for name in needed:
        needed += [n for n in _asked_of(trees[name]) if n in trees and n not in needed] if name in trees else []
    return [ast.unparse(_Plain().visit(tree)) for name, tree in trees.items() if name in needed]


def _defined(tree: ast.stmt) -> str:
    target = tree.targets[0] if isinstance(tree, ast.Assign) else getattr(tree, "target", None)
    return target.id if isinstance(target, ast.Name) else getattr(tree, "name", "")


def _asked_of(tree: ast.stmt) -> set[str]:
    """The names that a definition uses, without those of its annotations and arguments."""
    plain = _Plain().visit(ast.parse(ast.unparse(tree)))
    given = {a.arg for a in ast.walk(plain) if isinstance(a, ast.arg)}
    return {n.id for n in ast.walk(plain) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - given


class _Plain(ast.NodeTransformer):
    """Code without docstrings, annotations, checks of arguments, and names for what is only returned."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A function."""
        node.returns = None
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            node.body = node.body[1:]
        return self._joined(node)

    def visit_With(self, node: ast.With) -> ast.With:
        """A context."""
        return self._joined(node)

    def visit_If(self, node: ast.If) -> ast.If | None:
        """A condition; None for a check."""
        return None if isinstance(node.body[0], ast.Raise) and not node.orelse else self._joined(node)

    def _joined(self, node: Block) -> Block:
        self.generic_visit(node)
        for a, b in itertools.pairwise([*node.body]):
            target = a.targets[0] if isinstance(a, ast.Assign) else None
            returned = b.value if isinstance(b, ast.Return) else None
            alike = isinstance(target, ast.Name) and isinstance(returned, ast.Name) and target.id == returned.id
            if isinstance(a, ast.Assign) and alike:
                node.body[-2:] = [ast.copy_location(ast.Return(a.value), b)]
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """An argument."""
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """A name with its type."""
        return node if node.value is None else ast.copy_location(ast.Assign([node.target], node.value), node)


def _sharing(lines: Sequence[str]) -> list[str]:
    """The statements with short assignments in a row as one."""
    made: list[str] = []
    for line in lines:
        ours, theirs = (re.fullmatch(r"(\w+(?:, \w+)*) = ([^\n]+)", x) for x in (made[-1] if made else "", line))
        if (
            ours
            and theirs
            and len(made[-1] + line) < WIDTH
            and not re.search(rf"\b({ours[1].replace(', ', '|')})\b", theirs[2])
        ):
            made[-1] = f"{ours[1]}, {theirs[1]} = {ours[2]}, {theirs[2]}"
        else:
            made.append(line)
    return made


# ------------------------------------------------------------------------------------------------------------ the body


def _body(t: CaseScript, aspect: Aspect, function: str, operands: bool) -> list[str]:
    """The statements of `run`."""
    if aspect == Aspect.TRANSFER:
        return _copies(t)
    lines, leaves = operands_text(t, _put)
    arguments = _plain(arguments_text(t))
    if aspect == Aspect.OUT:
        more, targets = into_text(t, (function, arguments), _put)
        bases = ", ".join(f"{'base' if d.shape and d.base.numel() else 'out'}{i}" for i, d in enumerate(targets))
        return [*lines, *more, f"return {bases}"]
    call = f"{function}({arguments})"
    if operands and not t.writes:
        return [*lines, call, f"return {', '.join(f't{i}' for i in range(len(t.inputs.operands)))}"]
    if aspect in (Aspect.BACKWARD, Aspect.DOUBLE):
        return [*lines, *_gradients(t, call, leaves, aspect == Aspect.DOUBLE)]
    return [*lines, call, "return base"] if t.writes else [*lines, f"return {call}"]


def _put(name: str, base: Tensor, on_cpu: bool) -> str:
    return _literal(base_text(base), base.dtype) + ("" if on_cpu else ".to(device)")


def _copies(t: CaseScript) -> list[str]:
    """Every way of `parity.checks.transfer` for the operands that it copies."""
    lines, copies = [], []
    for i, o in enumerate(t.inputs.operands[: transfer.OPERANDS]):
        if o.spec.on_cpu:
            continue
        base, dtype = _literal(base_text(o.base), o.base.dtype), f"torch.{transfer.copied_as(o.spec)}"
        for name, place in (("near", ""), ("far", ".to(device)")):
            lines.append(f"{name}{i} = {view_text(f'{base}{place}', o.spec.layout, o.spec.shape)}")
        empty = f"torch.empty({tuple(o.spec.shape)}, dtype={dtype}"
        copies += [f"near{i}.to(device, {dtype}, copy=True).cpu()", f"{empty}, device=device).copy_(near{i}).cpu()"]
        copies += [f'far{i}.to("cpu", {dtype}, copy=True)', f"{empty}).copy_(far{i})"]
    if not copies:
        raise Unwritable("no operand is copied")
    return [*lines, "return (", *(f"    {a}, {b}," for a, b in zip(copies[::2], copies[1::2], strict=True)), ")"]


def _gradients(t: CaseScript, call: str, leaves: list[str], twice: bool) -> list[str]:
    fed = cotangents(t, leaves)
    texts = [view_text(_put("", c.base, False), c.layout, c.shape) for c in fed]
    live = ", ".join(filter(None, leaves))
    outputs = "t0" if t.row.forms.mutates else call
    lines = [call] if t.row.forms.mutates else []
    asked = f"[{live}], {texts[0]}"
    if len(fed) > 1 or len(t.result) - t.row.forms.mutates > 1:
        lines += [f"live = [x for x in {outputs} if x.requires_grad]"]
        outputs, asked = "live", f"[{live}], [{', '.join(texts)}]"
    if not twice:
        return [*lines, f"return torch.autograd.grad({outputs}, {asked}, allow_unused=True)"]
    return [
        *lines,
        f"first = torch.autograd.grad({outputs}, {asked}, create_graph=True, allow_unused=True)",
        "first = [g for g in first if g is not None and g.requires_grad]",
        f"return torch.autograd.grad(first, [{live}], [torch.ones_like(g) for g in first], allow_unused=True)",
    ]


def _literal(text: str, dtype: torch.dtype) -> str:
    """A base without what is the default, shapes of one dimension and float32, and without digits that it does not need."""
    if "unpacked(" in text:
        return text
    if dtype in (torch.float32, torch.complex64):
        text = re.sub(r"\d+\.\d+(e[-+]\d+)?", lambda m: str(np.float32(m[0])), text)
    text = re.sub(r"\s*\n\s*", " ", text).replace("[ ", "[").replace(" ]", "]")
    text = re.sub(r"\.reshape\(\(\d+,\)\)$", "", text)
    text = re.sub(r"torch\.tensor\(\[([^\[\],]+)\], dtype=([\w.]+)\)\.reshape\(\(\)\)$", r"torch.tensor(\1, dtype=\2)", text)
    if "." in text.partition("dtype")[0].partition("(")[2]:
        text = text.replace(", dtype=torch.float32)", ")")
    return text if len(text) <= WIDTH else "\n        ".join(textwrap.wrap(text, WIDTH, break_long_words=False))


def _plain(arguments: str) -> str:
    """Arguments for one dtype alone."""
    return re.sub(r"wider\(([\w.]+), wide\)", r"\1", arguments)


# ------------------------------------------------------------------------------------------------- many numbers, drawn anew

PACKED = re.compile(r"unpacked\(\n(?:.*\n)*?\s+(torch\.\w+),\n\)\.reshape\((\([\d, ]*\))\)")


def _anew(lines: Sequence[str], t: CaseScript) -> list[str]:
    """The statements with numbers like those of the case in place of many."""
    fed = cotangents(t, operands_text(t, _put)[1]) if t.aspect == Aspect.BACKWARD else []
    every = [*(o.base for o in t.inputs.operands), *(d.base for d in fed)]
    bases = {_literal(base_text(base), base.dtype): base for base in every if base.numel() > FEW}

    def like(text: str) -> str:
        for exact, base in bases.items():
            if exact in text and not exact.startswith("torch.full("):
                with contextlib.suppress(*([] if "unpacked(" in exact else [Unwritable])):
                    text = text.replace(exact, _like(base))
        return PACKED.sub(drawn, text)

    def drawn(m: re.Match[str]) -> str:
        """A cotangent; few numbers are packed where text cannot say them."""
        return f"torch.randn({m[2]}).to({m[1]})" if math.prod(ast.literal_eval(m[2])) > FEW else m[0]

    return [like(line) for line in lines]


def _like(x: Tensor) -> str:
    """An expression for numbers of the same range, in the same shape and dtype. Raises Unwritable where they are of no even
    distribution."""
    shape, dtype = tuple(x.shape), str(x.dtype)
    if x.dtype is torch.bool:
        return f"(torch.rand({shape}) < {float(x.double().mean()):.2g})"
    if not bool(x.isfinite().all()):
        raise Unwritable("numbers that are not finite")
    symmetric = x.dim() > 1 and x.shape[-1] == x.shape[-2] and torch.equal(x, x.mH)
    if x.is_complex():
        text = f"((torch.rand({shape}, dtype={dtype}) - complex(0.5, 0.5)) * {2 * math.ceil(float(x.abs().max()))})"
        return f"(lambda x: (x + x.mH) / 2)({text})" if symmetric else text
    low, high = x.min().item(), x.max().item()
    if not x.is_floating_point() or bool((x == x.round()).all()):
        some = x.flatten()
        if not x.is_floating_point() and some.numel() == high - low + 1 and len(set(some.tolist())) == some.numel() > 1:
            return f"(torch.randperm({some.numel()}) + {low}).to({dtype}).reshape({shape})"
        return f"torch.randint({int(low)}, {int(high) + 1}, {shape}, dtype={dtype})"
    size = x.abs().double()
    if float(size.max()) > SPREAD * float(size.median()):
        raise Unwritable("numbers of very unlike sizes")
    low, high = math.floor(low * 8) / 8, math.ceil(high * 8) / 8
    kind = "" if x.dtype is torch.float32 else f", dtype={dtype}"
    text = f"torch.empty({shape}{kind}).uniform_({low}, {high})"
    return f"(lambda x: (x + x.mT) / 2)({text})" if symmetric else text
