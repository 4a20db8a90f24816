"""Records where the operators of a call ran: on the device, on the CPU, or on the CPU after a copy from the device.

torch modes watch one more run of the function. They see every dispatched operator, so they detect a function that computes on
the CPU and uploads its result. The run that is judged is not watched, because `torch.compile` does not run its code under a
mode.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity import catalog
from parity.comparing.places import line
from parity.core import processes
from parity.core.observer import Functions, Operators, in_backward, lies_on, name_of, no_results
from parity.devices import Device, setup
from parity.devices.sim.loading import place_of
from parity.oracle.step_dtypes import Recorded

# Copies if the devices differ; otherwise computation (a cast, a write).
ATEN_COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")
ATEN_READS = ("aten::_local_scalar_dense",)
ATEN_IDLE = ("aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift")
MANY = 12  # most op names in the suggested command
IDLE = ("__get__", "__set__", "device")  # attributes of tensors, and torch.device, which compute nothing
ATEN_DECIDING = ("item", "equal", "allclose", "is_nonzero")  # what reads a value, among public functions
READS = (*ATEN_DECIDING, "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__")
WINDOW = 200  # calls behind the first difference that are aligned
Step = tuple[str, str]  # a call: the public function, and its line


class PlacementWatch:
    """there, here: operators that computed on the device and on the CPU, in the order of their first call. after: operators of
    `here` that took floating tensors after a copy from the device. calls: public torch functions that took a tensor on the
    device; last: the last of them, "" if no catalog row tests it. steps: all calls, in order. made: the last call that made a
    tensor on the CPU out of none, and its line. cast: the dtypes of the operators that ran under autocast, as `Recorded` gives
    them. error: the first exception in a backward. whole: whether the run finished; seeded: whether it drew
    random numbers on the device from a generator of the user's own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.there: dict[str, None] = {}
        self.here: dict[str, None] = {}
        self.after: dict[str, None] = {}
        self.calls: dict[str, None] = {}
        self.steps: list[Step] = []
        self.last = self.made = ""
        self.cast: dict[str, list[str]] = {}
        self.error: Exception | None = None
        self.whole = self.seeded = False
        self._copied = False
        self._inside = False  # whether an operator runs: what a simulated device's kernel calls is not the user's code
        self._autocast = False  # whether the public function that runs now does so under autocast

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the operators that are dispatched inside."""
        with Functions(self._function), Recorded(lambda: self._autocast) as ran, Operators(self._operator):
            yield
        self.cast = {n: d for n, d in ran.dtypes.items() if any(d)}
        if self.error is not None:
            raise self.error

    @property
    def idle(self) -> bool:
        """Whether operators computed on the CPU only."""
        return not self.there and bool(self.here)

    def _function(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._autocast = torch.is_autocast_enabled(self.kind)  # operators cannot see it: it is off inside the kernels that cast
        # Recorded before the call, so that a call that raises is recorded, too.
        if (own := getattr(func, "__name__", "")) not in IDLE and not self._inside:
            self.steps.append((name_of(func) or own, line()))
        if lies_on(self.kind, (args, kwargs)):
            self.last = row_of(getattr(func, "__name__", ""))
            if self.last:
                self.calls.setdefault(self.last)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_cpu and result.ndim and not _tensors((args, kwargs)):
            self.made = f"{name_of(func) or func.__name__} at {line()}"
        return result

    def _operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        before, self._inside = self._inside, True
        try:
            result = func(*args, **kwargs)
        except Exception as e:
            if not in_backward():
                raise
            self.error = self.error or e
            return no_results(func)
        finally:
            self._inside = before
        self.seeded |= kwargs.get("generator") is not None and any(not t.is_cpu for t in _tensors(result))
        name = func.name().partition(".")[0]
        if not func.is_view and name not in ATEN_IDLE:
            self._saw(name, _tensors((args, kwargs)), result)
        return result

    def _saw(self, name: str, given: Sequence[Tensor], result: Any) -> None:
        """Record that an operator ran on these tensors."""
        before, after = ({t.device.type for t in side} for side in (given, _tensors(result)))
        kinds = before | after
        if name in ATEN_READS or (name in ATEN_COPIES and len(kinds) > 1):
            self._copied = self._copied or (self.kind in before and self.kind not in after)
        elif self.kind in kinds:
            self.there.setdefault(name)
        elif "cpu" in kinds:
            self.here.setdefault(name)
            if self._copied and any(t.is_floating_point() or t.is_complex() for t in given):
                self.after.setdefault(name)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def other_way(here: Sequence[Step], there: Sequence[Step], device: str, whole: bool = True) -> str:
    """Where the CPU and the device call other functions first, in words that follow the subject's name; empty if they call the
    same. whole: whether the device's run finished: where it stopped, the CPU's goes on."""
    at = next((k for k, (a, b) in enumerate(zip(here, there)) if a != b), min(len(here), len(there)))
    ours, theirs = here[at : at + WINDOW], there[at : at + WINDOW]
    if not theirs and not whole:
        return ""
    for tag, i, j, k, n in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        a, b = (" at ".join(filter(None, s[0])) if s else "" for s in (ours[i:j], theirs[k:n]))
        what = f"the CPU calls {a} where {device} calls {b}" if a and b else f"only {device if b else 'the CPU'} calls {a or b}"
        return f"takes another way than on the CPU: {what}"
    return ""


def read_before(here: Sequence[Step], there: Sequence[Step]) -> bool:
    """Whether the function read a value, on which it may have decided, before the first call that only one side made."""
    at = next((k for k, (a, b) in enumerate(zip(here, there)) if a != b), min(len(here), len(there)))
    return any(name.rpartition(".")[2] in READS for name, _ in here[:at])


@functools.cache
def row_of(function: str) -> str:
    """The catalog row that tests a public function, for `parity run`; empty if there is none."""
    plain = function.strip("_")
    if plain not in catalog.ROWS and function.startswith("__r"):  # __rsub__
        plain = plain[1:]
    return plain if plain in catalog.ROWS else _by_call().get(plain, "")


@functools.cache
def _by_call() -> dict[str, str]:
    rows: dict[str, str] = {}
    for row in catalog.ROWS.values():
        if row.call.startswith("torch."):
            rows.setdefault(row.call.rpartition(".")[2], row.name)
    return rows


def command(names: list[str], dtype: str, device: Device) -> str:
    """The command that tests these ops one by one, with the same faults and setup; empty if there are none."""
    if not names:
        return ""
    planted = getattr(device, "planted", ())
    more = f" --setup {shlex.quote(place_of(planted))}" if planted else ""
    more += "".join(f" --setup {shlex.quote(path)}" for path in setup.ran[-1:])
    return f"{processes.called()} run {' '.join(names[:MANY])} --dtype {dtype} --device {device.name}{more}"
