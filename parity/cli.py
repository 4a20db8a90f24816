"""The command line. Every command ends with an exit code that speaks:

0 nothing to report, 1 findings or regressions, 2 usage, 3 nothing was compared, 4 device absent or unusable.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parity import __version__, diff, notation, resources, store, suite, tolerance
from parity.dtypes import DEFAULT, FACTS
from parity.errors import CaseError, DeviceError, OutputError, ParityError, RunFileError, UsageError, near
from parity.vocabulary import FINDINGS, MEANING, Fingerprint, OpClass, Status

INTERRUPTED = 130
PROBE_SECONDS = 180
REPLAY_SECONDS = 120
DEVICES = ("auto", "cpu", "sim", "mps", "cuda", "xpu", "hpu", "mtia", "xla", "npu", "privateuseone")
EXPLAIN = """\
Which tolerance applies:            parity explain softmax float16 --device mps
Why a case is judged as it is:      parity explain 'softmax(float16[1, 3], dim=-1)' --device mps
Why a run judged as it did:         parity explain run.jsonl 'softmax float16'"""
ZOO = (
    "Plant known device bugs, one at a time, on a simulated device, and tell which of them the suite's ordinary cases find. "
    "--generator opinfo scores the plain rule of the field instead: OpInfo samples as they are, CPU against device, "
    "torch.testing.assert_close, forward and first backward; both puts the two side by side."
)
DEVICE_HELP = "mps, cuda, xpu, sim, sim:mps, cpu, or auto: the first accelerator that torch reports"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. A user's mistake is one sentence on standard error."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        code: int = options.command(options)
    except ParityError as e:
        print(f"parity: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("parity: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- must outlive this function: the interpreter flushes it at exit
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="parity", description="Does a PyTorch device compute the right thing?")
    parser.add_argument("--version", action="version", version=f"parity {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    how = "compare a device with the CPU, op by op"
    run = commands.add_parser("run", help=how, description=_statuses(), formatter_class=_Raw)
    run.add_argument("patterns", nargs="*", metavar="PATTERN", help="ops by name, with * and ?; all by default")
    run.add_argument("--device", default="auto", help=DEVICE_HELP)
    run.add_argument("--dtype", action="append", default=[], help="only this dtype (repeatable, or separated by commas)")
    run.add_argument("--family", action="append", default=[], help="only this family (repeatable, or separated by commas)")
    run.add_argument("--profile", default="quick", help="quick, full or deep")
    run.add_argument("--source", help="native, opinfo or all (by default the profile's: quick native, full and deep all)")
    run.add_argument("--examples", type=_count, help="cases per op and dtype instead of the profile's number")
    run.add_argument("--seed", default="0", help="seed of the explored cases; the pinned ones are always the same")
    run.add_argument("-n", type=_count, dest="workers", metavar="N", help="worker processes; one per core by default")
    run.add_argument("--faults", help="faults for a simulated device: a Python file, or an installed module by its name")
    run.add_argument("--no-screens", action="store_true", help="send every pair to the float64 oracle")
    run.add_argument("--no-shrink", action="store_true", help="tell findings as they were drawn")
    run.add_argument("--hang-after", type=_seconds, help="seconds after which a case counts as hung (by default 20 and more)")
    run.add_argument("--setup", metavar="FILE", help="Python that every worker runs first: backend flags, a backend's import")
    run.add_argument("--fail-on", action="append", default=[], help="a status that fails beside the findings: unsupported ...")
    run.add_argument("--output", type=Path, help="the run file to write (JSON lines)")
    run.add_argument("--findings", default="findings", help="folder for the scripts that reproduce findings")
    run.add_argument("--junit-xml", metavar="FILE", help="also write JUnit's XML")
    run.add_argument("--list", action="store_true", help="list the selected ops with their dtypes, and run nothing")
    run.set_defaults(command=_run)

    two = commands.add_parser("diff", help="what changed between two runs", description="Compare two run files.")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--partial", action="store_true", help="take what a truncated file holds")
    two.set_defaults(command=_diff)

    again = commands.add_parser("replay", help="check one case again", description="Rebuild a case from its id and check it.")
    again.add_argument("case", help="a case id, in quotes, or a run file: all its findings")
    again.add_argument("--device", default=None, help=DEVICE_HELP + "; for a run file, its own device")
    again.add_argument("--faults", help="faults for a simulated device: a Python file, or an installed module by its name")
    again.set_defaults(command=_replay)

    why = commands.add_parser(
        "explain", help="which tolerance applies, and why a case is judged as it is", description=EXPLAIN, formatter_class=_Raw
    )
    why.add_argument("subject", metavar="OP|CASE|RUN", help="an op, a case id in quotes, or a run file")
    why.add_argument(
        "detail", nargs="?", default="", help="the op's dtype; or which of the run's records, by a part of their text"
    )
    why.add_argument("--device", default="", help=DEVICE_HELP)
    why.add_argument("--faults", help="faults for a simulated device: a Python file, or an installed module by its name")
    why.set_defaults(command=_explain)

    zoo = commands.add_parser("zoo", help="which known device bugs the suite finds", description=ZOO)
    zoo.add_argument("patterns", nargs="*", metavar="PATTERN", help="faults by id, kind, trigger class or op; all by default")
    zoo.add_argument("--faults", help="score these instead: a Python file, or an installed module by its name")
    zoo.add_argument("--generator", choices=("suite", "opinfo", "both"), default="suite", help="what looks for the faults")
    zoo.add_argument("--profile", default="quick", help="quick, full or deep")
    zoo.add_argument("--seed", default="0", help="seed of the explored cases")
    zoo.add_argument("--repeat", type=_count, default=1, metavar="N", help="as many seeds, from --seed on")
    zoo.add_argument("-n", type=_count, dest="workers", metavar="N", help="worker processes; one per core by default")
    zoo.add_argument("--output", type=Path, help="also write everything to this file (JSON)")
    zoo.add_argument("--include-beyond", action="store_true", help="also the bugs that one op alone does not show")
    zoo.set_defaults(command=_zoo)

    doctor = commands.add_parser("doctor", help="examine a device", description="Probe a device and say whether to trust it.")
    doctor.add_argument("--device", default="auto", help=DEVICE_HELP)
    doctor.add_argument("--faults", help="faults for a simulated device: a Python file, or an installed module by its name")
    doctor.set_defaults(command=_doctor)
    return parser


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keep the table of statuses as it is."""


def _statuses() -> str:
    rows = "\n".join(f"  {s:<12}{MEANING[s]}{'' if s in FINDINGS else ' (no failure)'}" for s in Status)
    return f"Compare a device with the CPU, judged against a float64 truth.\n\nStatuses:\n{rows}"


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return value


def _split(values: Sequence[str]) -> list[str]:
    """The parts of repeatable options that take commas. Raises UsageError for one that is given and empty."""
    for v in values:
        if not v.strip(", "):
            raise UsageError(f"an option was given with the empty value '{v}'; name something, or leave the option out")
    return [part.strip() for v in values for part in v.split(",") if part.strip()]


# ------------------------------------------------------------------------------------------------------------- run


def _run(o: argparse.Namespace) -> int:
    profile = suite.profile(o.profile)
    source = o.source or profile.source
    items = suite.select(o.patterns, _split(o.family), _split(o.dtype), source)
    statuses = [str(s) for s in Status]
    for status in _split(o.fail_on):
        if status not in statuses:
            raise UsageError(f"unknown status '{status}' for --fail-on; allowed: {', '.join(statuses)}")
    if o.list:
        return _list(items)
    if o.setup and not Path(o.setup).is_file():
        raise UsageError(f"--setup {o.setup}: no such file; give a Python file that sets what the device is to run with")
    found = examined(o.device, o.faults)
    fingerprint = _fingerprint(found)
    if found["verdict"] == "unusable":
        raise DeviceError(f"device {found['device']} is unusable: {'; '.join(found['reasons'])}")
    output = o.output or Path(f"parity-run-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl")
    restricted = [*(f"family={f}" for f in o.family), *(f"dtype={d}" for d in o.dtype), f"source={source}"]
    selection = " ".join([*o.patterns, *restricted])
    whole = not (o.patterns or o.family or o.dtype or o.source or o.examples)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    header = store.Header(fingerprint, o.seed, o.profile, selection, now, whole, o.faults or "")
    _writable(Path(o.findings), "--findings")
    if o.junit_xml:
        _writable(Path(o.junit_xml).absolute().parent, "--junit-xml")
    from parity.report.progress import Reporter  # pytest is imported only by the command that runs it

    reporter = Reporter(header, output)
    workers = o.workers or max(1, min(8, os.cpu_count() or 1))
    if found["verdict"] == "suspect":
        print(f"the device is SUSPECT: {'; '.join(found['reasons'])}")
    print(
        f"parity {__version__}: {len({i.row.name for i in items})} ops, {len(items)} op x dtype pairs, {o.profile} profile, "
        f"{workers} worker{'s' if workers > 1 else ''}\ndevice {_named(found)}, reference cpu, torch {fingerprint.torch}",
        flush=True,
    )
    code = _pytest(o, str(found["device"]), workers, reporter)
    reporter.finish(code)
    return code


def _pytest(o: argparse.Namespace, device: str, workers: int, reporter: Any) -> int:
    """The one engine."""
    import pytest

    folder = resources.folder("conformance")
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        args = [
            str(folder), "-c", str(folder / "pytest.ini"), "--rootdir", str(folder),
            "-p", "no:terminal", "-p", "no:cacheprovider",
            "-p", "no:faulthandler",  # a death is told by the report, not by a dump of its threads
            "-n", str(workers), "--dist", "worksteal", "--parity-rundir", scratch, "--parity-device", device,
            "--parity-profile", o.profile, "--parity-seed", o.seed, "--parity-findings", str(Path(o.findings).absolute()),
        ]  # fmt: skip
        args += [f"--parity-op={p}" for p in o.patterns]
        args += [f"--parity-family={f}" for f in _split(o.family)] + [f"--parity-dtype={d}" for d in _split(o.dtype)]
        args += [f"--parity-fail-on={s}" for s in _split(o.fail_on)]
        args += ["--parity-source", o.source] if o.source else []
        args += ["--parity-examples", str(o.examples)] if o.examples else []
        args += ["--parity-faults", _located(o.faults)] if o.faults else []
        args += ["--parity-no-screens"] if o.no_screens else []
        args += ["--parity-no-shrink"] if o.no_shrink else []
        args += ["--parity-hang-after", str(o.hang_after)] if o.hang_after else []
        args += ["--parity-setup", str(Path(o.setup).absolute())] if o.setup else []
        args += ["--junit-xml", str(Path(o.junit_xml).absolute())] if o.junit_xml else []
        os.environ.pop("PYTEST_ADDOPTS", None)
        os.environ.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)  # parity and xdist are plugins that this run needs
        ended = pytest.main(args, plugins=[reporter])
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
    print(f"\n{len(dtypes)} ops, {len(items)} op x dtype pairs, families: {', '.join(dict.fromkeys(families.values()))}")
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
    from parity.report import zoo as told  # torch is imported only by the command that needs it
    from parity.zoo import board

    live, step = sys.stderr.isatty(), [0]

    def hear(score: Any, done: int, total: int) -> None:
        if live:
            end = "\r" if done < total else "\r\033[K"
            print(f"{done} of {total} {score.fault:<40.40}", end=end, file=sys.stderr, flush=True)
        elif done * 10 // total > step[0]:
            step[0] = done * 10 // total
            print(f"{done} of {total} scored", file=sys.stderr, flush=True)

    source = _located(o.faults) if o.faults else ""
    workers = o.workers or max(1, min(8, os.cpu_count() or 1))
    made = board.run(o.patterns, source, o.include_beyond, o.generator, o.profile, o.seed, o.repeat, workers, hear)
    print(told.render(made))
    if o.output:
        told.write(made, o.output)
        print(f"\nstored in {o.output}")
    return 0


# ---------------------------------------------------------------------------------------------------------- devices


def examined(name: str, faults: str | None) -> dict[str, Any]:
    """What the probe says of a device. It runs in a process of its own: a device may end the process that touches it.

    Raises UsageError or DeviceError as the probe does.
    """
    command = [sys.executable, "-m", "parity.devices.probe", name, *(["--faults", faults] if faults else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"device {name} did not answer its probe within {PROBE_SECONDS} s; it is unusable") from None
    line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        raise DeviceError(f"the probe of device {name} died ({last}); it is unusable") from None
    if "error" in found:
        raise (UsageError if found["exit_code"] == UsageError.exit_code else DeviceError)(found["error"])
    return found


def _fingerprint(found: dict[str, Any]) -> Fingerprint:
    raw = dict(found["fingerprint"])
    for key in ("environment", "facts"):
        raw[key] = tuple((str(a), str(b)) for a, b in raw.get(key, ()))
    return Fingerprint(**raw)


def _named(found: dict[str, Any]) -> str:
    f = _fingerprint(found)
    if f.simulated:
        return f"{f.device} (SIMULATED: the results say nothing about any hardware)"
    return f"{f.device} ({f.device_name})" if f.device_name not in ("", f.device) else f.device


def _doctor(o: argparse.Namespace) -> int:
    found = examined(o.device, o.faults)
    print(f"device   {_named(found)}\nverdict  {found['verdict']}")
    for reason in found["reasons"]:
        print(f"         {reason}")
    print(f"dtypes   {', '.join(found['dtypes'])}")
    print(f"         not: {', '.join(d for d in FACTS if d not in found['dtypes']) or 'none'}")
    f = _fingerprint(found)
    software = ("torch", f"{f.torch} ({f.torch_git[:10]})"), ("os", f.os), ("machine", f.machine)
    for key, value in (*f.facts, *software, *f.environment):
        print(f"{key:<28}{value}")
    return {"healthy": 0, "suspect": 1}.get(found["verdict"], DeviceError.exit_code)


# --------------------------------------------------------------------------------------------------- diff, replay, explain


def _diff(o: argparse.Namespace) -> int:
    made = diff.compare(store.read(o.before, o.partial), store.read(o.after, o.partial))
    print(diff.render(made))
    return made.exit_code


def _replay(o: argparse.Namespace) -> int:
    device, cases, faults = o.device, [o.case], o.faults
    if "(" not in o.case:
        path = Path(o.case)
        if not o.case or not path.is_file():
            raise CaseError(f"'{o.case}' is neither a case id nor a run file; a case id looks like add(float32[2], float32[2])")
        run = store.read(path, partial=True)
        found = [r.shrunk or r.case for r in run.records if r.status in FINDINGS] + [d.case for d in run.deaths]
        cases = list(dict.fromkeys(found))
        device, faults = device or run.header.fingerprint.device, faults or run.header.faults or None
        if not cases:
            raise RunFileError(f"{path} holds no finding to replay; name a case id, in quotes")
    for case in cases:
        suite.row(notation.parse(case).op)
    codes = [_replayed(case, device or "auto", faults) for case in cases]
    return max(codes, key=lambda code: (code == 1, code))


def _explain_run(path: Path, part: str) -> int:
    """The findings of a run file, or the records whose text holds `part`."""
    from parity.report import explanation

    records = store.read(path, partial=True).records
    chosen = [r for r in records if (part in f"{r.op} {r.dtype} {r.aspect} {r.case}" if part else r.status in FINDINGS)]
    if not chosen:
        what = f"no record with '{part}'" if part else "no finding"
        raise RunFileError(f"{path} holds {what}; it has {len(records)} records: name a part of one, like 'softmax float16'")
    for r in chosen:
        print(r.shrunk or r.case)
        print("\n".join(f"  {line}" for line in explanation.lines(r, suite.row(r.op))))
    return 0


def _replayed(case: str, device: str, faults: str | None, explain: bool = False) -> int:
    """One case, in a process of its own: it may be one that ends the process, or never comes back."""
    command = [sys.executable, "-m", "parity.report.replay", case, device, *([faults] if faults else [])]
    command += ["--explain"] if explain else []
    try:
        code = subprocess.run(command, timeout=REPLAY_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"{case}\n  hang: no answer within {REPLAY_SECONDS} s")
        return 1
    if code < 0:
        print(f"{case}\n  crash: the process died ({signal.Signals(-code).name})")
        return 1
    return code


def _explain(o: argparse.Namespace) -> int:
    if "(" in o.subject:
        suite.row(notation.parse(o.subject).op)
        return _replayed(o.subject, o.device or "auto", o.faults, explain=True)
    if Path(o.subject).is_file():
        return _explain_run(Path(o.subject), o.detail)
    row = next((i.row for i in suite.select([o.subject], source="all")), None)
    assert row is not None
    if o.detail not in FACTS:
        raise UsageError(f"unknown dtype '{o.detail}'; {near(o.detail, FACTS) or 'allowed: ' + ', '.join(DEFAULT)}")
    device = o.device or "cpu"
    if device.partition(":")[0] not in DEVICES:
        raise UsageError(f"no device '{device}'; {near(device, DEVICES)}")
    device = device if device != "auto" else str(examined("auto", None)["device"])
    tables = tolerance.load(device, known_ops={r.name for r in suite.rows("all")})
    print(f"{row.name} ({row.rule}) {o.detail} on {device}")
    for pass_ in ("forward", "backward") if o.detail in row.grad else ("forward",):
        print(f"\n{pass_}")
        if row.rule is OpClass.EXACT and pass_ == "forward":
            print("  exact: results are compared for equality, no tolerance applies")
            continue
        for e in tables.explain(row.name, row.rule, o.detail, pass_, row.ulp):
            print(f"  {e.verdict:<9} {e.place}: {e.row}" + (f"\n            {e.why}" if e.why else ""))
    return 0
