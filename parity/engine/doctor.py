"""The preflight of a device, run in a separate process because a device may end the process that touches it. Nothing heavy is
imported here."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.core import processes
from parity.core.errors import DeviceError, UsageError
from parity.core.health import DOCTOR, MEANING, SUSPECT
from parity.core.processes import DEADLY
from parity.core.results import Fingerprint

PROBE_SECONDS = 180
REASONS = 6  # most reasons in a banner
MOST_DEADLY = 6  # operators that may end a probe before the device counts as unusable


def examined(name: str, faults: str | None = None, setup: str | None = None) -> dict[str, Any]:
    """The probe's answer: device, verdict, reasons, dtypes, facts, machine, fingerprint. setup: a file to run first.

    Raises UsageError or DeviceError as the probe does, and DeviceError if it dies or never answers.
    """
    options = [*(("--faults", faults) if faults else ()), *(("--setup", setup) if setup else ())]
    after = f" after --setup {setup}" if setup else ""
    with processes.restored(DEADLY):
        while True:
            code, out, err, at = _probed(name, options)
            found = processes.deadly()
            if code in (0, None) or not at or at in found or len(found) >= MOST_DEADLY:
                return answer_of(name, code, out, err, after) | ({"deadly": sorted(found)} if found else {})
            os.environ[DEADLY] = ",".join(sorted({*found, at}))  # once more, without the operator at which it ended


def _probed(name: str, options: Sequence[str]) -> tuple[int | None, str, str, str]:
    """Exit code, output and errors of a probe, and the operator that it called last; no code if it never answered."""
    with tempfile.TemporaryDirectory(prefix="parity-probe-", ignore_cleanup_errors=True) as folder:
        calls = Path(folder, "calls")
        command = processes.command("parity.devices.preflight", *options, "--calls", str(calls), "--", name)
        try:
            with processes.isolated():
                done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return None, "", "", ""
        at = calls.read_text(encoding="utf-8").strip() if calls.exists() else ""
    return done.returncode, done.stdout, done.stderr, at


def answer_of(name: str, code: int | None, out: str, err: str, after: str = "") -> dict[str, Any]:
    """The answer in what a probe's process printed. code: its exit code, None if it never answered; after: more words for an
    error. Raises as `examined` does."""
    if code is None:
        raise DeviceError(f"device {name} did not answer its probe within {PROBE_SECONDS} s{after}; it is unusable")
    line = out.strip().splitlines()[-1] if out.strip() else ""
    try:
        answer: dict[str, Any] = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError
    except ValueError:
        last = err.strip().splitlines()[-1] if err.strip() else f"exit code {code}"
        raise DeviceError(f"the probe of device {name} died{after} ({last}); it is unusable") from None
    if "error" in answer:
        raise (UsageError if answer["exit_code"] == UsageError.exit_code else DeviceError)(answer["error"])
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
