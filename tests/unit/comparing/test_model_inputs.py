"""Inputs that are made for a model, and those that a person gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity.comparing.model_inputs import given, made
from parity.core.errors import UsageError


class Holding(nn.Module):
    """A model that says what it takes."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.net = nn.Linear(5, 2)
        self.__dict__.update(held)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        assert x.shape == (3, 5)
        return self.net(x) * scale


class Two(nn.Module):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Bilinear(3, 3, 2)
        self.first = nn.Linear(3, 3)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.net(self.first(a), b)


class Unknown(nn.Module):
    """A model that says nothing."""

    def forward(self, x: Tensor) -> Any:
        return x


@pytest.mark.parametrize(
    ("model", "shapes", "said"),
    [
        (nn.Conv2d(3, 4, 3), [(2, 3, 32, 32)], "float32[2, 3, 32, 32].normal(), from its first layer"),
        (nn.Conv1d(1, 4, 100), [(2, 1, 1024)], "float32[2, 1, 1024].normal(), from its first layer"),
        (
            nn.Sequential(nn.Conv2d(1, 4, 28), nn.Flatten(), nn.Linear(4, 2)),
            [(2, 1, 28, 28)],
            "float32[2, 1, 28, 28].normal(), ",
        ),
        (nn.Linear(7, 2).half(), [(2, 7)], "float16[2, 7].normal(), from its first layer"),
        (nn.Embedding(9, 2), [(2, 16)], "int64[2, 16].index(0, 9), from its first layer"),
        (nn.LSTM(6, 2), [(2, 6)], "float32[2, 6].normal(), from its first layer"),
        (nn.MultiheadAttention(8, 2), [(2, 8)] * 3, "float32[2, 8].normal(), float32[2, 8].normal(), float32[2, 8].normal(), "),
        (Two(), [(2, 3)] * 2, "float32[2, 3].normal(), float32[2, 3].normal(), from its first layer"),
        (Holding(example_inputs=torch.ones(3, 5)), [(3, 5)], "float32[3, 5], its example_inputs"),
        (Holding(example_inputs=lambda: (torch.ones(3, 5),)), [(3, 5)], "float32[3, 5], its example_inputs"),
        (Holding(example_input_array=(torch.ones(3, 5), 2.0)), [(3, 5)], "float32[3, 5], float, its example_input_array"),
        (Holding(dummy_inputs={"x": torch.ones(3, 5)}), [(3, 5)], "x=float32[3, 5], its dummy_inputs"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_inputs_are_made_from_what_a_model_says(model: nn.Module, shapes: list[tuple[int, ...]], said: str) -> None:
    found = made(model)
    tensors = [x for x in (*found.args, *found.kwargs.values()) if isinstance(x, Tensor)]
    assert [tuple(t.shape) for t in tensors] == shapes
    assert found.said.startswith(f"inputs {said}")
    model(*found.args, **found.kwargs)


def test_trying_them_changes_nothing_of_the_model() -> None:
    """Neither its buffers nor its mode nor torch's generator."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    before, state = model[1].running_mean.clone(), torch.get_rng_state()  # type: ignore[operator]  # a buffer
    model[1].eval()
    made(model)
    assert torch.equal(model[1].running_mean, before)  # type: ignore[arg-type]  # a buffer
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model] == [True, False, True]


def test_what_could_not_be_made_is_said_with_the_flag_that_gives_it() -> None:
    with pytest.raises(UsageError) as raised:
        made(Unknown())
    assert str(raised.value) == (
        "no inputs could be made for Unknown, it has no config, dummy_inputs, example_inputs, input_size or first layer that "
        "says what it takes; give them: --input 'float32[1, 3, 224, 224]'"
    )
    with pytest.raises(
        UsageError, match=r"it does not take float32\[2, 5\].normal\(\), .*: AssertionError.*give them: --input"
    ):
        made(Holding())


def test_given_inputs_are_tensors_in_parity_s_notation() -> None:
    """By position and by name; integers without a range are indices that the model has."""
    model = nn.Sequential(nn.Embedding(30, 2), nn.Embedding(5, 2))
    args, kwargs = given(("int64[4, 50]", "mask=bool[2, 3]", "scale=2.5", "on=True"), model)
    assert (args[0].shape, int(args[0].min()), int(args[0].max())) == ((4, 50), 0, 4)
    assert (kwargs["mask"].dtype, kwargs["scale"], kwargs["on"]) == (torch.bool, 2.5, True)
    (pair, ids), _ = given(("(float32[2], float32[3])", "int64[9].between(6, 7)"))
    assert [t.shape for t in pair] == [(2,), (3,)]
    assert set(ids.tolist()) == {6, 7}
    for text, why in (("float33[2]", "unknown dtype 'float33'"), ("float32[2", "this cannot be read")):
        with pytest.raises(UsageError, match=rf"--input .*{why}.*give tensors, such as --input 'float32\[1, 3, 224, 224\]'"):
            given((text,))
