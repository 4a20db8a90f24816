"""Do two versions of parity say the same? For a change that must not change behaviour.

    python -m tests.bench same same BEFORE AFTER                     two checkouts: four runs of each, some minutes a run
    python -m tests.bench same same BEFORE AFTER exp neg --examples 2 --runs plain dying       a sample, in two minutes
    python -m tests.bench same same before.jsonl after.jsonl         two run files that are there already

A checkout is a folder that holds `parity/` (git worktree add ../before COMMIT makes one); both run in the Python of this
program, in processes of their own. The runs are

    plain     all native ops on the simulated device
    honest    the same on a device that rounds as hardware may
    dying     ops of which one ends its process and two are wrong, one of these in a file of known findings
    opinfo    a sample of torch's own OpInfo entries

Compared is what was drawn (a digest of all case ids of an item), how each aspect came out, the largest error ratio, every
stored record with its cause and least case, the figures of all cases, deaths, what was seen of known findings, what became of
errors that were put in, the end, and the exit code; not times. Each difference is printed; the exit code is 1 where there is
one, where a file says nothing, and where the dying run has no death or no known finding. `parity diff` asks another question:
whether a device got worse.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import front

from parity.store import run_file

SHOWN = 200
Said: TypeAlias = dict[tuple[Any, ...], Any]  # statement -> value
FAULTS = '''"""What goes wrong in the dying run."""
import os
from parity.devices import Fault
def die(call): os.abort()
FAULTS = [
    Fault("exp-doubled", ("exp",), lambda call: call.run() * 2),
    Fault("log-strided", ("log",), lambda call: call.run() + 1, when=lambda call: not call.operands[0].is_contiguous()),
    Fault("neg-dies", ("neg",), die, when=lambda call: call.operands[0].numel() > 4),
]
'''
DYING = ("exp", "log", "neg")
RUNS: Mapping[str, tuple[str, ...]] = {
    "plain": ("--device", "sim"),
    "honest": ("--device", "sim:honest"),
    "dying": ("--device", "sim", "--dtype", "float32", "--setup", "faults.py"),
    "opinfo": ("--device", "sim", "--source", "opinfo", "--dtype", "float32", "--examples", "2"),
}
HUNG = re.compile(r"ended by parity after [\d.]+ s")


def rows(path: Path) -> Said:
    """What a run file says, by what it speaks of."""
    run = run_file.read(path, partial=True)
    said: Said = {}
    seen: Counter[tuple[Any, ...]] = Counter()

    def add(kind: str, row: Any, *about: str) -> None:
        """Every field of a row but times. about: the fields that say what it is of; equal ones are numbered."""
        key = (kind, *(getattr(row, name) for name in about))
        seen[key] += 1
        for f in fields(row):
            if f.name not in front.TIMES:
                said[(*key, seen[key], f.name)] = _rounded(getattr(row, f.name))

    for i in run.items:
        add("item", i, "op", "dtype", "round")
    for r in run.records:
        add("record", r, "case", "aspect")
    for figures in run.figures:
        add("figures", figures, "op", "dtype")
    for d in run.deaths:
        add("death", d, "op", "dtype", "case")
    for s in run.known:
        add("known", s, "id", "op", "dtype", "aspect", "case")
    for p in run.power:
        add("power", p, "op", "dtype", "aspect", "error")
    if run.end is not None:
        add("end", run.end)
    return said


def _rounded(value: Any) -> Any:
    """A float to six digits, as far as two sums of the same numbers agree, and words without the time after which a hang was
    ended."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return HUNG.sub("ended by parity", value)
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return value


def differences(one: Said, other: Said) -> Iterator[str]:
    """Each thing that only one run says, or that they say otherwise."""
    for key in sorted({*one, *other}, key=str):
        before, after = one.get(key), other.get(key)
        if before != after:
            yield f"{' '.join(map(str, key))}: {before} -> {after}"


def compare(before: Said, after: Said, name: str = "") -> bool:
    """Print how they differ; whether they say the same, and something."""
    found = list(differences(before, after))
    for line in found[:SHOWN]:
        print(line[:400])
    kinds = Counter(kind for kind, *_ in {key[:-1] for key in {*before, *after}})
    of = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
    print(f"{name or 'they'}: {len({*before, *after}):,} statements compared ({of}), {len(found):,} differ", flush=True)
    return not found and bool(before) and (name != "dying" or {"death", "known"} <= set(kinds))


def parity(checkout: Path, folder: Path, *argv: str) -> int:
    """Run a command of a checkout in a folder; its exit code. Raises SystemExit if another parity would answer."""
    env = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    where = [sys.executable, "-c", "import parity; print(parity.__file__)"]
    found = subprocess.run(where, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_relative_to(checkout):
        raise SystemExit(f"{checkout} holds no parity: {found or 'nothing'} would be run")
    return front.ran(*argv, folder=folder, env=env, codes=(0, 1, 3), seconds=36_000).returncode


def made(name: str, checkout: Path, folder: Path, o: argparse.Namespace) -> Said:
    """What a run of a checkout says. folder: the current one of the run, alike for both."""
    ops = DYING if name == "dying" else o.ops
    options = [*RUNS[name], "-n", str(o.workers), *(("--examples", o.examples) if o.examples else ())]
    options += ["--known", "known.toml"] if name == "dying" else []
    code = parity(checkout, folder, "run", *ops, *options, "--output", f"{name}.jsonl")
    return rows(folder / f"{name}.jsonl") | {("exit", "code"): code}


def accept(checkout: Path, folder: Path) -> None:
    """Write the faults of the dying run, and the file that accepts what is wrong in exp."""
    (folder / "faults.py").write_text(FAULTS)
    options = RUNS["dying"]
    parity(checkout, folder, "run", "exp", *options, "--examples", "4", "-n", "1", "--output", "known.jsonl")
    parity(checkout, folder, "known", "add", "known.jsonl", "--reason", "planted", "--file", "known.toml")


def main(argv: list[str] | None = None) -> int:
    """Compare; 1 where something differs."""
    to = front.parser(__doc__)
    to.add_argument("before", type=Path, help="a checkout, or a run file")
    to.add_argument("after", type=Path, help="another one")
    to.add_argument("ops", nargs="*", help="only these ops (the dying run has its own)")
    to.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="only these runs")
    to.add_argument("--examples", default="", help="cases per op and dtype instead of the profile's")
    to.add_argument("--workers", type=int, default=2, help="of each run")
    o = to.parse_intermixed_args(argv)
    if not o.before.is_dir():
        return int(not compare(rows(o.before), rows(o.after)))
    same = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "dying" in o.runs:
            accept(o.before.resolve(), folder)
        for name in o.runs:
            before, after = (made(name, checkout.resolve(), folder, o) for checkout in (o.before, o.after))
            same &= compare(before, after, name)
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
