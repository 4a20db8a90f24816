"""Does a run with known findings stay green? `python tests/bench/known.py [PATTERN ...] [--runs N] [--bugs N] [--examples N]`.

Bugs of the zoo are planted on the simulated device all at once, and two faults that strike by chance. One run of the ops that
reach them finds what it finds, `parity known add` accepts all of it, and then the same ops run again: N times with the same
seed, all of which must end with 0, and N times with other seeds, 18 in 20 of which should. A bug that the first run missed
altogether fails them rightly; with --first N that run draws more cases. Printed are the exit codes, what was new where it was
not 0, and what a run takes with and without the file.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FAULTS = """
import random
from parity.devices import Fault
from parity.zoo.subjects import load

def by_chance(share):
    return lambda call: call.run() * (1.001 if random.random() < share else 1)

FAULTS = [s.fault for s in load() if s.id in {ids!r}]
FAULTS += [Fault("chance-half", ("erfinv",), by_chance(0.5)), Fault("chance-tenth", ("log1p",), by_chance(0.1))]
"""
CHANCE_ROWS = ("erfinv", "log1p")
REASON = "planted"


@dataclass(frozen=True)
class Ended:
    """How one run ended. line: what it said of known findings; new: the causes that it listed as new, or what failed."""

    code: int
    seconds: float
    line: str
    new: tuple[str, ...]


def chosen(patterns: Sequence[str], count: int, seed: str) -> tuple[list[str], list[str]]:
    """(ids of the bugs, names of the rows that reach them)."""
    from parity.runs import suite
    from parity.zoo.subjects import load, select

    names = {r.name for r in suite.rows("native")}
    found = []
    for s in select(load(), patterns):
        words = {w.partition(".")[0].strip("_") if not w.startswith("torch.") else w.rpartition(".")[2] for w in s.fault.ops}
        rows = [r for r in (s.rows or tuple(sorted(words))) if r in names]
        if rows and s.kind != "hang":  # each of its cases takes minutes
            found.append((s.id, rows))
    some = random.Random(seed).sample(found, min(count, len(found)))
    return [i for i, _ in some], list(dict.fromkeys([*(r for _, rows in some for r in rows), *CHANCE_ROWS]))


def parity(*args: str, folder: Path) -> Ended:
    """A command of parity in a folder."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "parity", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    line = next((x for x in done.stdout.splitlines() if x.startswith("known findings: ") and " new" in x), "")
    new = tuple(x.strip() for x in done.stdout.splitlines() if re.match(r"[ABCR] \[|  GROWN|  EXPIRED", x))
    if done.returncode not in (0, 1):
        new += (done.stderr.strip()[-300:],)
    return Ended(done.returncode, time.monotonic() - began, line, new)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each run, then the counts; 1 if a run with the same seed did not end with 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="bugs by id, kind or op; all by default")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--bugs", type=int, default=40)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="examples of the first run, whose findings are accepted")
    parser.add_argument("--dtype", default="float32,float16,int64")
    parser.add_argument("--seed", default="0", help="of the first run, and of the choice of bugs")
    parser.add_argument("--folder", help="keep the files there")
    parser.add_argument("-n", default="1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, and workers of the first run")
    parser.add_argument("--others", action="store_true", help="only other seeds")
    o = parser.parse_args(argv)
    ids, rows = chosen(o.patterns, o.bugs, o.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(o.folder or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "parity-known.toml").unlink(missing_ok=True)
        (folder / "faults.py").write_text(FAULTS.format(ids=set(ids)))
        asked = ["run", *rows, "--device", "sim", "--faults", "faults.py", "--dtype", o.dtype, "--no-power"]
        usual = ["--examples", str(o.examples)] if o.examples else []
        deeper = ["--examples", str(o.first)] if o.first else usual
        many = ["-n", str(max(o.jobs, int(o.n)))]
        first = parity(*asked, *many, *deeper, "--seed", o.seed, "--output", "first.jsonl", folder=folder)
        print(f"{len(ids)} bugs, {len(rows)} ops; first run: {len(first.new)} causes, {first.seconds:.0f} s, code {first.code}")
        added = parity("known", "add", "first.jsonl", "--reason", REASON, folder=folder)
        text = (folder / "parity-known.toml").read_text() if added.code == 0 else ""
        print(f"known add: code {added.code}, {text.count('[[known]]')} entries, {len(text.splitlines())} lines", flush=True)
        green = {}
        same = [] if o.others else [o.seed] * o.runs
        for what, seeds in (("same seed", same), ("other seeds", [f"other-{k}" for k in range(o.runs)])):

            def again(k: int, what: str = what, seeds: Sequence[str] = seeds) -> Ended:
                more = ("-n", o.n, "--seed", seeds[k], "--known", "parity-known.toml", "--output", f"{what[:4]}-{k}.jsonl")
                end = parity(*asked, *usual, *more, "--findings", f"{what[:4]}-{k}", folder=folder)
                lines = [f"{what} {k}: code {end.code}, {end.seconds:.0f} s, {end.line}", *(f"    {x[:200]}" for x in end.new)]
                print("\n".join(lines), flush=True)
                return end

            with ThreadPoolExecutor(o.jobs) as pool:
                ends = list(pool.map(again, range(len(seeds))))
            green[what] = sum(e.code == 0 for e in ends)
            seconds = sum(e.seconds for e in ends) / max(1, len(ends))
            print(
                f"{what}: {green[what]} of {len(ends)} end with 0; {seconds:.0f} s each, without the file {first.seconds:.0f} s"
            )
    return 0 if added.code == 0 and green["same seed"] == len(same) else 1


if __name__ == "__main__":
    sys.exit(main())
