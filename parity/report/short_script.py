"""The few lines of plain torch that a bug report begins with: literal values, plain view calls, one call on the CPU and on the
device, and what both give."""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from parity.checks import inputs_unchanged, metadata, transfer
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.errors import ParityError
from parity.core.observer import Functions, name_of
from parity.core.results import Aspect
from parity.execution import execute
from parity.execution.execute import Destination
from parity.execution.inputs import build, torch_word
from parity.report import script
from parity.report.script import CaseScript, Unwritable, base_text, cotangents, operands_text, view_text
from parity.report.script_text import WIDTH, nested, on_fewer_lines

SHOWN_BITS = 32  # of dtypes whose differences may not show in the four digits that torch prints
LONGEST = 4000  # most characters of a script that is worth reading
LINES = 15  # of a script, not counted those that are empty, beyond which imports share one
ATEN_PICKED = "__getitem__"
ATEN_MOVED = ("torch.Tensor.cpu", "torch.Tensor.to")
DRAWN = r"torch\.rand|uniform_\("
FEW = 8  # numbers of an operand that are not drawn anew
SHOWN = 64  # most elements of results that are printed whole
WRITTEN = 7  # into a result that lies in an operand's memory
DIES = "dies"
ABOUT = (DIES, metadata.PROBLEM, metadata.ALIASING, inputs_unchanged.PROBLEM)
MANY = 6  # results of a call
SPREAD = 1e4  # of numbers that are drawn anew, largest to middle size
PRINT_STRIDES = """\
    result = run(device)
    print(device, [t.stride() for t in (result if isinstance(result, (list, tuple)) else [result])])"""
PRINT_REFUSAL = """\
    try:
        print(device, run(device))
    except Exception as e:
        print(device, type(e).__name__, e)"""
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


def minimal(case: Case, aspect: str, device: str, about: str = "", *, tried: bool = False) -> str | None:
    """The script, which takes the device as its argument; None if there are more than a few lines, or if it cannot be written
    in torch alone.

    A destination and an operand that is written are printed whole, so that a write outside the view shows; of large results the
    element that differs most. about: the problem of the finding, if it is one of `ABOUT`: then the strides of the result are
    printed, or the operands after the call, or after its result was written; tried: whether it will be seen if it shows the
    finding: then many numbers are drawn anew, and the calls before the case are left out.
    """
    written = WRITTEN_AS.get(aspect)  # type: ignore[call-overload]
    if written is None:
        return None
    if tried or aspect == Aspect.REFUSAL:
        case = replace(case, after="", history=(), refused="" if aspect == Aspect.REFUSAL else case.refused)
    try:
        data = script.data_of(case, written, dies=about == DIES)
        text = "" if data is None else _few_lines(data, Aspect(aspect), device, about, tried)
    except (Unwritable, ParityError):
        return None
    return text if text and len(text) <= LONGEST and "unpacked(" not in text else None


def _few_lines(t: CaseScript, aspect: Aspect, device: str, about: str, tried: bool) -> str:
    function, sources = ("", []) if aspect == Aspect.TRANSFER else script.function_of(t)
    ours = not all(s.startswith(("from ", "import ")) for s in sources)  # parity's own: in its place the calls that it makes
    body = _body(t, aspect, function, about, ours)
    imports = ["from torch.nn import functional as F"] * ("F." in "\n".join(body)) if ours else sources
    lines = _anew(body, t) if tried else body
    lines = script.in_mode(t.case, [*["torch.manual_seed(0)"] * bool(re.search(DRAWN, "\n".join(lines))), *lines])
    default = device if not device.startswith("sim") else "mps"
    place = f'sys.argv[1] if sys.argv[1:] else "{default}"'
    last = _printed(t, aspect, place, about)
    imports = ["from math import inf, nan"] * bool(re.search(r"\b(nan|inf)\b", "\n".join((*imports, *lines, *last)))) + imports
    head = ["import sys", "", "import torch", *imports]
    lines = on_fewer_lines(lines, len("\n".join((*head[2:], *lines, *last)).splitlines()) + 1 - LINES)
    parts = ["\n".join(head), "\n".join(["def run(device):", *(f"    {line}" for line in lines)])]
    text = "\n\n\n".join(parts) + "\n\n" + "\n".join(last) + "\n"
    if is_long(text):
        text = text.replace("import sys\n\nimport torch\n", "import sys, torch\n", 1)
    if is_long(text):
        text = re.sub(r"(?m)^(for device in .*:)\n +(print\(.*\n)\Z", r"\1 \2", text)
    compile(text, "script", "exec")
    return text


def is_long(text: str) -> bool:
    """Whether a script is longer than a report's should be."""
    return sum(map(bool, text.splitlines())) > LINES


def _printed(t: CaseScript, aspect: Aspect, place: str, about: str) -> list[str]:
    """The statements that run it on both sides, and print."""
    digits = [] if FACTS[t.case.dtype].bits < SHOWN_BITS else ["torch.set_printoptions(precision=9)"]
    loop = f'for device in ("cpu", {place}):'
    if about == metadata.PROBLEM:
        return [*digits, loop, *PRINT_STRIDES.splitlines()]
    if aspect == Aspect.REFUSAL:
        return [*digits, loop, *PRINT_REFUSAL.splitlines()]
    results = [x for name, x in t.result if not name.startswith("base[")]
    made = [o.view for o in t.inputs.operands] if aspect in (Aspect.BACKWARD, Aspect.DOUBLE) else results
    large = about not in ABOUT and sum(x.numel() for x in made) > SHOWN
    if large and aspect in (Aspect.FORWARD, Aspect.BACKWARD, Aspect.DOUBLE):
        wide = "to(torch.complex128)" if any(x.is_complex() for x in made) else "double()"
        each = "torch.utils._pytree.tree_leaves(r) if t is not None"  # a step of an optimizer gives lists
        return PRINT_WORST.format(place=place, each=each, wide=wide).splitlines()
    again = ", run(device)" if aspect == Aspect.REPEAT else ""
    return [*digits, loop, f"    print(device, run(device){again})"]


# ------------------------------------------------------------------------------------------------------------ the body


def _unusual(function: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not a function's defaults."""
    with contextlib.suppress(ValueError, TypeError):
        usual = inspect.signature(function).parameters
        return {k: v for k, v in kwargs.items() if isinstance(v, Tensor) or k not in usual or usual[k].default is not v}
    return {k: v for k, v in kwargs.items() if v is not None}  # of a function in C


def _call(name: str, args: list[str], kwargs: Mapping[str, str]) -> str:
    """A call as text. Raises Unwritable for a function without a name."""
    said, method = [*args, *(f"{k}={v}" for k, v in kwargs.items())], name.removeprefix("torch.Tensor.")
    if not name or ("__" in method and not re.search(r"__(get|set|getitem|setitem)__$", method)):
        raise Unwritable(name)
    if "__set" in method:
        return f"{said[0]}[{said[1]}] = {said[2]}" if "item" in method else f"{said[0]}.{method[:-8]} = {said[1]}"
    if method == name:
        return f"{name}({', '.join(said)})"
    if method.endswith(".__get__"):
        return f"{said[0]}.{method.removesuffix('.__get__')}"
    return f"{said[0]}[{said[1]}]" if method == ATEN_PICKED else f"{said[0]}.{method}({', '.join(said[1:])})"


@dataclass(slots=True)
class _Calls:
    """What a function calls of torch, as statements. names: of tensors, by their ids; refused: the call that raised; step: of
    an optimizer, as long as it runs: what it calls is its own."""

    names: dict[int, str]
    lines: list[str] = field(default_factory=list)
    refused: str = ""
    step: str = ""
    kept: list[object] = field(default_factory=list)  # so that no id comes twice

    def say(self, a: object) -> str:
        """An argument. Raises Unwritable for a tensor that no call made."""
        if isinstance(a, Tensor):
            if id(a) not in self.names:
                raise Unwritable("a tensor of no call")
            return self.names[id(a)]
        if isinstance(a, (list, tuple)):
            return f"({', '.join(map(self.say, a))}{',' * (len(a) == 1)})"
        return _plain(script.expression(a))

    def observe(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Makes a call, and keeps it if it made a tensor or wrote to one."""
        if self.step:
            return function(*args, **kwargs)
        name = f"torch.ops.{function}" if isinstance(function, (OpOverload, OpOverloadPacket)) else name_of(function)
        own_names = (f"{s.__name__}.{n}" for s in (torch, torch.sparse) for n, f in vars(s).items() if f is function)
        name = (name or next(own_names, "")).replace("torch.nn.functional.", "F.")

        def call() -> str:
            return _call(name, [*map(self.say, args)], {k: self.say(v) for k, v in _unusual(function, kwargs).items()})

        try:
            result: Any = function(*args, **kwargs)
        except Exception:  # what must be refused
            self.refused = self.refused or call()
            raise
        some = [result] if isinstance(result, Tensor) else result if isinstance(result, (list, tuple)) else ()
        if name in ATEN_MOVED:  # which may be the tensor itself here, and not on the device
            result = (some := [result.clone()])[0]
        new = any(isinstance(x, Tensor) and id(x) not in self.names for x in some)
        writes = "__set" in name or re.search(r"[^_]_$", name) or ("__i" in name and isinstance(result, Tensor))
        if new or writes or "out" in kwargs:
            word, line = f"x{len(self.kept)}", call()
            if new:
                line = f"{word} = {line}"
                self.names.update({id(x): word if x is result else f"{word}[{k}]" for k, x in enumerate(some)})
            self.kept.append(result)
            line = line if not writes or torch.is_grad_enabled() else f"with torch.no_grad(): {line}"
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
            self.lines.append(f"with torch.autocast(torch.device(device).type, {dtype}): {line}" if dtype else line)
        return result

    @contextlib.contextmanager
    def whole_steps(self) -> Iterator[None]:
        """A context in which a step of an optimizer is one call. Raises Unwritable for a second one, which may go on from the
        state of the first."""

        def begin(optimizer: Optimizer, *_: Any) -> None:
            if not any(x is optimizer for x in self.kept):
                if any(isinstance(x, Optimizer) for x in self.kept) or len(optimizer.param_groups) > 1:
                    raise Unwritable("optimizers")
                given, usual = dict(optimizer.param_groups[0]), inspect.signature(type(optimizer)).parameters
                own = self.say(given.pop("params"))
                options = _unusual(type(optimizer), {k: v for k, v in given.items() if k in usual})
                kwargs = {k: self.say(v) for k, v in options.items()}
                self.lines.append(f"optimizer = {_call(f'torch.optim.{type(optimizer).__name__}', [own], kwargs)}")
                self.kept.append(optimizer)
            self.step = "optimizer.step()"

        def end(*_: Any) -> None:
            self.lines.append(self.step)
            self.step = ""

        with register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end):
            yield


def _steps(t: CaseScript, targets: Sequence[Destination]) -> tuple[list[str], str]:
    """What a function of parity calls of torch for this case, one call a line, and its result: in place of the function.
    targets: of a call into destinations. Raises Unwritable for what is no call by a name."""
    fresh = build(t.case)
    given = [o.view for o in fresh.operands]
    outs = [d.base.new_empty(d.shape) for d in targets]
    calls = _Calls({id(x): f"{word}{k}" for word, some in (("t", given), ("out", outs)) for k, x in enumerate(some)})
    program = execute.program(t.row)
    called: Any = program.inplace if t.aspect == Aspect.INPLACE and not t.row.forms.mutates else program.function
    args, kwargs = execute.arguments(t.case, fresh, given, torch_word, "cpu")
    into = {"out": outs[0] if len(outs) == 1 else tuple(outs)} if outs else {}
    try:
        with Functions(calls.observe), calls.whole_steps():
            said = calls.say(called(*args, **kwargs, **into))
    except Exception as e:
        if not (said := calls.refused or calls.step):
            raise Unwritable(f"{t.case.op} fails before it calls torch") from e
    for n in range(MANY, 1, -1):  # the first results of a call
        first = r"\((x\d+)\[0\]" + "".join(rf", \1\[{k}\]" for k in range(1, n))
        said = re.sub(first + r"\)", rf"\1[:{n}]", said)
    lines = calls.lines
    while lines and (last := re.fullmatch(r"(x\d+) = (.+)", lines[-1])) and len(re.findall(rf"\b{last[1]}\b", said)) == 1:
        said = re.sub(rf"\b{last[1]}\b", lambda m: last[2], said)
        lines.pop()
    return lines, said


def _body(t: CaseScript, aspect: Aspect, function: str, about: str, steps: bool = False) -> list[str]:
    """The statements of `run`. steps: see `_steps`."""
    if aspect == Aspect.TRANSFER:
        return _copies(t)
    lines, leaves = operands_text(t, _put)
    arguments = _plain(script.arguments_text(t))
    if aspect == Aspect.OUT:
        more, targets = script.into_text(t, (function, arguments), _put)
        more[-1:] = _steps(t, targets)[0] if steps else more[-1:]
        bases = ", ".join(f"{'base' if d.shape and d.base.numel() else 'out'}{i}" for i, d in enumerate(targets))
        return [*lines, *more, f"return {bases}"]
    before, call = _steps(t, ()) if steps else ([], f"{function}({arguments})")
    lines += before
    if about in (inputs_unchanged.PROBLEM, metadata.ALIASING) and not t.writes and aspect == Aspect.FORWARD:
        if about == metadata.ALIASING:
            call = f"{call}.fill_({WRITTEN})" if len(t.result) == 1 else f"[x.fill_({WRITTEN}) for x in {call}]"
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
    outputs, lines = ("t0", [call] if "(" in call or "=" in call else []) if t.row.forms.mutates else (call, [])
    many = len(t.result) - t.row.forms.mutates
    given = "fed" if twice else f"[{', '.join(texts)}]" if many > 1 else texts[0]
    if many > len(fed):
        lines += [f"live = [x for x in {outputs} if x.requires_grad]"]
        outputs = "live"
    if not twice:
        return [*lines, f"return torch.autograd.grad({outputs}, [{live}], {given}, allow_unused=True)"]
    return [  # by what is fed as well
        f"fed = [{', '.join(f'{x}.requires_grad_()' for x in texts)}]",
        *lines,
        f"first = [g for g in torch.autograd.grad({outputs}, [{live}], fed, create_graph=True, allow_unused=True)"
        " if g is not None and g.requires_grad]",
        f"return torch.autograd.grad(first, [{live}, *fed], [torch.ones_like(g) for g in first], allow_unused=True)",
    ]


def _literal(text: str, dtype: torch.dtype) -> str:
    """A base without what is the default, shapes of one dimension and float32, and without digits that it does not need."""
    if "unpacked(" in text:
        return text
    if shorter := {torch.float32: np.float32, torch.complex64: np.float32, torch.float16: np.float16}.get(dtype):
        text = re.sub(r"\d+\.\d+(e[-+]\d+)?", lambda m: str(shorter(m[0])), text)
    text = re.sub(r"\s*\n\s*", " ", text).replace("[ ", "[").replace(" ]", "]")
    text = re.sub(r"(?<=torch\.tensor\()\[(.+)\](, dtype=[\w.]+\))\.reshape\((\(.*\))\)$", nested, text)
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
    if float(size.max()) > SPREAD * float(size.median()) or high - low > torch.finfo(x.dtype).max:  # uniform_ takes no more
        raise Unwritable("numbers of very unlike sizes")
    low, high = math.floor(low * 8) / 8, math.ceil(high * 8) / 8
    kind = "" if x.dtype is torch.float32 else f", dtype={dtype}"
    text = f"torch.empty({shape}{kind}).uniform_({low}, {high})"
    return f"(lambda x: (x + x.mT) / 2)({text})" if symmetric else text
