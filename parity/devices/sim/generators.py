"""torch.Generator(device="sim"). torch asks C++ hooks for a generator, which Python cannot provide, so the class is
replaced."""

from __future__ import annotations

from typing import Any

import torch

from parity.devices.sim.memory import NAME

_Native: Any = torch._C.Generator


class _Kind(type(_Native)):  # type: ignore[misc]  # the type of a C type
    """Makes every torch generator an instance of the class that replaced torch.Generator."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Native)


class Generator(_Native, metaclass=_Kind):  # type: ignore[misc]  # torch.Generator is declared final
    """A CPU generator that reports the simulated device; for every other device, torch's own.

    Its stream is the CPU's: the same seed gives the same numbers.
    """

    _place: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        """Raises what torch raises for an unknown device."""
        place = torch.device(device)
        if place.type != NAME:
            return _Native(device)
        new = _Native.__new__(cls, device="cpu")
        new._place = torch.device(NAME, place.index or 0)
        return new

    @property
    def device(self) -> torch.device:
        """The device that the generator reports."""
        return self._place

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_state, (str(self._place), self.get_state())


def _with_state(device: str, state: torch.Tensor) -> Generator:
    new: Generator = Generator(device)
    new.set_state(state)
    return new


def patch() -> None:
    """Replace torch.Generator."""
    torch.Generator = Generator  # type: ignore[misc]  # a type is replaced
