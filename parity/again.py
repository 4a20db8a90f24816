"""A case again, or all that a run found: replayed, or explained. Each case in a process of its own: it may be one that ends the
process, or never comes back."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from parity import diff, inquest, notation, store, suite
from parity.diagnosis import examined
from parity.errors import CaseError, RunFileError, UsageError
from parity.inquest import How
from parity.report import explanation
from parity.vocabulary import FINDINGS, Record

SECONDS = 120


def replay(subject: str, how: How) -> int:
    """Replay a case id, or the findings of a run file; the exit code, 1 where one shows a difference.

    Raises CaseError for what is neither, RunFileError, and what keeps all cases of a run from being replayed, once.
    """
    if "(" in subject:
        suite.row(notation.parse(subject).op)
        return one(subject, how)
    path = Path(subject)
    if not subject or not path.exists():
        raise CaseError(f"'{subject}' is neither a case id nor a run file; a case id looks like add(float32[2], float32[2])")
    run = store.read(path, partial=True)
    cases = findings(run)
    if not cases:
        raise RunFileError(f"{path} holds no finding to replay; name a case id, in quotes")
    for case in cases:
        suite.row(notation.parse(case).op)
    how = as_then(subject, run.header, how)
    examined(how.device or "auto", how.faults, how.setup)  # what is wrong with them is told here, not once a case
    codes = [one(case, how) for case in cases]
    return max(codes, key=lambda code: (code == 1, code))


def findings(run: store.Run) -> tuple[str, ...]:
    """The cases of a run that show its findings, each once: the least ones; as they were drawn in an item that never ended."""
    told = {(r.op, r.dtype, r.aspect, r.status) for r in run.records if r.shrunk}
    found = [r for r in run.records if r.status in FINDINGS and (r.shrunk or (r.op, r.dtype, r.aspect, r.status) not in told)]
    return tuple(dict.fromkeys([*(r.shrunk or r.case for r in found), *(d.case for d in run.deaths)]))


def as_then(run: str, header: store.Header, how: How) -> How:
    """How the cases of a run are replayed: on its device. Its faults and its setup are code, so they are used only as far as
    the person names them again; another one than the run had is said in the first line.

    Raises UsageError, with the command to type, where the run had one that is not named now.
    """
    had = (("--faults", header.faults, how.faults), ("--setup", header.setup, how.setup))
    missing = [option for option, code, given in had if code.name and not given]
    if missing:
        named = "".join(f" {option} {shlex.quote(given or code.name)}" for option, code, given in had if code.name or given)
        what = " and ".join(f"{option} {code}" for option, code, _ in had if code.name)
        raise UsageError(
            f"{run} was run with {what}; parity runs no code because a run file names it. Look at it, then type: "
            f"parity replay {shlex.quote(run)}{named}"
        )
    for option, code, given in had:
        now = store.code_of(given)
        if now.name and not now.same(code):
            print(f"note: {option} {now} is not what {run} was run with: {code}")
    return replace(how, device=how.device or header.fingerprint.device)


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
    """Replay one case; its exit code. Where its process dies, the CPU is acquitted of it only by an inquest, and so is the
    device."""
    sys.stdout.flush()  # the process writes to the same place
    case = notation.case_text(notation.parse(case))
    ended = inquest.attempt(case, how, SECONDS)
    if not ended.died:
        return ended.code
    what = f"hang: {ended.died}" if ended.hung else f"crash: the process died ({ended.died})"
    print(f"{case}\n  {what}" + (f" at stage {ended.stage}" if ended.stage else ""))
    if ended.stage == "device":
        return 1
    blame, why = inquest.held(case, how, SECONDS, ended.hung)
    print(f"  {why}")
    if blame != store.CPU:
        return 1
    print("nothing was compared")
    return 3
