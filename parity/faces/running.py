"""`parity run`: everything around the suite, which pytest runs."""

from __future__ import annotations

import codecs
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parity import tolerance
from parity.core import copies, machine, outputs, processes, project, untrusted
from parity.core.devices import SUSPECT, UNUSABLE
from parity.core.errors import DeviceError, NothingCompared, OutputError, UsageError
from parity.core.outputs import writable
from parity.core.results import Fingerprint, Status, statuses
from parity.engine import merging, own, suite
from parity.engine.doctor import banner, examined, fingerprint_of
from parity.engine.inquest import How
from parity.engine.options import AGAIN, ALSO, RunOptions
from parity.engine.run_state import RunState
from parity.faces import shrinking
from parity.faces.commands import known as known_command
from parity.faces.commands.groups import chosen, split
from parity.faces.files import in_words, located
from parity.faces.interruption import Interruptions
from parity.findings import known_file
from parity.findings.known import Known
from parity.report.summary import opening
from parity.report.words import plural
from parity.store.code import Code, code_of
from parity.store.rows import Header

INTERRUPTED = 130
EVERY = "*"  # the pattern of all ops, which is that of none
SHARE_AGAIN = 0.1  # share of --time that is kept for trying findings again


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that ended. code: its exit code; stored: its run file, if it ran anything; listed: what it would run, if that was
    asked for."""

    code: int
    stored: Path | None = None
    listed: Sequence[suite.Item] = ()


def run_with(o: RunOptions) -> Ended:
    """Run the suite and the person's own functions as the options say."""
    began = time.monotonic()
    with processes.guarded_folder(), ExitStack() as opened:
        return _run_with(o, began, opened)


def _run_with(o: RunOptions, began: float, opened: ExitStack) -> Ended:
    kept = merging.kept(Path(o.resume)) if o.resume else None
    o = merging.resumed_options(kept.header, o) if kept is not None else o
    o, only_own = _with_models(o)
    source = o.source or suite.profile(o.profile).source
    own_words = o.model if only_own else [f"model={m}" for m in o.model]
    words = [*o.op, *own_words, *(f"family={f}" for f in o.family), *(f"dtype={d}" for d in o.dtype), f"source={source}"]
    o = replace(o, family=split(o.family), dtype=split(o.dtype))
    probe = _added(o)
    selected = len(items := () if only_own else chosen(o, source))
    items = tuple(i for i in items if kept is None or i.id not in kept.ids)
    # On other machines nothing can be tried again from here.
    o = replace(o, fail_on=split(o.fail_on), skip=(*o.skip, AGAIN) if o.tx and not o.no_again else o.skip)
    statuses(o.fail_on, "--fail-on", ALSO)  # what is no status is refused before a device is asked
    if o.list:
        return Ended(_list(items) if items else NothingCompared.exit_code, listed=items)
    known = _known(o)
    _sendable(o)
    opened.enter_context(copies.offered(bool(items) and not (o.tx or o.setup)))
    from parity.faces.workers import computers_of  # pytest is loaded where a run begins

    computers = computers_of(o)
    probe = computers[0].answer if computers else probe or examined(o.device, o.faults, o.setup)
    differing = _differing(computers, o.mixed)
    fingerprint = fingerprint_of(probe)
    if kept is not None:
        merging.check_same(kept.path, kept.header.fingerprint, fingerprint)
    for where, answer in [(f" of {m.spec}", m.answer) for m in computers] or [("", probe)]:
        if answer["verdict"] == UNUSABLE:
            raise DeviceError(f"device {answer['device']}{where} is unusable: {'; '.join(answer['reasons'])}")
    o = replace(o, device=str(probe["device"]))
    os.environ[processes.DEADLY] = ",".join(probe.get("deadly", ()))  # restored by `main`
    tolerance.load(o.device, known_ops={r.name for r in suite.rows("all")})  # a broken table, before workers start
    header = _header(o, fingerprint, merging.resumed_selection(words), differing, known) if kept is None else kept.header
    writable(Path(o.findings), "--findings")
    from parity.faces.progress import Reporter  # pytest is imported only by the command that runs it

    path = Path(o.output) if o.output else fresh(f"parity-run-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    path = path if kept is None else kept.path.with_name(f"{kept.path.name}.tmp")
    reporter = Reporter(_state(o, header, path, known, began), verbose=o.verbose)
    if kept is not None:
        reporter.resume(kept)
        print(f"{plural(len(kept.ids), 'item')} of {selected} are whole in {kept.path}; the rest is run")
    workers = sum(m.workers for m in computers) or o.workers or machine.default_workers()
    for text in differing:
        print(f"MIXED machines: {text}")
    if probe["verdict"] == SUSPECT:
        print(banner(probe["reasons"]))
    code = _carried_out(o, items, workers, reporter, fingerprint, () if kept is None else kept.ids)
    return Ended(code, path)


def _header(o: RunOptions, f: Fingerprint, selection: str, differing: tuple[str, ...], known: Known | None) -> Header:
    """The header of a new run. differing: how other machines differ from the fingerprint."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    complete = not (o.op or o.family or o.dtype or o.source or o.examples or o.study)
    return Header(
        f, o.seed, o.profile, selection, now, complete, code_of(o.faults), code_of(o.setup), o.for_header(), o.shard or "",
        differing, known.code if known is not None else Code(), tuple(shlex.split(os.environ.get(processes.CALLED, ""))),
    )  # fmt: skip


def _state(o: RunOptions, header: Header, path: Path, known: Known | None, began: float) -> RunState:
    """The state of a run before its first item. path: of its run file; began: when the time of --time began."""
    state = RunState(header, path, statuses(o.fail_on, "--fail-on", ALSO), o.min_judged, o.time)
    state.scripts, state.known, state.strict = Path(o.findings), known, o.strict_known
    # On other machines there is no folder in which a worker could find what another one has left.
    state.explains_later = not (o.no_shrink or o.time or o.tx or o.study)
    if o.time:
        state.started = began
    return state


def _carried_out(
    o: RunOptions, items: Sequence[suite.Item], workers: int, reporter: Any, f: Fingerprint, done: Collection[str]
) -> int:
    """The exit code of a run that is begun here and comes to its end, by an interruption too. done: ids of items that an
    interrupted run has examined."""
    with Interruptions() as asked:
        try:
            print(opening(f, _asked_for(o, items), _how(o, workers)), flush=True)
            print(*_about_known(reporter.run.known, f), sep="\n", end="", flush=True)
            code = _compared(o, items, workers, reporter, done)
            if o.model and code in (0, 1, NothingCompared.exit_code):
                code = _own(o, reporter)
            asked.hold()
        except KeyboardInterrupt:  # before pytest's session, or while it ends: what is done is kept all the same
            asked.hold()
            reporter.pytest_keyboard_interrupt()
            code = INTERRUPTED
        reporter.finish(code)
    return code


def _added(o: RunOptions) -> dict[str, Any] | None:
    """Run the setup file here too if it adds something, such as ops that are named; the answer of the probe, whose process ran
    it first, since a file may end its process. On other machines it is only run there."""
    if not o.setup or o.tx:
        return None
    answer = examined(o.device, o.faults, o.setup)
    if answer["adds"]:
        from parity.devices.setup import run_setup  # torch is imported here only where it must be

        run_setup(o.setup)
    return answer


def _with_models(o: RunOptions) -> tuple[RunOptions, bool]:
    """The options with the Python files and models by name among the patterns as models, and whether nothing else was named."""
    named = tuple(p for p in o.op if own.are_models(p))
    if o.input and not named:
        raise UsageError("--input is of a model, and none is named: parity run models.py:net --input 'float32[2, 8]'")
    alone, ops = bool(named) and len(named) == len(o.op), tuple(p for p in o.op if p not in named)
    return replace(o, op=() if ops == (EVERY,) else ops, model=own.names((*o.model, *named), not o.tx)), alone


def _asked_for(o: RunOptions, items: Sequence[suite.Item]) -> str:
    texts = [plural(len({i.row.name for i in items}), "op"), plural(len(items), "op x dtype pair")] if items else []
    texts += [f"the functions of {', '.join(o.model)}"] if o.model else []
    return ", ".join(texts) or "nothing is left to compare"  # a run that was killed after its last item


def _own(o: RunOptions, reporter: Any) -> int:
    """Compare the user's own functions; the exit code of the whole run."""
    if o.shard and not o.shard.startswith("1/"):  # they are no items that could be shared out
        return int(reporter.run.result().exit_code)
    reporter.run.own_left = True  # until all have been heard of
    fail_on = statuses(o.fail_on, "--fail-on", ALSO)
    for row in own.compared(o.model, How(o.device, o.faults, o.setup), fail_on, o.input, reporter.say):
        reporter.own(row)
    reporter.run.own_left = False
    return int(reporter.run.result().exit_code)


def fresh(name: str) -> Path:
    """A run file of that name that no other run has begun in the same second."""
    for path in (Path(f"{name}{more}.jsonl") for more in ("", *(f"-{k}" for k in range(2, 100)))):
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        except OSError:  # whoever writes it says so
            pass
        return path
    return path


def _sendable(o: RunOptions) -> None:
    """Refuse paths that cannot be sent to workers: they are sent as UTF-8."""
    paths = {"--findings": o.findings, "--setup": o.setup, "--setup of faults": o.faults, "--known": o.known}
    try:
        paths |= {"the current folder": os.getcwd(), "the folder of temporary files": tempfile.gettempdir()}
    except FileNotFoundError:
        raise UsageError(
            "the current folder is not there any more, or there is none for temporary files; go elsewhere"
        ) from None
    utf8 = codecs.lookup(sys.getfilesystemencoding()).name == "utf-8"
    for what, path in paths.items():
        try:
            (path or "").encode()
        except UnicodeEncodeError:
            remedy = "take a path that is" if utf8 else f"this locale has {sys.getfilesystemencoding()} only: set PYTHONUTF8=1"
            why = f"'{untrusted.named(path or '')}' is not UTF-8, so that it cannot be sent to a worker"
            raise UsageError(f"{what} {why}; {remedy}") from None


def _how(o: RunOptions, workers: int) -> str:
    """What is unusual about a run, in words; with -v all of it."""
    most = machine.ceiling()
    room = f" with {machine.size(most)} of memory at most" if most and not o.tx else ""
    said = [f"{o.profile} profile"] if o.verbose or o.profile != RunOptions().profile else []
    said += [f"{plural(workers, 'worker')}{room}"] if o.verbose else []
    return ", ".join([*said, *([f"shard {o.shard}"] if o.shard else [])])


def _known(o: RunOptions) -> Known | None:
    """The known findings of a run; None without --known."""
    if o.strict_known and not o.known:
        raise UsageError("--fail-on known is about known findings; name their file with --known")
    return known_file.read(Path(o.known)) if o.known else None


def _about_known(known: Known | None, fingerprint: Fingerprint) -> Iterator[str]:
    """The file of known findings, and what is odd about it; the last line is empty."""
    if known is not None:
        yield f"known findings: {len(known.entries)} in {known.code}"
        yield from (f"warning: {w}" for w in (*known.warnings(fingerprint), *known_command.unknown_ops(known)))
        yield ""


def _compared(o: RunOptions, items: Sequence[suite.Item], workers: int, reporter: Any, done: Collection[str]) -> int:
    """Run the suite, and then its findings again in fresh processes. done: as in `_carried_out`."""
    until = reporter.run.started + o.time if o.time else math.inf
    if o.time:  # a part of it is kept for the findings
        o = replace(o, time=max(1.0, until - time.monotonic() - (0.0 if o.no_again else SHARE_AGAIN * o.time)))
    how = How(o.device, o.faults, o.setup, fail_on_metadata=o.fail_on_metadata)
    if not (o.time or o.no_again):
        from parity.engine.again import Early

        reporter.run.early = Early(how, None if o.no_shrink or o.tx else shrinking.EarlyDeaths(o, workers))
    code = _pytest(o, workers, reporter, done) if items else reporter.run.result().exit_code  # a shard may be empty
    reporter.print_unexplained()
    if code == 1 and not (o.no_shrink or o.tx):
        shrinking.shrink(o, workers, reporter, until)
    if code not in (0, 1):
        return code
    if code == 1 and o.no_again:
        reporter.say(f"findings were not tried again in a fresh process ({'on several machines' if o.tx else '--skip again'})")
    elif code == 1:
        reporter.try_again(how, workers, max(0.0, until - time.monotonic()))
    result = reporter.run.result()
    excused = result.acquitted, result.not_reproduced, () if Status.MARGINAL in result.fail_on else result.marginal
    if o.junit_xml and any(excused) and Path(o.junit_xml).is_file():
        from parity.report import junit

        junit.acquit(Path(o.junit_xml), *excused)
    return int(result.exit_code)


def _differing(computers: list[Any], mixed: bool) -> tuple[str, ...]:
    if not computers:
        return ()
    from parity.engine import machines

    return machines.differences(computers, mixed)


def _pytest(o: RunOptions, workers: int, reporter: Any, done: Collection[str] = ()) -> int:
    """The one engine. Raises what kept a worker from its first item."""
    import pytest

    processes.keep_folder(Path(tempfile.gettempdir()))  # the examination of the device may have run a file of the person's
    with tempfile.TemporaryDirectory(prefix="parity-", ignore_cleanup_errors=True) as scratch:
        args = [*_arguments(o, workers), f"--parity-rundir={scratch}"]
        if done:
            Path(scratch, "done").write_text("\n".join(done), encoding="utf-8")
            args.append(f"--parity-done={Path(scratch, 'done')}")
        ended: int | pytest.ExitCode
        try:
            with processes.only_our_plugins(), _xml(o.junit_xml) as xml:
                ended = _main([*args, *(["--junit-xml", str(xml)] if xml else [])], reporter)
                if xml and reporter.run.explains_later and reporter.run.failed is None and xml.is_file():
                    from parity.report import junit

                    junit.join_causes(xml)
        except (OutputError, OSError) as e:  # of the XML, which pytest writes last: nothing else may be lost by it
            failed = e if isinstance(e, OutputError) else OutputError(in_words(e))
            reporter.run.failed = reporter.run.failed or failed
            ended = pytest.ExitCode.TESTS_FAILED
        _raise_unable(Path(scratch))
    if ended == pytest.ExitCode.INTERRUPTED:
        return INTERRUPTED
    if ended in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        reporter.run.broken.append(f"pytest ended with {pytest.ExitCode(ended).name}")
        return UsageError.exit_code
    if ended not in set(pytest.ExitCode):
        return int(ended)
    return int(reporter.run.result().exit_code)


def _main(args: Sequence[str], reporter: Any) -> int:
    """What pytest ends with. It is started once more where the folder of temporary files went away before it had begun."""
    import pytest

    try:
        return pytest.main([*args], plugins=[reporter])
    except FileNotFoundError:
        if Path(tempfile.gettempdir()).is_dir():
            raise
    processes.keep_folder(Path(tempfile.gettempdir()))
    return pytest.main([*args], plugins=[reporter])


def _arguments(o: RunOptions, workers: int) -> list[str]:
    """What pytest is called with, whatever stands in its scratch folder."""
    folder = project.resource_folder("conformance")
    here = replace(  # workers may stand in another folder
        o,
        faults=located(o.faults) if o.faults else None,
        setup=str(Path(o.setup).absolute()) if o.setup else None,
        known=str(Path(o.known).absolute()) if o.known else None,
        findings=str(Path(o.findings).absolute()),
    )
    return [
        str(folder), "-c", str(folder / "pytest.ini"), "--rootdir", str(folder),
        *processes.PLUGINS, "-p", "no:terminal", "-p", "no:cacheprovider",
        "-p", "no:faulthandler",  # a death is reported by parity, not by a dump of its threads
        "--dist", "worksteal", *here.pytest_arguments(),
        # The suite is copied to machines that are elsewhere; parity itself is installed there.
        *([*(f"--tx={spec}" for spec in o.tx), "--rsyncdir", str(folder)] if o.tx else ["-n", str(workers)]),
    ]  # fmt: skip


def _raise_unable(scratch: Path) -> None:
    """Raise what kept a worker from its first item, which it left in the scratch folder."""
    from parity.faces.survival import UNABLE

    unable = [*scratch.glob(f"{UNABLE}*")]  # none where the folder is gone
    if unable:
        kinds = {kind.exit_code: kind for kind in (UsageError, DeviceError)}
        raise kinds.get(int(unable[0].name.removeprefix(UNABLE)), UsageError)(unable[0].read_text(encoding="utf-8"))


def _xml(path: str | None) -> AbstractContextManager[Path | None]:
    """Where pytest writes its XML, which takes the place of what is there only when it is whole."""
    return outputs.replacing(Path(path), "name another file with --junit-xml, or free the disk") if path else nullcontext()


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
