"""A training of a model that comes without one: AdamW and a standard loss, on one batch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parity.comparing import hugging
from parity.comparing.function import raised_at
from parity.comparing.subject import SEED, SHAPED, has_lazy, with_shapes
from parity.core.errors import UsageError

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
        for labels in hugging.labels(main):
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
