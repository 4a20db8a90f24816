"""Replay or explain a case, or the findings of a run, in new processes, because a case may end its process or hang. Those of a
run share one as long as it lives: to start one takes longer than most cases."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from parity.core import notation, project
from parity.core.errors import CaseError, NothingCompared, RunFileError, UsageError
from parity.core.results import FINDINGS, Aspect, Record, Status
from parity.core.status import Conclusion
from parity.engine import child, inquest, suite
from parity.engine.doctor import examined
from parity.engine.inquest import How
from parity.engine.options import METADATA, METADATA_HELP, is_strict
from parity.engine.reading import holds, read_words
from parity.faces.commands.groups import add_code, add_device
from parity.findings.verdict import of_cases
from parity.history import cells
from parity.report import explanation
from parity.report.answers import Replay, Replayed
from parity.report.output import last_line
from parity.report.words import called_in, plural
from parity.store import run_file
from parity.store.code import code_of
from parity.store.rows import CPU, Header, Run, is_own

HELP = "check one case again"
SETTINGS = ("setup", "faults")
ABOUT = "Rebuild a case from its id and check it."
SECONDS = 120


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    to.add_argument("case", metavar="CASE|RUN", help="a case id, in quotes, or a run file: all its findings")
    add_device(to, by_default="auto by default; for a run file, its own device")
    add_code(to)
    read = read_words("thing that a replay can fail on", METADATA)
    to.add_argument("--fail-on", action="append", default=[], type=read, metavar="WHAT", help=f"also fail on {METADATA_HELP}")


def run(o: argparse.Namespace) -> int:
    """Replay; the exit code."""
    strict = holds(tuple(o.fail_on), METADATA)
    return replay(o, o.case, How(o.device or "", o.faults, o.setup, fail_on_metadata=strict))


def replay(o: argparse.Namespace, subject: str, how: How) -> int:
    """Replay a case id, or the findings of a run file; the exit code is 1 if one shows a difference.

    Raises CaseError if the subject is neither, RunFileError, and errors of device, faults or setup, once for all cases.
    """
    if "(" in subject:
        suite.row(notation.parse(subject).op)
        how = replace(how, device=how.device or project.found().device)
        return _verdict(o, [one(subject, how)])
    path = Path(subject)
    if not subject or not path.exists():
        raise CaseError(f"'{subject}' is neither a case id nor a run file; a case id looks like add(float32[2], float32[2])")
    run = run_file.read(path, partial=True)
    found = findings(run)
    cases = tuple(case for case in found if not is_own(case))
    if found and not cases:
        raise RunFileError(f"all findings of {path} are of your own functions; run them again: parity run {found[0]}")
    if not cases:
        raise RunFileError(f"{path} holds no finding to replay; name a case id, in quotes")
    for case in cases:
        suite.row(notation.parse(case).op)
    how = as_then(subject, run.header, how)
    examined(how.device or "auto", how.faults, how.setup)  # errors are reported here once, not for every case
    return _verdict(o, _replayed(cases, {d.least for d in run.deaths}, how))


def _replayed(cases: Sequence[str], deadly: Collection[str], how: How) -> list[Replayed]:
    """Replay cases. deadly: those that have ended a process before."""
    done: list[Replayed] = []
    while len(done) < len(cases):
        alive = [*itertools.takewhile(lambda case: case not in deadly, cases[len(done) :])]
        sys.stdout.flush()  # the child writes to the same stream
        ended, died = inquest.several(alive, how, SECONDS) if len(alive) > 1 else ([], "")
        printed = len(done) + len(ended)
        done += [_lived(case, a) for case, a in zip(alive, ended[:-1] if died else ended)]
        # Those that may have ended it, else the next one, which has ended a process before, or is the last.
        some = [*enumerate(cases)][len(done) : len(done) + (2 if died else 1)]
        alone = [one(case, how, k < printed) for k, case in some]
        if died and not any(a.died for a in alone):
            what = f"crash: after the cases before it the process died ({died}), and it does not die of this case alone"
            print(f"  {what}")  # under the case, which came last
            alone[-1] = replace(alone[-1], code=1, text=(*alone[-1].text, what), died=died)
        done += alone
    return done


def _lived(case: str, ended: inquest.Attempt) -> Replayed:
    """A case whose process did not end. One that agrees and of which no result has an element compared nothing."""
    texts = [line for r in ended.records for line in explanation.lines(r, suite.row(r.op))]
    totals = [m.total for r in ended.records if r.aspect != Aspect.TRANSFER for m in r.measures]  # which counts none
    empty = bool(totals) and not any(totals)
    return Replayed(case, ended.code or (NothingCompared.exit_code if empty else 0), ended.records, (*texts,))


def _verdict(o: argparse.Namespace, replayed: Sequence[Replayed]) -> int:
    """Print the verdict of some cases; the exit code of all."""
    o.answer, codes = Replay((*replayed,)), [r.code for r in replayed]
    code = max(codes, key=lambda code: (code == 1, code))
    differ = sum(c == 1 for c in codes)
    agrees = all(any(r.status == Status.AGREE for r in x.records) for x in replayed if x.code)
    said = "the case agrees" if not code else "the case differs" if code == 1 else "nothing was compared"
    if len(codes) > 1:
        idle = plural(sum(map(bool, codes)), "case")
        said = f"{differ} of {len(codes)} cases differ" if code in (0, 1) else f"{idle} compared nothing"
    if code == NothingCompared.exit_code and agrees:
        said += " but shapes and dtypes, which agree: no result has an element"
    if code in (0, 1, NothingCompared.exit_code):  # others ended with a message of their own
        print(last_line(Conclusion.of(code), said))
    return code


def findings(run: Run) -> tuple[str, ...]:
    """The cases of a run that show its findings, each once: the least cases, or those drawn if the item never finished."""
    shrunk = {(r.op, r.dtype, r.aspect, r.status) for r in run.records if r.shrunk}
    findings_ = [
        r for r in run.records if r.status in FINDINGS and (r.shrunk or (r.op, r.dtype, r.aspect, r.status) not in shrunk)
    ]
    return tuple(dict.fromkeys([*(r.shrunk or r.case for r in findings_), *(d.least for d in run.deaths)]))


def as_then(run: str, header: Header, how: How) -> How:
    """How to replay the cases of a run: on its device, and as strict on strides. Its faults and setup are code, so they are
    used only if the person names them again; if they differ from the run's, the first line says so.

    Raises UsageError, with the command to type, if the run had one that is not named now.
    """
    had = ((header.faults, how.faults), (header.setup, how.setup))
    if any(code.name and not given for code, given in had):
        named = "".join(f" --setup {shlex.quote(given or code.name)}" for code, given in had if code.name or given)
        what = " and ".join(f"--setup {code}" for code, _ in had if code.name)
        raise UsageError(
            f"{run} was run with {what}; parity runs no code because a run file names it. Look at it, then type: "
            f"{called_in(header)} replay {shlex.quote(run)}{named}"
        )
    for code, given in had:
        now = code_of(given)
        if now.name and not now.same(code):
            print(f"note: --setup {now} is not what {run} was run with: {code}")
    strict = how.fail_on_metadata or is_strict(header.options)
    return replace(how, device=how.device or header.fingerprint.device, fail_on_metadata=strict)


def explain_run(path: Path, part: str) -> Replay:
    """Explain the findings of a run file, or the records whose op, dtype, aspect, status or case contains `part`, findings
    first.

    Raises RunFileError if there is none.
    """
    records = cells.with_deaths(run_file.read(path, partial=True)).records
    chosen = [r for r in records if (_holds(r, part) if part else r.status in FINDINGS) and not is_own(r.op)]
    if not chosen:
        what = f"no record with '{part}'" if part else "no finding"
        raise RunFileError(
            f"{path} holds {what}; it has {len(records)} records: name op, dtype, aspect, status, like 'softmax float16 wrong'"
        )
    chosen.sort(key=lambda r: (r.status not in FINDINGS, not r.shrunk))
    texts = []
    for r in chosen:
        lines = (*explanation.lines(r, suite.row(r.op)),)
        print("\n".join([r.shrunk or r.case, *(f"  {line}" for line in lines)]))
        texts.append(Replayed(r.shrunk or r.case, of_cases([Status(r.status)]), (r,), lines))
    return Replay((*texts,))


def _holds(r: Record, part: str) -> bool:
    head = f"{r.op} {r.dtype} {r.aspect} {r.status}"
    return part in f"{head} {r.case} {r.shrunk}" or set(part.split()) <= set(head.split())


def one(case: str, how: How, quiet: bool = False) -> Replayed:
    """Replay one case. If its process dies, an inquest decides whether CPU or device is to blame. quiet: print nothing of one
    that lives."""
    sys.stdout.flush()  # the child writes to the same stream
    case = notation.case_text(notation.parse(case))
    ended = inquest.attempt(case, how, SECONDS, quiet)
    if not ended.died:
        return _lived(case, ended)
    what = f"hang: {ended.died}" if ended.hung else f"crash: the process died ({ended.died})"
    what += f" at stage {ended.stage}" if ended.stage else ""
    print(f"{case}\n  {what}")
    if ended.stage == "device" and ended.died not in child.KILLS:
        return Replayed(case, 1, (), (what,), ended.died)
    blame, why = inquest.held(case, how, SECONDS, inquest.HANG if ended.hung else ended.died)
    print(f"  {why}")
    return Replayed(case, 1 if blame != CPU else NothingCompared.exit_code, (), (what, why), ended.died)
