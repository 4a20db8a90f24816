"""One side of a training: model, optimizer and step as the user's own code builds them, and all its state as CPU tensors.

The state of one side can be loaded into another, whatever its device and dtype, so that both take a step from the same place.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from parity.comparing.draws import SharedRandom
from parity.comparing.leaves import parts
from parity.comparing.places import PlacementWatch, other_way
from parity.comparing.subject import coarsest, is_compiled, own_tensors, parts_compiled, uncompiled
from parity.core.errors import UsageError
from parity.core.results import Raised
from parity.devices import Device
from parity.execution import execute as ex
from parity.judging.sameness import same_bits
from parity.training.making import built, exact, is_plain, is_scaler, seeded, widened

CPU = torch.device("cpu")
CELL = "cell "  # before the name of a variable of make
RETURNS = (
    "let make return the model, its optimizer, then anything else with a state_dict, "
    "and last step(batch), which returns the loss"
)
Put = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class State:
    """All that a step depends on, on the CPU. tensors: parameters and buffers by name; gradients: those that are there;
    optimizers, others: state_dicts; kept: what the step's own variables hold, by name."""

    tensors: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    optimizers: tuple[Any, ...]
    others: tuple[Any, ...]
    kept: Mapping[str, Any]


@dataclass(slots=True)
class StepResult:
    """A step that was taken. loss: 0-d; gradients: as the last backward pass left them, by parameter; tensors: parameters and
    buffers afterwards. stepped: whether an optimizer stepped; draws: operators that drew random numbers; left: those that drew
    by themselves."""

    loss: Tensor = field(default_factory=lambda: torch.tensor(float("nan")))
    gradients: dict[str, Tensor] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    stepped: bool = False
    draws: int = 0
    left: frozenset[str] = frozenset()

    def equals(self, other: StepResult) -> bool:
        """Whether another step gave the same bits, and has the same results."""
        pairs = ((self.gradients, other.gradients), (self.tensors, other.tensors))
        alike = self.stepped == other.stepped and all(a.keys() == b.keys() for a, b in pairs)
        return alike and same_bits(self.loss, other.loss) and all(same_bits(t, b[n]) for a, b in pairs for n, t in a.items())


class Side:
    """What `make` built on one device. device: None for the CPU; wide: in float64."""

    def __init__(self, make: Callable[..., Any], device: Device | None = None, wide: bool = False) -> None:
        self.device, self.wide = device, wide
        self.place = CPU if device is None else device.torch_device
        parts = built(make, self.place)
        self.modules = [p for p in parts if isinstance(p, nn.Module)]
        self.optimizers = [p for p in parts if isinstance(p, Optimizer)]
        known = {id(p) for p in (*self.modules, *self.optimizers)}
        self.others = [p for p in parts if id(p) not in known and hasattr(p, "state_dict")]
        known |= {id(p) for p in self.others}
        steps = [p for p in parts if id(p) not in known]
        if not self.modules or not self.optimizers or len(steps) > 1 or not all(map(callable, steps)):
            raise UsageError(f"make returns {', '.join(type(p).__name__ for p in parts)[:120] or 'nothing'}; {RETURNS}")
        self.model = self.modules[0]
        self.dtype = coarsest(p.dtype for p in self.model.parameters())
        self.step: Callable[[Any], Any] = steps[0] if steps else self._plain_step
        self.titles = self._titles()
        self.order: list[str] = []  # parameters in the order in which the first backward pass was done with them
        self._check()
        if wide:
            for m in self.modules:
                m._apply(widened)  # type: ignore[no-untyped-call]  # as torch has it
        self._as_given = False  # whether no batch is changed any more
        self._scales = [exact(o) for o in self.others if wide and is_scaler(o)]

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    def shares(self, other: Side) -> bool:
        """Whether `make` returned a model for this side that it had returned for another."""
        theirs = {id(t) for _, t in other._tensors()}
        return any(id(t) in theirs for _, t in self._tensors())

    def _titles(self) -> list[str]:
        """What stands before the names of each model's tensors, no two alike: the step's own name for it, or its class. Nothing
        for the first one if no other is trained."""
        held = {id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]}
        trained = [m for m in self.modules if any(id(p) in held for p in m.parameters())]
        own: dict[int, str] = {}
        for name, (where, attribute) in self._variables().items():
            with contextlib.suppress(ValueError):  # an empty cell
                own.setdefault(id(getattr(where, attribute)), name.removeprefix(CELL))
        found: list[str] = []
        for k, m in enumerate(self.modules):
            title = "" if k == 0 and len(trained) < 2 else own.get(id(m), type(m).__name__)
            found.append(title if title not in found else f"{title}{k + 1}")
        return found

    def _check(self) -> None:
        lazy = next((n for n, t in self._tensors() if nn.parameter.is_lazy(t)), "")
        if lazy:
            raise UsageError(
                f"make left '{lazy}' without a shape; let make run the model on one input before its optimizer is made"
            )
        away = next(
            (n for n, t in (*self.model.named_parameters(), *self.model.named_buffers()) if t.device.type != self.place.type),
            "",
        )
        if away:
            raise UsageError(
                f"make left '{away}' on another device than {self.place.type}: take the device as make's parameter, and build "
                "the model there before its optimizer"
            )
        own = {id(p) for m in self.modules for p in m.parameters()}
        if not any(id(p) in own for o in self.optimizers for g in o.param_groups for p in g["params"]):
            raise UsageError(
                "no optimizer that make returns holds a parameter of its model; move the model before the optimizer is made"
            )

    def _plain_step(self, batch: Any) -> Any:
        """What is done where make returns no step: the model returns the loss, or an object that has it."""
        try:
            out = (
                self.model(**batch)
                if isinstance(batch, Mapping)
                else self.model(*(batch if isinstance(batch, (tuple, list)) else [batch]))
            )
        except TypeError as e:
            if self.device is not None:  # the device's own, which is a finding
                raise
            raise UsageError(f"make returns no step, and model(*batch) raises TypeError: {e}; {RETURNS}") from e
        loss = getattr(out, "loss", out)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise UsageError(f"the model returns {type(out).__name__}, which is not a loss; {RETURNS}")
        for o in self.optimizers:
            o.zero_grad()
        torch.autograd.backward(loss)
        for any_ in (*self.optimizers, *(o for o in self.others if hasattr(o, "step"))):
            any_.step()
        return loss

    # ------------------------------------------------------------------------------------------------------------- state

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for title, m in zip(self.titles, self.modules):
            for n, t in own_tensors(m):
                yield from parts(f"{title}.{n}" if title else n, t)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of all models, one that several have once."""
        seen: set[int] = set()
        for n, t in self._tensors():
            if isinstance(t, nn.Parameter) and id(t) not in seen:
                seen.add(id(t))
                yield n, t

    def _variables(self) -> dict[str, tuple[Any, str]]:
        """Where the step keeps what is its own: in variables of make, and in attributes of the function or of the object whose
        method it is. (object, attribute) by name."""
        code, closure = getattr(self.step, "__code__", None), getattr(self.step, "__closure__", None)
        cells = zip(code.co_freevars, closure) if code is not None and closure else ()
        owner = getattr(self.step, "__self__", self.step)
        own = () if owner is self else getattr(owner, "__dict__", ())
        return {
            **{f"{CELL}{n}": (c, "cell_contents") for n, c in cells},
            **{n: (owner, n) for n in own if not n.startswith("__")},
        }

    def _kept(self) -> dict[str, Any]:
        models = {id(t) for _, t in self._tensors()}
        found: dict[str, Any] = {}
        for name, (where, attribute) in self._variables().items():
            with contextlib.suppress(ValueError):  # an empty cell
                value = getattr(where, attribute)
                if is_plain(value) and id(value) not in models:
                    found[name] = self._copied(value)
        return found

    def _keep(self, kept: Mapping[str, Any]) -> None:
        places = self._variables()
        for name, value in kept.items():
            if name not in places:
                continue
            where, attribute = places[name]
            now = getattr(where, attribute, None)
            if isinstance(value, Tensor):
                t = widened(value) if self.wide else value
                near = self.device is None or (isinstance(now, Tensor) and now.is_cpu)  # make left it there, on the device too
                setattr(where, attribute, t.clone() if near else self._put(t))
            elif type(value) is dict and type(now) is dict:  # which others may hold, too
                now.clear()
                now.update(copy.deepcopy(value))
            elif type(value) is list and type(now) is list:
                now[:] = copy.deepcopy(value)
            else:
                setattr(where, attribute, copy.deepcopy(value))

    def state(self) -> State:
        """A copy of everything."""
        return State(
            {n: self._near(t) for n, t in self._tensors()},
            {n: self._near(t.grad) for n, t in self._tensors() if t.grad is not None},
            tuple(tree_map(self._copied, o.state_dict()) for o in self.optimizers),
            tuple(tree_map(self._copied, o.state_dict()) for o in self.others),
            self._kept(),
        )

    def load(self, s: State) -> None:
        """Continue from a state, of this side or of another."""
        with torch.no_grad():
            for n, t in self._tensors():
                t.copy_(s.tensors[n] if t.is_cpu else self._put(s.tensors[n]))
                if t.requires_grad or t.grad is not None:
                    t.grad = self._put(s.gradients[n]).to(t.dtype, copy=True) if n in s.gradients else None
        for optimizer, kept in zip(self.optimizers, s.optimizers):
            optimizer.load_state_dict(copy.deepcopy(kept))
        for other, kept in zip(self.others, s.others):
            if kept:  # a GradScaler that is not enabled has nothing
                other.load_state_dict(copy.deepcopy(kept))
        for scale, kept in zip(self._scales, (k for o, k in zip(self.others, s.others) if is_scaler(o))):
            scale.factor = float(kept.get("scale", 1.0))
        self._keep(s.kept)

    def _near(self, t: Tensor) -> Tensor:
        with _disable_current_modes():
            if t.layout is not torch.strided:
                t = t.to_dense()
            return t.detach().clone() if self.device is None or t.is_cpu else self.device.download(t)

    def _put(self, t: Tensor) -> Tensor:
        return t if self.device is None else self.device.upload(t)

    def stays(self) -> str:
        """What the step takes to the device although it lies on the CPU: the name of its variable; "" if there is nothing."""
        for name, (where, attribute) in self._variables().items():
            with contextlib.suppress(ValueError):  # an empty cell
                value = getattr(where, attribute)
                if isinstance(value, Tensor) and value.is_cpu and value.dim():
                    return name.removeprefix(CELL)
        return ""

    def _copied(self, x: Any) -> Any:
        return self._near(x) if isinstance(x, Tensor) else copy.deepcopy(x)

    # -------------------------------------------------------------------------------------------------------------- step

    @property
    def compiled(self) -> bool:
        """Whether torch.compile made some of it, which a step does without: it would not run under parity's modes."""
        values: list[Any] = [self.step, *self.modules]
        for where, name in self._variables().values():
            with contextlib.suppress(ValueError):  # an empty cell
                values.append(getattr(where, name, None))
        return any(is_compiled(v) or (isinstance(v, nn.Module) and any(parts_compiled(v))) for v in values)

    def batch(self, given: Any, change: Put | None = None) -> Any:
        """A copy of a batch for this side. change: what is done to its floating tensors first."""

        def placed(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x.to(self.place) if hasattr(x, "to") and not isinstance(x, type) else x
            x = x.detach().cpu()
            x = widened(x) if self.wide else x
            if x.is_floating_point():
                x = change(x) if change is not None else x
            return x.clone() if self.device is None else self.device.upload(x)

        return tree_map(placed, given)

    def extra(
        self, before: State | None, number: int, batch: Any, change: Put | None, around: Callable[[], Any] | None = None
    ) -> StepResult | Raised:
        """Take a step with a batch that is changed; with the batch as it is where the step raises otherwise, since a model may
        check that it gets what it knows. before: the state to begin with, by default this side's own; around: makes what is in
        force during the step."""
        change = None if self._as_given else change
        if before is not None:
            self.load(before)
        elif change is not None:
            before = self.state()  # since the step may raise behind optimizer.step()
        given = self.batch(batch, change)
        got: StepResult | Raised = ex.attempt(lambda: self.take(given, number, around and around()), "run")
        if change is not None and isinstance(got, Raised):
            got = self.extra(before, number, batch, None, around)
            self._as_given = isinstance(got, StepResult)
        return got

    def take(self, batch: Any, number: int, around: contextlib.AbstractContextManager[Any] | None = None) -> StepResult:
        """Take a step with a batch that `batch` returned. number: of the step, for the seed; around: in force during the step.
        Raises what the user's code raises."""
        took = StepResult()

        def stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            took.stepped = True

        def accumulated(name: str, p: Tensor) -> None:  # before anything clips it
            if name not in self.order:
                self.order.append(name)
            if p.grad is not None:
                took.gradients[name] = self._near(p.grad)

        hooks: list[Any] = [o.register_step_pre_hook(stepping) for o in self.optimizers]
        for n, p in self._parameters():
            if p.requires_grad:
                hooks.append(p.register_post_accumulate_grad_hook(functools.partial(accumulated, n)))  # type: ignore[no-untyped-call]
        try:
            around = around or contextlib.nullcontext()
            with seeded(number, self.device), uncompiled(), around, SharedRandom(own=False) as random_:
                loss = self.step(batch)
        finally:
            for h in hooks:
                h.remove()
        if not isinstance(loss, (Tensor, float)) or (isinstance(loss, Tensor) and loss.numel() != 1):
            raise UsageError(
                f"step returns {type(loss).__name__}; let it return the loss, a number or a tensor with one element"
            )
        took.loss = self._near(loss).reshape(()) if isinstance(loss, Tensor) else torch.tensor(loss, dtype=torch.float64)
        took.tensors = {n: self._near(t) for n, t in self._tensors()}
        took.draws, took.left = random_.draws, frozenset(random_.left)
        return took


def taken(got: StepResult | Raised, number: int) -> StepResult:
    """A step that was taken again. Raises UsageError if it raised, since nothing then shows what rounding explains."""
    if isinstance(got, Raised):
        raise UsageError(
            f"step {number + 1}, taken again with everything moved by a rounding, raises on the CPU: {got.type}: "
            f"{got.message}; let it accept values that are a rounding away"
        )
    return got


def other_way_of(make: Callable[..., Any], device: Device, at: tuple[int, State], batches: Sequence[Any]) -> Iterator[str]:
    """Where a step calls other functions on the device than on the CPU, in words. at: its number, and the state before it."""
    number, before = at
    seen = list[PlacementWatch]()
    for place in (None, device):
        side = Side(make, place)
        side.load(before)
        seen.append(watch := PlacementWatch(side.place.type))
        until = list[int]()  # calls before each step of an optimizer, which takes ways of torch's own
        for o in side.optimizers:
            o.register_step_pre_hook(lambda *_, to=until, w=watch: to.append(len(w.steps)))
            o.register_step_post_hook(lambda *_, to=until, w=watch: w.steps.__delitem__(slice(to[-1], None)))
        got = ex.attempt(functools.partial(side.take, side.batch(batches[number]), number, watch.over()), "run")
        watch.whole = not isinstance(got, Raised)
    if way := other_way(seen[0].steps, seen[1].steps, device.name, seen[1].whole):
        yield f"the step {way}"
