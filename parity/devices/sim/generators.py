"""torch.Generator(device="sim"). torch asks C++ hooks for one, and Python cannot add any; so the class is replaced."""

from __future__ import annotations

from typing import Any

import torch

from parity.devices.sim.memory import NAME

_Native: Any = torch._C.Generator


class _Kind(type(_Native)):  # type: ignore[misc]  # the type of a C type
    """Every generator of torch is an instance of the class that took its place."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Native)


class Generator(_Native, metaclass=_Kind):  # type: ignore[misc]  # torch.Generator is declared final
    """A CPU generator that says it is on the simulated device; for every other device, torch's own.

    The stream is the CPU's: the same seed gives the same numbers there.
    """

    _place: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        """Raises what torch raises for a device that it does not know."""
        place = torch.device(device)
        if place.type != NAME:
            return _Native(device)
        new = _Native.__new__(cls, device="cpu")
        new._place = torch.device(NAME, place.index or 0)
        return new

    @property
    def device(self) -> torch.device:
        """Where its numbers go."""
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
