"""`parity report`: a run file as text, Markdown, JSON, JUnit, annotations, bug report or page; and what an archive holds."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.core import outputs, processes
from parity.core.errors import UsageError, near
from parity.core.status import Conclusion
from parity.faces.commands.groups import add_output, format_of, take_rest
from parity.report import formats, output
from parity.report.words import plural
from parity.store import run_file
from parity.store.rows import Run, counted

if TYPE_CHECKING:
    from parity.findings.causes import Gathered
    from parity.findings.verdict import Mark

HELP = "the causes of a run's findings"
ABOUT = (
    "The findings of a run by cause: what differs, in which calls, how often, and the least case. Causes of ordinary calls "
    "that are silently wrong come first. A cause's id depends on the facts alone, so it is the same in every run. Of an "
    "archive of parity doctor --archive: what it holds. Of several run files: what each op does in each dtype on each device "
    "and version, with the causes. Ends as its runs did: 1 where one failed, is cut or is missing items, 3 where one compared "
    "nothing; a bug report and an archive end with 0."
)
OVER_RUNS = (*formats.OF_CAUSES, "html")
PYTHON = ".py"  # the suffix of a file that adds a format
FORMATS = {"md": "markdown", "json": "json", "txt": "text"}  # by the suffix of a file, besides those of formats
# No choices: files outside of the package add some.
WAYS = f"{{{','.join((*formats.OF_CAUSES, *(f.name for f in formats.OURS), 'issue', 'FILE.py'))}}}"


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    how = (
        "the run file, or an archive of parity doctor; behind it the id of one cause, for all its findings; or several run "
        "files: what each op does in each of them, side by side"
    )
    to.add_argument("runs", nargs="*", metavar="RUN|CAUSE", help=how)
    how = (
        "instead of causes: a table of all ops by dtype, a letter for each pass (agrees, drifts, wrong, refused ...); with -v "
        "the ops too in which everything agrees"
    )
    to.add_argument("--matrix", action="store_true", help=how)
    how = (
        "text by default, or as the file of -o is called (.md, .json, .xml, .html); html: one page; junit: a test case for "
        "each op and dtype; github: annotations, the worst ten; issue: the cause as a bug report in Markdown, with a minimal "
        "script, which is run for it, and the versions; FILE.py or FILE.py:NAME: a format that this file adds"
    )
    to.add_argument("--format", metavar=WAYS, help=how)
    how = "for a page: an earlier run, for trends and both side by side"
    to.add_argument("--against", type=Path, metavar="BEFORE", help=how)
    add_output(to, "write to this file")
    take_rest(to, "runs")


def run(o: argparse.Namespace) -> int:
    """Print or write a report of a run file, or what an archive holds; the exit code."""
    if not o.runs:
        raise UsageError("report needs a run file: parity report RUN; parity run writes one")
    o.subject, *rest = map(Path, o.runs)
    others, causes = ([w for w in rest if _is_run(w) is is_run] for is_run in (True, False))
    if len(causes) > 1 or (causes and others):
        raise UsageError(f"a report is of one cause, {causes[0]}, of a whole run, or of several runs")
    o.cause = str(causes[0]) if causes else ""
    if o.subject.suffix == ".zip":
        if o.json:
            raise UsageError(f"--json is of a run file; parity report {o.subject} prints what an archive holds")
        from parity.report import archive

        o.format = "text"
        _written(o, archive.render(o.subject) + "\n")
        return 0
    runs = [(path.name, run_file.read(path, partial=True)) for path in (o.subject, *others)]
    o.issue = o.format == "issue"
    if others or (o.matrix and _asked(o, o.format, "") == "html"):
        _side_by_side(o, runs)
    else:
        _report(o, runs[0][1])
    code = 0 if o.issue else _ended(o, [run for _, run in runs])
    if o.output and o.verdict is not None:  # why it ends so
        print(output.last_line(o.verdict, f"report of {plural(len(runs), 'run')}", stored=str(o.output)))
    return code


def _asked(o: argparse.Namespace, given: str | None, default: str) -> str:
    """The format that was asked for, else that of the file's suffix, else the default."""
    suffix = Path(o.output or "").suffix.removeprefix(".")
    return format_of(given, o.output, FORMATS if given or suffix in FORMATS else formats.suffixes(suffix), default)


def _is_run(path: Path) -> bool:
    return path.suffix == ".jsonl" or path.is_file()


def _side_by_side(o: argparse.Namespace, runs: list[tuple[str, Run]]) -> None:
    from parity.report import support

    form = o.format = _asked(o, o.format, "text")
    if form not in OVER_RUNS or o.against:
        raise UsageError(f"several runs are reported as {', '.join(OVER_RUNS)}; two are compared by parity diff BEFORE AFTER")
    if form == "html" and not o.output:
        raise UsageError("a page goes to a file: parity report RUN ... --matrix -o report.html")
    made = o.answer = support.answer(runs)
    if form in ("html", "json"):
        _written(o, support.as_html(made) if form == "html" else support.as_json(made))
    else:
        _written(o, support.as_markdown(made, o.verbose) if form == "markdown" else f"{support.render(made, o.verbose)}\n")


def _ended(o: argparse.Namespace, runs: Sequence[Run]) -> int:
    """Leave what runs say together as the verdict: FAIL where one fails, else PASS where each is whole; the exit code."""
    from parity.findings import verdict

    if o.verdict is not None:  # of one cause
        return verdict.exit_code(o.verdict, runs[0])
    said = [(verdict.of_causes(run, *_gathered(run)), run) for run in runs]
    o.verdict = next(c for c in (Conclusion.FAIL, Conclusion.INCONCLUSIVE, Conclusion.PASS) if c in dict(said))
    return max(verdict.exit_code(c, run) for c, run in said if c is o.verdict)


def _gathered(run: Run) -> tuple[tuple[Gathered, ...], dict[str, Mark]]:
    """The causes of a run, and what is known of them."""
    from parity.findings import causes
    from parity.findings.verdict import marks

    gathered = causes.gather(run.records, counted(run.deaths, run.items))
    return gathered, marks(run, gathered)


def _report(o: argparse.Namespace, run: Run) -> None:
    o.format, o.run = _asked(o, _added(o.format), "text"), o.subject
    made = None if o.issue else formats.find(o.format)
    if run.end is None and (o.matrix or o.cause):  # every other report says so itself
        print(f"parity: {o.run} is cut: it has no end row, so findings may be missing", file=sys.stderr)
    if o.against and not (made is not None and made.compares):
        raise UsageError("--against is for a page: parity report RUN --against BEFORE -o report.html; else parity diff")
    if made is None:
        _written(o, (_matrix if o.matrix else _causes)(o, run))
    else:
        o.answer = causes_of(run) if o.json else None
        _written(o, _whole(o, run, made))


def _added(given: str | None) -> str | None:
    """The format that was asked for; of a file that adds it, after that was run."""
    file, suffix, name = (given or "").partition(PYTHON)
    if not suffix:
        return given
    from parity.devices.setup import run_setup

    run = partial(run_setup, file + suffix, "--format")
    if not name:
        return formats.added_by(run, file + suffix)
    run()
    return name.removeprefix(":")


def _written(o: argparse.Namespace, text: str) -> None:
    if o.output:
        outputs.write(o.output, text)
    elif o.format == "github":  # commands, which printing would make inert; what they hold is escaped
        output.control(sys.stdout, text)
    elif o.format == "text":
        print(text, end="")
    else:
        output.document(text)


def _whole(o: argparse.Namespace, run: Run, made: formats.Format) -> str:
    if o.cause or o.matrix:
        raise UsageError(f"--format {made.name} is of a whole run: parity report RUN --format {made.name} -o FILE")
    if made.page and not o.output:
        raise UsageError(f"a page goes to a file: parity report RUN -o report.{made.suffix or made.name}")
    before = run_file.read(o.against, partial=True) if o.against else None
    return formats.rendered(made, formats.Reported(run, o.run.name, before))


def _matrix(o: argparse.Namespace, run: Run) -> str:
    from parity.history.cells import without_gone
    from parity.report import answers, matrix

    run = without_gone(run)
    deaths = counted(run.deaths, run.items)
    if o.cause or o.issue:
        raise UsageError("--matrix is of a whole run: parity report RUN --matrix [--format markdown|json]")
    o.answer = matrix.answer(run.header, run.items, deaths)
    if o.format == "json":
        return answers.text(o.answer) + "\n"
    if o.format == "markdown":
        return matrix.as_markdown(run.items, deaths, o.verbose)
    return matrix.render(run.items, deaths, o.verbose) + "\n"


def causes_of(run: Run) -> Any:
    """The causes of a run as `run_answers.Causes`."""
    from parity.report import causes, gaps

    gathered, known = _gathered(run)
    return causes.answer(gathered, run.header, gaps.caveat_sentences(run), known)


def _causes(o: argparse.Namespace, run: Run) -> str:
    from parity.findings import verdict
    from parity.report import answers, gaps
    from parity.report import causes as causes_report

    gathered, known = _gathered(run)
    ids = [c.cause.id for c in gathered]
    if o.cause:  # progress lines name the members of a cause before they are joined
        joined = tuple(c for c in gathered if o.cause in (m.id for m in c.members))
        gathered = tuple(c for c in gathered if c.cause.id == o.cause) or joined
        if not gathered:
            what = near(o.cause, ids) or (f"it has {', '.join(ids)}" if ids else "it has none that counts")
            raise UsageError(f"{o.run} has no cause '{o.cause}'; {what}")
    if o.issue:
        if len(gathered) != 1:
            held = f"it has {', '.join(ids[:8])}" if ids else "it has no cause that counts"
            raise UsageError(f"a bug report is of one cause: parity report {o.run} CAUSE --format issue; {held}")
        from parity.report import issue
        from parity.report.words import called_in

        if (there := called_in(run.header)) != processes.called():
            again = f"{there} report {o.run} {gathered[0].cause.id} --format issue"
            print(f"parity: with the torch of the run: {again}", file=sys.stderr)
        return issue.render(gathered[0], run.header, run_script)
    before = gaps.caveat_sentences(run)
    o.verdict = conclusion = verdict.of_causes(run, gathered, known)
    o.answer = causes_report.answer(gathered, run.header, before, known)
    if o.format == "json":
        return answers.text(o.answer) + "\n"
    if o.format == "markdown":
        excluded = () if o.cause else gaps.excluded(run)
        return causes_report.as_markdown(gathered, run.header, conclusion, before, known, excluded)
    return causes_report.render(gathered, run.header, conclusion, bool(o.cause), () if o.cause else before, known) + "\n"


def run_script(text: str, device: str) -> Any:
    """Run the text of a script for a device; an `issue.ScriptRun`."""
    from parity.report.issue import SECONDS, ScriptRun

    command = [sys.executable, "-P", "-W", "ignore", "-", device]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ScriptRun(None)
    return ScriptRun(done.returncode, done.stdout, done.stderr)
