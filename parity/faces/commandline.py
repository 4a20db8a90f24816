"""What a person may type: the commands of the command line with their options."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from parity.core.errors import UsageError
from parity.core.results import Status
from parity.core.version import __version__
from parity.engine.options import (
    DEVICE_HELP,
    FAULTS_HELP,
    METADATA_HELP,
    OPTIONS,
    SETUP_HELP,
    STRICT,
    WORKERS_HELP,
    read_count,
    read_day,
    read_minutes,
    read_path,
    read_seconds,
    read_size,
    read_text,
    read_workers,
)
from parity.faces import manual
from parity.findings.known import NAME

PROVING = "parity.prove.command"
HANG_HELP = "seconds that one operator may take before the device, or the CPU, counts as hung (300 by default)"
EXPLAIN = """\
Which tolerance applies:            parity explain softmax float16 --device mps
Why a case is judged as it is:      parity explain 'softmax(float16[1, 3], dim=-1)' --device mps
Why a run judged as it did:         parity explain run.jsonl 'softmax float16'"""
USAGE = "parity run [PATTERN ...] [--device DEVICE] [--dtype DTYPE] [options]"
RUN = """\
Compare torch's ops, or your models, on a device with the CPU; both are judged against a float64 truth. The last line is the
verdict, and each finding comes with the command that shows it again.

  parity run                                       all ops on the first accelerator, in a few minutes
  parity run softmax 'conv*' --dtype float16       some of them
  parity run models.py --device mps                the models of a file
  parity run --known parity-known.toml             the gate: fails for what is new"""
DIFF = (
    "Compare two run files, by cause, the worst first: newly-dying, regressed, lost-support, other-signature, refused-by-both, "
    "drifted-worse, fallback-changed, not-made, not-comparable, removed, slower, more-memory, eased, added, newly-supported, "
    "drifted-better, faster, less-memory, fixed. Findings pair by case "
    "or, where the cases are others, by op, dtype and aspect; errors and times pair by case, explored ones too where both "
    "runs have the same seed. Ends with 1 where the second run has a finding that the first one had not, or had as another "
    "kind (crash, then wrong), where support was lost or moved to the CPU, where an op is compared no longer, for the "
    "groups of --fail-on, where a run was interrupted or lacks items (--partial takes it), and where a run has fewer ops than "
    "the other, or is a shard of it (--ops names what to compare); with 2 for a file that is damaged; with 3 where a run "
    "compared nothing, or both nothing in common."
)
MERGE = (
    "Merge the run files of all shards of a run (parity run --shard K/N) into the one that a run of all items would have "
    "written. It judges nothing: each shard has ended with its own exit code. Ends with 0, with 3 where the shards compared "
    "nothing, and with 2 where they do not belong together: other seeds, options or machines, a shard twice, one missing."
)
LOCATE = (
    "Run a model on the device, forward and backward, each of its operators compared with the CPU's on the operands that it "
    "really got, and name the first module and operator whose own result is outside, with your line. A wrong layer blames none "
    "behind it. FUNCTION takes no parameters and returns a model or function and then its inputs. With --against, what parity "
    "capture recorded on another machine is compared with this CPU; --device then names a device of this machine that is "
    "compared beside it. With --compile, what torch.compile makes of it is judged too, against the same truth, which shows "
    "whether the device or the compiler is wrong. Ends with 0 where nothing parts, with 1 where something does."
)
CAPTURE = (
    "Run a model on one device, forward and backward, and record what each of its operators took and gave, for parity locate "
    "--against on another machine, which need not have that device. FUNCTION takes no parameters and returns a model or "
    "function and then its inputs. The file holds numbers and names, and nothing that is run: inputs and results, the weights "
    "if they are small, and where in your code each operator was called."
)
TRAIN = (
    "Train a model on the CPU and on the device, from the same weights with the same batches, and name the first step, layer "
    "and operator of the device that rounding does not explain, in loss, gradients or weights. Each step is judged from the "
    "device's own state, so that differences which only grow from step to step blame nothing. FUNCTION takes no parameters and "
    "returns make and the batches; make(device) returns the model, its optimizer, anything else with a state_dict, and "
    "step(batch), which returns the loss. Ends with 0 where rounding explains all steps, with 1 where it does not."
)
UPGRADE = (
    "Run the same cases in two Python environments on this machine, one after the other, and tell what changed, with a verdict "
    "in one sentence. parity need not be installed in them. Where both cannot stand side by side (another macOS or chip), run "
    "parity run before and after, and then parity diff. With --bisect it names the version since which one case gives another "
    "result. Ends with 0 where nothing got worse, with 1 where something did, or where too little could be compared to say so."
)
DOCTOR = """\
Examine a device and say whether to trust it: known answers, memory, dtypes, subnormals, precision in effect, virtual or real
machine, driver, variables that change numbers. Ends with 0 where it is healthy, with 1 where it is suspect (a run goes on under
a banner), with 4 where it is unusable or absent. Every run begins with it.

--archive, for a device that nobody has tried: examines it, runs the cases of the bugs that were reported for MPS, compares some
ops of every family, and counts the operators that were reached. It goes on after whatever dies, and writes what it has after
Ctrl-C, too. The archive holds plain texts, without your names, folders and variables (but for PYTORCH_...); --import prints
what one holds."""
AUDIT = """\
What a model needs that MPS lacks (--model), or how two versions of torch differ (--between).

--model runs your model on this machine's CPU, forward and backward, composed of operators as MPS composes it, and lists those
that MPS lacks or refuses, with your line and what to do; then public bugs whose conditions your calls meet. Ends with 0 where
all is there, with 1 where something is lacking or a finding of class A in --run concerns it, with 3 where not all was seen."""
REPORT = (
    "The findings of a run by cause: what differs, in which calls, how often, and the least case. Causes of ordinary calls "
    "that are silently wrong come first. A cause's id depends on the facts alone, so it is the same in every run."
)
PROVE = (
    "What proves the suite itself, rather than a device: which known bugs it finds, what a run draws, compares and "
    "dispatches, and how many errors the judge would see."
)
KNOWN = """\
A file of findings that are accepted, with a reason for each: parity run --known FILE fails on all others.

  parity known add run.jsonl --reason "torch 2.13 has it" --link URL --until 2027-01-31
  parity run --known parity-known.toml
  parity known drop parity-known.toml _softmax-6ea5ad"""
MORE_HELP = """\
parity help             the manual: its chapters by question
parity COMMAND --help   the options of a command"""
EXIT_CODES = """\
Exit codes: 0 nothing to report, 1 findings or regressions, 2 usage,
3 nothing was compared, 4 device absent or unusable, 130 interrupted."""


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with 2."""
        self.exit(UsageError.exit_code, f"parity: {message}; see {self.prog} --help\n")


class _Front(_Parser):
    """The parser of all commands, with its help under the questions of the manual."""

    def format_help(self) -> str:
        """The page that `parity --help` prints."""
        return f"{self.format_usage()}\n{self.description}\n\n{manual.by_question(self)}\n\n{self.epilog}\n"


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of all commands; what was asked for is `command` of its result, a key of `cli.COMMANDS`. command: the one that
    was typed, because `prove` is loaded for nobody else."""
    about = "Does a PyTorch device compute the right thing?"
    made = _Front(prog="parity", description=about, epilog=f"{MORE_HELP}\n\n{EXIT_CODES}")
    made.add_argument("--version", action="version", version=f"parity {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    manual.add(commands)

    how = "compare a device with the CPU, op by op"
    run = commands.add_parser("run", help=how, usage=USAGE, description=RUN, epilog=_statuses(), formatter_class=_Raw)
    for option in OPTIONS:
        names, keywords = option.for_command_line()
        run.add_argument(*names, **keywords)
    run.set_defaults(command="run")

    two = commands.add_parser("diff", help="what changed between two runs", description=DIFF)
    two.add_argument("before", type=Path, metavar="BEFORE", help="the run file of the earlier run")
    two.add_argument("after", type=Path, metavar="AFTER", help="the run file of the later run")
    two.add_argument("--partial", action="store_true", help="take what a truncated file holds")
    how = (
        "compare these ops alone, by name, with * and ?, whatever else one of the runs has (repeatable, or separated by commas)"
    )
    two.add_argument("--ops", action="append", default=[], metavar="PATTERN", help=how)
    _add_formats(two)
    two.set_defaults(command="diff")

    _add_upgrade(commands)

    first = commands.add_parser("locate", help="the first module and operator of a model that part", description=LOCATE)
    first.add_argument(
        "model", type=read_text, metavar="FILE.py[:FUNCTION]", help="functions that return a model and its inputs"
    )
    first.add_argument("--device", help=DEVICE_HELP + " (auto by default; cpu with --against, and possible with --compile)")
    first.add_argument("--no-backward", action="store_true", help="leave the gradients out")
    how = "also a table of all modules: how far outputs and gradients are off as errors add up, the worst first"
    first.add_argument("-v", "--verbose", action="store_true", help=how)
    how = "default, or full: ask the float64 truth wherever results differ by more than one rounding (slower)"
    first.add_argument("--effort", default="default", metavar="EFFORT", help=how)
    first.add_argument("--hang-after", type=read_seconds, metavar="SECONDS", help=HANG_HELP)
    first.add_argument("--faults", metavar="FILE", type=read_text, help=FAULTS_HELP)
    first.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP)
    how = "judge what this file of parity capture recorded on another machine, with its inputs and weights"
    first.add_argument("--against", metavar="CAPTURE", type=read_path, help=how)
    how = "also compile it with this backend of torch.compile (aot_eager, inductor ...), and tell which code is wrong"
    first.add_argument("--compile", metavar="BACKEND", help=how)
    how = "the table of -v, and all of it as one HTML page"
    first.add_argument("-o", "--output", type=read_path, metavar="FILE", help=how)
    how = "write the call of the first operator that parts to this file: a script that needs torch only, to report it"
    first.add_argument("--script", type=read_path, metavar="FILE", help=how)
    first.set_defaults(command="locate")

    trained = commands.add_parser("train", help="the first step and layer of a training that part", description=TRAIN)
    how = "functions that return what builds model and optimizer, and the batches"
    trained.add_argument("training", type=read_text, metavar="FILE.py[:FUNCTION]", help=how)
    trained.add_argument("--steps", type=read_count, default=20, metavar="N", help="steps of each training (20 by default)")
    trained.add_argument("--device", default="auto", help=DEVICE_HELP + " (auto by default)")
    trained.add_argument("--hang-after", type=read_seconds, metavar="SECONDS", help=HANG_HELP)
    trained.add_argument("--faults", metavar="FILE", type=read_text, help=FAULTS_HELP)
    trained.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP)
    trained.set_defaults(command="train")
    kept = commands.add_parser("capture", help="record a model's operators for parity locate --against", description=CAPTURE)
    kept.add_argument(
        "model", type=read_text, metavar="FILE.py[:FUNCTION]", help="a function that returns a model and its inputs"
    )
    kept.add_argument("-o", "--output", type=read_path, required=True, metavar="FILE", help="the file to write")
    kept.add_argument("--device", default="auto", help=DEVICE_HELP + " (auto by default)")
    kept.add_argument("--no-backward", action="store_true", help="leave the gradients out")
    how = "size of the tensors that are kept whole (64M by default), of others sketches are kept"
    kept.add_argument("--limit", metavar="SIZE", type=read_size, default=64 << 20, help=how)
    kept.add_argument("--hang-after", type=read_seconds, metavar="SECONDS", help=HANG_HELP)
    kept.add_argument("--faults", metavar="FILE", type=read_text, help=FAULTS_HELP)
    kept.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP)
    kept.set_defaults(command="capture")

    shards = commands.add_parser("merge", help="join the run files of shards", description=MERGE)
    shards.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the run files of all shards, in any order")
    shards.add_argument("-o", "--output", type=read_path, required=True, metavar="FILE", help="the run file to write")
    shards.add_argument("--mixed", action="store_true", help="take shards of machines that differ, and note how they differ")
    shards.add_argument("--partial", action="store_true", help="take what is there of a run that lacks shards or is truncated")
    shards.set_defaults(command="merge")

    causes = commands.add_parser("report", help="the causes of a run's findings", description=REPORT)
    causes.add_argument("run", type=Path, nargs="?", metavar="RUN", help="the run file")
    causes.add_argument("cause", nargs="?", default="", metavar="CAUSE", help="the id of one cause, with all its findings")
    how = "instead of causes: a table of all ops by dtype, a letter for each pass (agrees, drifts, wrong, refused ...)"
    causes.add_argument("--matrix", action="store_true", help=how)
    causes.add_argument("-v", "--verbose", action="store_true", help="with --matrix: the ops too in which everything agrees")
    how = "text by default; html: one page; junit: a test case for each op and dtype; github: annotations, the worst ten"
    formats = "{text,markdown,json,html,junit,github}"  # no choices: files outside of the package add some
    causes.add_argument("--format", default="text", metavar=formats, help=how)
    how = "with --format html: an earlier run, for trends and both side by side"
    causes.add_argument("--against", type=Path, metavar="BEFORE", help=how)
    how = "print the JSON schema of run files, or of reports in JSON, and do nothing else"
    causes.add_argument("--schema", choices=("run", "report"), help=how)
    how = "the cause as a bug report in Markdown: a minimal script, which is run for it, and the versions"
    causes.add_argument("--issue", action="store_true", help=how)
    causes.add_argument("--setup", metavar="FILE", type=read_text, help="Python that adds a format of its own; it is run first")
    causes.add_argument("-o", "--output", type=read_path, metavar="FILE", help="write to this file")
    causes.set_defaults(command="report")

    _add_known(commands)

    again = commands.add_parser("replay", help="check one case again", description="Rebuild a case from its id and check it.")
    again.add_argument("case", help="a case id, in quotes, or a run file: all its findings")
    again.add_argument("--device", default=None, help=DEVICE_HELP + " (auto by default; for a run file, its own device)")
    again.add_argument("--faults", metavar="FILE", type=read_text, help=FAULTS_HELP)
    again.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP)
    again.add_argument(STRICT, action="store_true", help=METADATA_HELP)
    again.set_defaults(command="replay")

    why = commands.add_parser(
        "explain", help="which tolerance applies, and why a case is judged as it is", description=EXPLAIN, formatter_class=_Raw
    )
    why.add_argument("subject", metavar="OP|CASE|RUN", help="an op, a case id in quotes, or a run file")
    why.add_argument(
        "detail", nargs="?", default="", help="the op's dtype; or which of the run's records, by a part of their text"
    )
    why.add_argument("--device", default="", help=DEVICE_HELP + " (by default auto for a case, cpu for an op)")
    why.add_argument("--faults", metavar="FILE", type=read_text, help=FAULTS_HELP)
    why.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP)
    why.set_defaults(command="explain")

    how = "what a model needs that MPS lacks, and how two versions of torch differ"
    audit = commands.add_parser("audit", help=how, description=AUDIT, formatter_class=_Raw)
    what = audit.add_mutually_exclusive_group(required=True)
    between = "which operators gained or lost an MPS kernel: two Pythons, virtual environments, wheels or native_functions.yaml"
    how = "what functions of yours need of MPS, each of which returns a model and its inputs; no device is needed"
    what.add_argument("--model", type=read_text, metavar="FILE.py[:FUNCTION]", help=how)
    what.add_argument("--between", nargs=2, type=read_text, metavar=("OLD", "NEW"), help=between)
    how = "with --model: a run file whose findings are held against the model's operators (repeatable)"
    audit.add_argument("--run", action="append", default=[], type=Path, metavar="FILE", help=how)
    how = "with --model: the torch to ask about: a Python, a virtual environment, a wheel for any system, native_functions.yaml"
    audit.add_argument("--torch", type=read_text, metavar="PLACE", help=how)
    audit.add_argument("--no-backward", action="store_true", help="with --model: leave the gradients out")
    how = "with --model: compute nothing large, for a model that this machine cannot run; build it under torch.device('meta')"
    audit.add_argument("--shapes", action="store_true", help=how)
    audit.add_argument("--json", action="store_true", help="with --model: print the answer as JSON")
    audit.add_argument("-v", "--verbose", action="store_true", help="with --model: list all operators and known bugs")
    how = "with --model: write a test for pytest, to -o, that fails where the model needs what MPS lacks"
    audit.add_argument("--pytest", action="store_true", help=how)
    audit.add_argument(
        "-o", "--output", type=read_path, metavar="FILE", help="also write the answer to this file (JSON), or the test"
    )
    audit.set_defaults(command="audit")

    doctor = commands.add_parser("doctor", help="examine a device", description=DOCTOR, formatter_class=_Raw)
    doctor.add_argument("--device", default="auto", help=DEVICE_HELP + " (auto by default)")
    doctor.add_argument("--faults", metavar="FILE", type=read_text, help=FAULTS_HELP)
    doctor.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP)
    doctor.add_argument("--json", action="store_true", help="print the answer as JSON")
    doctor.add_argument("--archive", action="store_true", help="the most telling checks, in one archive to send to others")
    doctor.add_argument("--import", dest="opened", type=read_path, metavar="ARCHIVE", help="print what such an archive holds")
    doctor.add_argument("patterns", nargs="*", metavar="PATTERN", help="with --archive: ops by name; some of every family else")
    how = "with --archive: when to come to an end (10 by default)"
    doctor.add_argument("--minutes", type=read_minutes, metavar="N", help=how)
    doctor.add_argument("-n", type=read_workers, dest="workers", metavar="N", help="with --archive: " + WORKERS_HELP)
    how = "with --archive: the file to write (parity-archive-DATE-TIME.zip by default)"
    doctor.add_argument("-o", "--output", type=read_path, metavar="FILE", help=how)
    doctor.set_defaults(command="doctor")

    prove = commands.add_parser("prove", help="what proves the suite itself", description=PROVE)
    if command == "prove":
        importlib.import_module(PROVING).add(prove)
    prove.set_defaults(command="prove")
    return made


def _add_upgrade(commands: Any) -> None:
    """The command `upgrade`, which hands most of its options to `run`."""
    both = commands.add_parser(
        "upgrade", help="the same cases with two versions of torch, and what changed", description=UPGRADE
    )
    both.add_argument("patterns", nargs="*", metavar="PATTERN", help="ops by name, with * and ?, and models.py; all by default")
    how = (
        "a Python, the folder of an environment, or what pip takes, which is installed: 'torch==2.14.*', 'torch --pre', a wheel"
    )
    both.add_argument("--before", type=read_text, metavar="PLACE", help=f"{how}; by default this Python")
    both.add_argument("--after", type=read_text, metavar="PLACE", help="the same, for the other side")
    how = "replay --case in these, from the oldest to the newest, or in all versions of one requirement: 'torch>=2.10,<=2.15'"
    both.add_argument("--bisect", nargs="+", type=read_text, default=[], metavar="PLACE", help=how)
    how = "the case of --bisect, in quotes, or a run file and one of its causes"
    both.add_argument("--case", nargs="+", type=read_text, default=[], metavar="CASE", help=how)
    shared = {o.name: o for o in OPTIONS}
    for name in (
        "device",
        "dtype",
        "family",
        "profile",
        "examples",
        "seed",
        "time",
        "workers",
        "faults",
        "setup",
        "model",
        "known",
    ):
        names, keywords = shared[name].for_command_line()
        both.add_argument(*names, **keywords)
    where = "folder for the two run files and the scripts of findings (parity-upgrade by default)"
    both.add_argument("--folder", type=read_path, default=Path("parity-upgrade"), metavar="FOLDER", help=where)
    _add_formats(both)
    both.set_defaults(command="upgrade")


def _add_formats(of: argparse.ArgumentParser) -> None:
    """How a diff is told, and when it fails."""
    ways = ("terminal", "markdown", "json", "junit", "html")
    of.add_argument("--format", choices=ways, default="terminal", help="terminal by default; html needs -o")
    of.add_argument("-o", "--output", type=read_path, metavar="FILE", help="write to this file")
    how = "also fail on this group of changes, such as slower or drifted-worse (repeatable, or separated by commas)"
    of.add_argument("--fail-on", action="append", default=[], metavar="GROUP", help=how)
    of.add_argument("-v", "--verbose", action="store_true", help="leave nothing out, and name every check that changed")


def _add_known(commands: Any) -> None:
    """The command `known` with its actions."""
    known = commands.add_parser("known", help="findings that are accepted", description=KNOWN, formatter_class=_Raw)
    known.set_defaults(command="known")
    actions = known.add_subparsers(dest="action", required=True, metavar="ACTION")

    add = actions.add_parser("add", help="write the causes of a run into the file", description="Write causes of a run.")
    add.add_argument("run", type=Path, metavar="RUN", help="the run file")
    add.add_argument("cause", nargs="*", metavar="CAUSE", help="ids of causes (parity report RUN lists them); all by default")
    add.add_argument("--reason", default="", metavar="TEXT", help="why they are accepted; a new entry needs it")
    add.add_argument("--link", default="", metavar="URL", help="where they are reported or discussed")
    add.add_argument("--until", type=read_day, metavar="DATE", help="the last day on which they are accepted: 2027-01-31")
    add.add_argument("--file", type=read_path, default=Path(NAME), metavar="FILE", help=f"the file ({NAME} by default)")
    how = "what the run's device refuses (unsupported) or leaves to the CPU (fallback), for runs with --fail-on"
    add.add_argument("--status", action="append", default=[], metavar="STATUS", help=how)
    for name, how in (("list", "list the entries with their reasons"), ("check", "say whether the file can be used")):
        one = actions.add_parser(name, help=how, description=how.capitalize() + ".")
        one.add_argument("file", nargs="?", type=read_path, default=Path(NAME), metavar="FILE", help=f"{NAME} by default")
    drop = actions.add_parser("drop", help="take entries out of the file", description="Take entries out of the file.")
    drop.add_argument("file", type=read_path, metavar="FILE", help="the file")
    drop.add_argument("cause", nargs="*", metavar="ID", help="ids of entries")


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keep the table of statuses as it is."""


def _statuses() -> str:
    rows = "\n".join(f"  {s:<16}{s.meaning}{'' if s.is_finding else ' (no failure)'}" for s in Status)
    return f"Statuses:\n{rows}\n\n{EXIT_CODES}"


def split(values: Sequence[str]) -> tuple[str, ...]:
    """The parts of repeatable options that take commas. Raises UsageError for one that is given and empty."""
    for v in values:
        if not v.strip(", "):
            raise UsageError(f"an option was given with the empty value '{v}'; name something, or leave the option out")
    return tuple(part.strip() for v in values for part in v.split(",") if part.strip())
