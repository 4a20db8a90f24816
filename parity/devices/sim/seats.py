"""Seats: each device index has a profile, faults and a history of its own, so that several personalities live side by side.

Index 0 is `sim`, 1 is `sim:mps`; devices with faults take the next free one. `busy` is the one flag that the hot path
looks at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from parity.devices.sim.faults import Fault
from parity.devices.sim.memory import SEAT_COUNT
from parity.devices.sim.profile import PERMISSIVE, Profile
from parity.errors import DeviceError

HISTORY = 256
FIRST_FREE = 2


class Seat:
    """What one device index is at present. Mutable: `sit` changes it."""

    __slots__ = ("busy", "function_faults", "history", "kernel_faults", "log", "profile")

    def __init__(self) -> None:
        self.history: deque[str] = deque(maxlen=HISTORY)
        self.log: list[str] | None = None
        self.sit(PERMISSIVE, ())

    def sit(self, profile: Profile, faults: Sequence[Fault]) -> None:
        """Take on a personality, and forget what ran before."""
        self.profile = profile
        self.kernel_faults: dict[str, list[Fault]] = {}  # transfers too: their names do not collide with aten's
        for fault in faults:
            if fault.level != "function":
                for op in fault.ops:
                    self.kernel_faults.setdefault(op, []).append(fault)
        self.function_faults = tuple(f for f in faults if f.level == "function")
        self.history.clear()
        self.touch()

    def touch(self) -> None:
        """Set `busy` anew; needed after `log` is set."""
        faulty = self.kernel_faults or self.function_faults  # the latter for the history only
        self.busy = bool(not self.profile.is_permissive or faulty or self.log is not None)

    def note(self, overload: str) -> None:
        """Remember that this ran."""
        self.history.append(overload)
        if self.log is not None:
            self.log.append(overload)

    def faults_for(self, overload: str, base: str) -> list[Fault]:
        """The faults whose names mean this overload ("add.out", of base "add"; "add_.Tensor", of base "add_")."""
        if not self.kernel_faults:
            return []
        names = dict.fromkeys((overload, base, _stripped(base)))
        return [f for name in names for f in self.kernel_faults.get(name, ())]


def _stripped(base: str) -> str:
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


SEATS = tuple(Seat() for _ in range(SEAT_COUNT))
_free: deque[int] = deque(range(FIRST_FREE, SEAT_COUNT))


def take_seat() -> int:
    """An index for a device with faults. Raises DeviceError when all are taken."""
    if not _free:
        raise DeviceError(
            f"more than {SEAT_COUNT - FIRST_FREE} simulated devices with faults are alive in this process; "
            "let go of some Device objects, or plant the faults on one"
        )
    return _free.popleft()


def leave_seat(index: int) -> None:
    """Free an index; the longest unused is taken next, because tensors may outlive their device for a while."""
    SEATS[index].sit(PERMISSIVE, ())
    _free.append(index)
