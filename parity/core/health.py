"""The result of probing a device."""

from __future__ import annotations

from dataclasses import dataclass

from parity.core.errors import DeviceError
from parity.core.status import Conclusion

HEALTHY, SUSPECT, UNUSABLE = "healthy", "suspect", "unusable"
DOCTOR = "doctor"  # the fact of a fingerprint that names what is wrong with a suspect device
MEANING = {
    HEALTHY: "all known answers are right",
    SUSPECT: "it computes, but not all known answers are right; a run goes on, and its findings may be this machine's own",
    UNUSABLE: "nothing can be compared on it",
}


@dataclass(frozen=True, slots=True)
class Health:
    """verdict: healthy, suspect (computes, but wrongly) or unusable. reasons: a sentence each, none if healthy.

    dtypes: those that could be uploaded, added and downloaded. facts: other measurements that may change numbers. machine: what
    changes none of them, such as its memory.
    """

    verdict: str
    reasons: tuple[str, ...]
    dtypes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...] = ()


def exit_code(verdict: str) -> int:
    """With what an examination that came to this verdict ends."""
    return {HEALTHY: 0, SUSPECT: 1}.get(verdict, DeviceError.exit_code)


def conclusion(verdict: str) -> Conclusion:
    """What it says of the device."""
    return Conclusion.PASS if verdict == HEALTHY else Conclusion.FAIL
