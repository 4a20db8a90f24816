"""What the probe (`parity.devices.probe`) says of a device, asked in a process of its own: a device may end the process that
touches it. Nothing heavy is imported here."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from parity import processes
from parity.errors import DeviceError, UsageError
from parity.vocabulary import Fingerprint

PROBE_SECONDS = 180


def examined(name: str, faults: str | None = None, setup: str | None = None) -> dict[str, Any]:
    """The probe's answer: device, verdict, reasons, dtypes, facts, fingerprint. setup: a file to run first.

    Raises UsageError or DeviceError as the probe does, and DeviceError where it dies or never answers.
    """
    options = [*(("--faults", faults) if faults else ()), *(("--setup", setup) if setup else ())]
    after = f" after --setup {setup}" if setup else ""
    try:
        with processes.isolated():
            command = processes.command("parity.devices.probe", *options, "--", name)
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"device {name} did not answer its probe within {PROBE_SECONDS} s{after}; it is unusable") from None
    line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    try:
        found: dict[str, Any] = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError
    except ValueError:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        raise DeviceError(f"the probe of device {name} died{after} ({last}); it is unusable") from None
    if "error" in found:
        raise (UsageError if found["exit_code"] == UsageError.exit_code else DeviceError)(found["error"])
    return found


def fingerprint_of(found: dict[str, Any]) -> Fingerprint:
    """The fingerprint in a probe's answer."""
    raw = dict(found["fingerprint"])
    for key in ("environment", "facts"):
        raw[key] = tuple((str(a), str(b)) for a, b in raw.get(key, ()))
    return Fingerprint(**raw)


def named(found: dict[str, Any]) -> str:
    """The device of a probe's answer in words, and whether it is real."""
    f = fingerprint_of(found)
    if f.simulated:
        return f"{f.device} (SIMULATED: the results say nothing about any hardware)"
    if f.device == "cpu":
        return "cpu (the reference itself: nothing is said about another device)"
    return f"{f.device} ({f.device_name})" if f.device_name not in ("", f.device) else f.device
