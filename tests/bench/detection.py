"""False alarms and detection of the judge on emulated devices: `python tests/bench/detection.py --output FILE`.

Sums of K terms (16, 256, 2048) of five value families go through matmul, conv2d, sum, softmax and layer_norm and their
gradients, in three dtypes. An emulated device computes each by its formula in an arithmetic of its own: honest ones add up
in other orders (half types in float32, rounded once), faulty ones lose something. Every result is judged as the suite judges
it: against the CPU's own result and the truth in float64, by the tables of a device without a table of its own.

A fault whose result is, bit for bit, what an honest device (or the CPU) gives is no fault there: column "equal". One that was
missed and whose every element is at least as close to the truth as the farthest of 64 honest devices came at that element
cannot be told apart by anybody: column "inside". Detection is given over all that are not equal, and without those inside.
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
import torch.nn.functional as F
from torch import Tensor

from parity import catalog, tolerance
from parity import execute as ex
from parity.devices import resolve
from parity.dtypes import FACTS
from parity.inputs import Inputs, Slot, operand
from parity.judge import Bench, judge
from parity.measures import bit_equal, parts
from parity.oracle import Oracle
from parity.vocabulary import Case, TensorSpec

LENGTHS = (16, 256, 2048)
FAMILIES = ("normal", "positive", "wide", "cancelling", "tiny")
DTYPES = ("float32", "float16", "bfloat16")
PASSES = ("forward", "backward")
WITNESSES = 64  # honest devices that say how far from the truth an element may honestly be
FUNCTION_ULP = 2.0  # what an honest exp, division or rsqrt may be off by (CUDA's table: 2)
EPS = 1e-5
Results = dict[str, Tensor]


# -------------------------------------------------------------------------------------------------------- the arithmetic


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an emulated device computes; float32 inside. order: of adding; carry: the dtype that a running sum is rounded to
    after `every` additions; inputs: what operands are rounded to first; drops: the last term of every sum is left out.
    noise: ULP that functions are off by at most."""

    order: str = "pairwise"
    carry: torch.dtype = torch.float32
    every: int = 1
    inputs: str = ""
    drops: bool = False
    noise: float = 0.0
    seed: int = 0

    def take(self, t: Tensor) -> Tensor:
        """An operand as the device reads it."""
        t = t.to(torch.float32)
        if self.inputs == "bfloat16":
            return t.to(torch.bfloat16).to(torch.float32)
        if self.inputs == "tf32":  # 10 bits, to nearest
            return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return t

    def function(self, t: Tensor) -> Tensor:
        """The result of exp, a division or rsqrt, off by a little."""
        if not self.noise:
            return t
        g = torch.Generator().manual_seed(self.seed + t.numel())
        ulps = (2 * torch.rand(t.shape, generator=g, dtype=torch.float64) - 1) * self.noise
        return (t.double() * (1 + ulps * 2.0**-23)).float()

    def total(self, terms: Tensor, dim: int) -> Tensor:
        """The sum over a dimension, in this order."""
        t = terms.movedim(dim, 0)
        t = t[:-1] if self.drops else t
        if self.order == "permuted":
            t = t[torch.randperm(t.shape[0], generator=torch.Generator().manual_seed(self.seed))]
        if self.order == "pairwise":
            while t.shape[0] > 1:
                half = t.shape[0] // 2
                t = torch.cat((t[:half] + t[half : 2 * half], t[2 * half :]))
            return t[0]
        block = int(self.order.removeprefix("blocks of ")) if self.order.startswith("blocks") else 1
        if block > 1:
            short = -t.shape[0] % block
            t = torch.cat((t, t.new_zeros(short, *t.shape[1:]))).view(-1, block, *t.shape[1:])
            t = self._chain(t.transpose(0, 1))
        return self._chain(t)

    def _chain(self, t: Tensor) -> Tensor:
        if self.every > 1:
            t = torch.stack([part.sum(0) for part in t.split(self.every)])
        total = torch.zeros_like(t[0])
        for term in t:
            total = total + term
            if self.carry is not torch.float32:
                total = total.to(self.carry).to(torch.float32)
        return total


# --------------------------------------------------------------------------------------------------------------- the ops


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the experiment. shapes: of its operands, by K and pass; sums: the dims of the operands that are added over, by
    pass (what cancels cancels there); call: arguments from operands; formula: (arithmetic, operands, cotangent) -> results in
    float32, the cotangent None forward; noisy: whether it computes functions beside sums."""

    row: str
    shapes: Callable[[int, str], tuple[tuple[int, ...], ...]]
    sums: Callable[[str], tuple[int | None, ...]]
    call: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    formula: Callable[[Arithmetic, Sequence[Tensor], Tensor | None], Results]
    result: Callable[[int], tuple[int, ...]]
    noisy: bool = False


def _matmul(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    if g is None:
        return {"out": a.total(x[0][:, :, None] * x[1][None], 1)}
    return {"grad[0]": a.total(g[:, None] * x[1][None], 2), "grad[1]": a.total(x[0][:, :, None] * g[:, None], 0)}


def _conv2d(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    image, w = x
    (n, channels), (o, _, k, _) = image.shape[:2], w.shape
    patches = F.unfold(image, k)  # n, channels * k * k, places
    if g is None:
        out = a.total(w.view(o, -1)[None, :, :, None] * patches[:, None], 2)
        return {"out": out.view(n, o, *(s - k + 1 for s in image.shape[2:]))}
    fed = F.unfold(F.pad(g, (k - 1,) * 4), k)  # n, o * k * k, places of the image
    turned = w.flip(2, 3).transpose(0, 1).reshape(channels, -1)
    into = a.total(turned[None, :, :, None] * fed[:, None], 2).view_as(image)
    flat = g.reshape(n, o, -1)[:, :, None] * patches[:, None]  # n, o, channels * k * k, places
    return {"grad[0]": into, "grad[1]": a.total(flat.permute(1, 2, 0, 3).reshape(o, patches.shape[1], -1), 2).view_as(w)}


def _sum(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    if g is None:
        return {"out": a.total(x[0], 1)}
    back = g[:, None].expand(x[0].shape).clone()
    if a.drops:
        back[:, -1] = 0
    return {"grad[0]": back}


def _softmax(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    e = a.function(torch.exp(x[0] - x[0].amax(-1, keepdim=True)))
    y = a.function(e / a.total(e, -1)[:, None])
    if g is None:
        return {"out": y}
    y = y.to(_saved(x)).to(torch.float32)  # forward's result is kept in the dtype
    return {"grad[0]": y * (g - a.total(g * y, -1)[:, None])}


def _saved(x: Sequence[Tensor]) -> torch.dtype:
    return getattr(x[0], "saved", torch.float32)


def _layer_norm(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    image, w, b = x
    k = image.shape[-1]
    centred = image - (a.total(image, -1) / k)[:, None]
    rstd = a.function(torch.rsqrt(a.total(centred * centred, -1) / k + EPS))[:, None]
    hat = centred * rstd
    if g is None:
        return {"out": hat * w + b}
    gw = g * w
    into = rstd * (gw - (a.total(gw, -1) / k)[:, None] - hat * (a.total(gw * hat, -1) / k)[:, None])
    return {"grad[0]": into, "grad[1]": a.total(g * hat, 0), "grad[2]": a.total(g, 0)}


OPS = {
    op.row: op
    for op in (
        Op(
            "matmul",
            lambda k, p: ((24, k), (k, 20)) if p == "forward" else ((24, 20), (20, k)),
            lambda p: (1, 0) if p == "forward" else (None, 1),
            lambda t: (tuple(t), {}),
            _matmul,
            lambda k: (24, k),
        ),
        Op(
            "conv2d",
            lambda k, p: ((2, k // 4, 5, 5), (8, k // 4, 2, 2)) if p == "forward" else ((2, 8, 5, 5), (k // 4, 8, 2, 2)),
            lambda p: (1, 1) if p == "forward" else (None, 0),
            lambda t: (tuple(t), {}),
            _conv2d,
            lambda k: (2, k // 4, 4, 4),
        ),
        Op(
            "sum",
            lambda k, p: ((24, k, 20),) if p == "forward" else ((6, k, 5),),
            lambda p: (1,) if p == "forward" else (None,),
            lambda t: ((t[0], (1,)), {}),
            _sum,
            lambda k: (6, 5),
        ),
        Op("softmax", lambda k, p: ((24, k),), lambda p: (1,), lambda t: ((t[0],), {"dim": -1}), _softmax, lambda k: (24, k), True),
        Op(
            "layer_norm",
            lambda k, p: ((24, k), (k,), (k,)),
            lambda p: (1, None, None),
            lambda t: ((t[0], (_last(t[0]),)), {"weight": t[1], "bias": t[2]}),
            _layer_norm,
            lambda k: (24, k),
            True,
        ),
    )
}  # fmt: skip


def _last(t: Any) -> int:
    return int(t.shape[-1])


# ------------------------------------------------------------------------------------------------------------- the values


def drawn(shape: tuple[int, ...], family: str, dtype: str, position: int, dim: int | None, g: torch.Generator) -> Tensor:
    """An operand. cancelling: the second half along `dim` is minus the first in one operand of a product, give or take some
    roundoffs (at least 1e-4), and equals it in the other; a lone operand without products has both in one."""
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    if family == "positive":
        x = torch.rand(shape, generator=g, dtype=torch.float64)
    if family == "wide" and position == 0:  # 3 as an exponent overflows float16
        x = x * torch.exp((1.5 if dtype == "float16" else 3.0) * torch.randn(shape, generator=g, dtype=torch.float64))
    if family == "tiny":
        x = x * (1e-4 if position == 0 else 1e-3)
    if family == "cancelling" and dim is not None:
        half = shape[dim] // 2
        part = max(1e-4, 16 * FACTS[dtype].unit_roundoff)
        first = x.narrow(dim, 0, half)
        noise = torch.randn(first.shape, generator=g, dtype=torch.float64)
        minus = position > 0 or len(shape) == 3
        x.narrow(dim, half, half).copy_(-first * (1 + part * noise) if minus else first)
    return x.to(getattr(torch, dtype))


@dataclass(frozen=True, slots=True)
class Setup:
    """One case with all that the judge asks for. cotangent: None forward."""

    op: Op
    bench: Bench
    reference: Results
    operands: tuple[Tensor, ...]
    cotangent: Tensor | None
    dtype: str

    @property
    def pass_(self) -> str:
        """Which pass is judged."""
        return PASSES[self.cotangent is not None]


def setup(op: Op, pass_: str, dtype: str, k: int, family: str, seed: int, insist: bool) -> Setup | None:
    """The case, its reference and its oracle; None where the truth overflows the dtype."""
    g = torch.Generator().manual_seed(seed)
    shapes, sums = op.shapes(k, pass_), op.sums(pass_)
    made = [drawn(s, family, dtype, i, d, g) for i, (s, d) in enumerate(zip(shapes, sums))]
    if family == "cancelling" and op.noisy:  # far from 0 together: the maximum, the mean and the squares cancel
        made[0] = (made[0] * 0.5 + 10).to(made[0].dtype)
    specs = [TensorSpec(dtype, s) for s in shapes]
    args, kwargs = op.call(specs)
    case = Case(op.row, dtype, args, tuple(kwargs.items()))
    number = {id(s): Slot(i) for i, s in enumerate(specs)}
    inputs = Inputs(
        tuple(operand(s, i, t) for i, (s, t) in enumerate(zip(specs, made))),
        tuple(number.get(id(a), a) for a in args),
        {n: number.get(id(v), v) for n, v in kwargs.items()},
    )
    row = catalog.row(op.row)
    program = ex.program(row)
    live = ex.forward(program, case, inputs, ex.place(inputs, resolve("cpu")), pass_ == "backward")
    oracle = Oracle(program, case, inputs, made[0].dtype)
    fed = None
    results = live.outputs
    if pass_ == "backward":
        fed = drawn(op.result(k), "normal", dtype, 1, None, g)
        if family == "cancelling" and op.row in ("matmul", "conv2d"):  # the summed dim of the cotangent holds everything twice
            half = fed.shape[1] // 2
            fed[:, half:] = fed[:, :half]
        results = ex.backward(live, [fed])
        oracle.differentiate([fed])
    bench = Bench(row, tolerance.load("cpu"), oracle, None, insist)
    reference = {n: t.detach() for n, t in results}
    limit = FACTS[dtype].max
    for n in reference:
        truth = oracle.truth(n)
        if truth is None or not bool((truth.abs() < limit).all()):
            return None
    return Setup(op, bench, reference, tuple(made), fed, dtype)


def computed(s: Setup, a: Arithmetic) -> Results:
    """What a device with this arithmetic gives, in the dtype."""
    dtype = getattr(torch, s.dtype)
    operands = [a.take(t) for t in s.operands]
    operands[0].saved = dtype  # type: ignore[attr-defined]  # the dtype of what forward keeps for backward
    made = s.op.formula(a, operands, None if s.cotangent is None else a.take(s.cotangent))
    return {n: t.to(dtype) for n, t in made.items()}


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


def inside(s: Setup, results: Mapping[str, Tensor]) -> bool:
    """Whether no element is farther from the truth than some honest device comes at that element."""
    limits: dict[str, Any] = {}
    for k in range(WITNESSES):
        noise = FUNCTION_ULP if s.op.noisy else 0.0
        for n, t in computed(s, Arithmetic("permuted", noise=noise, seed=1000 + k)).items():
            err = abs(parts(t) - parts(_truth(s, n)))
            limits[n] = err if n not in limits else limits[n].clip(min=err)
    return all(bool((abs(parts(t) - parts(_truth(s, n))) <= limits[n]).all()) for n, t in results.items())


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
            word = "caught" if verdict.status.is_finding else "inside" if inside(s, results) else "missed"
            self._count(where, fault, word, verdict)

    def _count(self, where: Mapping[str, Any], what: str, word: str, verdict: Any) -> None:
        self.counts[where["op"], where["pass"], where["dtype"], what][word] += 1
        if word in ("alarm", "missed", "inside"):
            m = verdict.measure
            told = {"share": m.share, "reference_share": m.reference_share, "spread": m.spread, "ulp": m.max_ulp, "screen": m.screen}
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


def rates(counts: Mapping[Key, Counter[str]], *, op: str = "", pass_: str = "", dtype: str = "") -> dict[str, list[float | None]]:
    """fault -> [detection in %, the same without those inside, equal, inside, missed] over what matches."""
    gathered: dict[str, Counter[str]] = defaultdict(Counter)
    for (o, p, d, what), n in counts.items():
        if (not op or o == op) and (not pass_ or p == pass_) and (not dtype or d == dtype) and what != "overflow":
            gathered[what].update(n)
    found: dict[str, list[float | None]] = {}
    for what, n in gathered.items():
        if not what.startswith("honest"):
            known = n["caught"] + n["missed"]
            every = known + n["inside"]
            shares = [100 * n["caught"] / every if every else None, 100 * n["caught"] / known if known else None]
            found[what] = [*shares, n["equal"], n["inside"], n["missed"]]
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
    out(f"{'op':11}{'pass':9}{'dtype':9} {'fault':22}{'caught %':>9}{'(apart) %':>10}{'equal':>7}{'inside':>7}{'missed':>7}")
    for op, pass_, dtype in seen:
        found = rates(total.counts, op=op, pass_=pass_, dtype=dtype)
        for fault, (raw, apart, *rest) in found.items():
            shown = "".join(f"{'-' if v is None else format(v, '.1f'):>{w}}" for v, w in ((raw, 9), (apart, 10)))
            out(f"{op:11}{pass_:9}{dtype:9} {fault:22}{shown}" + "".join(f"{int(v or 0):7}" for v in rest))
        over = total.counts[op, pass_, dtype, "overflow"]["cases"] if (op, pass_, dtype, "overflow") in total.counts else 0
        wrong = sum(n["alarm"] for key, n in total.counts.items() if key[:3] == (op, pass_, dtype))
        tail = f", {over} cases overflow and are left out" if over else ""
        out(f"{op:11}{pass_:9}{dtype:9} mean {mean(found, 0):.1f} %, apart {mean(found, 1):.1f} %; false alarms {wrong}{tail}")
    figures: dict[str, Any] = {"alarms": alarms, "honest": asked}
    out(f"\nfalse alarms: {alarms} of {asked} honest results (target 0)")
    lines = [("dtype", d, 97.0) for d in dict.fromkeys(s[2] for s in seen)]
    lines += [("op", o, 90.0) for o in dict.fromkeys(s[0] for s in seen)]
    for kind, name, target in lines:
        means = [_means(total, s) for s in seen if name in s]
        raw, apart = (sum(m[c] for m in means) / len(means) for c in (0, 1))
        figures[name] = {"caught": raw, "apart": apart, "target": target}
        out(f"{kind} {name:11} mean detection {raw:.1f} %, without those inside {apart:.1f} % (target {target:g})")
    return figures


def _means(total: Counted, s: tuple[str, str, str]) -> tuple[float, float]:
    found = rates(total.counts, op=s[0], pass_=s[1], dtype=s[2])
    return mean(found, 0), mean(found, 1)


def main(argv: list[str] | None = None) -> int:
    """The program; 1 where a target is missed (those inside left out)."""
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
    short = [v for v in figures.values() if isinstance(v, dict) and v["apart"] < v["target"]]
    return 1 if figures["alarms"] or short else 0


if __name__ == "__main__":
    sys.exit(main())
