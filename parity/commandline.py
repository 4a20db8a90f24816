"""What a person may type: the commands of the command line with their options, and how an option's text is read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from parity import __version__
from parity.errors import UsageError
from parity.vocabulary import FINDINGS, MEANING, Status

EXPLAIN = """\
Which tolerance applies:            parity explain softmax float16 --device mps
Why a case is judged as it is:      parity explain 'softmax(float16[1, 3], dim=-1)' --device mps
Why a run judged as it did:         parity explain run.jsonl 'softmax float16'"""
ZOO = (
    "Plant known device bugs, one at a time, on a simulated device, and tell which of them the suite's ordinary cases find. "
    "--generator opinfo scores the plain rule of the field instead: OpInfo samples as they are, CPU against device, "
    "torch.testing.assert_close, forward and first backward; both puts the two side by side."
)
DIFF = (
    "Compare two run files: what regressed, was fixed, is lost or new, and where errors grew. Records pair by case (pinned "
    "cases, and findings), everything else is compared by op, dtype and aspect. Ends with 1 where the second run has a finding "
    "that the first one had not, or had as another kind (crash, then wrong), where something was lost, and where a run was "
    "interrupted or lacks items (--partial takes it); with 2 for a file that is damaged; with 3 where both compared nothing "
    "in common."
)
DOCTOR = (
    "Probe a device and say whether to trust it: known answers, memory, dtypes, subnormals, precision in effect. Ends with 0 "
    "where it is healthy, with 1 where it is suspect (a run goes on), with 4 where it is unusable or absent."
)
AUDIT = """\
List the operators that have an MPS kernel in the installed torch, and which of them a run of the suite dispatches.

What is counted: overloads (add.Tensor, add_.Tensor, add.out) of torch's own native_functions.yaml that name MPS as a dispatch
key, or whose structured_delegate does. One is reached where a result that holds a comparison dispatched it on the device,
below autograd: on the way there, forward, backward, out= and in-place. Refused and void cases count for nothing. What
exists on MPS alone is reached where MPS was the device, or where sim:mps compared its public op whole.

Without --run, the quick profile is run on sim, and the ops that exist on MPS alone on sim:mps (several minutes).
With it:   parity run --device mps --reach --output run.jsonl
           parity audit --reach --run run.jsonl

The last line reads: N of M (x %)."""
COVERAGE = (
    "How often each feature of a call was drawn in a run, by family of ops, and each two together. A pair is applicable where "
    "some op of the family drew each of the two in one dtype and nothing forbids both in one call. Also the pairs of op and "
    "dtype that were compared in each aspect, as parity run --count tells them."
)
DEVICE_HELP = "mps, cuda, xpu, sim, sim:mps, cpu, or auto: the first accelerator that torch reports, else sim:mps"
FAULTS_HELP = "faults for a simulated device: a Python file, or an installed module by its name"
SETUP_HELP = "Python that every process runs first: backend flags, a backend's import"
FINDINGS_HELP = "folder for the scripts that reproduce findings (findings by default)"
POWER_HELP = "how many comparisons that agree are judged once more with errors put in (by default 400, or 3 in 1,000 if less)"
PROFILE_HELP = "quick (the default), full or deep"
WORKERS_HELP = "worker processes; by default one per core, at most 8"
MOST_WORKERS = 64  # and where there are more than 16 cores, four a core
EXIT_CODES = """\
Exit codes: 0 nothing to report, 1 findings or regressions, 2 usage,
3 nothing was compared, 4 device absent or unusable, 130 interrupted."""


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with 2."""
        self.exit(UsageError.exit_code, f"parity: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; what was asked for is `command` of its result, a key of `cli.COMMANDS`."""
    about = "Does a PyTorch device compute the right thing?"
    made = _Parser(prog="parity", description=about, epilog=EXIT_CODES, formatter_class=_Raw)
    made.add_argument("--version", action="version", version=f"parity {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")

    how = "compare a device with the CPU, op by op"
    run = commands.add_parser("run", help=how, description=_statuses(), formatter_class=_Raw)
    run.add_argument("patterns", nargs="*", metavar="PATTERN", help="ops by name, with * and ?; all by default")
    run.add_argument("--device", default="auto", help=DEVICE_HELP + " (auto by default)")
    run.add_argument("--dtype", action="append", default=[], help="only this dtype (repeatable, or separated by commas)")
    run.add_argument("--family", action="append", default=[], help="only this family (repeatable, or separated by commas)")
    run.add_argument("--profile", default="quick", help=PROFILE_HELP)
    run.add_argument(
        "--source", type=_text, help="native, opinfo or all (by default the profile's: quick native, full and deep all)"
    )
    run.add_argument("--examples", type=_count, metavar="N", help="cases per op and dtype instead of the profile's number")
    run.add_argument("--seed", default="0", help="seed of the explored cases; the pinned ones are always the same")
    run.add_argument("-n", type=_workers, dest="workers", metavar="N", help=WORKERS_HELP)
    run.add_argument("--faults", metavar="FILE", type=_text, help=FAULTS_HELP)
    run.add_argument("--no-screens", action="store_true", help="send every pair to the float64 oracle")
    run.add_argument("--no-shrink", action="store_true", help="tell findings as they were drawn")
    run.add_argument("--power", type=_count, metavar="N", help=POWER_HELP)
    run.add_argument("--no-power", action="store_true", help="judge nothing once more with errors put in")
    run.add_argument(
        "--hang-after",
        type=_seconds,
        metavar="SECONDS",
        help="seconds after which a case counts as hung (by default 20 and more)",
    )
    run.add_argument("--setup", metavar="FILE", type=_text, help=SETUP_HELP)
    run.add_argument(
        "--fail-on",
        metavar="STATUS",
        action="append",
        default=[],
        help="a status that fails beside the findings: unsupported ...",
    )
    run.add_argument(
        "--min-judged",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="fail an op of whose elements less than this share was judged (0.9 for nine in ten; none by default)",
    )
    run.add_argument(
        "--output", type=_path, metavar="FILE", help="the run file to write (JSON lines; by default parity-run-DATE-TIME.jsonl)"
    )
    run.add_argument("--findings", metavar="FOLDER", type=_text, default="findings", help=FINDINGS_HELP)
    run.add_argument("--junit-xml", metavar="FILE", type=_text, help="also write JUnit's XML")
    run.add_argument("--reach", action="store_true", help="for parity audit --reach: note which operators are dispatched")
    how = "draw on the CPU until every aspect of an op and dtype holds a comparison, and count these pairs"
    run.add_argument("--count", action="store_true", help=how)
    run.add_argument("-v", "--verbose", action="store_true", help="with --count: name every pair without a comparison")
    run.add_argument("--list", action="store_true", help="list the selected ops with their dtypes, and run nothing")
    run.set_defaults(command="run")

    two = commands.add_parser("diff", help="what changed between two runs", description=DIFF)
    two.add_argument("before", type=Path, metavar="BEFORE", help="the run file of the earlier run")
    two.add_argument("after", type=Path, metavar="AFTER", help="the run file of the later run")
    two.add_argument("--partial", action="store_true", help="take what a truncated file holds")
    two.set_defaults(command="diff")

    drawn = commands.add_parser("coverage", help="which features a run drew, and which two together", description=COVERAGE)
    drawn.add_argument("run", type=Path, help="the run file")
    drawn.add_argument("family", nargs="*", metavar="FAMILY", help="only these families, with their features")
    drawn.add_argument("-v", "--verbose", action="store_true", help="name every pair that was not drawn")
    drawn.add_argument("--partial", action="store_true", help="take what a truncated file holds")
    drawn.set_defaults(command="coverage")

    again = commands.add_parser("replay", help="check one case again", description="Rebuild a case from its id and check it.")
    again.add_argument("case", help="a case id, in quotes, or a run file: all its findings")
    again.add_argument("--device", default=None, help=DEVICE_HELP + " (auto by default; for a run file, its own device)")
    again.add_argument("--faults", metavar="FILE", type=_text, help=FAULTS_HELP)
    again.add_argument("--setup", metavar="FILE", type=_text, help=SETUP_HELP)
    again.set_defaults(command="replay")

    why = commands.add_parser(
        "explain", help="which tolerance applies, and why a case is judged as it is", description=EXPLAIN, formatter_class=_Raw
    )
    why.add_argument("subject", metavar="OP|CASE|RUN", help="an op, a case id in quotes, or a run file")
    why.add_argument(
        "detail", nargs="?", default="", help="the op's dtype; or which of the run's records, by a part of their text"
    )
    why.add_argument("--device", default="", help=DEVICE_HELP + " (by default auto for a case, cpu for an op)")
    why.add_argument("--faults", metavar="FILE", type=_text, help=FAULTS_HELP)
    why.add_argument("--setup", metavar="FILE", type=_text, help=SETUP_HELP)
    why.set_defaults(command="explain")

    zoo = commands.add_parser("zoo", help="which known device bugs the suite finds", description=ZOO)
    zoo.add_argument("patterns", nargs="*", metavar="PATTERN", help="faults by id, kind, trigger class or op; all by default")
    zoo.add_argument("--faults", help="score these instead: a Python file, or an installed module by its name")
    zoo.add_argument("--generator", choices=("suite", "opinfo", "both"), default="suite", help="what looks for the faults")
    zoo.add_argument("--profile", default="quick", help=PROFILE_HELP)
    zoo.add_argument("--seed", default="0", help="seed of the explored cases")
    zoo.add_argument("--repeat", type=_count, default=1, metavar="N", help="as many seeds, from --seed on")
    zoo.add_argument("-n", type=_workers, dest="workers", metavar="N", help=WORKERS_HELP)
    zoo.add_argument("--output", type=_path, metavar="FILE", help="also write everything to this file (JSON)")
    zoo.add_argument("--list", action="store_true", help="list the chosen faults with their kinds and ops, and score nothing")
    zoo.add_argument("--include-beyond", action="store_true", help="also the bugs that one op alone does not show")
    zoo.set_defaults(command="zoo")

    audit = commands.add_parser("audit", help="what a run leaves out", description=AUDIT, formatter_class=_Raw)
    audit.add_argument("--reach", action="store_true", required=True, help="audit the operators that are dispatched")
    audit.add_argument("--run", action="append", default=[], type=Path, metavar="FILE", help="a run file (repeatable)")
    audit.add_argument("--seed", default="0", help="seed of the explored cases, where it runs them itself")
    audit.add_argument("-n", type=_workers, dest="workers", metavar="N", help=WORKERS_HELP)
    audit.add_argument("--output", type=_path, metavar="FILE", help="also write everything to this file (JSON)")
    audit.set_defaults(command="audit")

    doctor = commands.add_parser("doctor", help="examine a device", description=DOCTOR)
    doctor.add_argument("--device", default="auto", help=DEVICE_HELP + " (auto by default)")
    doctor.add_argument("--faults", metavar="FILE", type=_text, help=FAULTS_HELP)
    doctor.add_argument("--setup", metavar="FILE", type=_text, help=SETUP_HELP)
    doctor.set_defaults(command="doctor")
    return made


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keep the table of statuses as it is."""


def _statuses() -> str:
    rows = "\n".join(f"  {s:<12}{MEANING[s]}{'' if s in FINDINGS else ' (no failure)'}" for s in Status)
    return f"Compare a device with the CPU, judged against a float64 truth.\n\nStatuses:\n{rows}"


def _text(text: str) -> str:
    if not text.strip():  # most often a variable of a script that is not set
        raise argparse.ArgumentTypeError("it is empty; name something, or leave the option out")
    return text


def _path(text: str) -> Path:
    return Path(_text(text))


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of 1 or more")
    return int(text)


def _workers(text: str) -> int:
    n = _count(text)
    if n > (most := max(MOST_WORKERS, 4 * (os.cpu_count() or 1))):
        what = f"{n} processes are more than this machine can use"
        raise argparse.ArgumentTypeError(f"{what}; give at most {most}, or leave it out")
    return n


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"'{text}' is no share between 0 and 1, such as 0.9")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return value


def split(values: Sequence[str]) -> list[str]:
    """The parts of repeatable options that take commas. Raises UsageError for one that is given and empty."""
    for v in values:
        if not v.strip(", "):
            raise UsageError(f"an option was given with the empty value '{v}'; name something, or leave the option out")
    return [part.strip() for v in values for part in v.split(",") if part.strip()]
