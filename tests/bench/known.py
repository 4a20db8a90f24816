"""Does a run with known findings stay green, and does it fail on others? `python tests/bench/known.py [PATTERN ...] [--runs N]
[--bugs N] [--examples N] [--further N]`, `python tests/bench/known.py --matrix [KIND ...]`.

Bugs of the zoo are planted on the simulated device all at once, and two faults that strike by chance. One run of the ops that
reach them finds what it finds, `parity known add` accepts all of it, and then the same ops run again: N times with the same
seed, all of which must end with 0, and N times with other seeds, 18 in 20 of which should. A bug that the first run missed
altogether fails them rightly; with --first full that run draws more cases. It is resumed until all causes were looked for.
Printed are the exit codes, what was new where it was not 0, and what a run takes with and without the file. With --further N, N
runs follow with one more bug each in the same ops or in others, which must all end with 1; a bug that such a run does not find
alone gives its place to another.

`--matrix [KIND ...]` asks whether a known finding hides itself alone: each of 12 kinds of faults of `exp` is known in turn, and
each of them is planted with it. Printed is a row for each known one: `+` for a new fault that fails, `.` for one that does not
because the known one contains it, `-` for one of which such a run shows nothing next to the known one, and `!` for one that
should have ended otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from parity import tolerance
from parity.core.results import Fingerprint
from parity.devices import Fault, resolve
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.findings import known_entries, known_file
from parity.findings.causes import gather
from parity.findings.known import Environment, Known
from parity.findings.verdict import new_of
from parity.store import run_file
from parity.store.code import Code
from parity.store.rows import GROWN, Header, Run
from parity.zoo.subjects import load, select

FAULTS = """
import random
from parity.devices import Fault
from parity.zoo.subjects import load

def by_chance(share):
    return lambda call: call.run() * (1.001 if random.random() < share else 1)

FAULTS = [s.fault for s in load() if s.id in {ids!r}]
FAULTS += [Fault("chance-half", ("erfinv",), by_chance(0.5)), Fault("chance-tenth", ("log1p",), by_chance(0.1))]
"""
ALONE = """
from parity.zoo.subjects import load

FAULTS = [s.fault for s in load() if s.id == {id!r}]
"""
CHANCE_ROWS = ("erfinv", "log1p")
REASON = "planted"
PRINT = Fingerprint("0", "2.13.0", "", "3.11", "Linux 6.8", "x86_64", "sim", "simulated", simulated=True)


@dataclass(frozen=True)
class Ended:
    """How one run ended. line: what it said of known findings; new: the causes that it listed as new, or what failed; whole:
    whether it looked for all causes."""

    code: int
    seconds: float
    line: str
    new: tuple[str, ...]
    whole: bool = True


def reached(patterns: Sequence[str]) -> list[tuple[Any, list[str]]]:
    """(bug, names of the rows that reach it) of the bugs that these patterns name."""
    names = {r.name for r in suite.rows("native")}
    found = []
    for s in select(load(), patterns):
        words = {w.partition(".")[0].strip("_") if not w.startswith("torch.") else w.rpartition(".")[2] for w in s.fault.ops}
        rows = [r for r in (s.rows or tuple(sorted(words))) if r in names]
        if rows and s.kind != "hang":  # each of its cases takes minutes
            found.append((s, rows))
    return found


def chosen(patterns: Sequence[str], count: int, seed: str) -> tuple[list[str], list[str]]:
    """(ids of the bugs, names of the rows that reach them)."""
    found = reached(patterns)
    some = random.Random(seed).sample(found, min(count, len(found)))
    return [s.id for s, _ in some], list(dict.fromkeys([*(r for _, rows in some for r in rows), *CHANCE_ROWS]))


def further(count: int, seed: str, ids: Sequence[str], rows: Sequence[str]) -> list[tuple[str, list[str]]]:
    """(id, rows) of so many other bugs that fail a run, those in the same ops first."""
    others = [(s, r) for s, r in reached(()) if s.id not in ids and not s.kind.startswith(("unsupported", "fallback"))]
    random.Random(seed).shuffle(others)
    order = sorted(others, key=lambda other: not set(other[1]) & set(rows))
    return [(s.id, r[:4]) for s, r in order[:count]]


def parity(*args: str, folder: Path) -> Ended:
    """A command of parity in a folder."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "parity", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    line = next((x for x in done.stdout.splitlines() if x.startswith("known findings: ") and " new" in x), "")
    new = tuple(x.strip() for x in done.stdout.splitlines() if re.match(r"[ABCSR] \[|  GROWN|  EXPIRED", x))
    if done.returncode not in (0, 1):
        new += (done.stderr.strip()[-300:],)
    return Ended(done.returncode, time.monotonic() - began, line, new, "no cause was looked for" not in done.stdout)


def details(path: Path) -> list[str]:
    """What no entry accepts, and what has grown: op, dtype, pass, status, least case and reason of each."""
    run = run_file.read(path, partial=True)
    lines = [
        f"{c.cause.id}: {r.op} {r.dtype} {r.aspect} {r.status}, {(r.shrunk or r.case)[:100]}: {r.reason[:80]}; {r.extent}"
        for c in gather(*new_of(run))
        for r in c.records[:2]
    ]
    grown = (s for s in run.known if s.state == GROWN)
    return lines + [f"{'fails' if s.fails else 'green'} {s.id}: {s.op} {s.dtype} {s.aspect} {s.why[:100]}" for s in grown]


def known_file_of(asked: Sequence[str], workers: Sequence[str], folder: Path) -> float:
    """Run what was asked for, look for all causes, and write the file of known findings; the seconds of the first run."""
    first = end = parity(*asked, *workers, folder=folder)
    print(f"first run: {len(end.new)} causes, {end.seconds:.0f} s, code {end.code}", flush=True)
    while not end.whole:
        end = parity("run", "--resume", "first.jsonl", "--setup", "faults.py", *workers, folder=folder)
        print(f"resumed: {len(end.new)} causes, {end.seconds:.0f} s, code {end.code}", flush=True)
    added = parity("known", "add", "first.jsonl", "--reason", REASON, folder=folder)
    print(f"known add: code {added.code}", flush=True)
    return first.seconds


# ------------------------------------------------------------------------------------------------ one fault hides another


@dataclass(frozen=True)
class Kind:
    """A kind of fault of `exp`. effect, when: of the fault; differs: how its results differ; needs: what a call must have that
    shows it; size: its relative error."""

    effect: Callable[[Any], Any]
    when: Callable[[Any], bool] = lambda call: True
    differs: str = "values"
    needs: frozenset[str] = frozenset()
    size: float = 0.03
    level: str = "kernel"

    def contains(self, other: Kind) -> bool:
        """Whether all that another one shows may be this one: it needs no less and differs in the same way, and not by more."""
        return self.differs == other.differs and self.needs <= other.needs and other.size <= 3 * self.size


def larger(call: Any) -> Any:
    return call.run() * 1.03


def raises(call: Any) -> Any:
    raise RuntimeError("no such kernel")


KINDS = {
    "NaN lost": Kind(lambda c: c.run().nan_to_num(0.0, math.inf, -math.inf), differs="NaN", needs=frozenset(["NaN"])),
    "Inf lost": Kind(
        lambda c: c.run().clamp(max=torch.finfo(c.operands[0].dtype).max / 4), differs="Inf", needs=frozenset(["Inf"])
    ),
    "doubled": Kind(lambda c: c.run() * 2, size=1.0),
    "3 %": Kind(larger),
    "drift": Kind(lambda c: c.run() * (1 + 4e-6), size=4e-6),
    "negative": Kind(
        lambda c: c.run() * torch.where(c.operands[0] < 0, 1.03, 1.0).to(c.operands[0].dtype), needs=frozenset(["-"])
    ),
    "strided": Kind(larger, lambda c: not c.operands[0].is_contiguous(), needs=frozenset(["strides"])),
    "many": Kind(larger, lambda c: c.operands[0].numel() > 64, needs=frozenset(["many"])),
    "float16": Kind(larger, lambda c: c.operands[0].dtype == torch.float16, needs=frozenset(["float16"])),
    "gradient": Kind(lambda c: c.run_with_gradient(lambda g: g * 1.03), needs=frozenset(["gradient"]), level="function"),
    "sometimes": Kind(larger, lambda c: random.random() < 0.5, needs=frozenset(["chance"])),
    "raises": Kind(raises, lambda c: c.operands[0].dim() > 2, differs="raises", needs=frozenset(["dimensions"])),
}


def found(faults: Sequence[str], entries: Sequence[Any], examples: int) -> list[Any]:
    """What examining `exp` finds with these kinds of faults."""
    planted = [Fault(name, ("exp",), KINDS[name].effect, KINDS[name].when, KINDS[name].level) for name in faults]
    options = RunOptions(examples=examples, power=0)
    plan = RunPlan(resolve("sim", planted), resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)
    plan = replace(plan, known=Known(Code("known.toml"), entries=tuple(entries)))
    return [examine(i, plan, NoJournal()) for i in suite.select(["exp"], dtypes=("float32", "float16"))]


def accepted(done: Sequence[Any]) -> list[Any]:
    """The entries that `parity known add` makes of it, read back from their file."""
    run = Run(Header(PRINT), tuple(r for d in done for r in d.records), tuple(d.summary for d in done))
    made = [(e, e.id) for c in known_entries.causes_of(run) for e in known_entries.of_cause(c, run, REASON)]
    return list(known_file.parse(Path("known.toml"), known_file.updated("", made, Environment())).entries)


def fails(done: Sequence[Any]) -> list[str]:
    """What fails of it, as the suite's test says it."""
    new = [f"{f.result.aspect}: {f.result.verdict.reason}" for d in done for f in d.findings if f.known is None]
    return new + [f"{s.state} {s.aspect}: {s.why}" for d in done for s in d.known if s.fails]


def matrix(known: Sequence[str], new: Sequence[str], examples: int = 24) -> int:
    """Print a row for each known kind; the number of pairs that ended otherwise than they should."""
    wrong = 0
    print(f"{'known':<10} new: {', '.join(new)}")
    for a in known:
        entries, marks, why = accepted(found([a], (), examples)), "", []
        if not entries:
            raise SystemExit(f"{a}: {examples} cases of exp find nothing, so nothing is known that could hide another one")
        for b in new:
            failed = fails(found([*dict.fromkeys((a, b))], entries, examples))
            right = bool(failed) is not KINDS[a].contains(KINDS[b])
            unseen = not right and not failed and accepted(found([a, b], (), examples)) == entries
            right = right or unseen
            marks += " " + ("-" if unseen else "!" if not right else "+" if failed else ".")
            why += [] if right else [f"    {b}: {'; '.join(failed)[:300] or 'hidden'}"]
        wrong += len(why)
        print("\n".join([f"{a:<10}{marks}", *why]), flush=True)
    print(f"{len(known) * len(new)} pairs: {wrong} wrong")
    return wrong


# ------------------------------------------------------------------------------------------------------------- other seeds


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each run, then the counts; 1 if one ended otherwise than it should, other seeds apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="bugs by id, kind or op; all by default; with --matrix kinds of faults")
    parser.add_argument("--matrix", action="store_true", help="does a known fault hide another one?")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--further", type=int, default=0, help="runs with one more bug each")
    parser.add_argument("--bugs", type=int, default=40)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--first", default="", help="profile of the first run, whose findings are accepted")
    parser.add_argument("--dtype", default="float32,float16,int64")
    parser.add_argument("--seed", default="0", help="of the first run, and of the choice of bugs")
    parser.add_argument("--folder", help="keep the files there; a file of known findings that is there already is taken")
    parser.add_argument("-n", default="1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; the first run has the workers of all")
    parser.add_argument("--others", action="store_true", help="only other seeds")
    o = parser.parse_args(argv)
    if o.matrix:
        return int(matrix(o.patterns or [*KINDS], [*KINDS]) > 0)
    with tempfile.TemporaryDirectory() as scratch:
        return runs(o, Path(o.folder or scratch))


def runs(o: argparse.Namespace, folder: Path) -> int:
    """The runs with bugs of the zoo, in a folder."""
    ids, rows = chosen(o.patterns, o.bugs, o.seed)
    folder.mkdir(parents=True, exist_ok=True)
    asked = ["--device", "sim", "--dtype", o.dtype, "--power", "0"]
    usual = ["--examples", str(o.examples)] if o.examples else []
    deeper = ["--profile", o.first] if o.first else usual
    many = ["-n", str(o.jobs * int(o.n))]

    def planted(name: str, ids: Sequence[str]) -> list[str]:
        (folder / name).write_text(FAULTS.format(ids=set(ids)))
        return [*asked, "--setup", name]

    seconds = 0.0
    if not (folder / "parity-known.toml").exists():
        asked_first = ["run", *rows, *planted("faults.py", ids), *deeper, "--seed", o.seed, "--output", "first.jsonl"]
        seconds = known_file_of(asked_first, many, folder)
    text = (folder / "parity-known.toml").read_text()
    print(f"{len(ids)} bugs, {len(rows)} ops; {text.count('[[known]]')} entries, {len(text.splitlines())} lines", flush=True)

    def again(what: str, seed: str, rows: Sequence[str], faults: Sequence[str]) -> Ended:
        more = ("-n", o.n, "--seed", seed, "--known", "parity-known.toml", "--output", f"{what}.jsonl", "--findings", what)
        end = parity("run", *rows, *faults, *usual, *more, folder=folder)
        lines = [f"{what}: code {end.code}, {end.seconds:.0f} s, {end.line}", *(f"    {x[:200]}" for x in end.new)]
        lines += [f"        {x[:300]}" for x in details(folder / f"{what}.jsonl")[:40]] if end.code in (0, 1) else []
        print("\n".join(lines), flush=True)
        return end

    def one_more(what: str, seed: str, rows: Sequence[str], faults: Sequence[str]) -> Ended | None:
        """As `again`; None for a bug that such a run does not find where it is alone and nothing is known."""
        end, bug = again(what, seed, rows, faults), what.removeprefix("with-")
        if end.code == 0:
            (folder / f"alone-{bug}.py").write_text(ALONE.format(id=bug))
            given = (*asked, "--setup", f"alone-{bug}.py", *usual, "-n", o.n, "--seed", seed, "--skip", "shrink,again")
            alone = parity("run", *rows, *given, "--output", f"alone-{bug}.jsonl", folder=folder)
            print(f"    {bug} alone, and nothing known: code {alone.code}", flush=True)
            return end if alone.code else None
        return end

    def ended(what: str, wanted: int, asks: Sequence[Any], run: Callable[..., Ended | None] = again, most: int = 0) -> bool:
        """Whether these runs end as they should, or the first so many that say something."""
        ends, left = list[Ended](), iter(asks)
        with ThreadPoolExecutor(o.jobs) as pool:
            while some := list(itertools.islice(left, (most or len(asks)) - len(ends))):
                ends += filter(None, pool.map(lambda ask: run(*ask), some))
        took = f"{sum(e.seconds for e in ends) / max(1, len(ends)):.0f} s each, without the file {seconds:.0f} s"
        print(f"{what}: {sum(e.code == wanted for e in ends)} of {len(ends)} end with {wanted}; {took}", flush=True)
        return all(e.code == wanted for e in ends)

    same = [(f"same-{k}", o.seed, rows, planted("faults.py", ids)) for k in range(0 if o.others else o.runs)]
    others = [(f"other-{k}", f"other-{k}", rows, planted("faults.py", ids)) for k in range(o.runs)]
    bugs = further(2 * o.further, o.seed, ids, rows)
    more = [(f"with-{i}", o.seed, r, planted(f"with-{i}.py", (*ids, i))) for i, r in bugs]
    right = ended("same seed", 0, same)
    ended("other seeds", 0, others)
    return 0 if right & ended("one more bug", 1, more, one_more, o.further) else 1


if __name__ == "__main__":
    sys.exit(main())
