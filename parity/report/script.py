"""A finding as a Python script that needs only torch: for a bug report, or a machine without parity.

`standalone` and `call_script` contain the bytes of the bases (or their elements, if they are few), upload them, make the views
on the device with torch's own view calls, and run one aspect on the CPU, on the device, and in float64 on the CPU, and judge.
The few lines of `parity.report.short_script` are for reading.
"""

from __future__ import annotations

import ast
import base64
import functools
import importlib
import inspect
import itertools
import math
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_map

from parity import catalog
from parity.catalog import entries, module_entries, opinfo
from parity.catalog.glue import aten
from parity.catalog.row import Row
from parity.checks.equivalents import on_the_cpu
from parity.checks.operators import OperatorCall, StridedOperand
from parity.checks.trial import SELDOM, values
from parity.core import notation
from parity.core.case import Case, Layout, Slice, Word
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, ParityError
from parity.core.layout import base_shape, channels_last_permutation
from parity.core.results import Aspect, Raised
from parity.execution import execute
from parity.execution.execute import Destination, Placed
from parity.execution.inputs import Inputs, Slot, build, raw_bytes
from parity.generation import room
from parity.judging.rules import rule_of
from parity.locating.located import Divergence
from parity.report.script_text import AGAIN, STRIDES, judging

LARGEST = 1 << 20  # bytes of all operands of an operator's call
LITERAL = 64  # most elements to write out; larger tensors are written as compressed bytes
MODES = {"no_grad": "with torch.no_grad():", "inference": "with torch.inference_mode():"}
DETERMINISTIC = "torch.use_deterministic_algorithms(True)"
CALLS = tuple(f"parity.catalog.glue.{module}" for module in ("calls", "steps", "into", "layers", "entries", "sparse"))
ATEN = "parity.catalog.glue.aten"
# Names that a glue function may use in addition to builtins and its own module's functions, with their imports.
IMPORTS = {
    "Callable": "from collections.abc import Callable", "contextlib": "import contextlib", "copy": "import copy",
    "mock": "from unittest import mock", "sys": "import sys", "warnings": "import warnings",
    "optimizers": "from torch.optim import optimizer as optimizers",
    "_get_fused_kernels_supported_devices": "from torch.utils._foreach_utils import _get_fused_kernels_supported_devices",
    "F": "from torch.nn import functional as F", "Tensor": "from torch import Tensor", "Any": "from typing import Any",
}  # fmt: skip


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

    @property
    def writes(self) -> bool:
        """Whether the call writes its first operand."""
        return self.row.forms.mutates or self.aspect == Aspect.INPLACE


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


def data_of(case: Case, aspect: str, kept: bool = False, dies: bool = False) -> CaseScript | None:
    """What a script of a case needs; None if there are no results to print next to each other, several calls, a call that
    raises, or one that parity assembles itself. dies: no results are to be compared, so that they
    may be random. Raises Unwritable, or CaseError if the case cannot be built here."""
    row = entries.row(case.op)
    if case.dtype not in FACTS:
        raise CaseError(f"'{case.dtype}' is no dtype")
    if (elements := room.elements(row, case)) > room.MOST:
        raise CaseError(f"the case takes {elements:,} elements, and scripts are written of at most {room.MOST:,}")
    known = aspect in tuple(Aspect) and aspect not in SELDOM
    if not (dies or rule_of(row).has_values) or case.after or case.history or case.refused or not known:
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
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            name = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            definitions |= {name.id: node} if isinstance(name, ast.Name) else {}
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
    if module == ATEN:
        return f"torch.ops.aten.{name}", []
    if module == "operator":
        return path, ["import operator"]
    if not path.startswith("torch."):
        raise Unwritable(path)
    own, file = catalog.registers(t.row.name)
    if own:
        return path, [f"import {own}"]
    return path, [f"import runpy\n\nKEPT = runpy.run_path({file!r})  # registers the operator"] if file else []


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
        if not hasattr(torch, a.name):
            raise CaseError(f"the case names '{a.name}', and torch has nothing of that name")
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
        return "-nan" if a != a and math.copysign(1.0, a) < 0.0 else notation.number(a)
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
    values = [math.copysign(math.nan, x) if isinstance(x, float) and x != x else x for x in elements]
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


# ------------------------------------------------------------------------------------------------------------ the body


Put = Callable[[str, Tensor, bool], str]  # name of a base, the base, whether it stays on the CPU -> the base there


def operands_text(t: CaseScript, put: Put) -> tuple[list[str], list[str]]:
    """(statements, leaves): those that make the operands t0, t1 ..., and the names of what gets gradients, by operand."""
    lines: list[str] = []
    leaves = []
    for i, o in enumerate(t.inputs.operands):
        shared = [k for k, x in enumerate(t.inputs.operands[:i]) if x.base is o.base and not (t.writes and not k)]
        base = f"t{shared[0]}.detach()" if shared else put(f"BASE_{i}", o.base, o.spec.on_cpu)
        leaf = t.aspect == Aspect.BACKWARD and o.spec.grad and (o.view.is_floating_point() or o.view.is_complex())
        if t.writes and i == 0:
            lines.append(f"base = {base}" + (".requires_grad_()" if leaf else ""))
            lines += ["leaf = base", "base = base.clone()"] if leaf else []
            lines.append(f"t0 = {view_text('base', o.spec.layout, o.spec.shape)}")
            leaves.append("leaf" if leaf else "")
            continue
        if shared:
            lines += [f"kept{i} = kept{shared[0]}"] if t.kept else []
            lines.append(f"t{i} = {base}" + (".requires_grad_()" if leaf else ""))
            leaves.append(f"t{i}" if leaf else "")
            continue
        if t.kept:
            lines.append(f"kept{i} = {base}")
            base = f"kept{i}"
        view = view_text(base, o.spec.layout, o.spec.shape)
        lines.append(f"t{i} = {view}" + (f"{'.detach()' * t.kept}.requires_grad_()" if leaf else ""))
        leaves.append(f"t{i}" if leaf else "")
    return lines, leaves


def into_text(t: CaseScript, call: tuple[str, str], put: Put) -> tuple[list[str], list[Destination]]:
    """The statements that make the destinations out0, out1 ... over base0, base1 ..., with the call of (function, arguments)
    into them. Raises Unwritable if there are none."""
    targets = [execute.destination(x.detach(), t.case.into) for _, x in t.result]
    if not targets:
        raise Unwritable("no output")
    lines = []
    for i, d in enumerate(targets):
        lines.append(f"base{i} = {put(f'OUT_{i}', d.base, False)}")
        lines.append(f"out{i} = {view_text(f'base{i}', d.layout, d.shape)}")
    outs = [f"out{i}" for i in range(len(targets))]
    named = [f"out={outs[0] if len(outs) == 1 else '(' + ', '.join(outs) + ')'}"]
    module, _, operator = t.row.call.rpartition(".")
    if module == ATEN:  # whose names are the operator's own
        names = aten.destinations(getattr(torch.ops.aten, operator))
        named = [f"{name}={out}" for name, out in zip(names, outs, strict=True)]
    return [*lines, f"{call[0]}({', '.join([*filter(None, call[1:]), *named])})"], targets


def cotangents(t: CaseScript, leaves: Sequence[str]) -> list[Destination]:
    """What is fed back into the results that have gradients. Raises Unwritable if there are none."""
    live = [x for n, x in t.result if x.requires_grad and not n.startswith("base[")]
    if not live or not any(leaves):
        raise Unwritable("no gradient")
    return [execute.cotangent(t.case.cotangent, x, i, values) for i, x in enumerate(live)]


# ------------------------------------------------------------------------------------------------- the script that judges


def _run(t: CaseScript, function: str) -> tuple[list[str], list[str]]:
    """(bases, lines of `run`): what the aspect does, as statements that use `put`."""
    bases: list[str] = []

    def put(name: str, base: Tensor, on_cpu: bool) -> str:
        bases.append(f"{name} = {base_text(base)}")
        place = '"cpu"' if on_cpu else "device"
        return f"put({name}, {place}, wide)"

    lines, leaves = operands_text(t, put)
    arguments = arguments_text(t)
    call = f"{function}({arguments})"
    fed = cotangents(t, leaves) if t.aspect == Aspect.BACKWARD else []
    if fed:
        lines += [f"fed{i} = {put(f'COTANGENT_{i}', c.base, False)}" for i, c in enumerate(fed)]
        views = [view_text(f"fed{i}", c.layout, c.shape) for i, c in enumerate(fed)]
        lines += [call, "outputs = [t0]"] if t.row.forms.mutates else [f"outputs = tensors({call})"]
        lines += [
            "live = [t for t in outputs if t.requires_grad]",
            f"cotangents = [{', '.join(views)}]",
            "cotangents = [c.to(t.dtype) for c, t in zip(cotangents, live)]",
            f"gradients = torch.autograd.grad(live, [{', '.join(filter(None, leaves))}], cotangents, allow_unused=True)",
            f"names = [{', '.join(repr(f'grad[{i}]') for i, leaf in enumerate(leaves) if leaf)}]",
            "return {n: g for n, g in zip(names, gradients) if g is not None}",
        ]
    elif t.writes:
        lines += [call, 'return {"base[out]": base}  # all of it: what is written outside the view shows']
    elif t.aspect == Aspect.OUT:
        more, targets = into_text(t, (function, arguments), put)
        returned = ", ".join(f'"base[out{i}]": base{i}' for i in range(len(targets)))
        lines += [*more, f"return {{{returned}}}  # all of it: a write outside the view shows"]
    else:
        lines += [f"outputs = tensors({call})", 'return {f"out[{i}]": t for i, t in enumerate(outputs)}']
    if t.kept:
        names = [f'"operand[{i}]": kept{i}' for i in range(int(t.writes), len(t.inputs.operands))]
        names += [f'"cotangent[{i}]": fed{i}' for i in range(len(fed))]
        lines[-1] = f"return {{{', '.join(names)}}}  # all of each: a write outside the view shows"
    return bases, lines


def _text(t: CaseScript, device_name: str, title: str) -> str:
    function, sources = function_of(t)
    bases, lines = _run(t, function)
    several = f"\n\nSeveral answers may be right here ({t.row.judged.relation}); then they need not be equal."
    case = textwrap.fill(notation.case_text(t.case), 118, break_long_words=False, break_on_hyphens=False)
    exact = rule_of(t.row).by_element and t.aspect != Aspect.BACKWARD
    flags = [f"ELEMENTWISE = {exact}  # each element is judged by its own rounding", f"WIDE = {t.row.judged.oracle == 'wide'}"]
    return judging(
        title,
        case + (several if t.row.judged.relation else ""),
        in_mode(t.case, lines),
        [*flags, *bases],
        device_name,
        sources,
        more=(AGAIN if t.aspect == Aspect.REPEAT else "") + (STRIDES if t.strides else ""),
    )


def in_mode(case: Case, lines: Sequence[str]) -> list[str]:
    """The statements in the mode of a case."""
    if case.under == "grad":
        return [*lines]
    mode = MODES.get(case.under, DETERMINISTIC)
    return [mode, *(f"    {line}" for line in lines)] if mode.endswith(":") else [mode, *lines]


# ---------------------------------------------------------------------------------------------- the call of an operator


def call_script(p: Divergence, device_name: str) -> str:
    """The script, which runs the call on the CPU and on a device, also in float64, and judges. Raises Unwritable, with the
    reason, for what is no single call of torch or is too large to be written down."""
    call = p.call
    operator = None if call is None else on_the_cpu(call.operator)
    if call is None or not isinstance(operator, (OpOverload, OpOverloadPacket)):
        raise Unwritable(f"{p.operator} is not an operator that the CPU has, too; parity run tests it")
    bases = {x.group: x.base for x in call.operands}
    size = sum(b.numel() * b.element_size() for b in bases.values())
    if size > LARGEST:
        many = f"{size >> 10} KiB, and a script holds {LARGEST >> 10}"
        raise Unwritable(f"the operands of {p.operator} take {many}; try a smaller model")
    constants = ["ELEMENTWISE = False", "WIDE = True", *(f"BASE_{g} = {base_text(b)}" for g, b in bases.items())]
    title = f"{p.operator} in {p.title} of a model: {p.verdict.status}"
    return judging(title, str(call.operator._schema), _lines(call, str(operator)), constants, device_name)


def _lines(call: OperatorCall, operator: str) -> list[str]:
    """The body of `run`. operator: "aten.gelu.default"."""
    places = {x.group: '"cpu"' if x.on_cpu else "device" for x in call.operands}
    lines = [f"base{g} = put(BASE_{g}, {place}, wide)" for g, place in places.items()]
    for k, x in enumerate(call.operands):
        view = f"base{x.group}.as_strided({list(x.shape)}, {list(x.strides)}, {x.offset})"
        view = f"{view}.conj()" if x.conj else view
        lines.append(f"t{k} = torch._neg_view({view})" if x.neg else f"t{k} = {view}")
    number = itertools.count()
    args, kwargs = tree_map(lambda x: Slot(next(number)) if isinstance(x, StridedOperand) else x, (call.args, call.kwargs))
    given = ", ".join([*map(expression, args), *(f"{n}={expression(v)}" for n, v in kwargs.items())])
    kept = "".join(f', "operand[{k}]": t{k}' for k in sorted(call.written | call.statistics))
    lines += [f"outputs = tensors(torch.ops.{operator}({given}))"]
    return [*lines, f'return {{**{{f"out[{{i}}]": t for i, t in enumerate(outputs)}}{kept}}}']
