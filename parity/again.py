"""A case again, or all that a run found: replayed, or explained. Each case in a process of its own: it may be one that ends the
process, or never comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parity import diff, journal, notation, store, suite
from parity.diagnosis import examined
from parity.errors import CaseError, RunFileError, UsageError
from parity.report import explanation
from parity.vocabulary import FINDINGS, Record

SECONDS = 120


@dataclass(frozen=True, slots=True)
class How:
    """What a case is replayed with. faults: a file or a module, setup: a file; explain: tell why it is judged so, too."""

    device: str = ""
    faults: str | None = None
    setup: str | None = None
    explain: bool = False


def replay(subject: str, how: How) -> int:
    """Replay a case id, or the findings of a run file; the exit code, 1 where one shows a difference.

    Raises CaseError for what is neither, RunFileError, and what keeps all cases of a run from being replayed, once.
    """
    if "(" in subject:
        suite.row(notation.parse(subject).op)
        return one(subject, how)
    path = Path(subject)
    if not subject or not path.is_file():
        raise CaseError(f"'{subject}' is neither a case id nor a run file; a case id looks like add(float32[2], float32[2])")
    run = store.read(path, partial=True)
    cases = findings(run)
    if not cases:
        raise RunFileError(f"{path} holds no finding to replay; name a case id, in quotes")
    for case in cases:
        suite.row(notation.parse(case).op)
    how = as_then(path, run.header, how)
    examined(how.device or "auto", how.faults, how.setup)  # what is wrong with them is told here, not once a case
    codes = [one(case, how) for case in cases]
    return max(codes, key=lambda code: (code == 1, code))


def findings(run: store.Run) -> tuple[str, ...]:
    """The cases of a run that show its findings, each once: the least ones; as they were drawn in an item that never ended."""
    told = {(r.op, r.dtype, r.aspect, r.status) for r in run.records if r.shrunk}
    found = [r for r in run.records if r.status in FINDINGS and (r.shrunk or (r.op, r.dtype, r.aspect, r.status) not in told)]
    return tuple(dict.fromkeys([*(r.shrunk or r.case for r in found), *(d.case for d in run.deaths)]))


def as_then(path: Path, header: store.Header, how: How) -> How:
    """How the cases of a run are replayed: on its device, with its faults and its setup, as far as none is given.

    Raises UsageError where one of these files is no more, or another one.
    """
    faults, setup = how.faults, how.setup
    if not faults and header.faults:
        faults = header.faults
        if faults.endswith(".py"):
            faults = str(_found(path, faults, "--faults"))
    if not setup and header.setup:
        name, _, digest = header.setup.rpartition(" ")
        file = _found(path, name, "--setup")
        if store.setup_of(file).rpartition(" ")[2] != digest:
            raise UsageError(f"{path} was run with --setup {file}, which has changed since; name a file with --setup")
        setup = str(file)
    return replace(how, device=how.device or header.fingerprint.device, faults=faults, setup=setup)


def _found(run: Path, name: str, option: str) -> Path:
    """A file that a run was given: by its full path, or from the folder of the run file, where older ones kept only a name."""
    places = Path(name), run.parent / name
    found = next((p.absolute() for p in places if p.is_file()), None)
    if found is None:
        raise UsageError(f"{run} was run with {option} {name}, which is not there any more; name another file with {option}")
    return found


def explain_run(path: Path, part: str) -> None:
    """Explain the findings of a run file, or the records whose op, dtype, aspect, status or case holds `part`, findings first.

    Raises RunFileError where there is none.
    """
    records = diff.with_deaths(store.read(path, partial=True)).records
    chosen = [r for r in records if (_holds(r, part) if part else r.status in FINDINGS)]
    if not chosen:
        what = f"no record with '{part}'" if part else "no finding"
        raise RunFileError(
            f"{path} holds {what}; it has {len(records)} records: name op, dtype, aspect, status, like 'softmax float16 wrong'"
        )
    chosen.sort(key=lambda r: (r.status not in FINDINGS, not r.shrunk))
    for r in chosen:
        print(r.shrunk or r.case)
        print("\n".join(f"  {line}" for line in explanation.lines(r, suite.row(r.op))))


def _holds(r: Record, part: str) -> bool:
    head = f"{r.op} {r.dtype} {r.aspect} {r.status}"
    return part in f"{head} {r.case} {r.shrunk}" or set(part.split()) <= set(head.split())


def one(case: str, how: How) -> int:
    """Replay one case; its exit code."""
    sys.stdout.flush()  # the process writes to the same place
    with tempfile.TemporaryDirectory(prefix="parity-replay-") as folder:
        notes = Path(folder, "journal")
        try:  # in a session of its own, so that Ctrl-C reaches us alone, and we end it
            command = _command(notes, case, how)
            code = subprocess.run(command, timeout=SECONDS, check=False, start_new_session=True).returncode
        except subprocess.TimeoutExpired:
            print(f"{case}\n  hang: no answer within {SECONDS} s")
            return 1
        entry = journal.read(notes)
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    if entry is not None and entry.running and entry.stage != "device":
        print(f"{case}\n  void: the CPU itself died ({name}) at stage {entry.stage}\nnothing was compared")
        return 3
    print(f"{case}\n  crash: the process died ({name})")
    return 1


def _command(notes: Path, case: str, how: How) -> Sequence[str]:
    command = [sys.executable, "-m", "parity.report.replay", str(notes), how.device or "auto"]
    command += ["--faults", how.faults] if how.faults else []
    command += ["--setup", how.setup] if how.setup else []
    command += ["--explain"] if how.explain else []
    return [*command, "--", case]
