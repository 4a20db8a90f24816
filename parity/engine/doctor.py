"""The preflight of a device, run in a separate process because a device may end the process that touches it. Nothing heavy is
imported here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parity.core import processes
from parity.core.devices import DOCTOR, MEANING, SUSPECT
from parity.core.errors import DeviceError
from parity.core.processes import DEADLY
from parity.core.results import Fingerprint
from parity.engine.child import Child, End, Limit, Watch

PROBE_SECONDS = 180
REASONS = 6  # most reasons in a banner
MOST_DEADLY = 6  # operators that may end a probe before the device counts as unusable


def examined(name: str, faults: str | None = None, setup: str | None = None) -> dict[str, Any]:
    """The probe's answer: device, verdict, reasons, dtypes, facts, machine, fingerprint. setup: a file to run first.

    Raises UsageError or DeviceError as the probe does, and DeviceError if it dies or never answers.
    """
    with processes.restored(DEADLY):
        while True:
            answer, end = _probed(name, faults, setup)
            found, at = processes.deadly(), end.entry.item if end.entry is not None else ""
            if not end.died or end.late or not at or at in found or len(found) >= MOST_DEADLY:
                return _sound(answer, end, name, setup) | ({"deadly": sorted(found)} if found else {})
            os.environ[DEADLY] = ",".join(sorted({*found, at}))  # once more, without the operator at which it ended


def examined_once(
    name: str, faults: str | None, setup: str | None, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> dict[str, Any]:
    """As `examined`; an operator that ends the probe is not left out in another one. environment, python: as for `Child`."""
    return _sound(*_probed(name, faults, setup, environment, python), name, setup)


def _probed(
    name: str, faults: str | None, setup: str | None, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> tuple[dict[str, Any], End]:
    watch = Watch(PROBE_SECONDS, limit=Limit(time.monotonic() + PROBE_SECONDS))
    with Child("parity.engine.examining.job", (name, faults, setup), watch, environment=environment, python=python) as probe:
        answer: dict[str, Any] = next((event["answer"] for event in probe), {})
        end = probe.ending()
    return answer, end


def _sound(answer: dict[str, Any], end: End, name: str, setup: str | None) -> dict[str, Any]:
    after = f" after --setup {setup}" if setup else ""
    if end.refused is not None:
        raise end.refused
    if end.late or end.hung:
        raise DeviceError(f"device {name} did not answer its probe within {PROBE_SECONDS} s{after}; it is unusable")
    if not answer or end.died:
        last = end.said.splitlines()[-1] if end.said else end.died
        raise DeviceError(f"the probe of device {name} died{after} ({last}); it is unusable")
    return answer


def fingerprint_of(answer: dict[str, Any]) -> Fingerprint:
    """The fingerprint in a probe's answer."""
    raw = dict(answer["fingerprint"])
    for key in ("environment", "facts"):
        raw[key] = tuple((str(a), str(b)) for a, b in raw.get(key, ()))
    return Fingerprint(**raw)


def named(f: Fingerprint) -> str:
    """The device in words, and whether it is real."""
    if f.simulated:
        return f"{f.device} (SIMULATED: this says nothing about any hardware)"
    if f.device == "cpu":
        return "cpu (the reference itself: nothing is said about another device)"
    return f"{f.device} ({f.device_name})" if f.device_name not in ("", f.device) else f.device


def in_words(verdict: str) -> str:
    """A verdict with what it means."""
    return f"{verdict}: {MEANING[verdict]}"


def banner(reasons: Sequence[str]) -> str:
    """What stands over a run on a suspect device."""
    more = [f"... {len(reasons) - REASONS} more: parity doctor"] if len(reasons) > REASONS else []
    lines = [f"SUSPECT device: {MEANING[SUSPECT]}", *(f"  {r}" for r in (*reasons[:REASONS], *more))]
    wide = "=" * min(100, max(map(len, lines)))
    return "\n".join((wide, *lines, wide))


def suspicion(fingerprint: Fingerprint) -> str:
    """What was wrong with the device when the run began, by the names of the known answers; empty for a healthy one."""
    return dict(fingerprint.facts).get(DOCTOR, "").removeprefix(f"{SUSPECT}: ")
