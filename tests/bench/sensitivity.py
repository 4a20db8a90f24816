"""What is the smallest error in one element that a run catches? `python -m tests.bench sharp sensitivity --rows 12`.

The suite's own cases go through the suite's own check, the CPU standing in for the device. In forward and in backward one
element (at random, of one tensor at random) of what the device gave is moved by s units, up or down, and the real judge is
asked; bisection on s finds the least size that he flags. A case that has no element to move (empty, NaN, Inf, exact zeros)
never catches. A run of N cases catches an error with probability 0.9 where one case does with 1 - 0.1**(1/N): so the size is
that quantile of the cases' sizes, for the profile's own N (explored and pinned cases). It is printed per op as median and 90th
percentile over the ops of a class, and for a single case. out= and in-place forms would add chances; they are left out.

Units, by class. elementwise function with a row in the ULP table: ULP of the result beyond the row's bound; contraction: 4
sqrt(n) u |A||B| + 1 ULP of the result (u of the accumulation); half types otherwise: ULP of the result; float32 otherwise: u
times the element, and next to it u times the tensor's largest element. All from the device's own honest result.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import front
import numpy as np
import torch
from torch import Tensor

from parity import tolerance
from parity.catalog.row import Row
from parity.checks.check import Settings, check, quiet
from parity.core.case import OpClass
from parity.core.dtypes import HALF
from parity.core.errors import CaseError
from parity.core.results import Status, Verdict
from parity.devices import resolve
from parity.devices.refusals import listening
from parity.engine import suite
from parity.generation import generate
from parity.judging.budget import ulp_of
from parity.judging.judge import judge
from parity.judging.measures import facts_of, parts
from parity.judging.rules import rule_of_pass

DTYPES = ("float32", "float16", "bfloat16")
CAUGHT = 0.9
LARGEST = 2.0**40  # units; what is not flagged at this size is not flagged
STEPS = 16  # bisections: a factor of 2**(50 / 2**16)
LEAST = 2.0**-10
RULES = (OpClass.ELEMENTWISE, OpClass.CONTRACTION, OpClass.COMPOSITE, OpClass.SOLVER)
TARGETS = {
    "elementwise, in the table": 2.0,
    "contraction": 1.0,
    "half, one kernel": 4.0,
    "float32 composite or gradient": 128.0,
}
# Figure of a group -> (of the members' figures, their quantile).
FIGURES = (("run", "run", 0.5), ("run_90", "run", 0.9), ("case", "case", 0.5), ("case_90", "case", 0.9),
           ("of_largest", "of_largest", 0.5))  # fmt: skip
Judged = tuple[Verdict, tuple[Any, ...]]


@dataclass(slots=True)
class Found:
    """Least sizes flagged, one per case (inf: never), of one row, dtype and pass. second: in units of the largest element.
    able: in how many cases there was a finite element other than 0."""

    sizes: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    able: int = 0


@dataclass(slots=True)
class Planter:
    """Stands where the suite calls the judge: asks him about planted errors, and answers that all is well."""

    row: Row
    dtype: str
    rng: random.Random
    found: dict[tuple[str, str], Found]  # by class and pass
    seen: set[str] = field(default_factory=set)

    def __call__(
        self,
        bench: Any,
        device: Mapping[str, Tensor],
        reference: Mapping[str, Tensor] | None,
        pass_: str,
        parts: Mapping[str, Any] | None = None,
    ) -> Judged:
        """In place of `parity.judging.judge.judge`."""
        if pass_ not in self.seen and reference is not None and not parts:
            self.seen.add(pass_)
            self._plant(bench, dict(device), reference, pass_)
        return Verdict(Status.AGREE), ()

    def _plant(self, bench: Any, device: dict[str, Tensor], reference: Mapping[str, Tensor], pass_: str) -> None:
        # Of mixed operands the result may have another dtype than the one that it would be told under.
        own = getattr(torch, self.dtype)
        rounded = [n for n, t in device.items() if t.dtype is own and t.numel()]
        if not rounded:
            return
        name = rounded[self.rng.randrange(len(rounded))]
        honest = device[name].detach()
        place, up = self.rng.randrange(honest.numel()), self.rng.random() < 0.5
        kind, unit, second = self._unit(bench, honest, name, pass_, place)
        found = self.found.setdefault((kind, pass_), Found())
        value = float(honest.reshape(-1)[place])

        def flagged(size: float) -> float:
            """The error really planted, in units, where the judge flags it; 0 where not."""
            planted = honest.clone(memory_format=torch.contiguous_format)
            # Past the dtype's range it is Inf.
            planted.view(-1)[place] = torch.tensor(value + (size if up else -size) * unit, dtype=torch.float64).to(honest.dtype)
            moved = min(abs(float(planted.view(-1)[place]) - value), size * unit)
            if not moved:
                return 0.0
            verdict, _ = judge(bench, {**device, name: planted}, reference, pass_)
            return moved / unit if verdict.status.is_finding else 0.0

        able = math.isfinite(value) and 0.0 < unit < math.inf
        found.able += able
        size = least(flagged) if able else math.inf
        base = bench.tables.find(bench.row.name, bench.row.rule, facts_of(honest).name, pass_, bench.row.judged.ulp).ulp or 0.0
        found.sizes.append(size - (base if kind == "elementwise, in the table" else 0.0))
        found.second.append(size * unit / second if second else math.inf)

    def _unit(self, bench: Any, honest: Tensor, name: str, pass_: str, place: int) -> tuple[str, float, float]:
        """(class, size of a unit at that element, u times the largest element)."""
        f, row = facts_of(honest), bench.row
        values = np.abs(parts(honest)).reshape(-1)
        ulp = float(ulp_of(np.nextafter(values[place : place + 1], np.inf), f)[0])
        finite = values[np.isfinite(values)]
        largest = f.unit_roundoff * float(finite.max()) if finite.size else 0.0
        tol = bench.tables.find(row.name, row.rule, f.name, pass_, row.judged.ulp)
        if tol.ulp is not None:
            return "elementwise, in the table", ulp, largest
        if tol.rule == OpClass.CONTRACTION and bench.oracle.truth(name) is not None:
            pair = bench.oracle.magnitudes(name)
            if pair is not None and pair[0].shape == honest.shape:
                s, n = (float(t.reshape(-1)[place]) for t in pair)
                u, _ = rule_of_pass(row, pass_).roundoff(row, f, pass_)
                size = 4.0 * math.sqrt(max(n, 1.0)) * u * max(s, float(values[place])) + ulp
                return ("contraction" if u != f.unit_roundoff or f.name not in HALF else "contraction in halves"), size, largest
        if f.name in HALF:
            between = row.judged.rounds_between or pass_ in row.judged.accumulates
            return "half, several roundings" if between else "half, one kernel", ulp, largest
        return "float32 composite or gradient", f.unit_roundoff * float(values[place]), largest


def least(flagged: Callable[[float], float]) -> float:
    """The least size that is flagged, by bisection on its logarithm; inf where the largest is not."""
    if not flagged(LARGEST):
        return math.inf
    low, high, hit = math.log2(LEAST), math.log2(LARGEST), LARGEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        if effective := flagged(2.0**middle):
            high, hit = middle, effective
        else:
            low = middle
    return hit


def caught_by_run(sizes: Sequence[float], n: int) -> float:
    """The size that a run of n such cases catches with probability 0.9: a quantile, rounded up to a case that was seen."""
    one = 1.0 - (1.0 - CAUGHT) ** (1.0 / n)
    return sorted(sizes)[max(1, math.ceil(one * len(sizes))) - 1] if sizes else math.inf


def caught_by_case(sizes: Sequence[float]) -> float:
    """The size that one case catches with probability 0.9, of the cases that hold something to move."""
    able = sorted(s for s in sizes if s < math.inf)
    return able[math.ceil(CAUGHT * len(able)) - 1] if able else math.inf


def asked(row: Row, dtype: str, profile: suite.RunProfile, cases: int, seed: str) -> dict[tuple[str, str], Found]:
    """Least sizes of a row's cases, by class and pass."""
    cpu, tables = resolve("cpu"), tolerance.load("cpu")
    found: dict[tuple[str, str], Found] = {}
    notes: list[str] = []
    for ordinal in range(cases):
        try:
            case = generate.nth(row, dtype, profile.sizes, f"sensitivity-{seed}", ordinal + 1).case
            planter = Planter(row, dtype, random.Random(f"{seed}:{row.name}:{dtype}:{ordinal}"), found)
            with mock.patch("parity.checks.trial.judge", planter), listening(notes):
                check(row, case, cpu, cpu, tables, Settings(), quiet, notes)
        except CaseError:
            continue
    for f in found.values():  # cases without a gradient, or without a result to move, catch nothing
        f.sizes += [math.inf] * (cases - len(f.sizes))
        f.second += [math.inf] * (cases - len(f.second))
    return found


def chosen(o: argparse.Namespace) -> dict[OpClass, list[Row]]:
    """Rows by class: all, or so many drawn."""
    by_class: dict[OpClass, list[Row]] = {}
    items = suite.select(o.ops, dtypes=o.dtype or DTYPES, source="native")
    rows = list({i.row.name: i.row for i in items}.values())
    for rule in RULES:
        group = [r for r in rows if r.rule is rule and r.judged.oracle == "wide"]
        random.Random(o.seed).shuffle(group)
        by_class[rule] = group[: o.rows] if o.rows else group
    return by_class


def figure(x: float) -> str:
    """A size in a table."""
    return "never" if x == math.inf else f"{x:.3g}"


def percentile(values: Iterable[float], share: float) -> float:
    """A quantile that may be infinite."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))]


def measured(o: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line per row, dtype, class and pass."""
    for name in o.profile or ("quick", "full"):
        profile = suite.profile(name)
        for row, dtype in ((r, d) for rows in chosen(o).values() for r in rows for d in o.dtype or DTYPES if d in r.dtypes):
            n = profile.examples(row, dtype) + profile.pinned
            for (kind, pass_), f in asked(row, dtype, profile, min(o.cases or n, n), o.seed).items():
                if not f.able:  # a flag that was never raised, a sum of nothing: no number to be wrong
                    print(f"left out: {row.name} {dtype} {kind} {pass_}: no case held an element to move")
                    continue
                yield {
                    "profile": name, "op": row.name, "dtype": dtype, "class": kind, "pass": pass_, "examples": n,
                    "cases": sum(s < math.inf for s in f.sizes), "run": caught_by_run(f.sizes, n),
                    "case": caught_by_case(f.sizes), "of_largest": caught_by_run(f.second, n),
                }  # fmt: skip


def report(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Print the table: by profile, class, pass and dtype, over the rows."""
    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["profile"], line["class"], line["pass"], line["dtype"]].append(line)
    print(
        f"{'profile':8}{'class':31}{'pass':9}{'dtype':9}{'ops':>4}{'N':>5}{'run: median':>12}{'90 %':>9}"
        f"{'case: median':>13}{'90 %':>9}{'of largest':>11}  target (full)"
    )
    table = []
    for (profile, kind, pass_, dtype), members in sorted(groups.items()):
        row: dict[str, Any] = {"profile": profile, "class": kind, "pass": pass_, "dtype": dtype, "ops": len(members)}
        row |= {"target": TARGETS.get(kind), "examples": members[0]["examples"]}
        for key, of, share in FIGURES:
            row[key] = percentile((m[of] for m in members), share)
        missed = row["target"] is not None and profile == "full" and row["run"] > row["target"]
        target = "" if row["target"] is None else f"{row['target']:g}" + ("  MISSED" if missed else "")
        worst = max(members, key=lambda m: m["run"])["op"]
        cells = "".join(f"{figure(row[key]):>{width}}" for (key, _, _), width in zip(FIGURES, (12, 9, 13, 9, 11)))
        print(f"{profile:8}{kind:31}{pass_:9}{dtype:9}{len(members):4}{row['examples']:5}{cells}  {target:14} worst {worst}")
        table.append(row | {"missed": missed})
    return table


def main(argv: list[str] | None = None) -> int:
    """The program; 1 where the median op of a class misses its target at full."""
    p = front.parser(__doc__)
    p.add_argument("ops", nargs="*", help="names or patterns of ops (default: every native row of a class that rounds)")
    p.add_argument("--rows", type=int, default=12, help="ops drawn per class; 0 for all (12)")
    p.add_argument(
        "--cases", type=int, default=0, help="cases per op and dtype; fewer than the profile's own err to larger sizes"
    )
    p.add_argument("--profile", action="append", choices=tuple(suite.PROFILES), help="default: quick and full")
    p.add_argument("--dtype", action="append", choices=DTYPES, help="default: all three")
    p.add_argument("--seed", default="0")
    p.add_argument("--output", type=Path, help="write the table and a line per op here as JSON")
    o = p.parse_args(argv)
    front.in_one_thread()
    started = time.monotonic()
    lines = [*measured(o)]
    table = report(lines)
    held = [r for r in table if r["profile"] == "full" and r["target"] is not None]
    missed = sum(r["missed"] for r in held)
    print(f"{missed} of {len(held)} groups miss their target at full; {len(lines)} lines, {time.monotonic() - started:.0f} s")
    if o.output:
        o.output.write_text(json.dumps({"table": table, "ops": lines}, indent=1))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
