"""Random numbers on the simulated device: from its own generator, or from a CPU generator handed to it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parity.devices import Device, resolve


@pytest.fixture(params=["sim", "sim:mps"])
def device(request: pytest.FixtureRequest) -> Device:
    return resolve(request.param)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "draw",
    [
        lambda g, d: torch.randn(3, generator=g, device=d),
        lambda g, d: torch.rand(3, generator=g, device=d),
        lambda g, d: torch.randint(9, (3,), generator=g, device=d),
        lambda g, d: torch.randperm(5, generator=g, device=d),
        lambda g, d: torch.normal(torch.zeros(3, device=d), 1.0, generator=g),
        lambda g, d: torch.bernoulli(torch.full((5,), 0.5, device=d), generator=g),
        lambda g, d: torch.multinomial(torch.ones(5, device=d), 2, generator=g),
        lambda g, d: torch.empty(3, device=d).exponential_(generator=g),
    ],
)
def test_a_generator_gives_the_same_numbers_for_the_same_seed(
    device: Device, draw: Callable[[torch.Generator, torch.device], Tensor], own: bool
) -> None:
    here = torch.Generator().manual_seed(3)
    there = torch.Generator(device.torch_device if own else "cpu").manual_seed(3)
    want = draw(here, torch.device("cpu"))
    got = draw(there, device.torch_device)
    assert got.device == device.torch_device
    assert torch.equal(got.cpu(), want)


def test_what_a_generator_says_of_itself(device: Device) -> None:
    g = torch.Generator(device=str(device.torch_device))
    assert g.device == device.torch_device
    assert isinstance(g, torch.Generator)
    assert torch.Generator("sim").device == torch.device("sim", 0)
    assert g.manual_seed(5) is g
    assert g.initial_seed() == 5
    for same in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert same.device == device.torch_device
        assert torch.equal(torch.rand(3, generator=same), torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_other_generators_are_torchs_own() -> None:
    resolve("sim")
    g = torch.Generator("cpu")
    assert type(g) is type(torch.default_generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert not isinstance(3, torch.Generator)
    assert g.device == torch.device("cpu")
    assert torch.equal(copy.deepcopy(g).get_state(), g.get_state())
    with pytest.raises(RuntimeError):
        torch.Generator("nowhere")
    assert len(list(torch.utils.data.RandomSampler(range(5), generator=g))) == 5
