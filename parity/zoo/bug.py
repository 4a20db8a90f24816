"""A bug of the zoo: a fault as it was reported in public, with a case that shows it and a similar case that does not."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parity.core.errors import FaultError
from parity.devices import Fault

KINDS = (
    "silent_wrong_forward", "silent_wrong_backward", "silent_noop", "nan_mismatch", "rng", "drift", "metadata",
    "nondeterminism", "crash", "hang", "unsupported_op", "unsupported_dtype", "fallback",
)  # fmt: skip
LOUD = ("crash", "hang", "unsupported_op", "unsupported_dtype", "fallback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One reported bug, planted.

    fault: what the device does wrong, and when; its id and source name the report. kind: one of KINDS. triggers: the classes of
    condition that the report names ("layout", "offset", "dtype", ...).

    trigger, neighbour: functions of a device string that return tensors, gradients or plain values. On the faulty device the
    trigger differs from the CPU (or raises, warns, dies); the neighbour, a case one step away from it, does not.

    rows: names of the catalog rows that run the ops concerned; () to derive them from the fault's op names.
    """

    fault: Fault
    kind: str
    triggers: tuple[str, ...]
    trigger: Callable[[str], object]
    neighbour: Callable[[str], object]
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FaultError(f"bug '{self.fault.id}': kind '{self.kind}' is not one of {', '.join(KINDS)}")
        if self.fault.silent is not None and self.fault.silent != (self.kind not in LOUD):
            raise FaultError(f"bug '{self.fault.id}': its fault says silent={self.fault.silent}, and its kind is '{self.kind}'")

    @property
    def silent(self) -> bool:
        """Whether the device gives a wrong result without raising an error."""
        return self.kind not in LOUD

    @property
    def versions(self) -> str:
        """The versions of torch and macOS for which it was reported, or when, in the words of its thread; "" if not known."""
        return versions().get(self.fault.id, "")


@functools.cache
def versions() -> dict[str, str]:
    """The versions for which bugs were reported, by their ids."""
    return tomllib.loads((Path(__file__).parent / "versions.toml").read_text(encoding="utf-8"))
