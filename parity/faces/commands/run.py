"""`parity run`: the device and the CPU compared, op by op."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from parity.core import project
from parity.core.results import Status
from parity.engine import suite
from parity.engine.options import OPTIONS, RunOptions
from parity.faces import running
from parity.faces.commands.groups import EXIT_CODES, Parser, fill, near_by, take_rest
from parity.store import run_file

HELP = "compare a device with the CPU, op by op"
SETTINGS = ("device", "profile", "known", "setup", "faults", "fail-on", "models")
USAGE = "parity run [PATTERN ...] [--device DEVICE] [--dtype DTYPE] [options]"
ABOUT = """\
Compare torch's ops, or your models, on a device with the CPU; both are judged against a float64 truth. The last line is the
verdict, and each finding comes with the command that shows it again.

  parity run                                       all ops on the first accelerator, in a few minutes
  parity run softmax 'conv*' --dtype float16       some of them
  parity run models.py --device mps                the models of a file
  parity run --known parity-known.toml             the gate: fails for what is new"""
_STATUSES = "\n".join(f"  {s:<16}{s.meaning}{'' if s.is_finding else ' (no failure)'}" for s in Status)
MORE = f"Statuses:\n{_STATUSES}\n\n{EXIT_CODES}\n\n"


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    for option in OPTIONS:
        if option.in_run:
            names, keywords = option.for_command_line()
            to.add_argument(*names, **keywords)
    to.set_defaults(device=None, profile=None)  # so that it is known whether they were named
    take_rest(to, "op")


def run(o: argparse.Namespace) -> int:
    """Run the suite and the person's own functions; the exit code."""
    if o.verbose and (said := _settings(o)):
        print(said)
    ended = running.run_with(RunOptions.of_command_line(o))
    if o.json:
        _answer(o, ended)
    return ended.code


def _answer(o: argparse.Namespace, ended: running.Ended) -> None:
    """Leave what --json prints."""
    from parity.report.run_answers import Listed, ListedOp, Ran

    if ended.stored is not None:
        from parity.faces.commands.report import causes_of

        run = run_file.read(ended.stored, partial=True)
        o.answer = Ran(str(ended.stored), causes_of(run))
    elif o.list:
        ops: dict[str, list[suite.Item]] = {}
        for i in ended.listed:
            ops.setdefault(i.row.name, []).append(i)
        o.answer = Listed(tuple(ListedOp(n, some[0].row.family, tuple(i.dtype for i in some)) for n, some in ops.items()))


def _settings(o: argparse.Namespace) -> str:
    """What the file of settings gave, and what the command line gave in its place."""
    asked = project.found()
    if asked.path is None:
        return ""
    loaded = {key: ", ".join(map(near_by, getattr(asked, key))) for key in ("rows", "tolerances") if getattr(asked, key)}
    gave = ", ".join(f"{key} {value}" for key, value in {**o.settings, **loaded}.items()) or "nothing"
    instead = [key for key in SETTINGS if getattr(asked, key.replace("-", "_")) and key not in o.settings]
    by = "the run file" if o.resume else "the command line"
    return f"settings of {near_by(str(asked.path))}: {gave}" + (f"; {by} decides {', '.join(instead)}" if instead else "")


def options(words: Sequence[str], keys: Iterable[str] = ()) -> RunOptions:
    """The options of a run that these words ask for. keys: of the settings that fill in what they leave open. Ends the process
    with a line for what is none."""
    made = parsed(words)
    fill(made, keys)
    return RunOptions.of_command_line(made)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The same as the parser has them."""
    to = Parser(prog="parity run", usage=USAGE, description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    add(to)
    to.add_argument("-v", "--verbose", action="store_true", help=argparse.SUPPRESS)
    made, more = to.parse_known_args(words)
    if unknown := [w for w in more if w.startswith("-")]:
        to.error(f"unrecognized arguments: {' '.join(unknown)}")
    made.op += more
    return made
