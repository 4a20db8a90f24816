"""torch's device guard for the simulated device, and exceptions in a backward pass, for which torch would end the process.

Where a hook of the program raises in the backward pass, torch's engine unwinds with Python's error still set, and puts the
stream back on the way. For a device written in Python it asks the guard for the type of the device there, in a destructor; no
call of Python returns well while an error is set, and the process ends. So the guard takes the error away, and the engine's
`run_backward`, which then fails without a reason, raises it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_c: Any = torch._C
_TYPE = _c._autograd.DeviceType.PrivateUse1
_set = tuple(ctypes.c_void_p() for _ in range(3))  # type, value and traceback of an error
_kind, _value, _trace = map(ctypes.byref, _set)
_fetch = ctypes.pythonapi.PyErr_Fetch
_fetch.restype = None
_raised: list[BaseException] = []


def device_guard() -> Any:
    """What torch asks for the type of the device, a dozen times in every backward pass."""
    return type("DeviceGuard", (_c._acc.DeviceGuard,), {"type_": _type})()


def _type(guard: Any) -> Any:
    _fetch(_kind, _value, _trace)  # first and alone: Python does little else right while an error is set
    if _set[0].value:
        _keep()
    return _TYPE


def _keep() -> None:
    """Keep the error that was fetched, as an exception with its traceback."""
    ctypes.pythonapi.PyErr_NormalizeException(_kind, _value, _trace)
    taken = [ctypes.cast(p, ctypes.py_object).value if p.value else None for p in _set]
    for owned in taken:  # the fetch handed out references of its own
        if owned is not None:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(owned))
    error: Any = taken[1]
    _raised.append(error.with_traceback(taken[2]))


class _Engine(_c._ImperativeEngine):  # type: ignore[misc]  # untyped in torch
    """torch's engine, which raises what the guard took away."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's."""
        _raised.clear()
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if not _raised:
                raise
        raise _raised.pop() from None


def raise_in_backward() -> None:
    """Raise what is raised in a backward pass from here on."""
    torch.autograd.Variable._execution_engine = _Engine()
