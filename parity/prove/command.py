"""`parity prove`: what proves the suite itself, an action for each question."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from parity.core import machine, outputs
from parity.core.errors import UsageError
from parity.core.outputs import writable
from parity.engine import suite
from parity.engine.options import PROFILE_HELP, SHRINK, WORKERS_HELP, RunOptions
from parity.engine.reading import MOST_COUNT, read_path, read_text, read_workers
from parity.faces import running
from parity.faces.commands.groups import add_output, as_run, split, take_rest
from parity.faces.files import located
from parity.report import output
from parity.report.words import plural
from parity.store import run_file

ZOO = (
    "Plant known device bugs, one at a time, on a simulated device, and report which of them the suite's ordinary cases find. "
    "--generator opinfo scores the plain rule of the field instead: OpInfo samples as they are, CPU against device, "
    "torch.testing.assert_close, forward and first backward; both puts the two side by side."
)
COUNTS = """\
Draw on the CPU, for every op and dtype, until each aspect holds a comparison, and count the pairs of op and dtype that are
compared, in the unit of torch's own test_mps. Takes ops and options as parity run does; -v names every pair that was not
compared, with the reason."""
REACH = """\
Which of the operators that have an MPS kernel in the installed torch a run of the suite dispatches, and why not the others.

What is counted: overloads (add.Tensor, add_.Tensor, add.out) of torch's own native_functions.yaml that name MPS as a dispatch
key, or whose structured_delegate does. One is reached where a result that holds a comparison dispatched it on the device,
below autograd: on the way there, forward, backward, out= and in-place. Refused and void cases count for nothing. What
exists on MPS alone is reached where MPS was the device, or where sim:mps compared its public op whole.

Without a RUN, the quick profile is run on sim, and the ops that exist on MPS alone on sim:mps (several minutes), with options
of parity run (-n, --seed). With one:   parity run --device mps --study reach --output run.jsonl
                                     parity prove reach run.jsonl

The last line reads: N of M (x %)."""
COVERAGE = (
    "How often each feature of a call was drawn in a run, by family of ops, and each two together. Further cases are drawn and "
    "not run: a pair of features that they show is applicable, and it is a hole where it is missing in the run though ten of "
    "its cases or more were to have it. Also the pairs of op and dtype that were compared in each aspect, as prove counts has."
)
COST = """\
What a run would cost on a Mac, where each new shape of an operator compiles a graph (MPSGraph) that stays in memory: graphs,
minutes and memory on 3, 8 and 12 cores. Takes ops and options as parity run does, and examines at most 400 items of that run on
sim:mps, evenly spaced. The costs of a graph, a kernel, a call and a copy are from public reports, low, middle and high, and are
printed with their sources; nothing was measured on a Mac. An archive of parity doctor --archive among the arguments
(parity-archive-DATE.zip) has those of one machine, which take their place, and the run is modelled there."""
MUTANTS = """\
Plant generic mutants, one at a time, in the kernels that rows of the catalog call on a simulated device, and report which of
them the suite's ordinary cases find: by class, family and direction, with 95 % limits, and the survivors with the reason. A
mutant counts if it is found, or if a witness shows it in a public call. With --limit 0 nothing is planted: it maps the
conditions that the cases of these rows never meet."""
TRACE = (
    "Show each call of a case on a simulated device as a fault would see it (parity.devices.sim.faults): level, op, arguments "
    "by name, strides and offsets, and where it writes."
)
POWER = """\
How many errors the judge would see: every comparison that agrees is judged once more with each of four errors put in. Reports
the shares by error, dtype, rule and op, and what the judge said of those that it did not see. Takes run files, or ops and
options as parity run does, on sim by default."""


def add(prove: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = prove.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_zoo(actions)
    _add_mutants(actions)
    _add_run(actions, "counts", "how many pairs of op and dtype are compared, by aspect", COUNTS)
    _add_reach(actions)
    _add_run(actions, "cost", "how many graphs a run would compile on a Mac, and the minutes and memory of it", COST)

    how = "which features a run drew, and which two together"
    drawn = actions.add_parser("coverage", help=how, description=COVERAGE)
    drawn.add_argument("run", type=Path, metavar="RUN", help="the run file")
    drawn.add_argument("family", nargs="*", metavar="FAMILY", help="only these families, with their features")

    how = "every call that a case makes on a simulated device, as a fault would see it"
    seen = actions.add_parser("trace", help=how, description=TRACE)
    seen.add_argument("case", metavar="CASE", help="a case id, in quotes")
    seen.add_argument("--device", default="sim", help="sim (default) or sim:mps")

    _add_run(actions, "power", "how many errors in agreeing results the judge would see", POWER)


def _add_run(actions: Any, name: str, how: str, description: str) -> None:
    """An action that hands what it is given on to `parity run`."""
    raw = argparse.RawDescriptionHelpFormatter
    usage = f"parity prove {name} [arguments and options of parity run]"
    take_rest(
        actions.add_parser(name, help=how, description=description, formatter_class=raw, usage=usage), "asked", options=True
    )


def _add_zoo(actions: Any) -> None:
    zoo = actions.add_parser("zoo", help="which known device bugs the suite finds", description=ZOO)
    how = (
        "faults by id, kind, trigger class or op; all by default but those that one op alone does not show, which beyond names"
    )
    zoo.add_argument("patterns", nargs="*", metavar="BUG", help=how)
    zoo.add_argument("--faults", help="score these instead: a Python file, or an installed module by its name")
    zoo.add_argument("--generator", choices=("suite", "opinfo", "both"), default="suite", help="what looks for the faults")
    zoo.add_argument("--profile", default="quick", help=PROFILE_HELP)
    zoo.add_argument(
        "--seed", default="0", type=read_text, help="seeds of the explored cases, separated by commas (0 by default)"
    )
    zoo.add_argument("-n", type=read_workers, dest="workers", metavar="N", help=WORKERS_HELP)
    add_output(zoo, "also write everything to this file (JSON)")
    zoo.add_argument("--list", action="store_true", help="list the chosen faults with their kinds and ops, and score nothing")
    take_rest(zoo, "patterns")


def _add_mutants(actions: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    planted = actions.add_parser(
        "mutants", help="which generic mutants the suite finds", description=MUTANTS, formatter_class=raw
    )
    planted.add_argument("patterns", nargs="*", metavar="OP", help="names or patterns of ops (default: every native row)")
    planted.add_argument("--limit", type=int, default=1000, metavar="N", help="how many mutants (1000 by default)")
    planted.add_argument("--profile", default="quick", help=PROFILE_HELP)
    planted.add_argument(
        "--seed", default="0", type=read_text, help="seed of the sample and of the numbers in it (0 by default)"
    )
    planted.add_argument("-n", type=read_workers, dest="workers", metavar="N", help=WORKERS_HELP)
    add_output(planted, "also write everything to this file (JSON)")
    take_rest(planted, "patterns")


def _add_reach(actions: Any) -> None:
    how = "which operators of MPS a run dispatches"
    reach = actions.add_parser("reach", help=how, description=REACH, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = "a wheel of torch whose operators to take instead of the installed torch's; it is only read"
    reach.add_argument("--wheel", type=read_path, metavar="FILE", help=how)
    add_output(reach, "also write everything to this file (JSON)")
    take_rest(reach, "asked", options=True)


def run(o: argparse.Namespace) -> int:
    """Do what was asked for; the exit code."""
    return ACTIONS[o.action](o)


def _of_run(o: argparse.Namespace, keys: Sequence[str] = (), **changes: Any) -> RunOptions:
    """What was handed on, as `parity run` takes it. keys: of the settings of `[tool.parity]` that count. Ends the process for
    what it does not take."""
    return replace(as_run(o.asked, o.verbose, keys), **changes)


def _zoo(o: argparse.Namespace) -> int:
    suite.profile(o.profile)
    if o.output:
        writable(o.output.absolute().parent, "--output")
    from parity.prove import board, scoreboard  # they load torch
    from parity.zoo import subjects

    beyond = subjects.BEYOND in o.patterns
    if o.list:
        chosen = subjects.select(subjects.load(located(o.faults or ""), beyond), o.patterns)
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

    source = located(o.faults) if o.faults else ""
    workers = o.workers or machine.default_workers()
    made = scoreboard.run(o.patterns, scoreboard.Job(source, beyond, o.profile), o.generator, split([o.seed]), workers, hear)
    if o.output:
        board.write(made, o.output)
    print(board.render(made))
    if o.output:
        print(f"\nstored in {o.output}")
    return running.INTERRUPTED if made.left else 0


def _mutants(o: argparse.Namespace) -> int:
    suite.profile(o.profile)
    if o.output:
        writable(o.output.absolute().parent, "--output")
    if o.limit < 0:
        raise UsageError(f"--limit {o.limit}: give how many mutants to plant, or 0 for the map of conditions")
    from parity.prove import board  # they load torch
    from parity.prove.mutants import scoring as scored

    def hear(job: str, done: int, total: int) -> None:
        print(f"{job}: {done} of {total}", file=sys.stderr, flush=True)

    made = scored.score(o.patterns, o.profile, o.seed, o.limit, o.workers or machine.default_workers(), hear)
    if o.output:
        outputs.write(o.output, json.dumps(asdict(made)), "name another file with --output")
    print(board.render_mutants(made))
    if o.output:
        print(f"\nstored in {o.output}")
    return 0


def _counts(o: argparse.Namespace) -> int:
    asked = _of_run(o, study="counts", power=0)
    if asked.time:
        raise UsageError("prove counts draws until all is counted, --time ends earlier; leave --time out")
    whole = not (asked.op or asked.family or asked.dtype or asked.source or asked.examples)
    device = "cpu" if asked.device == "auto" else asked.device
    ended = running.run_with(replace(asked, source=asked.source or "ops", device=device))
    if ended.stored is None:
        return ended.code
    from parity.prove import counts

    ran = run_file.read(ended.stored, partial=True)
    print("\n" + counts.render(counts.of_run(ran.items, whole), whole, asked.verbose))
    return ended.code


def _cost(o: argparse.Namespace) -> int:
    asked = _of_run(o, ("profile",))
    if asked.time:
        raise UsageError("a limit of time is not modelled, only the cases of a profile; leave --time out")
    from parity.prove import cost  # they load torch
    from parity.report.archive import costs_in

    files = [name for name in asked.op if name.endswith(cost.OF_AN_ARCHIVE)]
    if len(files) > 1:
        raise UsageError(f"{' and '.join(files)} are two machines; name one archive")
    there = costs_in(Path(files[0])) if files else None
    asked = replace(asked, op=tuple(name for name in asked.op if name not in files))
    step = [0]

    def hear(done: int, total: int) -> None:
        if done * 10 // total > step[0]:
            step[0] = done * 10 // total
            print(f"{done} of {plural(total, 'item')} counted", file=sys.stderr, flush=True)

    made = cost.count(replace(asked, dtype=split(asked.dtype), family=split(asked.family)), hear)
    print(cost.render(made, asked.profile, there))
    return 0


def _reach(o: argparse.Namespace) -> int:
    if o.output:
        writable(o.output.absolute().parent, "--output")
    from parity.devices.operator_table import MacWheel
    from parity.prove import reach

    def hear(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    files = [Path(w) for w in o.asked if w.endswith(".jsonl")]
    if files and len(files) < len(o.asked):
        raise UsageError("prove reach reads run files, or runs what parity run is asked for; give one of them")
    if not files:
        as_run(o.asked)  # mistakes, now
    table = MacWheel(o.wheel).table if o.wheel else None
    made = reach.audit([run_file.read(path) for path in files] or reach.fresh(o.asked, hear), table)
    if o.output:
        reach.write(made, o.output)
    print(reach.render(made))
    return 0


def _coverage(o: argparse.Namespace) -> int:
    ran = run_file.read(o.run, partial=True)
    from parity.prove import counts

    print(counts.render_coverage(ran, o.family, o.verbose))
    return 0


def _trace(o: argparse.Namespace) -> int:
    from parity.prove import dispatched

    return dispatched.trace(o)


def _power(o: argparse.Namespace) -> int:
    ended, files = running.Ended(0), [Path(w) for w in o.asked if w.endswith(".jsonl")]
    if files != [Path(w) for w in o.asked] or not files:
        asked = _of_run(o, power=MOST_COUNT, skip=(SHRINK,))
        ended = running.run_with(replace(asked, device="sim" if asked.device == "auto" else asked.device))
        files = [ended.stored] if ended.stored is not None else []
        print()
    runs = [run_file.read(path, partial=True) for path in files]
    from parity.prove import power

    print(power.render(runs))
    return ended.code


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "zoo": _zoo, "mutants": _mutants, "counts": _counts, "reach": _reach, "cost": _cost, "coverage": _coverage, "trace": _trace,
    "power": _power,
}  # fmt: skip
