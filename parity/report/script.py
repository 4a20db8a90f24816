"""A finding as a Python script that needs only torch: for a bug report, or a machine without parity.

The script contains the bytes of the bases (or their elements, if they are few), uploads them, makes the views on the device
with torch's own view calls, and runs one aspect on the CPU, on the device, and in float64 on the CPU.
"""

from __future__ import annotations

import ast
import base64
import functools
import importlib
import inspect
import math
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parity.catalog import entries, module_entries, opinfo
from parity.catalog.row import Row
from parity.checks.trial import SELDOM, values
from parity.core import notation
from parity.core.case import Case, Layout, Slice, Word
from parity.core.dtypes import FACTS
from parity.core.errors import ParityError
from parity.core.layout import base_shape, channels_last_permutation
from parity.core.results import Aspect, Raised
from parity.execution import execute
from parity.execution.execute import Destination, Placed
from parity.execution.inputs import Inputs, Slot, build, fill_like, raw_bytes
from parity.judging.rules import rule_of
from parity.report.script_text import AGAIN, HEAD, NAMED, REAL, STRIDES, TAIL

LITERAL = 64  # most elements to write out; larger tensors are written as compressed bytes
MODES = {"no_grad": "with torch.no_grad():", "inference": "with torch.inference_mode():"}
DETERMINISTIC = "torch.use_deterministic_algorithms(True)"
CALLS = tuple(f"parity.catalog.glue.{module}" for module in ("calls", "steps", "into", "layers", "entries", "sparse"))
ATEN = "parity.catalog.glue.aten"
# Names that a glue function may use in addition to builtins and its own module's functions, with their imports.
IMPORTS = {
    "Callable": "from collections.abc import Callable",
    "contextlib": "import contextlib",
    "copy": "import copy",
    "mock": "from unittest import mock",
    "optimizers": "from torch.optim import optimizer as optimizers",
    "_get_fused_kernels_supported_devices": "from torch.utils._foreach_utils import _get_fused_kernels_supported_devices",
    "sys": "import sys",
    "warnings": "import warnings",
    "F": "from torch.nn import functional as F",
    "Tensor": "from torch import Tensor",
    "Any": "from typing import Any",
}


class Unwritable(Exception):  # not an error: it only stops the writing
    """The case cannot be written in torch alone."""


@dataclass(frozen=True, slots=True)
class CaseScript:
    """The parts of a finding that the script needs. result: the outputs of the CPU, for the shapes of cotangents and
    destinations. kept: whether the finding is about operands (and cotangents) that the call must leave unchanged. strides:
    whether it is about the strides of results."""

    case: Case
    row: Row
    aspect: str
    inputs: Inputs
    result: tuple[tuple[str, Tensor], ...]
    kept: bool = False
    strides: bool = False


def standalone(case: Case, aspect: str, device_name: str, title: str, kept: bool = False, strides: bool = False) -> str | None:
    """The script, or None if the case cannot be written in torch alone (private test data, functions without source). kept:
    compare the operands after the call instead of its results; strides: compare the strides of its results, too.

    The script takes the device as its argument and prints the three results and the largest difference. Its exit code is 1 if
    device and CPU differ by more than a few roundoffs, 2 if it compared nothing, else 0.
    """
    try:
        data = data_of(case, aspect, kept)
        return None if data is None else _text(replace(data, strides=strides), device_name, title)
    except (Unwritable, ParityError):
        return None


def data_of(case: Case, aspect: str, kept: bool = False) -> CaseScript | None:
    """What a script of a case needs; None if there are no results to print next to each other, several calls, a call that
    raises, or one that parity assembles itself. Raises Unwritable, or CaseError if the case cannot be built here."""
    row = entries.row(case.op)
    known = aspect in tuple(Aspect) and aspect not in SELDOM
    if not rule_of(row).has_values or case.after or case.history or case.refused or not known:
        return None
    inputs = build(case)
    return CaseScript(case, row, aspect, inputs, _outputs(case, row, inputs), kept)


def _outputs(case: Case, row: Row, inputs: Inputs) -> tuple[tuple[str, Tensor], ...]:
    placed = Placed(tuple(o.base for o in inputs.operands), tuple(o.view for o in inputs.operands))
    live = execute.attempt(lambda: execute.forward(execute.program(row), case, inputs, placed, True), "run")
    if isinstance(live, Raised):  # some ops refuse gradients for this dtype; a run without them gives the shapes, too
        live = execute.attempt(lambda: execute.forward(execute.program(row), case, inputs, placed, False), "run")
    return () if isinstance(live, Raised) else live.outputs


# ------------------------------------------------------------------------------------------------------------ the call


@functools.cache
def _glue(module: str) -> dict[str, ast.stmt]:
    """The top-level definitions of a module of parity's glue functions, by name."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    definitions: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            definitions[node.targets[0].id] = node
    return definitions


def _names(node: ast.AST) -> Iterator[str]:
    yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _sources(path: str, name: str) -> list[str]:
    """The source of a glue function, preceded by the imports and definitions that it uses."""
    module, glue = importlib.import_module(path), _glue(path)
    text = inspect.getsource(module)
    order: list[str] = []

    def visit(n: str) -> None:
        if n in glue and n not in order:
            for inner in _names(glue[n]):
                if inner != n:
                    visit(inner)
            order.append(n)

    visit(name)
    if name not in order:
        raise Unwritable(name)
    used = {n for d in order for n in _names(glue[d])}
    foreign = {n for n in used if hasattr(module, n)} - {"torch", *IMPORTS, *glue}
    if foreign:
        raise Unwritable(f"{name} needs {foreign}")
    imports = [line for word, line in IMPORTS.items() if word in used]
    return [*imports, *(ast.get_source_segment(text, glue[n]) or "" for n in order)]


def function_of(t: CaseScript) -> tuple[str, list[str]]:
    """(expression, source to put before it) of the function that the aspect calls."""
    inplace = t.aspect == Aspect.INPLACE and not t.row.forms.mutates
    if t.row.family == "opinfo":
        function, inplace_form, _ = opinfo.callables(t.row.name)
        return _public(t.row.name.removeprefix(opinfo.PREFIX), inplace_form if inplace else function, inplace), []
    path = t.row.forms.inplace if inplace else t.row.call
    module, _, name = path.rpartition(".")
    if module in CALLS:
        return name, _sources(module, name)
    if module == ATEN and t.aspect != Aspect.OUT:  # an out= form names its destinations differently
        return f"torch.ops.aten.{name}", []
    if module == "operator":
        return path, ["import operator"]
    if not path.startswith("torch."):
        raise Unwritable(path)
    return path, []


def _public(entry: str, function: Callable[..., Any] | None, inplace: bool) -> str:
    """The dotted path under which torch publishes an OpInfo entry's function."""
    name = entry.partition(":")[0] + ("_" if inplace else "")
    for path in (f"torch.{name}", f"torch.Tensor.{name.rpartition('.')[2]}"):
        try:
            if execute.attribute(path) is function or execute.attribute(path) == function:
                return path
        except ParityError:
            continue
    raise Unwritable(entry)


def arguments_text(t: CaseScript) -> str:
    """The arguments as text, with the operands as t0, t1 ..."""
    if not t.row.is_sampled:
        args, kwargs = t.inputs.args, t.inputs.kwargs
    else:
        pinned, index = dict(t.case.kwargs), t.case.args[0]
        assert isinstance(index, int)
        slots = [Slot(i) for i in range(len(t.inputs.operands))]
        pinned_by = str(pinned.get("torch")), str(pinned.get("digest"))
        args, kwargs = entries.assemble(t.case.op, t.case.dtype, index, slots, *pinned_by)
    return ", ".join([*map(expression, args), *(f"{k}={expression(v)}" for k, v in kwargs.items())])


def expression(a: Any) -> str:
    """An argument as an expression. Raises Unwritable if it has none."""
    if isinstance(a, Slot):
        return f"t{a.index}"
    if isinstance(a, Word):
        return expression(getattr(torch, a.name))
    if isinstance(a, torch.dtype):
        kind = FACTS[str(a).removeprefix("torch.")].kind if str(a).removeprefix("torch.") in FACTS else ""
        return f"wider({a}, wide)" if kind in ("float", "complex") else str(a)
    if isinstance(a, (torch.memory_format, torch.layout)):
        return str(a)
    if isinstance(a, (Slice, slice)):
        return f"slice({expression(a.start)}, {expression(a.stop)}, {expression(a.step)})"
    if isinstance(a, list):
        return "[" + ", ".join(map(expression, a)) + "]"
    if type(a) in (tuple, torch.Size):
        return "(" + ", ".join(map(expression, a)) + ("," if len(a) == 1 else "") + ")"
    if isinstance(a, torch.device) or (isinstance(a, str) and a == "cpu"):
        return "device"
    if a is None or type(a) in (bool, int, str):
        return repr(a)
    if type(a) is float:
        return notation.number(a)
    if type(a) is complex:
        return f"complex({notation.number(a.real)}, {notation.number(a.imag)})"
    return _special(a)


def _special(a: Any) -> str:
    """`expression` of what only samples hold, and of `...`."""
    if a is Ellipsis:
        return "..."
    if isinstance(a, dict):
        return "{" + ", ".join(f"{k!r}: {expression(v)}" for k, v in a.items()) + "}"
    if isinstance(a, module_entries.Make) and a.text:
        return f"lambda: {a.text}"
    raise Unwritable(repr(a))


# --------------------------------------------------------------------------------------------------------- the tensors


def _shape(shape: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def base_text(t: Tensor) -> str:
    """An expression for a dense CPU tensor that gives the same bits."""
    n, dtype = t.numel(), str(t.dtype)
    if n == 0:
        return f"torch.empty({_shape(t.shape)}, dtype={dtype})"
    flat = t.detach().reshape(-1)
    if n > 2 and raw_bytes(flat) == raw_bytes(flat[:1].expand(n)) and _reads_back(flat[:1].tolist(), flat[:1]):
        return f"torch.full({_shape(t.shape)}, {expression(flat[0].item())}, dtype={dtype})"
    if n <= LITERAL:
        elements = flat.tolist()
        if _reads_back(elements, flat):
            inner = textwrap.fill(", ".join(map(expression, elements)), 110, break_long_words=False)
            inner = inner if "\n" not in inner else "\n" + textwrap.indent(inner, "    ") + "\n"
            return f"torch.tensor([{inner}], dtype={dtype}).reshape({_shape(t.shape)})"
    packed = base64.b64encode(zlib.compress(raw_bytes(t), 9)).decode()
    lines = "\n".join(f'    b"{part}"' for part in textwrap.wrap(packed, 110))
    return f"unpacked(\n{lines},\n    {dtype},\n).reshape({_shape(t.shape)})"


def _reads_back(elements: list[Any], t: Tensor) -> bool:
    """Whether the elements as text give the same bits again (signs and payloads of NaN and 64-bit unsigned numbers may not)."""
    values = [math.nan if isinstance(x, float) and x != x else x for x in elements]
    signed = any(isinstance(x, complex) and math.copysign(1.0, y) < 0.0 for x in elements for y in _nans(x))
    try:
        return not signed and raw_bytes(torch.tensor(values, dtype=t.dtype)) == raw_bytes(t)
    except (RuntimeError, OverflowError):
        return False


def _nans(x: complex) -> list[float]:
    return [part for part in (x.real, x.imag) if part != part]


def view_text(name: str, layout: Layout, shape: tuple[int, ...]) -> str:
    """The view as torch calls on its base."""
    text = name
    for k, (word, *ints) in enumerate(layout):
        before, after = (base_shape(shape, layout[at:]) for at in (k, k + 1))
        i = [int(x) for x in ints]
        if word == "flat":
            text += f"[{i[0]}:{before[0] - i[1]}].view({_shape(after)})"
        elif word == "select":
            text += f"[{i[0]}]"
        elif word == "slice":
            text += f".narrow({i[0]}, {i[1]}, {before[i[0]] - i[1] - i[2]})"
        elif word == "step":
            text += f"[{':, ' * (i[0] % len(before))}{i[2]}::{i[1]}]"
        elif word == "channels_last":
            text += f".permute({_shape(channels_last_permutation(len(before)))})"
        elif word in ("transpose", "permute"):
            text += f".{word}({', '.join(map(str, i))})"
        elif word == "expand":
            text += f".expand({_shape(after)})"
        else:
            text = f"{text}.conj()" if word == "conj" else f"torch._neg_view({text})"
    return text


def cotangents_of(t: CaseScript) -> list[Destination]:
    live = [x for n, x in t.result if x.requires_grad and not n.startswith("base[")]
    return [execute.cotangent(t.case.cotangent, x, i, values) for i, x in enumerate(live)]


# ------------------------------------------------------------------------------------------------------------ the body


def _run(t: CaseScript) -> tuple[list[str], list[str]]:
    """(bases, lines of `run`): what the aspect does, as statements that use `put`."""
    function, _ = function_of(t)
    call = f"{function}({arguments_text(t)})"
    bases = [f"BASE_{i} = {base_text(o.base)}" for i, o in enumerate(t.inputs.operands)]
    backward = t.aspect == Aspect.BACKWARD
    writes = t.row.forms.mutates or t.aspect == Aspect.INPLACE
    lines: list[str] = []
    leaves: list[int] = []
    fed = cotangents_of(t) if backward else []
    for i, o in enumerate(t.inputs.operands):
        place = '"cpu"' if o.spec.on_cpu else "device"
        leaf = backward and o.spec.grad and (o.view.is_floating_point() or o.view.is_complex())
        leaves += [i] if leaf else []
        if writes and i == 0:
            grad = ".requires_grad_()" if leaf else ""
            lines += [f"base = put(BASE_0, {place}, wide){grad}"]
            lines += ["leaf0 = base", "base = base.clone()"] if leaf else []
            lines += [f"t0 = {view_text('base', o.spec.layout, o.spec.shape)}"]
            continue
        base = f"put(BASE_{i}, {place}, wide)"
        if t.kept:
            base, lines = f"kept{i}", [*lines, f"kept{i} = {base}"]
        view = view_text(base, o.spec.layout, o.spec.shape)
        lines.append(f"t{i} = {view}" + (".detach().requires_grad_()" if leaf else ""))
        lines += [f"leaf{i} = t{i}"] if leaf else []
    if backward:
        if not fed or not leaves:
            raise Unwritable("no gradient")
        bases += [f"COTANGENT_{i} = {base_text(c.base)}" for i, c in enumerate(fed)]
        lines += [f"fed{i} = put(COTANGENT_{i}, device, wide)" for i in range(len(fed))]
        cotangents = [view_text(f"fed{i}", c.layout, c.shape) for i, c in enumerate(fed)]
        lines += [call, "outputs = [t0]"] if t.row.forms.mutates else [f"outputs = tensors({call})"]
        named = "".join(f"leaf{i}, " for i in leaves)
        lines += [
            "live = [t for t in outputs if t.requires_grad]",
            f"cotangents = [{', '.join(cotangents)}]",
            "cotangents = [c.to(t.dtype) for c, t in zip(cotangents, live)]",
            f"gradients = torch.autograd.grad(live, [{named[:-2]}], cotangents, allow_unused=True)",
            f"names = [{', '.join(repr(f'grad[{i}]') for i in leaves)}]",
            "return {n: g for n, g in zip(names, gradients) if g is not None}",
        ]
    elif writes:
        lines += [call, 'return {"base[out]": base}  # all of it: what is written outside the view shows']
    elif t.aspect == Aspect.OUT:
        bases, lines = _out(t, bases, lines, function)
    else:
        lines += [f"outputs = tensors({call})", 'return {f"out[{i}]": t for i, t in enumerate(outputs)}']
    if t.kept:
        names = [f'"operand[{i}]": kept{i}' for i in range(int(writes), len(t.inputs.operands))]
        names += [f'"cotangent[{i}]": fed{i}' for i in range(len(fed))]
        lines[-1] = f"return {{{', '.join(names)}}}  # all of each: a write outside the view shows"
    return bases, lines


def destinations_of(t: CaseScript) -> list[Destination]:
    """The destinations of the out= form. Raises Unwritable if there is none."""
    targets = [execute.destination(x.detach(), t.case.into) for _, x in t.result]
    if not targets:
        raise Unwritable("no output")
    return targets


def _out(t: CaseScript, bases: list[str], lines: list[str], function: str) -> tuple[list[str], list[str]]:
    targets = destinations_of(t)
    for i, d in enumerate(targets):
        bases.append(
            f"OUT_{i} = torch.full({_shape(d.base.shape)}, {expression(fill_like(d.base.dtype))}, dtype={d.base.dtype})"
        )
        lines += [f"base{i} = put(OUT_{i}, device, wide)", f"out{i} = {view_text(f'base{i}', d.layout, d.shape)}"]
    outs = ", ".join(f"out{i}" for i in range(len(targets)))
    given = ", ".join(x for x in (arguments_text(t), f"out={outs if len(targets) == 1 else f'({outs})'}") if x)
    returned = ", ".join(f'"base[out{i}]": base{i}' for i in range(len(targets)))
    return bases, [*lines, f"{function}({given})", f"return {{{returned}}}  # all of it: a write outside the view shows"]


def _text(t: CaseScript, device_name: str, title: str) -> str:
    bases, lines = _run(t)
    if mode := mode_line(t.case):
        lines = [mode, *(f"    {line}" for line in lines)] if mode.endswith(":") else [mode, *lines]
    _, sources = function_of(t)
    imports = [line for line in sources if line.startswith(("from ", "import "))]
    definitions = [s for s in sources if s not in imports]
    simulated = device_name.partition(":")[0] == "sim"
    remark = (
        ""
        if not t.row.judged.relation
        else f"\nSeveral answers may be right here ({t.row.judged.relation}); then they need not be equal.\n"
    )
    head = HEAD.format(
        title=quoted(title),
        case=quoted(textwrap.fill(notation.case_text(t.case), 118, break_long_words=False, break_on_hyphens=False)),
        remark=remark,
        default="default: mps or cuda, it was found on a simulated device" if simulated else f"default: {device_name}",
        imports="\n".join(sorted(["import base64", "import sys", "import zlib"]) + ["", "import torch", *imports]),
    )
    exact = rule_of(t.row).by_element and t.aspect != Aspect.BACKWARD
    flags = f"ELEMENTWISE = {exact}  # each element is judged by its own rounding\nWIDE = {t.row.judged.oracle == 'wide'}"
    body = "\n".join(
        ["def run(device, wide):", '    """The call on a device, its results by name; wide: in float64."""']
        + [f"    {line}" for line in lines]
    )
    tail = TAIL.replace("@MORE@", (AGAIN if t.aspect == Aspect.REPEAT else "") + (STRIDES if t.strides else ""))
    default = REAL if simulated else NAMED.format(name=device_name)
    parts = [head.rstrip(), *definitions, "\n".join([flags, *bases]), body, default.rstrip(), tail.rstrip()]
    text = "\n\n\n".join(parts) + "\n"
    compile(text, "script", "exec")
    return text


def mode_line(case: Case) -> str:
    """The statement that sets the mode of a case: a `with` line, another one, or ""."""
    return "" if case.under == "grad" else MODES.get(case.under, DETERMINISTIC)


def quoted(text: str) -> str:
    """Escape a text for use inside a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")
