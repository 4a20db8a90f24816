"""How sharply a function of one operator is judged next to the suite's row: `python -m tests.bench sharp -n 2 --sample 40`.

Rows that a function can express are drawn, with a case of each dtype. The CPU stands in for the device on both ways, the row's
check and `assert_parity`, which is asked for the function bare and behind an exact move of each operand (`clone`, `transpose`
twice, `* 1.0`). Two figures for each result: the smallest error of one element that would be reported (95 % quantile, over
the largest element), and the smallest factor common to all. Both over the row's are the looseness; 1.5 is the target. The
cotangents are the row's. Both take all samples of the sensitivity: by its
first two a row would seem sharper than it is, because it takes more before it reports anything. The exit code is 1 where one
in a hundred is looser.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import parity
from parity import tolerance
from parity.catalog.row import Row
from parity.checks.check import Settings, check, quiet
from parity.checks.derivatives import cotangents
from parity.comparing.subject import fixed_cotangents
from parity.core.case import Case, OpClass
from parity.core.errors import CaseError, ParityError
from parity.core.results import Status, Verdict
from parity.devices import resolve
from parity.engine import suite
from parity.execution import execute as ex
from parity.execution.inputs import build, torch_word
from parity.generation import generate
from parity.judging.judge import judge
from parity.judging.limits import Limits

DTYPES = ("float32", "float16", "bfloat16")
RULES = (OpClass.ELEMENTWISE, OpClass.CONTRACTION, OpClass.COMPOSITE)
TARGET, SHARE, WORST = 1.5, 0.01, 20
_ONE: Callable[[int], Any]  # what the forks call: a closure cannot be sent to them
FEWEST = 16  # elements of the first operand: with fewer there is no common factor
TRIES = 40  # cases that are drawn until one can be a function's
MOVES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "bare": lambda x: x,
    "clone": torch.clone,
    "transpose": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x.flip(0).flip(0) if x.dim() else x.clone(),
    "* 1.0": lambda x: x * 1.0 if x.is_floating_point() or x.is_complex() else x,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The smallest errors that are reported: of one element, over the largest, and of all together."""

    single: float
    factor: float

    @classmethod
    def of(cls, known: Limits) -> Figures | None:
        """None where nothing would be reported of some elements, or all are 0."""
        some = (known.size > 0.0) & np.isfinite(known.size)
        if not some.any() or not np.isfinite(known.reported_above[some]).all():
            return None
        single = float(np.quantile(known.reported_above[some], 0.95, method="higher")) / float(known.size[some].max())
        return cls(single, min(float(known.relative[some].min()), known.factor))


@dataclass(frozen=True, slots=True)
class Line:
    """One result both ways. ratio: of the function's figures to the row's."""

    what: str
    figure: str
    row: float
    function: float

    @property
    def result(self) -> str:
        """What it is of, without the form of the operands."""
        return self.what.replace(next(f" {word} " for word in MOVES if f" {word} " in self.what), " ")

    @property
    def ratio(self) -> float:
        return self.function / self.row if self.row > 0.0 else 1.0


def plain_case(row: Row, dtype: str) -> Case | None:
    """A case of the row that says what an ordinary call of it does; None if none is found."""
    for ordinal in range(1, TRIES + 1):
        try:
            case = generate.nth(row, dtype, suite.profile("quick").sizes, "yardstick", ordinal).case
            operands = build(case).operands
        except CaseError:
            continue
        views = [o.view for o in operands]
        # Of equal elements a pool may pick any, in a function, where the row hands it the places.
        alike = any(v.numel() > 1 and bool((v == v.flatten()[0]).all()) for v in views)
        usable = views and not alike and not case.refused and case.under == "grad" and views[0].numel() >= FEWEST
        if usable and all(bool(torch.isfinite(v).all()) for v in views):
            return replace(case, after="", history=())
    return None


def of_row(row: Row, case: Case) -> tuple[dict[str, Figures], list[Tensor]]:
    """The figures of the row's own check, by result: `out`, `grad 0`; and its cotangents."""
    cpu, tables, found = resolve("cpu"), tolerance.load("cpu"), dict[str, Figures]()
    fed: list[Tensor] = []

    def fed_too(t: Any, live: Any) -> Any:
        made = cotangents(t, live)
        fed[:] = fed or [c.detach().clone() for c in made[1]]
        return made

    def asked(bench: Any, device: Mapping[str, Tensor], reference: Any, pass_: str, parts: Any = None) -> Any:
        if reference is not None and not parts:
            while bench.oracle.take_more_samples():
                pass
            limits: dict[str, Limits] = {}
            judge(replace(bench, limits=limits, whole=True, always_use_oracle=True), device, reference, pass_)
            for name, known in limits.items():
                if (figures := Figures.of(known)) is not None:
                    found.setdefault(plain_name(name), figures)
        return Verdict(Status.AGREE), ()

    with mock.patch("parity.checks.trial.judge", asked), mock.patch("parity.checks.derivatives.cotangents", fed_too):
        check(row, case, cpu, cpu, tables, Settings(always_use_oracle=True), quiet, [])
    return found, fed


def plain_name(name: str) -> str:
    """`grad 0` of "grad[0]" and of "grad[xs[0]]"; other names as they are."""
    return f"grad {name.strip('grad[xs]')}" if name.startswith("grad[") else name


def of_function(row: Row, case: Case, move: Callable[[Tensor], Tensor], fed: Sequence[Tensor]) -> dict[str, Figures]:
    """The figures of `assert_parity`, by result. fed: the cotangents."""

    def fixed(run: Any) -> list[Tensor]:
        made = fixed_cotangents(run)
        alike = [(c.shape, c.dtype) for c in made] == [(c.shape, c.dtype) for c in fed]
        return [c.clone() for c in fed] if alike else made

    inputs, program = build(case), ex.program(row)

    def function(*xs: Tensor) -> Any:
        args, kwargs = ex.arguments(case, inputs, [move(x) for x in xs], torch_word)
        return program.function(*args, **kwargs)

    leaves = [o.view.detach().clone() for o in inputs.operands]
    for x, o in zip(leaves, inputs.operands):
        x.requires_grad_(o.spec.grad and (x.is_floating_point() or x.is_complex()))
    with contextlib.redirect_stdout(io.StringIO()), mock.patch("parity.comparing.function.fixed_cotangents", fixed):
        made = parity.assert_parity(function, *leaves, device="cpu", detail=True)
    figures = {plain_name(n): Figures.of(known) for n, known in made.limits.items()}
    return {n: f for n, f in figures.items() if f is not None}


def lines(row: Row, dtype: str, left: list[str]) -> Iterator[Line]:
    """All results of a row in a dtype, both ways. left: gets what cannot be compared."""
    if (case := plain_case(row, dtype)) is None:
        left.append(f"{row.name} {dtype}: no plain case")
        return
    try:
        own, fed = of_row(row, case)
    except (CaseError, ParityError, RuntimeError) as e:
        left.append(f"{row.name} {dtype}: {e}")
        return
    for word, move in MOVES.items():
        try:
            theirs = of_function(row, case, move, fed)
        except (AssertionError, ParityError, RuntimeError, TypeError, ValueError) as e:
            left.append(f"{row.name} {dtype} {word}: {str(e).splitlines()[0][:100]}")
            continue
        for name in own.keys() & theirs.keys():
            what = f"{row.name} {dtype} {word} {name}"
            yield Line(what, "single", own[name].single, theirs[name].single)
            yield Line(what, "factor", own[name].factor, theirs[name].factor)


def chosen(o: argparse.Namespace) -> list[Row]:
    """Rows that a function can express: all, or so many drawn."""
    items = suite.select(o.ops, dtypes=o.dtype or DTYPES, source="native")
    rows = list({i.row.name: i.row for i in items}.values())
    rows = [r for r in rows if r.rule in RULES and r.judged.oracle == "wide" and not (r.forms.mutates or r.forms.updates)]
    random.Random(o.seed).shuffle(rows)
    return rows[: o.sample] if o.sample else rows


def report(found: Sequence[Line]) -> float:
    """Print a line for each dtype and way, and the worst; the share of results that are looser than the target."""
    for figure in ("single", "factor"):
        for dtype in DTYPES:
            for word in MOVES:
                some = sorted(x.ratio for x in found if x.figure == figure and f" {dtype} " in x.what and f" {word} " in x.what)
                if some:
                    over = sum(r > TARGET for r in some)
                    print(
                        f"{figure:7}{dtype:9}{word:10}{len(some):4} results, median {statistics.median(some):.2f}, "
                        f"90 % {some[int(0.9 * len(some))]:.2f}, largest {some[-1]:.3g}; over {TARGET:g}: {over}"
                    )
    print(f"the {WORST} worst, each in its loosest form:")
    worst: dict[tuple[str, str], Line] = {}
    for x in sorted(found, key=lambda x: -x.ratio):
        worst.setdefault((x.result, x.figure), x)
    for x in list(worst.values())[:WORST]:
        print(f"  {x.ratio:8.2f}  {x.what}, {x.figure}: {100 * x.function:.2g} % where the row has {100 * x.row:.2g} %")
    return sum(x.ratio > TARGET for x in found) / len(found) if found else 1.0


def each(one: Callable[[int], Any], many: int, processes: int) -> Iterator[Any]:
    """What a function gives for every number, in so many forks of this process."""
    global _ONE
    _ONE = one
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_call, range(many))


def _call(k: int) -> Any:
    return _ONE(k)


def main() -> int:
    """The program; 1 where more than one in a hundred results is looser than the target."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("ops", nargs="*", help="names or patterns of ops (default: every native row of a class that rounds)")
    p.add_argument("--sample", type=int, default=0, help="rows that are drawn; 0 for all")
    p.add_argument("--dtype", action="append", choices=DTYPES, help="default: all three")
    p.add_argument("--seed", default="0")
    p.add_argument("-n", type=int, default=1, help="processes")
    p.add_argument("--seconds", type=float, default=float("inf"), help="after which no row is begun")
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    warnings.simplefilter("ignore")
    started, left, found = time.monotonic(), list[str](), list[Line]()
    items = [(row, d) for row in chosen(o) for d in o.dtype or DTYPES if d in row.dtypes]

    def one(k: int) -> tuple[list[Line], list[str]]:
        missed: list[str] = []
        late = time.monotonic() - started > o.seconds
        return ([], ["not begun"]) if late else (list(lines(*items[k], missed)), missed)

    for some, missed in each(one, len(items), o.n):
        found, left = found + some, left + missed
    share = report(found)
    print(f"{len(left)} left out, {left.count('not begun')} of them not begun: {'; '.join(sorted(set(left))[:10])}")
    print(f"{time.monotonic() - started:.0f} s; {100 * share:.1f} % of {len(found)} figures over {TARGET:g}")
    return 1 if share > SHARE else 0


if __name__ == "__main__":
    sys.exit(main())
