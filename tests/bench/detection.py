"""False alarms and detection of the judge on emulated devices: `python tests/bench/detection.py --output FILE`.

Sums of K terms (16, 256, 2048) of five value families go through matmul, conv2d, sum, softmax and layer_norm and their
gradients, in three dtypes. An emulated device computes each by its formula in an arithmetic of its own: honest ones add up
in other orders (half types in float32, rounded once), faulty ones lose something. Every result is judged as the suite judges
it: against the CPU's own result and the truth in float64, by the tables of a device without a table of its own.

A fault whose result is, bit for bit, what an honest device (or the CPU) gives is no fault there: column "equal". One that was
missed and is no farther from the truth than honest devices come on the same case (69 orders of adding; the worst element and
the root mean square, in units of what one rounding of everything moves an element by) cannot be distinguished by a rule without
false alarms: column "inside". One that was missed and whose every element lies within the bound that the rules of the op class
promise to every device (`stated`: the formula alone, without what the judge adds for the reference, for partial sums that are
handed on or for ends of the range) is column "within": what a lone element of a sum may be off by, 4 sqrt(K) u S, is more than
8 ULP at K of 16 and above. The rest is "missed". Detection is given over all that are not equal ("caught"), without those
inside ("apart"), without lone elements that are within, too ("lone", held to the targets), and without any within ("beyond").
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from emulated import OPS, PASSES, Arithmetic, Results, Setup, computed, setup
from torch import Tensor

from parity.core.case import OpClass
from parity.core.dtypes import FACTS
from parity.judging.budget import ulp_of
from parity.judging.judge import judge
from parity.judging.measures import bit_equal, parts
from parity.judging.rules import rule_of_pass

LENGTHS = (16, 256, 2048)
FAMILIES = ("normal", "positive", "wide", "cancelling", "tiny")
DTYPES = ("float32", "float16", "bfloat16")
WITNESSES = 64  # honest devices in random orders that say how far from the truth they come
LONE = ("8 ULP in one element",)
# Over all that differ, without those inside, without lone elements within their bound, without all within their bounds.
LINES = ("caught", "apart", "lone", "beyond")
WORDS = ("equal", "inside", "within", "missed")
FUNCTION_ULP = 2.0  # what an honest exp, division or rsqrt may be off by (CUDA's table: 2)


# ------------------------------------------------------------------------------------------------------- honest and faulty


def honest(s: Setup, seed: int) -> dict[str, Arithmetic]:
    """Honest devices by name."""
    noise = FUNCTION_ULP if s.op.noisy else 0.0
    orders = {o: Arithmetic(o) for o in ("sequential", "pairwise", "blocks of 8", "blocks of 32")}
    return {**orders, "permuted": Arithmetic("permuted", noise=noise, seed=seed)}


def faulty(s: Setup, base: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Results]]:
    """Every fault that applies: its name and the results. base: an honest device's, for faults of single elements."""
    g = torch.Generator().manual_seed(seed)
    if s.dtype == "float32":
        yield "TF32 inputs", computed(s, Arithmetic(inputs="tf32"))
        yield "bfloat16 inputs", computed(s, Arithmetic(inputs="bfloat16"))
    elif not (s.op.row == "sum" and s.cotangent is not None):
        half = getattr(torch, s.dtype)
        yield "half accumulation", computed(s, Arithmetic("sequential", carry=half))
        yield "(half sums of 16)", computed(s, Arithmetic("sequential", carry=half, every=16))
    yield "last k dropped", computed(s, Arithmetic(drops=True))
    name = sorted(base)[seed % len(base)]

    def edited(edit: Callable[[Tensor], None]) -> Results:
        t = base[name].clone(memory_format=torch.contiguous_format)
        edit(t.view(-1, t.shape[-1]))
        return {**base, name: t}

    def nudge(t: Tensor) -> None:
        flat = t.view(-1)
        where = torch.nonzero(flat)
        if not len(where):
            return
        at = int(where[int(torch.randint(len(where), (1,), generator=g))])
        bits = flat.view(torch.int32 if s.dtype == "float32" else torch.int16)
        bits[at] += 8 if int(torch.randint(2, (1,), generator=g)) or int(bits[at] & 0x7FFF) < 9 else -8

    def swap(t: Tensor) -> None:
        rows = t if len(t) > 1 else t.view(-1, 1)
        a, b = (len(rows) // 2, len(rows) // 2 - 1)
        rows[[a, b]] = rows[[b, a]]

    def forget(t: Tensor) -> None:
        (t if len(t) > 1 else t.view(-1, 1))[-1] = 0

    yield "8 ULP in one element", edited(nudge)
    yield "rows swapped", edited(swap)
    yield "last row unwritten", edited(forget)


def units(s: Setup, name: str) -> Any:
    """What one rounding of everything moves each element by: u times the sum of magnitudes of its terms, or the sensitivity
    of what is no sum; and the rounding of the result."""
    f = FACTS[s.dtype]
    u, between = rule_of_pass(s.bench.row, s.pass_).roundoff(s.bench.row, f, s.pass_)
    size = abs(parts(_truth(s, name)))
    found = s.bench.oracle.magnitudes(name) if s.bench.row.rule is OpClass.CONTRACTION else None
    if found is not None:
        moved = u * parts(found[0]).clip(min=size)
    else:
        moved = parts(s.bench.oracle.sensitivity(name, u, between))
        moved = moved + 2 * u * size + 0.05 * moved.max()
    return moved + f.unit_roundoff * size + f.smallest


def farthest(s: Setup, results: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """(largest, root mean square) distance from the truth by result, in units."""
    found = {}
    for n, t in results.items():
        z = abs(parts(t) - parts(_truth(s, n))) / units(s, n)
        found[n] = float(z.max()), float((z**2).mean() ** 0.5)
    return found


def inside(s: Setup, results: Mapping[str, Tensor]) -> bool:
    """Whether some honest devices come as far from the truth on this case, at their worst elements and on the whole."""
    limits: dict[str, tuple[float, float]] = {}
    noise = FUNCTION_ULP if s.op.noisy else 0.0
    witnesses = [Arithmetic("permuted", noise=noise, seed=1000 + k) for k in range(WITNESSES)]
    for a in (*honest(s, 0).values(), *witnesses):
        for n, (most, rms) in farthest(s, computed(s, a)).items():
            before = limits.get(n, (0.0, 0.0))
            limits[n] = max(most, before[0]), max(rms, before[1])
    return all(most <= limits[n][0] and rms <= limits[n][1] for n, (most, rms) in farthest(s, results).items())


def stated(s: Setup, name: str) -> Any:
    """The bound of every element as the op classes state it. Sums of n products: 4 sqrt(n) u S + 1 ULP, u of the accumulation
    (float32's for half types). All else: 16 (sensitivity + 2 u |truth| + 5 % of the largest sensitivity) + 1 ULP, for half
    types at float32's u and what is handed on at their own, + 1.5 ULP. And a smallest number."""
    f = FACTS[s.dtype]
    u, between = rule_of_pass(s.bench.row, s.pass_).roundoff(s.bench.row, f, s.pass_)
    size = abs(parts(_truth(s, name)))
    found = s.bench.oracle.magnitudes(name) if s.bench.row.rule is OpClass.CONTRACTION else None
    if found is not None:
        total, n = parts(found[0]).clip(min=size), parts(found[1]).clip(min=1.0)
        return 4.0 * n**0.5 * FACTS["float32"].unit_roundoff * total + ulp_of(size, f) + f.smallest
    moved = parts(s.bench.oracle.sensitivity(name, u, between))
    ulp = 1.0 if s.dtype == "float32" else 1.5
    return 16.0 * (moved + 2.0 * u * size + 0.05 * moved.max()) + ulp * ulp_of(size, f) + f.smallest


def within(s: Setup, results: Mapping[str, Tensor]) -> bool:
    """Whether no element is beyond its stated bound, in results that are not the CPU's own bit for bit."""
    differing = {n: t for n, t in results.items() if not bit_equal(t, s.reference[n])}
    return all(bool((abs(parts(t) - parts(_truth(s, n))) <= stated(s, n)).all()) for n, t in differing.items())


def _truth(s: Setup, name: str) -> Tensor:
    found = s.bench.oracle.truth(name)
    assert found is not None  # `setup` asked
    return found


# --------------------------------------------------------------------------------------------------------------- counting


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two devices gave the same bits."""
    return all(bit_equal(a[n], b[n]) for n in a)


Key = tuple[str, str, str, str]


@dataclass(slots=True)
class Counted:
    """Counts by (op, pass, dtype, fault or honest device); the cases behind misses and false alarms."""

    counts: dict[Key, Counter[str]]
    told: list[dict[str, Any]]

    def one(self, s: Setup, where: Mapping[str, Any], seed: int) -> None:
        """All devices on one case."""
        given = {name: computed(s, a) for name, a in honest(s, seed).items()}
        for name, results in given.items():
            verdict, _ = judge(s.bench, results, s.reference, s.pass_)
            self._count(where, f"honest: {name}", "alarm" if verdict.status.is_finding else "quiet", verdict)
        for fault, results in faulty(s, given["pairwise"], seed):
            if any(same(results, g) for g in (*given.values(), s.reference)):
                self._count(where, fault, "equal", None)
                continue
            verdict, _ = judge(s.bench, results, s.reference, s.pass_)
            asked = (("caught", lambda *_, v=verdict: v.status.is_finding), ("inside", inside), ("within", within))
            word = next((w for w, test in asked if test(s, results)), "missed")
            self._count(where, fault, word, verdict)

    def _count(self, where: Mapping[str, Any], what: str, word: str, verdict: Any) -> None:
        self.counts[where["op"], where["pass"], where["dtype"], what][word] += 1
        if word in ("alarm", "missed", "inside", "within"):
            m = verdict.measure
            told = {
                "share": m.share,
                "reference_share": m.reference_share,
                "spread": m.spread,
                "ulp": m.max_ulp,
                "screen": m.screen,
            }
            self.told.append({**where, "what": what, "word": word, **told, "reason": verdict.reason, "budget": m.budget})


def run(o: argparse.Namespace) -> Counted:
    """The whole experiment."""
    total = Counted(defaultdict(Counter), [])
    for row in o.ops or OPS:
        for pass_ in PASSES:
            for dtype in o.dtype or DTYPES:
                for k in o.k or LENGTHS:
                    for family in FAMILIES:
                        for repeat in range(o.repeats):
                            seed = zlib.crc32(f"{o.seed}:{row}:{pass_}:{dtype}:{k}:{family}:{repeat}".encode()) % (1 << 30)
                            where = {"op": row, "pass": pass_, "dtype": dtype, "k": k, "family": family, "repeat": repeat}
                            s = setup(OPS[row], pass_, dtype, k, family, seed, o.no_screens)
                            if s is None:
                                total.counts[row, pass_, dtype, "overflow"]["cases"] += 1
                            else:
                                total.one(s, where, seed)
    return total


def rates(
    counts: Mapping[Key, Counter[str]], *, op: str = "", pass_: str = "", dtype: str = ""
) -> dict[str, list[float | None]]:
    """fault -> [detection in % by each of `LINES`, equal, inside, within, missed] over what matches."""
    gathered: dict[str, Counter[str]] = defaultdict(Counter)
    for (o, p, d, what), n in counts.items():
        if (not op or o == op) and (not pass_ or p == pass_) and (not dtype or d == dtype) and what != "overflow":
            gathered[what].update(n)
    found: dict[str, list[float | None]] = {}
    for what, n in gathered.items():
        if not what.startswith("honest"):
            lone = n["within"] if what in LONE else 0
            left_out = (0, n["inside"], n["inside"] + lone, n["inside"] + n["within"])
            every = n["caught"] + n["inside"] + n["within"] + n["missed"]
            shares = [100 * n["caught"] / (every - k) if every > k else None for k in left_out]
            found[what] = [*shares, n["equal"], n["inside"], n["within"], n["missed"]]
    return found


def mean(found: Mapping[str, Sequence[float | None]], column: int) -> float:
    """The mean over the faults of the list (those in parentheses are extra)."""
    values = [v for f, row in found.items() if not f.startswith("(") and (v := row[column]) is not None]
    return sum(values) / len(values) if values else 100.0


def report(total: Counted, out: Callable[[str], None] = print) -> dict[str, Any]:
    """Print the tables; the figures for JSON."""
    seen = list(dict.fromkeys(key[:3] for key in total.counts))
    alarms = sum(n["alarm"] for n in total.counts.values())
    asked = sum(n["alarm"] + n["quiet"] for n in total.counts.values())
    out(f"{'op':11}{'pass':9}{'dtype':9} {'fault':22}" + "".join(f"{w:>9}" for w in (*LINES, *WORDS)))
    for op, pass_, dtype in seen:
        found = rates(total.counts, op=op, pass_=pass_, dtype=dtype)
        for fault, row in found.items():
            shares, numbers = row[: len(LINES)], row[len(LINES) :]
            cells = "".join(f"{'-' if v is None else format(v, '.1f'):>9}" for v in shares)
            out(f"{op:11}{pass_:9}{dtype:9} {fault:22}{cells}" + "".join(f"{int(v or 0):9}" for v in numbers))
        over = total.counts[op, pass_, dtype, "overflow"]["cases"] if (op, pass_, dtype, "overflow") in total.counts else 0
        wrong = sum(n["alarm"] for key, n in total.counts.items() if key[:3] == (op, pass_, dtype))
        tail = f", {over} cases overflow and are left out" if over else ""
        line = ", ".join(f"{w} {mean(found, c):.1f} %" for c, w in enumerate(LINES))
        out(f"{op:11}{pass_:9}{dtype:9} mean {line}; false alarms {wrong}{tail}")
    figures: dict[str, Any] = {"alarms": alarms, "honest": asked}
    faults: dict[str, Counter[str]] = defaultdict(Counter)
    for (_, _, dtype, what), n in total.counts.items():
        if what != "overflow" and not what.startswith(("honest", "(")):
            faults[f"{what}, {dtype}"].update(n)
    out("\nleft out or missed, of all that are not equal:")
    for what, n in sorted(faults.items()):
        every = n["caught"] + n["inside"] + n["within"] + n["missed"]
        if n["caught"] < every:
            out(f"  {what:34}{every:5}: " + ", ".join(f"{w} {n[w]}" for w in ("caught", *WORDS[1:])))
    out(f"\nfalse alarms: {alarms} of {asked} honest results (target 0)")
    targets = [("dtype", d, 97.0) for d in dict.fromkeys(s[2] for s in seen)]
    targets += [("op", o, 90.0) for o in dict.fromkeys(s[0] for s in seen)]
    for sort, name, target in targets:
        means = [_means(total, s) for s in seen if name in s]
        shares = [sum(m[c] for m in means) / len(means) for c in range(len(LINES))]
        figures[name] = {**dict(zip(LINES, shares)), "target": target}
        said = ", ".join(f"{w} {v:.1f}" for w, v in zip(LINES, shares))
        out(f"{sort} {name:11} mean detection in %: {said} (target {target:g})")
    return figures


def _means(total: Counted, s: tuple[str, str, str]) -> list[float]:
    found = rates(total.counts, op=s[0], pass_=s[1], dtype=s[2])
    return [mean(found, c) for c in range(len(LINES))]


def main(argv: list[str] | None = None) -> int:
    """The program; 1 where a target is missed in the column "lone"."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("ops", nargs="*", metavar="OP", help=f"of {', '.join(OPS)} (default: all)")
    p.add_argument("--dtype", action="append", choices=DTYPES, help="default: all three")
    p.add_argument("--k", action="append", type=int, help="terms of the sums, multiples of 4 (default: 16, 256, 2048)")
    p.add_argument("--repeats", type=int, default=3, help="cases of each kind (3)")
    p.add_argument("--seed", default="0")
    p.add_argument("--no-screens", action="store_true", help="every result goes to the oracle")
    p.add_argument("--output", type=Path, help="write counts, figures and every miss here as JSON")
    o = p.parse_args(argv)
    if unknown := [name for name in o.ops if name not in OPS]:
        p.error(f"unknown op '{unknown[0]}'; allowed: {', '.join(OPS)}")
    torch.set_num_threads(1)
    started = time.monotonic()
    total = run(o)
    figures = report(total)
    print(f"{time.monotonic() - started:.0f} s")
    if o.output:
        counts = [{**dict(zip(("op", "pass", "dtype", "what"), key)), **n} for key, n in total.counts.items()]
        o.output.write_text(json.dumps({"figures": figures, "counts": counts, "told": total.told}, indent=1))
    short = [v for v in figures.values() if isinstance(v, dict) and v["lone"] < v["target"]]
    return 1 if figures["alarms"] or short else 0


if __name__ == "__main__":
    sys.exit(main())
