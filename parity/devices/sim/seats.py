"""Seats: each device index has its own profile, faults and history, so that several simulated devices coexist.

Index 0 is `sim`, 1 is `sim:mps`; devices with faults take the next free one. `busy` is the only flag that the fast path checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from parity.core.errors import DeviceError
from parity.devices.sim.faults import ANY, TRANSFERS, Fault, Planted
from parity.devices.sim.memory import SEAT_COUNT
from parity.devices.sim.profile import PERMISSIVE, Profile

HISTORY = 256
FIRST_FREE = 2


# torch's generic operator for such a device -> the usual name, which a kernel fault may use as well.
ALSO_CALLED = {"convolution_overrideable": "convolution", "convolution_backward_overrideable": "convolution_backward"}


Witness: TypeAlias = Callable[[str, Sequence[Any], Mapping[str, Any], Any], None]


class Seat:
    """The current state of one device index. Mutable: `sit` changes it.

    resolved: memory of operands whose lazy conj or neg bit torch has resolved for the next kernel -> the bits.
    witness: called with each operator that came to its end, with its arguments on the host and its result.
    computes: calls with more elements give results of the right form, in memory that nobody writes; None for no limit.
    """

    __slots__ = (
        "_by_overload", "_named", "allocation_faults", "busy", "computes", "faulty", "function_faults", "history", "log",
        "profile", "resolved", "witness",
    )  # fmt: skip

    def __init__(self) -> None:
        self.history: deque[str] = deque(maxlen=HISTORY)
        self.log: list[str] | None = None
        self.sit(PERMISSIVE, ())

    def sit(self, profile: Profile, faults: Sequence[Fault]) -> None:
        """Set profile and faults, and forget what ran before."""
        self.profile = profile
        self.witness: Witness | None = None
        self.computes: int | None = None
        planted = [Planted(f) for f in faults]
        self.function_faults = tuple(p for p in planted if "function" in p.fault.levels)
        self.allocation_faults = tuple(p for p in planted if "allocation" in p.fault.levels)
        self._named: dict[str, list[Planted]] = {}  # includes transfers, whose names do not collide with aten's
        for p in planted:
            if not {"kernel", "transfer"}.isdisjoint(p.fault.levels):
                for op in p.fault.ops:
                    self._named.setdefault(op, []).append(p)
        self._by_overload: dict[str, tuple[Planted, ...]] = {}
        self.resolved: dict[int, frozenset[str]] = {}
        self.history.clear()
        self.faulty = bool(planted)
        self.touch()

    def touch(self) -> None:
        """Recompute `busy`; needed after `log` is set."""
        self.busy = not self.profile.is_permissive or self.faulty or self.log is not None

    def note(self, overload: str) -> None:
        """Add an operator to the history."""
        self.history.append(overload)
        if self.log is not None:
            self.log.append(overload)

    def faults_for(self, overload: str, base: str) -> tuple[Planted, ...]:
        """The faults whose names cover this overload ("add.out", of base "add"; "add_.Tensor", of base "add_")."""
        faults = self._by_overload.get(overload)
        if faults is None:
            names = (overload, base, _stripped(base), ALSO_CALLED.get(base, base))
            level = "transfer" if base in TRANSFERS else "kernel"
            every = [p for p in self._named.get(ANY, ()) if level in p.fault.levels]
            faults = tuple(dict.fromkeys([*every, *(p for name in names for p in self._named.get(name, ()))]))
            self._by_overload[overload] = faults
        return faults


def _stripped(base: str) -> str:
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


SEATS = tuple(Seat() for _ in range(SEAT_COUNT))
_free: deque[int] = deque(range(FIRST_FREE, SEAT_COUNT))


def take_seat() -> int:
    """An index for a device with faults. Raises DeviceError if all are taken."""
    if not _free:
        raise DeviceError(
            f"more than {SEAT_COUNT - FIRST_FREE} simulated devices with faults are alive in this process; "
            "let go of some Device objects, or plant the faults on one"
        )
    return _free.popleft()


def leave_seat(index: int) -> None:
    """Free an index. The one that has been free longest is reused first, because tensors may outlive their device for a
    while."""
    SEATS[index].sit(PERMISSIVE, ())
    _free.append(index)
