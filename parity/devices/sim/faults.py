"""Faults: what a simulated device does wrong, and when. This is the public interface of `--faults FILE`.

A file of faults is ordinary Python:

    from parity.devices import Fault

    def last_row_missing(call):
        result = call.run()          # what a healthy device answers
        result[-1] = 0
        return result

    FAULTS = [
        Fault(
            "linear-last-row",
            ops=("linear",),
            when=lambda call: not call.operands[0].is_contiguous(),
            effect=last_row_missing,
            level="kernel",
            source="https://github.com/...",
            title="linear forgets the last row of a strided input",
        )
    ]

Levels
    kernel    what reaches the device, below autograd, forward and backward alike. Names are aten's: a base name ("mul",
              "linear_backward": every overload, in-place and out= forms too), with underscore ("mul_": the in-place forms)
              or with overload ("add.out"). Structured operators arrive as their `.out` overload however they were called,
              with a fresh destination for `a + b` and the operand itself for `a += b`; name the base name and look at
              `call.outs`. Arguments are host tensors that alias the device's memory, with true strides and offsets. Views
              never arrive (they compute nothing). Fresh memory is `empty` and `empty_strided`; a copy on the device is
              `copy_`.
    function  the public function as it was called: "linear", "linalg.solve", "torch.nn.functional.linear". A short name
              covers the function, the Tensor method, the operator and the in-place form ("add": torch.add, Tensor.add_,
              `+`, `+=`). Arguments are the device's own tensors. Only calls inside `with device.active():` are seen, and no
              public function that another public function calls.
    transfer  "upload" and "download": copies from and to the CPU.

Effects
    Return a result: it becomes the answer, and is written into the destination where the call has one. Return None: nothing
    is written. Raise: the device raises. `os.abort()` and endless loops are welcome. Change the gradient alone with a fault
    on the backward kernel, or at function level with `return call.run_with_gradient(effect_on_gradient)`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.errors import FaultError, near

LEVELS = ("function", "kernel", "transfer")
TRANSFERS = ("upload", "download")


class Call:
    """One call that a fault sees.

    op: aten overload ("add.out", "copy_"), public name ("torch.nn.functional.linear") or "upload" / "download".
    args, kwargs: as they arrived; an effect may replace entries before `run`.
    outs: the destinations of an in-place or out= call (function level: only out=, and self of in-place methods).
    history: names of what ran before on this device, newest last; only kept while faults are planted; at most 256.
    """

    __slots__ = ("_run", "args", "history", "kwargs", "level", "op", "outs")

    def __init__(
        self,
        op: str,
        level: str,
        args: list[Any],
        kwargs: dict[str, Any],
        outs: tuple[Tensor, ...],
        history: Sequence[str],
        run: Callable[[Call], Any],
    ) -> None:
        self.op, self.level, self.args, self.kwargs = op, level, args, kwargs
        self.outs, self.history, self._run = outs, history, run

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Every tensor among the arguments in their order, those in lists too; destinations of out= are left out."""
        kept = {k: v for k, v in self.kwargs.items() if not any(v is o for o in self.outs)}
        return tuple(t for t in tree_leaves((self.args, kept)) if isinstance(t, Tensor))

    @property
    def direction(self) -> str:
        """'backward' inside a backward pass, else 'forward'."""
        return "forward" if torch._C._current_graph_task_id() == -1 else "backward"

    def memory(self, t: Tensor) -> Tensor:
        """The whole storage under an operand or destination as one dense vector: what lies beside a view."""
        return t.detach().as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)

    def run(self) -> Any:
        """The healthy result (of the next fault, where two match); an out= or in-place call returns its destination."""
        return self._run(self)

    def run_with_gradient(self, effect: Callable[[Tensor], Tensor]) -> Any:
        """The healthy forward; on the way back every gradient of a tensor argument passes through `effect(gradient)`.

        Function level only: at kernel level a gradient is a kernel of its own.
        """
        if self.level != "function":
            raise FaultError(f"run_with_gradient works at function level; for {self.op} name its backward kernel instead")
        if self.op.endswith("_") and not self.op.endswith("__"):
            # An identity before an in-place call would make it write into the identity's result.
            result = self.run()
            if isinstance(result, Tensor) and result.grad_fn is not None:
                result.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else effect(g) for g in gi))
            return result

        def tap(a: Any) -> Any:
            return _tap(a, effect) if isinstance(a, Tensor) and a.requires_grad else a

        args, kwargs = tree_map(tap, (self.args, self.kwargs))
        return self._run(Call(self.op, self.level, args, kwargs, self.outs, self.history, self._run))


class _Tap(torch.autograd.Function):
    """Identity on the way in; the effect acts on the gradient on the way back."""

    @staticmethod
    def forward(x: Tensor, effect: Callable[[Tensor], Tensor]) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.effect = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.effect(gradient), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, effect: Callable[[Tensor], Tensor]) -> Any:
        return _tap(x, effect), in_dims[0]


_tap: Any = _Tap.apply  # untyped in torch


def always(call: Call) -> bool:
    """The default of `when`."""
    return True


Effect: TypeAlias = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a device does wrong.

    id: short and stable. ops: names as the level spells them (see above). effect: what happens instead. when: whether it
    happens at this call. source: where the real bug is told of. title: one line for reports.
    Raises FaultError when the declaration is incomplete or names an op that torch does not have.
    """

    id: str
    ops: tuple[str, ...]
    effect: Effect
    when: Callable[[Call], bool] = always
    level: str = "kernel"
    source: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        if not self.id or not isinstance(self.id, str):
            raise FaultError(f"a fault needs an id, a short word for reports; got {self.id!r}")
        if self.level not in LEVELS:
            raise FaultError(f"fault '{self.id}': level '{self.level}' is not one of {', '.join(LEVELS)}")
        if isinstance(self.ops, str) or not self.ops:
            raise FaultError(f"fault '{self.id}': ops must be a tuple of names, like ('linear',); got {self.ops!r}")
        for role, value in (("effect", self.effect), ("when", self.when)):
            if not callable(value):
                raise FaultError(f"fault '{self.id}': {role} must be a function of one argument, the call; got {value!r}")
        for op in self.ops:
            _check_op(self.id, self.level, op)


def _check_op(fault: str, level: str, op: str) -> None:
    """Refuse a name that no call can ever have, so that a misspelt fault does not look like a healthy device."""
    if level == "transfer":
        if op not in TRANSFERS:
            raise FaultError(f"fault '{fault}': '{op}' is no transfer; name upload or download")
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


def run_through(faults: Sequence[Fault], call: Call) -> Any:
    """The answer of a device with these faults: the first one that matches sees the call, its `run` asks the next."""
    struck = [f for f in faults if f.when(call)]
    healthy = call._run

    def at(i: int) -> Callable[[Call], Any]:
        if i == len(struck):
            return healthy
        after = at(i + 1)

        def run(c: Call) -> Any:
            return struck[i].effect(Call(c.op, c.level, c.args, c.kwargs, c.outs, c.history, after))

        return run

    return at(0)(call)


def load_faults(path: str | Path) -> tuple[Fault, ...]:
    """The faults that a Python file declares: its list `FAULTS`, else every Fault among its module-level names.

    Raises FaultError: no such file, the file does not run, nothing declared, two faults with one id.
    """
    path = Path(path)
    expected = "a Python file with FAULTS = [Fault(...), ...] (from parity.devices import Fault)"
    if not path.is_file():
        raise FaultError(f"{path}: no such file; --faults takes {expected}")
    name = f"parity_faults_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FaultError(f"{path}: not a Python file; --faults takes {expected}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up here
    try:
        spec.loader.exec_module(module)
    except FaultError as e:
        raise FaultError(f"{path}: {e}") from e
    except (Exception, SystemExit) as e:  # whatever a person's file does, the sentence is the same
        raise FaultError(f"{path}: does not run ({type(e).__name__}: {e}); expected {expected}") from e
    declared = getattr(module, "FAULTS", None)
    if declared is None:
        declared = [v for v in vars(module).values() if isinstance(v, Fault)]
    elif not isinstance(declared, (list, tuple)) or not all(isinstance(f, Fault) for f in declared):
        raise FaultError(f"{path}: FAULTS must be a list of Fault, not {type(declared).__name__}; expected {expected}")
    if not declared:
        raise FaultError(f"{path}: declares no fault; expected {expected}")
    ids = [f.id for f in declared]
    if doubled := sorted({i for i in ids if ids.count(i) > 1}):
        raise FaultError(f"{path}: two faults are called '{doubled[0]}'; give each an id of its own")
    return tuple(declared)
