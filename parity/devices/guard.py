"""The operators that the examination of a device itself calls: noted before each call, so that one that ends the process has a
name, and computed on the CPU where one did so before. What one leaves in torch's state is put back at once: a mode that is
entered by each call makes every later call slower, without end.

Names come from a variable of the environment, because every process of a run needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.core import state
from parity.core.observer import Functions, lies_on
from parity.core.processes import deadly
from parity.devices.base import Device
from parity.devices.refusals import words

ATEN_TRANSFERS = (
    "to",
    "resolve_conj",
    "resolve_neg",
    "detach",
)  # what uploads and downloads call: without them nothing can be done


class _Calls:
    """Notes each public function, turns whatever it raises into an exception with words, and puts back what it leaves in
    torch's state. left: where that goes, by the function's name."""

    def __init__(self, device: Device, note: Callable[[str], object], left: dict[str, str]) -> None:
        self._device, self._without, self._left, self._note = device, deadly(), left, note

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An observer of public functions."""
        name = getattr(func, "__name__", str(func))
        if name in self._without and name not in ATEN_TRANSFERS and lies_on(self._device.torch_device.type, (args, kwargs)):
            return self._on_cpu(func, args, kwargs)
        self._note("" if name in ATEN_TRANSFERS else name)
        if name.startswith("_set_"):  # torch.no_grad and the like: the examination's own
            return func(*args, **kwargs)
        before = state.whole()
        try:
            return func(*args, **kwargs)
        except BaseException as e:
            said = words(e)
            if isinstance(e, Exception) and said == str(e):
                raise
            raise RuntimeError(f"{name} raised {type(e).__name__}: {said}") from None
        finally:
            if state.whole() != before:
                self._left.setdefault(name, "; ".join(state.put_back(before, state.WHOLE)))

    def _on_cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__.endswith("_"):  # what it writes would stay on the CPU
            raise RuntimeError(f"{func.__name__} ended the process before")

        def down(x: Any) -> Any:
            return x.detach().to("cpu") if lies_on(self._device.torch_device.type, x) else x

        with torch._C.DisableTorchFunction():
            result = func(*tree_map(down, args), **tree_map(down, kwargs))
            return tree_map(lambda x: self._device.upload(x) if isinstance(x, Tensor) else x, result)


@contextlib.contextmanager
def guarded(device: Device, note: Callable[[str], object] = str) -> Iterator[dict[str, str]]:
    """While active, the device's calls are given to `note`, and those of the deadly operators are computed on the CPU. Yields
    what calls left in torch's state, which grows."""
    active, left = device.active, dict[str, str]()

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with active(), Functions(_Calls(device, note, left).observe):
            yield

    setattr(device, "active", both)  # noqa: B010 -- a method of one object
    try:
        yield left
    finally:
        delattr(device, "active")


def reasons(left: Mapping[str, str]) -> tuple[str, ...]:
    """What is wrong with a device whose operators have ended an examination, or have left this in torch's state."""
    ended = [f"{name}: ended the process that examined the device; its own findings say more" for name in sorted(deadly())]
    return (*ended, *(f"{name}: left {words} in its process" for name, words in left.items()))
