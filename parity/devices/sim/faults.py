"""Faults: what a simulated device does wrong, and when. This is the public interface of `--setup FILE`.

A file of faults (or an installed module, by its dotted name) is ordinary Python that declares `FAULTS`. Six examples:

    from parity.devices import Call, Fault
    from parity.devices.sim.effects import as_contiguous, has_gaps, replacing, skip, sometimes

    # 1. A kernel is wrong where its operand is strided: the last row is not computed.
    def last_row_missing(call: Call):
        result = call.run()                  # what a healthy device answers
        result[-1] = 0
        return result

    # 2. Only the gradient is wrong, of the public function as a whole; the forward stays healthy.
    def gradient_halved(call: Call):
        return call.run_with_gradient(lambda g: g / 2)

    # 3. A cache keyed too loosely: the graph of the first call with these shapes is used again, with its exponent.
    def exponent_of_the_first(call: Call):
        first = next(s for s in call.seen if s.shapes == call.outline.shapes)
        call.args[1] = first.scalars[0]
        return call.run()

    # 4. An argument by the name that torch gives it, however it was passed: the divisor is ignored.
    def divisor_ignored(call: Call):
        call.replace("divisor_override", None)
        return call.run()

    FAULTS = [
        Fault(
            "linear-last-row",
            ops=("linear",),
            when=lambda call: not call.operands[0].is_contiguous(),
            effect=last_row_missing,
            source="https://github.com/...",
            title="linear forgets the last row of a strided input",
        ),
        Fault("sdpa-gradient", ("scaled_dot_product_attention",), gradient_halved, level="function"),
        Fault(
            "pow-cached",
            ops=("pow.Tensor_Scalar_out",),
            when=lambda call: any(s.shapes == call.outline.shapes for s in call.seen),
            effect=exponent_of_the_first,
        ),
        Fault(
            "pool-divisor",
            ("avg_pool2d",),
            divisor_ignored,
            when=lambda call: call.argument("divisor_override") is not None,
        ),
        # 5. Memory read as if it were dense: a slice with gaps gives its neighbours' elements.
        Fault("neg-gaps", ("neg",), replacing(0, as_contiguous), when=lambda call: has_gaps(call.operands[0])),
        # 6. By chance, and at two levels at once: it strikes once, at the function or at a kernel that no such function
        # called. It writes nothing into what the caller gave (in place or out=), and nobody raises or warns.
        Fault(
            "add-misses",
            ("add",),
            skip,
            when=lambda call: call.destination in ("in place", "given") and sometimes(0.1)(call),
            level=("function", "kernel"),
            silent=True,
        ),
    ]

`parity prove trace 'avg_pool2d(float32[1, 2, 4, 4], 3)'` shows each call as a fault sees it: the names of its arguments,
strides, offsets and the base of each view, and whose destination it writes into. `"*"` as an op stands for all of a level.

Of an operand, `call.base_shape(t)` is the shape of the tensor that it is a view of, and `call.memory(t)` that tensor's memory.
`call.destination` says what a call writes into: "in place", "given" (out=), "fresh" (torch made it for this call), or "" where
the kernel makes its own result.

Levels
    kernel      what reaches the device, below autograd, forward and backward alike. Names are aten's: a base name ("mul",
                "linear_backward": every overload, in-place and out= forms too), with underscore ("mul_": the in-place forms)
                or with overload ("add.out"). Structured operators arrive as their `.out` overload however they were called,
                with a fresh destination for `a + b` and the operand itself for `a += b`; name the base name and look at
                `call.outs`. Arguments are host tensors that alias the device's memory, with true strides and offsets. Views
                never arrive (they compute nothing): take the function level for them. A copy on the device is `copy_`.
                Convolutions answer to "convolution" and "convolution_backward".
    function    the public function as it was called: "linear", "linalg.solve", "torch.nn.functional.linear". A short name
                covers the function, the Tensor method, the operator and the in-place form ("add": torch.add, Tensor.add_,
                `+`, `+=`). Views are functions too ("permute", "__getitem__", "mT"). Arguments are the device's own tensors.
                Only calls inside `with device.active():` are seen, and no public function that another one written in
                Python calls (torch.nn.functional.multi_head_attention_forward hides its linear). What torch.compile
                compiled calls none.
    transfer    "upload" and "download": copies from and to the CPU. `call.args[0]` is the source, `call.outs[0]` the
                destination, both with the strides and offset that they have there.
    allocation  "empty": every fresh allocation on the device, of factories, destinations and results of kernels. `args` is
                the shape, `kwargs` the dtype, `run` the fresh memory; the effect may fill it (`garbage`) or raise
                (`out_of_memory`). What it leaves in the result of a kernel is overwritten by the kernel.

Effects
    Return a result: it becomes the answer, and is written into the destination where the call has one, which keeps its
    dtype, as torch's own destinations do; plant a wrong dtype at function level. Return None: nothing is written. Raise: the
    device raises. Change the gradient alone with a fault on the backward kernel, or at function level with
    `return call.run_with_gradient(effect_on_gradient)`. Ready-made: `fall_back`, `refuse`, `out_of_memory`, `abort`,
    `hang`, each an effect of its own, and `garbage(tensor)`.

A size limit that no test machine can reach (2**32 elements) is declared as a small constant LIMIT, and `scaled` says so.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from parity.core.backends import mps
from parity.core.errors import FaultError, near
from parity.devices.sim.call import Call, CallOutline
from parity.devices.sim.profile import FALLBACK_TEXT, MISSING_TEXT

COMPILE_FRAMES: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame  # untyped in torch
LEVELS = ("function", "kernel", "transfer", "allocation")
TRANSFERS = ("upload", "download")
ALLOCATIONS = ("empty",)
REMEMBERED = 256
ANY = "*"  # as the name of an op: every call of the level
# Exceptions that no device raises: an effect that raises one is broken itself.
MISTAKES = (NameError, AttributeError, ImportError, KeyError, ZeroDivisionError)
OUT_OF_MEMORY_TEXT = mps.MEMORY.example


def always(call: Call) -> bool:
    """The default of `when`: every call."""
    return True


Effect: TypeAlias = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a device does wrong.

    id: short and stable. ops: names as the level spells them (see above). effect: what happens instead. when: whether it
    happens at this call. level: one of LEVELS, or several. source: the URL of the report of the real bug. title: one line for
    reports. scaled: what was scaled down, like "2**32 elements -> LIMIT = 4096 elements". deadly: "abort" or "hang" if it ends
    the process or never returns; so `abort` and `hang` as effects say by themselves. silent: whether the device gives a wrong
    result without an error or a warning; None if nobody said so. Raises FaultError if the declaration is incomplete or names an
    op that torch does not have.

    >>> parity.Fault("gelu-off", ops=("gelu",), effect=lambda call: call.run() * 1.01).levels
    ('kernel',)
    """

    id: str
    ops: tuple[str, ...]
    effect: Effect
    when: Callable[[Call], bool] = always
    level: str | tuple[str, ...] = "kernel"
    source: str = ""
    title: str = ""
    scaled: str = ""
    deadly: str = ""
    silent: bool | None = None
    remembers: bool = True

    def __post_init__(self) -> None:
        if not self.id or not isinstance(self.id, str):
            raise FaultError(f"a fault needs an id, a short word for reports; got {self.id!r}")
        for level in self.levels or ("",):
            if level not in LEVELS:
                raise FaultError(f"fault '{self.id}': level '{level}' is not one of {', '.join(LEVELS)}")
        if isinstance(self.ops, str) or not self.ops:
            raise FaultError(f"fault '{self.id}': ops must be a tuple of names, like ('linear',); got {self.ops!r}")
        for role, value in (("effect", self.effect), ("when", self.when)):
            if not callable(value):
                raise FaultError(f"fault '{self.id}': {role} must be a function of one argument, the call; got {value!r}")
        for op in self.ops:
            _check_op(self.id, self.levels, op)
        self._check_end()

    def _check_end(self) -> None:
        """Whether it kills, hangs or is silent: only one of them, in words that are known."""
        ends = next((word for effect, word in ENDS if effect is self.effect), "")
        object.__setattr__(self, "deadly", self.deadly or ends)
        if self.deadly and self.deadly not in ("abort", "hang"):
            raise FaultError(f"fault '{self.id}': deadly is 'abort', 'hang' or ''; got {self.deadly!r}")
        if self.deadly and self.silent:
            raise FaultError(f"fault '{self.id}': it is deadly ('{self.deadly}'), so it is not silent; leave one of them out")
        if self.deadly:
            object.__setattr__(self, "silent", False)

    @property
    def levels(self) -> tuple[str, ...]:
        """Its levels, from outside to inside."""
        given = (self.level,) if isinstance(self.level, str) else tuple(self.level)
        return tuple(sorted(given, key=lambda word: LEVELS.index(word) if word in LEVELS else 0))


def _check_op(fault: str, levels: Sequence[str], op: str) -> None:
    """Refuse a name that no call of these levels can have, so that a misspelt fault does not look like a healthy device."""
    wrong: list[FaultError] = []
    for level in levels:
        try:
            _check_op_at(fault, level, op)
        except FaultError as e:
            wrong.append(e)
    if len(wrong) == len(levels):
        raise wrong[0]


def _check_op_at(fault: str, level: str, op: str) -> None:
    """Refuse a name that no call of this level can have."""
    if op == ANY:
        return
    if level == "transfer":
        if op not in TRANSFERS:
            raise FaultError(f"fault '{fault}': '{op}' is no transfer; name upload or download")
    elif level == "allocation":
        if op not in ALLOCATIONS:
            raise FaultError(f"fault '{fault}': '{op}' is no allocation; name empty, which stands for all of them")
    elif level == "kernel":
        base = op.partition(".")[0]
        if "::" in op or any(hasattr(torch.ops.aten, name) for name in (base, base + "_")):
            return
        raise FaultError(f"fault '{fault}': torch has no operator aten::{op}; {near(op, _aten_names())}".rstrip("; "))
    elif not any(_reachable(place, op) for place in _public_places()):
        names = (n for place in _public_places() for n in dir(place) if not n.startswith("_"))
        raise FaultError(f"fault '{fault}': torch has no public function '{op}'; {near(op, names)}".rstrip("; "))


def _aten_names() -> set[str]:
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return {n.removeprefix("aten::").partition(".")[0] for n in names if n.startswith("aten::")}


def _public_places() -> tuple[Any, ...]:
    return (torch.nn.functional, torch, Tensor, torch.linalg, torch.fft, torch.special, torch.sparse, torch.nested)


def _reachable(place: Any, dotted: str) -> bool:
    for part in dotted.removeprefix("torch.").split("."):
        place = getattr(place, part, None)
        if place is None:
            return False
    return True


# ------------------------------------------------------------------------------------------------------ on one device


@dataclass(slots=True, eq=False)
class Planted:
    """A fault on one device, with its memory there. Mutable. within: how many calls of an outer level it is at, whose inner
    calls are a part of what it does."""

    fault: Fault
    within: int = 0
    seen: deque[CallOutline] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    state: dict[Any, Any] = field(default_factory=dict)


def run_through(planted: Sequence[Planted], call: Call) -> Any:
    """The result of a device with these faults: the first fault that matches gets the call, and its `run` passes it to the
    next.

    After the call, each fault that remembers calls remembers it, whether it matched or not.
    """
    remembering = [p for p in planted if p.fault.remembers]
    outline = call.outline if remembering else None
    before = COMPILE_FRAMES(None)  # eager code within a compiled function: a device's own code is not the compiler's
    try:
        run = call._run
        for p in reversed([p for p in planted if _matches(p, call)]):
            run = _struck(p, run)
        return run(call)
    finally:
        COMPILE_FRAMES(before)
        if outline is not None:
            for p in remembering:
                p.seen.append(outline)


def _matches(p: Planted, call: Call) -> bool:
    if p.within and call.level != p.fault.levels[0]:
        return False  # it strikes once: at the outermost of its levels
    try:
        return bool(p.fault.when(call.handed_to(call._run, p.seen, p.state)))
    except Exception as e:  # the condition is not part of the device, so it is broken itself
        raise FaultError(_broken(p, "condition", call, e)) from e


def _struck(p: Planted, after: Callable[[Call], Any]) -> Callable[[Call], Any]:
    outer = len(p.fault.levels) > 1

    def strike(c: Call) -> Any:
        p.within += outer and c.level == p.fault.levels[0]
        try:
            return p.fault.effect(c.handed_to(after, p.seen, p.state))
        except MISTAKES as e:
            raise FaultError(_broken(p, "effect", c, e)) from e
        finally:
            p.within -= outer and c.level == p.fault.levels[0]

    return strike


def _broken(p: Planted, part: str, call: Call, e: Exception) -> str:
    return f"the {part} of fault '{p.fault.id}' does not run on {call.op} ({type(e).__name__}: {e}); mend the fault"


# --------------------------------------------------------------------------------------- effects that many faults share


def _aten(call: Call) -> str:
    return "aten::" + (call.op.rpartition(".")[2] if call.level == "function" else call.op)


def fall_back(call: Call) -> Any:
    """Warn, in MPS's words, that the operator falls back to the CPU, and run it. MPS warns once per process, this effect every
    time."""
    warnings.warn(FALLBACK_TEXT.format(op=_aten(call)), UserWarning, stacklevel=2)
    return call.run()


def refuse(call: Call) -> NoReturn:
    """Raise MPS's NotImplementedError for an operator without a kernel."""
    raise NotImplementedError(MISSING_TEXT.format(op=_aten(call), sha=torch.version.git_version))


def out_of_memory(call: Call | None = None) -> NoReturn:
    """Raise MPS's RuntimeError for exhausted memory."""
    raise RuntimeError(OUT_OF_MEMORY_TEXT)


def abort(call: Call | None = None) -> NoReturn:
    """End the process with SIGABRT, like a failed assertion in a driver."""
    os.abort()


def hang(call: Call | None = None) -> NoReturn:
    """Never return."""
    while True:
        time.sleep(1)


ENDS: tuple[tuple[Effect, str], ...] = ((abort, "abort"), (hang, "hang"))


def garbage(t: Tensor) -> Tensor:
    """A tensor of the same shape, dtype and strides that looks like leftover memory; deterministic, with finite values."""
    pattern = (torch.arange(t.numel()) * 7919 + 3) % 101
    left: Tensor = pattern % 3 != 0 if t.dtype is torch.bool else pattern if not _is_real(t) else pattern * 173.625 - 8191.0
    stale = torch.empty_like(t, requires_grad=False)
    return stale.copy_(left.reshape(t.shape))


def _is_real(t: Tensor) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex
