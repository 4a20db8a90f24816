"""The command line. Every command ends with an exit code that speaks:

0 nothing to report, 1 findings or regressions, 2 usage, 3 nothing was compared, 4 device absent or unusable.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parity import __version__, tolerance
from parity.catalog import lookup
from parity.core import processes, resources
from parity.core.devices import USUAL
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import DeviceError, NothingCompared, OutputError, ParityError, UsageError, near
from parity.core.results import Fingerprint, statuses
from parity.faces import commandline
from parity.faces import known as known_command
from parity.faces.commandline import split
from parity.faces.interruption import Interruptions
from parity.report import output
from parity.report.words import plural
from parity.runs import known as known_findings
from parity.runs import merging, run_file, suite
from parity.runs.code import Code, code_of
from parity.runs.doctor import examined, fingerprint_of, named
from parity.runs.inquest import How
from parity.runs.options import RunOptions
from parity.runs.rows import Header, Run, counted

INTERRUPTED = 130
AGAIN = 0.1  # share of --time that is kept for trying findings again


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. A user's mistake is one sentence on standard error."""
    options = commandline.parser().parse_args(argv)
    with output.patient(), processes.isolated():
        try:
            code = COMMANDS[options.command](options)
            sys.stdout.flush()
        except ParityError as e:
            print(f"parity: {e}", file=sys.stderr)
            return e.exit_code
        except KeyboardInterrupt:
            print("parity: interrupted", file=sys.stderr)
            return INTERRUPTED
        except OSError as e:
            what, why = e.filename or "the standard output", e.strerror or e
            print(f"parity: cannot read or write {what}: {why}; free the disk or name another place", file=sys.stderr)
            sys.stdout = output.nowhere()
            return OutputError.exit_code
    return code


# ------------------------------------------------------------------------------------------------------------- run


def _run(given: argparse.Namespace) -> int:
    o, began = RunOptions.of_command_line(given), time.monotonic()
    if o.time and o.count:
        raise UsageError("--count draws until all is counted, --time ends earlier; leave one of them out")
    profile = suite.profile(o.profile)
    whole = not (o.op or o.family or o.dtype or o.source or o.examples)
    if o.count:
        o = replace(o, source=o.source or "all", device="cpu" if o.device == "auto" else o.device)
    source = o.source or profile.source
    selection = " ".join([*o.op, *(f"family={f}" for f in o.family), *(f"dtype={d}" for d in o.dtype), f"source={source}"])
    o = replace(o, family=split(o.family), dtype=split(o.dtype))
    items = suite.shard(suite.select(o.op, o.family, o.dtype, source), o.shard)
    o = replace(o, fail_on=split(o.fail_on))
    fail_on = statuses(o.fail_on, "--fail-on")
    if o.list:
        return _list(items) if items else NothingCompared.exit_code
    known = _known(o)
    if o.junit_xml:
        _writable(Path(o.junit_xml).absolute().parent, "--junit-xml")
        if Path(o.junit_xml).is_dir():
            raise OutputError(f"cannot write {o.junit_xml}: it is a folder; name a file with --junit-xml")
    computers = _machines(o)
    probe = computers[0].answer if computers else examined(o.device, o.faults, o.setup)
    differing = _differing(computers, o.mixed)
    fingerprint = fingerprint_of(probe)
    if o.reach and probe["device"] == "cpu":
        raise UsageError("--reach tells the device's operators from the reference's; name a device other than the CPU: sim")
    for where, answer in [(f" of {m.spec}", m.answer) for m in computers] or [("", probe)]:
        if answer["verdict"] == "unusable":
            raise DeviceError(f"device {answer['device']}{where} is unusable: {'; '.join(answer['reasons'])}")
    o = replace(o, device=str(probe["device"]))
    tolerance.load(o.device, known_ops={r.name for r in suite.rows("all")})  # a broken table, before workers start
    now = datetime.now(UTC).isoformat(timespec="seconds")
    code_given = code_of(o.faults), code_of(o.setup)
    complete = whole and not o.count
    header = Header(
        fingerprint, o.seed, o.profile, selection, now, complete, *code_given, o.for_header(), o.shard or "", differing,
        known.code if known is not None else Code(),
    )  # fmt: skip
    _writable(Path(o.findings), "--findings")
    from parity.report.progress import Reporter  # pytest is imported only by the command that runs it

    path = Path(o.output or f"parity-run-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl")
    reporter = Reporter(header, path, fail_on=fail_on, min_judged=o.min_judged, verbose=o.verbose, seconds=o.time)
    reporter.scripts, reporter.known, reporter.strict = Path(o.findings), known, o.strict_known
    if o.time:
        reporter.started = began
    workers = sum(m.workers for m in computers) or o.workers or max(1, min(8, os.cpu_count() or 1))
    for text in differing:
        print(f"MIXED machines: {text}")
    if probe["verdict"] == "suspect":
        print(f"the device is SUSPECT: {'; '.join(probe['reasons'])}")
    with Interruptions() as asked:
        try:
            ops, pairs_asked = plural(len({i.row.name for i in items}), "op"), plural(len(items), "op x dtype pair")
            print(
                f"parity {__version__}: {ops}, {pairs_asked}, {o.profile} profile, {plural(workers, 'worker')}"
                f"{f', shard {o.shard}' if o.shard else ''}\n"
                f"device {named(probe)}, reference cpu, torch {fingerprint.torch}",
                flush=True,
            )
            print(*_about_known(known, fingerprint), sep="\n", end="", flush=True)
            code = _compared(o, items, workers, reporter, began)
            asked.hold()
        except KeyboardInterrupt:  # before pytest's session, or while it ends: what is done is kept all the same
            asked.hold()
            reporter.pytest_keyboard_interrupt()
            code = INTERRUPTED
        reporter.finish(code)
    if o.count:
        from parity.report import pairs

        print("\n" + pairs.render(pairs.of_run(reporter.items, whole), whole, o.verbose))
    return code


def _known(o: RunOptions) -> known_findings.Known | None:
    """The known findings of a run; None without --known."""
    if o.strict_known and not o.known:
        raise UsageError("--strict-known is about known findings; name their file with --known")
    return known_findings.read(Path(o.known)) if o.known else None


def _about_known(known: known_findings.Known | None, fingerprint: Fingerprint) -> Iterator[str]:
    """The file of known findings, and what is odd about it; the last line is empty."""
    if known is not None:
        yield f"known findings: {len(known.entries)} in {known.code}"
        yield from (f"warning: {w}" for w in (*known.warnings(fingerprint), *known_command.unknown_ops(known)))
        yield ""


def _compared(o: RunOptions, items: Sequence[suite.Item], workers: int, reporter: Any, began: float) -> int:
    """Run the suite, and then its findings again in fresh processes. began: when the time of --time began."""
    until = began + o.time if o.time else math.inf
    if o.time:
        # A part of the time is kept for the findings.
        o = replace(o, time=max(1.0, until - time.monotonic() - (0.0 if o.no_again else AGAIN * o.time)))
    code = _pytest(o, workers, reporter) if items else NothingCompared.exit_code  # a shard may be empty
    if code == 1 and (o.no_again or o.tx):  # on other machines nothing can be tried from here
        reporter.say(f"findings were not tried again in a fresh process ({'--no-again' if o.no_again else '--tx'})")
    if code != 1 or o.no_again or o.tx:
        return code
    reporter.try_again(How(o.device, o.faults, o.setup), workers, max(0.0, until - time.monotonic()))
    if o.junit_xml and (acquitted := reporter.acquitted()) and Path(o.junit_xml).is_file():
        from parity.report import junit

        junit.acquit(Path(o.junit_xml), acquitted)
    again: int = reporter.exit_code
    return again


def _differing(computers: list[Any], mixed: bool) -> tuple[str, ...]:
    if not computers:
        return ()
    from parity.runs import machines

    return machines.differences(computers, mixed)


def _machines(o: RunOptions) -> list[Any]:
    """The machines of --tx, examined; none without it."""
    if not o.tx:
        if o.mixed:
            raise UsageError("--mixed is for runs over several machines: name them with --tx")
        return []
    if o.workers:
        raise UsageError(
            "-n starts workers here, --tx where it says; leave one of them out (--tx '2*popen' is two workers here)"
        )
    from parity.runs import machines

    faults = _located(o.faults) if o.faults else None
    setup = str(Path(o.setup).absolute()) if o.setup else None
    return machines.examine(machines.read_specs(o.tx), o.device, faults, setup)


def _pytest(o: RunOptions, workers: int, reporter: Any) -> int:
    """The one engine. Raises what kept a worker from its first item."""
    import pytest

    from parity.faces.plugin import UNABLE

    folder = resources.folder("conformance")
    here = replace(  # workers may stand in another folder
        o,
        power=0 if o.no_power else o.power,
        faults=_located(o.faults) if o.faults else None,
        setup=str(Path(o.setup).absolute()) if o.setup else None,
        known=str(Path(o.known).absolute()) if o.known else None,
        findings=str(Path(o.findings).absolute()),
    )
    with tempfile.TemporaryDirectory(prefix="parity-", ignore_cleanup_errors=True) as scratch:
        args = [
            str(folder), "-c", str(folder / "pytest.ini"), "--rootdir", str(folder),
            *processes.PLUGINS, "-p", "no:terminal", "-p", "no:cacheprovider",
            "-p", "no:faulthandler",  # a death is told by the report, not by a dump of its threads
            "--dist", "worksteal", f"--parity-rundir={scratch}", *here.pytest_arguments(),
        ]  # fmt: skip
        # The suite is copied to machines that are elsewhere; parity itself is installed there.
        args += [*(f"--tx={spec}" for spec in o.tx), "--rsyncdir", str(folder)] if o.tx else ["-n", str(workers)]
        args += ["--junit-xml", str(Path(o.junit_xml).absolute())] if o.junit_xml else []
        ended: int | pytest.ExitCode
        try:
            with processes.only_our_plugins():
                ended = pytest.main(args, plugins=[reporter])
        except OSError as e:  # pytest writes the XML last, and hears of a full disk only then: nothing else may be lost by it
            what, remedy = e.filename or o.junit_xml or "to the disk", "name another file with --junit-xml, or free the disk"
            reporter.failed = reporter.failed or OutputError(f"cannot write {what}: {e.strerror or e}; {remedy}")
            ended = pytest.ExitCode.TESTS_FAILED
        unable = [path for path in Path(scratch).iterdir() if path.name.startswith(UNABLE)]
        if unable:
            kinds = {kind.exit_code: kind for kind in (UsageError, DeviceError)}
            raise kinds.get(int(unable[0].name.removeprefix(UNABLE)), UsageError)(unable[0].read_text(encoding="utf-8"))
    if ended == pytest.ExitCode.INTERRUPTED:
        return INTERRUPTED
    if ended in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        reporter.broken.append(f"pytest ended with {pytest.ExitCode(ended).name}")
    if ended not in set(pytest.ExitCode):
        return int(ended)
    code: int = reporter.exit_code
    return code


def _list(items: Sequence[suite.Item]) -> int:
    dtypes: dict[str, list[str]] = {}
    families: dict[str, str] = {}
    for i in items:
        dtypes.setdefault(i.row.name, []).append(i.dtype)
        families[i.row.name] = i.row.family
    wide = max(len(n) for n in dtypes)
    for name, some in dtypes.items():
        print(f"{name:<{wide}}  {families[name]:<14} {' '.join(some)}")
    counted = f"{plural(len(dtypes), 'op')}, {plural(len(items), 'op x dtype pair')}"
    print(f"\n{counted}, families: {', '.join(dict.fromkeys(families.values()))}")
    return 0


def _writable(folder: Path, option: str) -> None:
    """Refuse a folder that cannot be written before the run, not at its first finding."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise OutputError(f"cannot write to the folder {folder}: {e.strerror or e}; name another with {option}") from None


def _located(faults: str) -> str:
    """Faults by a name that holds in another directory too: a file's full path, a module's name as it is."""
    path = Path(faults)
    return str(path.absolute()) if path.is_file() or path.suffix == ".py" else faults


def _zoo(o: argparse.Namespace) -> int:
    suite.profile(o.profile)
    if o.output:
        _writable(o.output.absolute().parent, "--output")
    from parity.faces import scoreboard  # pytest and torch are imported only by the command that needs them
    from parity.report import zoo as told
    from parity.zoo import subjects

    if o.list:
        chosen = subjects.select(subjects.load(_located(o.faults or ""), o.include_beyond), o.patterns)
        wide, kinds = max(len(s.id) for s in chosen), max(len(s.kind) for s in chosen)
        for s in chosen:
            print(f"{s.id:<{wide}}  {s.kind:<{kinds}}  {', '.join(s.fault.ops)}")
        print(f"\n{plural(len(chosen), 'fault')}")
        return 0
    live, step = sys.stderr.isatty(), [0]

    def hear(score: Any, done: int, total: int) -> None:
        if live:
            print(f"{done} of {total} {score.fault:<40.40}", end="", file=sys.stderr)
            output.control(sys.stderr, "\r" if done < total else "\r\033[K")
            sys.stderr.flush()
        elif done * 10 // total > step[0]:
            step[0] = done * 10 // total
            print(f"{done} of {total} scored", file=sys.stderr, flush=True)

    source = _located(o.faults) if o.faults else ""
    workers = o.workers or max(1, min(8, os.cpu_count() or 1))
    made = scoreboard.run(o.patterns, source, o.include_beyond, o.generator, o.profile, o.seed, o.repeat, workers, hear)
    print(told.render(made))
    if o.output:
        told.write(made, o.output)
        print(f"\nstored in {o.output}")
    return INTERRUPTED if made.left else 0


def _audit(o: argparse.Namespace) -> int:
    if o.output:
        _writable(o.output.absolute().parent, "--output")
    from parity.devices.mac_wheel import MacWheel
    from parity.report import audit as told
    from parity.runs import audit

    def hear(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    table = MacWheel(o.wheel).table if o.wheel else None
    made = audit.audit(audit.stored(o.run) if o.run else audit.fresh(o.workers, o.seed, hear), table)
    if o.output:
        told.write(made, o.output)
    print(told.render(made))
    return 0


# ------------------------------------------------------------------------------------------ doctor, diff, replay, explain


def _doctor(o: argparse.Namespace) -> int:
    found = examined(o.device, o.faults, o.setup)
    print(f"device   {named(found)}\nverdict  {found['verdict']}")
    for reason in found["reasons"]:
        print(f"         {reason}")
    print(f"dtypes   {', '.join(found['dtypes'])}")
    print(f"         not: {', '.join(d for d in FACTS if d not in found['dtypes']) or 'none'}")
    f = fingerprint_of(found)
    software = ("torch", f"{f.torch} ({f.torch_git[:10]})"), ("os", f.os), ("machine", f.machine)
    for key, value in (*f.facts, *software, *f.environment):
        print(f"{key:<28}{value}")
    return {"healthy": 0, "suspect": 1}.get(found["verdict"], DeviceError.exit_code)


def _first(o: argparse.Namespace) -> int:
    from parity.faces import first  # a command that few ever need

    output = o.output or Path(f"parity-first-{datetime.now(UTC):%Y%m%d-%H%M%S}.zip")
    workers = o.workers or max(1, min(8, os.cpu_count() or 1))
    asked = first.Asked(o.device, output, o.minutes, o.setup or "", tuple(o.patterns), workers)
    return first.first(asked, lambda text: print(text, flush=True))


def _diff(o: argparse.Namespace) -> int:
    runs = run_file.read(o.before, o.partial), run_file.read(o.after, o.partial)
    from parity.report import diff as told  # torch is imported only by a command that needs it, and after the files were read
    from parity.runs import diff
    from parity.runs.change import groups

    fail_on = groups(split(o.fail_on), "--fail-on")
    if o.format == "html" and not o.output:
        raise UsageError("a page is written to a file: parity diff BEFORE AFTER --format html -o diff.html")
    if o.output:
        _writable(o.output.absolute().parent, "--output")
    made = diff.compare(*runs, o.partial)
    text = told.FORMATS[o.format](made, fail_on, o.verbose)
    if o.output:
        o.output.write_text(text, encoding="utf-8")
        print(told.headline(made, fail_on))
    else:
        print(text, end="")
    return made.exit_code(fail_on)


def _merge(o: argparse.Namespace) -> int:
    from parity.report.summary import compared  # it loads torch

    if len(o.runs) > suite.MOST_SHARDS:
        raise UsageError(f"{len(o.runs)} files are more shards than a run has; name at most {suite.MOST_SHARDS}")
    made = merging.merged([(path, run_file.read(path, o.partial)) for path in o.runs], o.mixed, o.partial)
    run_file.write(o.output, made)
    for text in made.header.machines:
        print(f"parity: of different machines: {text}", file=sys.stderr)
    if made.end is not None and made.end.stopped:
        print(f"parity: not the whole run: {made.end.stopped}", file=sys.stderr)
    held = f"{plural(len(made.items), 'item')}, {plural(len(made.records), 'record')}"
    for text in known_command.of_merged(made):
        print(text)
    if not any(compared(i) for i in made.items):
        raise NothingCompared(f"the {plural(len(o.runs), 'shard')} compared nothing ({held}); stored in {o.output}")
    print(f"{plural(len(o.runs), 'shard')}: {held}; stored in {o.output}; its findings: parity report {o.output}")
    return 0


def _report(o: argparse.Namespace) -> int:
    if o.output:
        _writable(o.output.absolute().parent, "--output")
    if o.schema:
        from parity.report import schema

        return _written(o, schema.text(o.schema))
    if o.run is None:
        raise UsageError("report needs a run file: parity report RUN; parity run writes one")
    run = run_file.read(o.run, partial=True)
    if run.end is None and (o.matrix or o.cause):  # every other report says so itself
        print(f"parity: {o.run} is cut: it has no end row, so findings may be missing", file=sys.stderr)
    if o.against and o.format != "html":
        raise UsageError("--against is for a page: parity report RUN --against BEFORE --format html -o FILE; else parity diff")
    whole = {"html": _page, "junit": _junit, "github": _github}.get(o.format)
    if whole and (o.cause or o.issue or o.matrix):
        raise UsageError(f"--format {o.format} is of a whole run: parity report RUN --format {o.format} -o FILE")
    return _written(o, (whole or (_matrix if o.matrix else _causes))(o, run))


def _written(o: argparse.Namespace, text: str) -> int:
    """Write a report to its file or to standard output."""
    for read in (o.run, o.against):
        if o.output and read is not None and o.output.exists() and o.output.samefile(read):
            raise UsageError(f"{o.output} is the run file itself, which a report would overwrite; name another file with -o")
    if o.output:
        o.output.write_text(text, encoding="utf-8")
    elif o.format == "github":  # commands, which printing would make inert; what they hold is escaped
        output.control(sys.stdout, text)
    else:
        print(text, end="")
    return 0


def _page(o: argparse.Namespace, run: Run) -> str:
    from parity.report import html

    if not o.output:
        raise UsageError("a page goes to a file: parity report RUN --format html -o report.html")
    return html.render(run, run_file.read(o.against, partial=True) if o.against else None, o.run.name)


def _junit(o: argparse.Namespace, run: Run) -> str:
    from parity.report import junit

    return junit.render(run)


def _github(o: argparse.Namespace, run: Run) -> str:
    from parity.report import github

    return github.render(run)


def _matrix(o: argparse.Namespace, run: Run) -> str:
    from parity.report import matrix
    from parity.runs.diff import without_gone

    run = without_gone(run)
    deaths = counted(run.deaths, run.items)
    if o.cause or o.issue:
        raise UsageError("--matrix is of a whole run: parity report RUN --matrix [--format markdown|json]")
    if o.format == "json":
        return matrix.as_json(run.header, run.items, deaths) + "\n"
    if o.format == "markdown":
        return matrix.as_markdown(run.items, deaths, o.verbose)
    return matrix.render(run.items, deaths, o.verbose) + "\n"


def _causes(o: argparse.Namespace, run: Run) -> str:
    from parity.report import causes as told
    from parity.report import caveats
    from parity.report.known import marks
    from parity.runs import causes

    gathered = causes.gather(run.records, counted(run.deaths, run.items))
    ids = [c.cause.id for c in gathered]
    if o.cause:  # progress lines name the members of a cause before they are joined
        gathered = tuple(c for c in gathered if o.cause in (c.cause.id, *(m.id for m in c.members)))
        if not gathered:
            what = near(o.cause, ids) or (f"it has {', '.join(ids)}" if ids else "it has none that counts")
            raise UsageError(f"{o.run} has no cause '{o.cause}'; {what}")
    if o.issue:
        if len(gathered) != 1:
            held = f"it has {', '.join(ids[:8])}" if ids else "it has no cause that counts"
            raise UsageError(f"--issue writes one cause: parity report {o.run} CAUSE --issue; {held}")
        from parity.report import issue

        return issue.render(gathered[0], run.header)
    before, known = caveats.sentences(run), marks(run, gathered)
    if o.format == "json":
        return told.as_json(gathered, run.header, before, known) + "\n"
    if o.format == "markdown":
        return told.as_markdown(gathered, run.header, before, not any(caveats.failures(run)), known)
    return told.render(gathered, run.header, bool(o.cause), () if o.cause else before, known) + "\n"


def _coverage(o: argparse.Namespace) -> int:
    from parity.report import coverage

    print(coverage.render(run_file.read(o.run, o.partial), o.family, o.verbose))
    return 0


def _replay(o: argparse.Namespace) -> int:
    from parity.faces import replay

    return replay.replay(o.case, How(o.device or "", o.faults, o.setup))


def _explain(o: argparse.Namespace) -> int:
    from parity.faces import replay
    from parity.judging.rules import rule_of_pass

    if "(" in o.subject:
        return replay.replay(o.subject, How(o.device, o.faults, o.setup, explain=True))
    path = Path(o.subject)
    if path.is_file() or path.suffix == ".jsonl" or any(s and s in o.subject for s in (os.sep, os.altsep)):
        replay.explain_run(path, o.detail)
        return 0
    try:
        rows = list({i.row.name: i.row for i in suite.select([o.subject], source="all")}.values())
    except UsageError:
        if path.exists():  # a folder
            run_file.read(path)
        raise
    wanted = lookup.normalised(
        lookup.last_word(o.subject)
    )  # the op itself before its other forms, which have a name of their own
    exact = [r for r in rows if o.subject in lookup.names_of(r)]
    rows = [*exact, *(r for r in rows if wanted in map(lookup.normalised, lookup.names_of(r)))][:1] or rows
    row = rows[0]
    if len(rows) > 1:
        names = ", ".join(r.name for r in rows[:5])
        raise UsageError(f"'{o.subject}' matches {len(rows)} ops ({names} ...); explain tells of one: name it")
    takes = ", ".join(row.dtypes)
    if not o.detail:
        raise UsageError(f"explain needs the dtype as well: parity explain {row.name} DTYPE, one of {takes}")
    if o.detail not in FACTS:
        raise UsageError(f"unknown dtype '{o.detail}'; {near(o.detail, FACTS) or 'allowed: ' + ', '.join(DEFAULT)}")
    if o.detail not in row.dtypes:
        raise UsageError(f"parity does not run {row.name} in {o.detail}; allowed: {takes}")
    device = o.device or "cpu"
    known = {*USUAL, *(p.stem for p in resources.folder("tolerances").glob("*.toml"))} - {"default"}
    if device not in known and (device.partition(":")[0] not in known or not device.partition(":")[2].isdigit()):
        raise UsageError(f"no device '{device}'; {near(device, known)}")
    device = device if device != "auto" else str(examined("auto")["device"])
    tables = tolerance.load(device, known_ops={r.name for r in suite.rows("all")})
    print(f"{row.name} ({row.rule}) {o.detail} on {device}")
    for pass_ in ("forward", "backward") if o.detail in row.grad else ("forward",):
        print(f"\n{pass_}")
        if rule_of_pass(row, pass_).exact:
            print("  exact: results are compared for equality, no tolerance applies")
            continue
        for e in tables.explain(row.name, row.rule, o.detail, pass_, row.ulp):
            print(f"  {e.verdict:<9} {e.place}: {e.row}" + (f"\n            {e.why}" if e.why else ""))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "diff": _diff,
    "merge": _merge,
    "report": _report,
    "known": known_command.run,
    "coverage": _coverage,
    "replay": _replay,
    "explain": _explain,
    "zoo": _zoo,
    "audit": _audit,
    "doctor": _doctor,
    "first": _first,
}
