"""What each clever shortcut gains over the plain way: `python tests/bench/cleverness.py`.

engine    torch's autograd engine called directly, against torch.autograd.grad
memcmp    C's memcmp for equal bits, against torch.equal of the bits
exponent  the exponent of the first element read from memory, against math.isfinite of the element

Of an examination: how often some items of the quick profile, examined in all aspects on the CPU against itself, use a shortcut,
times what one use gains, divided by the time of the examinations. Of a comparison: what one use gains, divided by the time of a
whole `parity.compare` of equal results. One use is timed both ways by turns with small operands, where it gains most of a call,
and the least times count, so that a busy machine distorts them little. What gains less than 2 % of either is not worth its
lines.
"""

from __future__ import annotations

import argparse
import cmath
import contextlib
import time
import timeit
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

import parity
from parity import tolerance
from parity.comparing import pair
from parity.devices import resolve
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.execution import execute
from parity.judging import measures

ROUNDS, LOOPS = 200, 50


def gain(clever: Callable[[], object], plain: Callable[[], object]) -> float:
    """Seconds that one clever call is faster."""
    clocks = timeit.Timer(clever, timer=time.process_time), timeit.Timer(plain, timer=time.process_time)
    rounds = [(clocks[0].timeit(LOOPS), clocks[1].timeit(LOOPS)) for _ in range(ROUNDS)]
    return (min(slow for _, slow in rounds) - min(fast for fast, _ in rounds)) / LOOPS


@contextlib.contextmanager
def counted(owner: Any, name: str, calls: Counter[str]) -> Iterator[None]:
    """How often a function is called."""
    own = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return own(*args, **kwargs)

    setattr(owner, name, counting)
    try:
        yield
    finally:
        setattr(owner, name, own)


def of_engine() -> float:
    x, g = torch.randn(12, requires_grad=True), torch.ones(12)
    return gain(lambda: execute.gradients([x * 2], [x], [g]), lambda: torch.autograd.grad([x * 2], [x], [g], allow_unused=True))


def of_memcmp() -> float:
    a, b = torch.ones(12), torch.ones(12)
    return gain(lambda: measures.bit_equal(a, b), lambda: torch.equal(measures.bits(a), measures.bits(b)))


def of_exponent() -> float:
    y = torch.ones(12)
    return gain(lambda: pair._begins_finite(y), lambda: cmath.isfinite(y[(0,) * y.dim()].item()))


def comparison() -> float:
    """Seconds of a whole comparison of equal results."""
    x = torch.randn(12)
    here, there = x.exp(), x.exp()
    clock = timeit.Timer(lambda: parity.compare(torch.exp, there, here, x), timer=time.process_time)
    return min(clock.repeat(ROUNDS, LOOPS)) / LOOPS


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--items", type=int, default=30, help="float32 items of the quick profile, evenly over the catalog")
    o = asked.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    everything = suite.select((), (), ("float32",))
    items = everything[:: -(-len(everything) // o.items)]
    tables = tolerance.load("cpu", known_ops={r.name for r in suite.rows("all")})
    plan = RunPlan(resolve("cpu"), resolve("cpu"), tables, suite.profile("quick"), RunOptions(skip=("shrink",)))
    calls, seconds, cases = Counter[str](), 0.0, 0
    for item in items:
        with counted(execute, "_engine", calls), counted(measures, "_memcmp", calls):
            cases += examine(item, plan, NoJournal()).summary.cases
        times = []
        for _ in range(2):
            start = time.process_time()
            examine(item, plan, NoJournal())
            times.append(time.process_time() - start)
        seconds += min(times)
    print(f"{len(items)} items, {cases} cases, {seconds / cases * 1e3:.2f} ms each; torch {torch.__version__}")
    for name, own, one in (("engine", "_engine", of_engine()), ("memcmp", "_memcmp", of_memcmp())):
        each = f"{calls[own] / cases:.1f} times a case, {one * 1e6:.2f} us each"
        print(f"{name:<9} {calls[own] * one / seconds:.2%} of an examination ({each})")
    whole = comparison()
    for name, saved in (("memcmp", of_memcmp()), ("exponent", of_exponent())):
        print(f"{name:<9} {saved / whole:.0%} of a comparison of equal results ({saved * 1e6:.2f} of {whole * 1e6:.2f} us)")


if __name__ == "__main__":
    main()
