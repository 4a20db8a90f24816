"""The command line. Every command ends with an exit code that speaks:

0 nothing to report, 1 findings or regressions, 2 usage, 3 nothing was compared, 4 device absent or unusable.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from parity import tolerance
from parity.catalog import lookup
from parity.catalog.row import Row
from parity.core import processes, resources
from parity.core.devices import USUAL
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import DeviceError, NothingCompared, OutputError, ParityError, UsageError, near
from parity.core.health import HEALTHY, SUSPECT
from parity.engine import journal, memory, merging, own, suite
from parity.engine.doctor import examined
from parity.engine.inquest import How
from parity.faces import commandline, guarded, manual, old_names, reporting, running
from parity.faces import known as known_command
from parity.faces.commandline import split
from parity.faces.files import check_output, check_outputs, in_words, located, writable
from parity.faces.running import INTERRUPTED as INTERRUPTED
from parity.findings import known as known_findings
from parity.report import output
from parity.report.words import plural
from parity.store import run_file


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. A user's mistake is one sentence on standard error."""
    given, warnings = old_names.renamed(sys.argv[1:] if argv is None else argv)
    options = commandline.parser(*given[:1]).parse_args(given)
    options.argv = given
    print("".join(f"{w}\n" for w in warnings), end="", file=sys.stderr)
    with output.patient(), processes.isolated(), processes.restored(processes.DEADLY):
        try:
            check_outputs(options)
            code = COMMANDS[options.command](options)
            sys.stdout.flush()
        except ParityError as e:
            print(f"parity: {e}", file=sys.stderr)
            return e.exit_code
        except KeyboardInterrupt:
            print("parity: interrupted", file=sys.stderr)
            return INTERRUPTED
        except OSError as e:
            print(f"parity: {in_words(e)}", file=sys.stderr)
            sys.stdout = output.nowhere()
            return OutputError.exit_code
    return code


OF_MODELS = ("--torch", "--no-backward", "--shapes", "--json", "--verbose", "--pytest")  # options of audit


def _audit(o: argparse.Namespace) -> int:
    if not o.model and (only := next((w for w in OF_MODELS if getattr(o, w.strip("-").replace("-", "_"))), "")):
        raise UsageError(f"{only} goes with --model: parity audit --model FILE.py {only}")
    if o.model:
        from parity.faces import auditing

        return auditing.run(o)
    from parity.devices.operator_table import between
    from parity.history.environments import operator_table
    from parity.report.needs import kernels

    k = between(*map(operator_table, o.between))
    print(kernels(k))
    return 1 if k.lost else 0


# ------------------------------------------------------------------------------------------ doctor, diff, replay, explain


OF_ARCHIVES = ("patterns", "minutes", "workers", "output")  # of doctor, by what they are called here


def _doctor(o: argparse.Namespace) -> int:
    if o.archive and (o.opened or o.json):
        raise UsageError(f"--archive writes an archive; leave {'--import' if o.opened else '--json'} out")
    if o.archive:
        return _archive(o)
    if given := next((getattr(o, name) for name in OF_ARCHIVES if getattr(o, name)), None):
        shown = given[0] if isinstance(given, list) else given
        raise UsageError(f"'{shown}' goes with --archive: parity doctor --archive; a device is named by --device")
    if o.opened:
        from parity.report import archive

        print(archive.render(o.opened))
        return 0
    from parity.report import doctor as told

    try:
        found = examined(o.device, o.faults, o.setup)
    except DeviceError as e:
        if not o.json:
            raise
        print(told.absent_as_json(o.device, str(e)))
        return e.exit_code
    print(told.as_json(found) if o.json else told.render(found))
    return {HEALTHY: 0, SUSPECT: 1}.get(found["verdict"], DeviceError.exit_code)


def _archive(o: argparse.Namespace) -> int:
    from parity.faces import archive  # few ever need it

    path = o.output or Path(f"parity-archive-{datetime.now(UTC):%Y%m%d-%H%M%S}.zip")
    workers, faults = o.workers or memory.default_workers(), located(o.faults) if o.faults else ""
    asked = archive.Asked(o.device, path, o.minutes or archive.MINUTES, faults, o.setup or "", tuple(o.patterns), workers)
    return archive.written(asked, lambda text: print(text, flush=True))


def _diff(o: argparse.Namespace) -> int:
    runs = run_file.read(o.before, o.partial), run_file.read(o.after, o.partial)
    from parity.history import diff
    from parity.history.change import groups
    from parity.report import diff as told  # torch is imported only by a command that needs it, and after the files were read

    fail_on = groups(split(o.fail_on), "--fail-on")
    if o.format == "html" and not o.output:
        raise UsageError("a page is written to a file: parity diff BEFORE AFTER --format html -o diff.html")
    made = diff.compare(*runs, o.partial, split(o.ops))
    text = told.FORMATS[o.format](made, fail_on, o.verbose)
    if o.output:
        o.output.write_text(text, encoding="utf-8")
        print(told.verdict_line(made, fail_on, str(o.output)))
    elif o.format == "terminal":
        print(text, end="")
    else:
        output.document(text)
    return made.exit_code(fail_on)


def _upgrade(o: argparse.Namespace) -> int:
    if o.format == "html" and not o.output:
        raise UsageError("a page is written to a file: parity upgrade --format html -o diff.html")
    alone = not (o.before or o.after or o.patterns or o.model)  # what has no meaning for a bisection
    if bool(o.bisect) != bool(o.case) or not (alone if o.bisect else o.after):
        raise UsageError("upgrade compares with --after PLACE, or looks for a version with --bisect PLACE ... --case CASE")
    writable(o.folder, "--folder")
    if o.output:
        check_output(o.output, "--output", [o.folder / f"{side}.jsonl" for side in ("before", "after")])
    own.names(o.model)
    o.dtype, o.family = split(o.dtype), split(o.family)
    suite.select([p for p in o.patterns if ".py" not in p], o.family, o.dtype, suite.profile(o.profile).source)  # mistakes, now
    if o.known:
        known_findings.read(Path(o.known))
    from parity.faces.upgrade import bisect, upgrade
    from parity.history.change import groups

    if o.bisect:
        return bisect(o)
    return upgrade(o, groups(split(o.fail_on), "--fail-on"))


def _locate(o: argparse.Namespace) -> int:
    if journal.NOTES not in os.environ:
        return guarded.run(o.argv, o.hang_after)
    from parity.faces import locating

    return locating.run(o)


def _train(o: argparse.Namespace) -> int:
    if journal.NOTES not in os.environ:
        return guarded.run(o.argv, o.hang_after)
    from parity.faces import locating

    return locating.train(o)


def _capture(o: argparse.Namespace) -> int:
    if journal.NOTES not in os.environ:
        return guarded.run(o.argv, o.hang_after)
    from parity.faces import locating

    return locating.record(o)


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


def _replay(o: argparse.Namespace) -> int:
    from parity.faces import replay

    return replay.replay(o.case, How(o.device or "", o.faults, o.setup, fail_on_metadata=o.fail_on_metadata))


def _op_of(o: argparse.Namespace) -> Row:
    """The one op that is to be explained. Raises UsageError if there are none or several."""
    if o.setup:
        from parity.devices.setup import run_setup

        run_setup(o.setup)  # it may add the op, or a table
    try:
        rows = list({i.row.name: i.row for i in suite.select([o.subject], source="all")}.values())
    except UsageError:
        if Path(o.subject).exists():  # a folder
            run_file.read(Path(o.subject))
        raise
    # The op itself before its other forms, which have a name of their own.
    wanted = lookup.normalised(lookup.last_word(o.subject))
    exact = [r for r in rows if o.subject in lookup.names_of(r)]
    rows = [*exact, *(r for r in rows if wanted in map(lookup.normalised, lookup.names_of(r)))][:1] or rows
    row = rows[0]
    if len(rows) > 1:
        names = ", ".join(r.name for r in rows[:5])
        raise UsageError(f"'{o.subject}' matches {len(rows)} ops ({names} ...); explain tells of one: name it")
    return row


def _explain(o: argparse.Namespace) -> int:
    from parity.faces import replay
    from parity.judging.rules import rule_of_pass

    if "(" in o.subject:
        return replay.replay(o.subject, How(o.device, o.faults, o.setup, explain=True))
    path = Path(o.subject)
    if path.is_file() or path.suffix == ".jsonl" or any(s and s in o.subject for s in (os.sep, os.altsep)):
        replay.explain_run(path, o.detail)
        return 0
    row = _op_of(o)
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


def _prove(o: argparse.Namespace) -> int:
    code: int = importlib.import_module(commandline.PROVING).run(o)  # the proof is no part of what anybody else's command loads
    return code


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": running.run,
    "diff": _diff,
    "upgrade": _upgrade,
    "locate": _locate,
    "train": _train,
    "capture": _capture,
    "merge": _merge,
    "report": reporting.report,
    "known": known_command.run,
    "replay": _replay,
    "explain": _explain,
    "audit": _audit,
    "doctor": _doctor,
    "prove": _prove,
    "help": manual.run,
}
