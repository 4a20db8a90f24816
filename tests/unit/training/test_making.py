"""The training of a model that comes without one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from parity.comparing.subject import SHAPED
from parity.core.errors import UsageError
from parity.training.making import standard


class Model(nn.Module):
    """A linear layer, and what is returned of its result."""

    def __init__(self, returned: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.returned = nn.Linear(4, 3), returned

    def forward(self, x: Tensor) -> Any:
        return self.returned(self.net(x))


class Labelled(nn.Module):
    """A model with a loss of its own for labels of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.net, self.shape = nn.Linear(4, 3), shape

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        if labels is None:
            return {"logits": logits}
        assert tuple(labels.shape) == self.shape
        return {"loss": logits.logsumexp(-1).mean() + labels.float().mean(), "logits": logits}


CROSS, SQUARE, OWN = "cross entropy of its logits with drawn labels", "the mean square from a drawn target", "its own loss"


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (Model(lambda y: y), (2, 4), CROSS),
        (Model(lambda y: y), (2, 5, 4), SQUARE),
        (Model(lambda y: {"logits": y}), (2, 5, 4), CROSS),
        (Model(lambda y: SimpleNamespace(logits=y.movedim(-1, 1))), (2, 5, 5, 4), CROSS),
        (Model(lambda y: ([1], y.flatten(1)[:, :, None])), (2, 4), SQUARE),
        (Model(lambda y: {"loss": y.mean(), "logits": y}), (2, 4), OWN),
        (Model(lambda y: y.mean()), (2, 4), "its own result"),
        (Labelled((2,)), (2, 4), "its own loss with drawn labels"),
        (Labelled((2, 5)), (2, 5, 4), "its own loss with drawn labels"),
        (Labelled((1, 1, 1)), (2, 4), CROSS),
    ],
)
def test_the_loss_is_the_model_s_own_or_a_standard_one(model: nn.Module, shape: tuple[int, ...], said: str) -> None:
    """A step changes the copy and leaves the model as it is; two trainings have the same batch."""
    state, before = torch.get_rng_state(), model.net.weight.clone()  # type: ignore[operator,union-attr]  # a layer
    found = standard(model, (torch.ones(shape),), {})
    assert found.said == f"trained by {said}, AdamW(lr=0.001), the same batch in each step"
    assert torch.equal(torch.get_rng_state(), state)
    trained, _, step = found.make("cpu")
    (batch,) = found.batches
    first, second = step(batch), step(batch)
    assert first.dim() == 0
    assert first != second
    assert trained.training
    assert torch.equal(model.net.weight, before)  # type: ignore[arg-type,union-attr]  # a layer
    assert not torch.equal(trained.net.weight, before)


def test_a_lazy_model_gets_its_shapes_first() -> None:
    """By a first call, of a copy: the model stays lazy."""
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    found = standard(model, (torch.ones(8, 3),), {})
    assert found.said.endswith(f"; {SHAPED}")
    trained, _, step = found.make("cpu")
    assert step(found.batches[0]).isfinite()
    assert trained[0].weight.shape == (4, 3)
    assert any(map(is_lazy, model.parameters()))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.GELU(), "GELU has no parameters to train"),
        (
            Model(lambda y: y.argmax(-1)),
            "Model returns no floating tensor with a gradient, so that no loss can be made; write a",
        ),
        (Model(lambda y: [][0]), "Model raises in train mode: IndexError: list index out of range"),
    ],
)
def test_what_cannot_be_trained_says_so(model: nn.Module, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        standard(model, (torch.ones(2, 4),), {})
    assert says in str(raised.value)
