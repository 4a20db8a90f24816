"""What a side of a training is made of: what make returns, seeded alike on every side, and an exact GradScaler.

A training of a model that comes without one: AdamW and a standard loss, on one batch.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from parity.comparing import model_inputs
from parity.comparing.draws import streams
from parity.comparing.function import raised_at
from parity.comparing.leaves import is_wrapper, rebuilt
from parity.comparing.subject import SEED, SHAPED, has_lazy, with_shapes
from parity.core.errors import ParityError, UsageError
from parity.devices import Device
from parity.execution import execute as ex

PLAIN = (bool, int, float, str, type(None))  # what a step may keep in variables of its own, also in lists and dicts
LARGEST = 1 << 16  # elements of a tensor that it may keep; a larger one is data


def built(make: Callable[..., Any], place: torch.device) -> tuple[Any, ...]:
    """What make returns. One that takes no device runs with `place` as the default one."""
    try:
        wanted = [
            p
            for p in inspect.signature(make).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        wanted = []
    if len(wanted) > 1:
        raise UsageError(f"make has {len(wanted)} parameters; let it take the device, or nothing")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            if wanted:
                got = make(place)
            else:
                with torch.device(place):
                    got = make()
        except ParityError:
            raise
        except Exception as e:
            raise UsageError(
                f"make raises {type(e).__name__} for {place.type}: {(str(e).splitlines() or [''])[0][:200]}{raised_at(e)}"
            ) from e
    return got if isinstance(got, tuple) else (got,)


def is_plain(x: Any) -> bool:
    """Whether it is state that a step may keep between batches, and can be copied."""
    if isinstance(x, Tensor):
        return not x.requires_grad and x.layout is torch.strided and x.numel() <= LARGEST
    values = x.values() if type(x) is dict else x if type(x) is list else ()
    return isinstance(x, PLAIN) or (type(x) in (dict, list) and all(isinstance(v, PLAIN) for v in values))


def widened(t: Tensor) -> Tensor:
    """In float64, or complex128, unless it holds integers."""
    if is_wrapper(t):
        return rebuilt(t, widened)
    return t.to(torch.complex128) if t.is_complex() else t.double() if t.is_floating_point() else t


@contextlib.contextmanager
def seeded(number: int, device: Device | None) -> Iterator[None]:
    """The same random numbers in Python, numpy and torch for every side's step; the caller's streams go on as before."""
    full = ex.full_precision() if device is None else contextlib.nullcontext()
    single = torch.autograd.set_multithreading_enabled(False)  # simulated devices need the backward pass on the calling thread
    with torch.random.fork_rng(devices=[]), full, single, torch.enable_grad(), streams(SEED + 1 + number):
        seed = SEED + 1 + number
        torch.default_generator.manual_seed(seed)
        if device is not None:
            device.seed(seed)
        with device.active() if device is not None else contextlib.nullcontext():
            yield


def is_scaler(x: Any) -> bool:
    """Whether it is torch's GradScaler."""
    return isinstance(x, torch.amp.GradScaler)


class _Exact:
    """What a GradScaler does, in float64: it scales and divides by the same number, and finds nothing infinite."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._divided: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        return tree_map(lambda x: x * self.factor, outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._divided:
            return
        self._divided.add(id(optimizer))
        for g in optimizer.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.grad.div_(self.factor)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self._divided.clear()

    def get_scale(self) -> float:
        return self.factor


def exact(scaler: Any) -> _Exact:
    """Let a GradScaler compute in float64, which its kernels refuse."""
    made = _Exact()
    for name in ("scale", "unscale_", "step", "update", "get_scale"):
        setattr(scaler, name, getattr(made, name))
    return made


RATE = 1e-3
HOW = "write a function that returns make and the batches (parity help training)"
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True)
class Standard:
    """What `compare_training` takes, and in words what it is. make: builds a copy of the model, its optimizer and the step."""

    make: Callable[[Any], tuple[Any, ...]]
    batches: Sequence[Any]
    said: str


def standard(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Standard:
    """A training of the model on these inputs. The loss is the model's own where it has one; else cross entropy with drawn
    labels for a result called logits or of two dimensions; else the mean square from a drawn target. Raises UsageError for a
    model that does not run in train mode, and for a result that no loss can be made of."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError(f"{type(model).__name__} has no parameters to train")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        if lazy := has_lazy(model):
            shaped, args, kwargs = with_shapes(model, args, kwargs)
            assert isinstance(shaped, nn.Module)  # a copy of the model
            model = shaped
        named, target, loss, said = _loss(model, args, kwargs)

    def make(device: Any) -> tuple[Any, ...]:
        trained = copy.deepcopy(model).train().to(device)
        optimizer = torch.optim.AdamW((p for p in trained.parameters() if p.requires_grad), lr=RATE)

        def step(batch: Any) -> Tensor:
            given, by_name, wanted = batch
            optimizer.zero_grad()
            value = loss(trained(*given, **by_name), wanted)
            torch.autograd.backward(value)
            optimizer.step()
            return value

        return trained, optimizer, step

    return Standard(
        make,
        [(tuple(args), named, target)],
        f"trained by {said}, AdamW(lr={RATE:g}), the same batch in each step{f'; {SHAPED}' if lazy else ''}",
    )


def _loss(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Any, Loss, str]:
    """(inputs by name, with labels; the target; the loss of a result and the target; in words)."""
    out = _run(model, args, kwargs)
    if (own := _own(out)) is not None:
        return dict(kwargs), None, lambda out, _: _own(out), f"its own {'loss' if own is not out else 'result'}"  # type: ignore[return-value]
    main = _main(out)
    if main is None:
        raise UsageError(
            f"{type(model).__name__} returns no floating tensor with a gradient, so that no loss can be made; {HOW}"
        )
    if "labels" in inspect.signature(model.forward).parameters:
        for labels in model_inputs.labels(main):
            named = {**kwargs, "labels": labels}
            try:
                loss = _own(_run(model, args, named))
            except UsageError:  # it wants other labels
                continue
            if loss is not None and bool(loss.isfinite()):
                return named, None, lambda out, _: _own(out), "its own loss with drawn labels"  # type: ignore[return-value]
    if _logits(out) is not None or main.dim() == 2:
        classes = 1 if main.dim() > 3 else main.dim() - 1
        labels = torch.randint(main.shape[classes], (*main.shape[:classes], *main.shape[classes + 1 :]))
        return dict(kwargs), labels, _cross_entropy, "cross entropy of its logits with drawn labels"
    return dict(kwargs), torch.randn(main.shape).to(main.dtype), _mean_square, "the mean square from a drawn target"


def _run(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a copy of the model returns in train mode, whose buffers change."""
    try:
        return copy.deepcopy(model).train()(*args, **kwargs)
    except Exception as e:  # a model may raise anything
        why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}{raised_at(e)}"
        raise UsageError(f"{type(model).__name__} raises in train mode: {why}; {HOW}") from e


def _own(out: Any) -> Tensor | None:
    """The loss that a model computes by itself: what it calls so, or a result that is one number."""
    loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", out)
    return loss if isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad else None


def _logits(out: Any) -> Tensor | None:
    found = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    return found if isinstance(found, Tensor) and found.requires_grad and found.dim() > 1 else None


def _main(out: Any) -> Tensor | None:
    """The result that is trained: the logits, else the first that has a gradient."""
    some = (t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point() and t.requires_grad and t.dim())
    found = _logits(out)
    return next(some, None) if found is None else found


def _cross_entropy(out: Any, labels: Tensor) -> Tensor:
    main = _main(out)
    assert main is not None  # it was there when the loss was chosen
    if main.dim() == 3:  # sequences, with the classes last
        main, labels = main.flatten(0, 1), labels.flatten()
    return F.cross_entropy(main, labels)


def _mean_square(out: Any, target: Tensor) -> Tensor:
    main = _main(out)
    assert main is not None  # it was there when the loss was chosen
    return F.mse_loss(main, target)
