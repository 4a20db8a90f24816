"""Shrinks a failing case to a minimal one. The only module that imports Hypothesis.

Hypothesis shrinks the picks of the failing case over the strategy `cases(...)`, which decodes picks like the search; the
strategy is public, for property tests. Before and after that, `walk` applies the reductions of `parity.generation.reductions`,
which change several parts of a case together where no single pick does. Both are limited in the number of cases they try.

Cases with one thing less: what the shrinker, which works on what was drawn, may leave in a least case.

The shrinker takes smaller choices for what was drawn, in the order of drawing. It can't take back a thing whose removal would
need another choice elsewhere, and it does not know which part of a case an aspect does not use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.core.case import Arg, Case, Cotangent, TensorSpec
from parity.core.errors import ParityError
from parity.core.notation import case_text
from parity.core.results import DERIVATIVES, Aspect
from parity.execution.values import MATRICES, specials
from parity.generation.generate import Drawn, decode
from parity.generation.reductions import ENOUGH, PASSES, Pass

if TYPE_CHECKING:
    from hypothesis import strategies as st

PICK_TRIES = 200  # limit for Hypothesis; on large cases it needs many more tries than the reductions
WALK_TRIES = 800  # limit for the reductions


@functools.lru_cache(maxsize=4096)
def _below(n: int) -> st.SearchStrategy[int]:
    from hypothesis import strategies as st

    return st.integers(0, n - 1)


def cases(row: Row, dtype: str, sizes: Sizes | None = None) -> st.SearchStrategy[Case]:
    """A Hypothesis strategy for cases of a row in a dtype, for property tests. sizes: default `Sizes()`.

    >>> hypothesis.find(parity.cases(ROWS["softmax"], "float32"), lambda case: True).op
    'softmax'
    """
    from hypothesis import strategies as st

    used = sizes or Sizes()

    @st.composite
    def strategy(draw: st.DrawFn) -> Case:
        return decode(row, dtype, lambda n: draw(_below(n)) if n > 1 else 0, used)

    return strategy()


# What a reduced case whose arguments no longer fit together may raise when it is built or run; it counts as not failing.
UNFIT = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, ParityError)


class _CachedCheck:
    """Whether a case fails, cached by its text. At most `tries` cases are run; all others count as not failing."""

    def __init__(self, fails: Callable[[Case], bool], tries: int) -> None:
        self.tries, self._fails, self._answers = tries, fails, dict[str, bool]()

    def __call__(self, case: Case) -> bool:
        text = case_text(case)  # not the case: True and 1 are equal, their texts differ
        if text not in self._answers:
            if self.tries <= 0:
                return False
            self.tries -= 1
            try:
                self._answers[text] = self._fails(case)
            except UNFIT:
                self._answers[text] = False
        return self._answers[text]


def shrink(row: Row, dtype: str, sizes: Sizes, drawn: Drawn, fails: Callable[[Case], bool]) -> Case | None:
    """The smallest failing case that is reached from `drawn`; None if that does not fail again.

    The reductions run first: they need fewer tries, and if they reach few elements there is nothing to gain. Otherwise
    Hypothesis shrinks the picks, and the smaller result is taken; a case without picks (a pinned one, or the simplest) skips
    this. If the row is unchecked, sizes must not change independently; then the picks come first, unless `Row.lesser` knows
    which sizes belong together.
    """
    check = _CachedCheck(fails, 1)
    if not check(drawn.case):
        return None

    def walked(case: Case) -> Case:
        check.tries = WALK_TRIES
        return walk(case, check, passes)

    # With inconsistent sizes an unchecked kernel would access memory outside its operands.
    passes = tuple(map(_keeping_sizes, PASSES)) if row.refuses.unchecked else PASSES
    passes = passes if row.draws.lesser is None else (row.draws.lesser, *passes)
    least = None if row.refuses.unchecked and row.draws.lesser is None and drawn.picks else walked(drawn.case)
    if least is None or (drawn.picks and least.numel > ENOUGH):
        check.tries = PICK_TRIES
        other = walked(_by_picks(cases(row, dtype, sizes), drawn.picks, check) or drawn.case)
        least = other if least is None else min(least, other, key=lambda c: (c.numel, len(case_text(c))))
    return least


class _NoTriesLeft(BaseException):
    """Stops Hypothesis when no tries are left. A BaseException, because Hypothesis takes an Exception for a failing example."""


def _by_picks(strategy: st.SearchStrategy[Case], picks: tuple[int, ...], fails: _CachedCheck) -> Case | None:
    """The case to which Hypothesis shrinks the picks; None if their case does not fail.

    The extra 0 after the picks is needed: Hypothesis takes an entry that replays exactly for already shrunk.
    """
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
    from hypothesis.errors import Flaky, NoSuchExample

    best: list[Case] = []

    def fails_and_keeps(case: Case) -> bool:
        if fails.tries <= 0:
            raise _NoTriesLeft
        if failed := fails(case):
            best[:] = [case]
        return failed

    database = InMemoryExampleDatabase()
    database.save(b"parity", choices_to_bytes((*picks, 0)))
    quiet = settings(
        database=database,
        phases=(Phase.reuse, Phase.shrink),
        max_examples=100_000,
        deadline=None,
        suppress_health_check=tuple(HealthCheck),
        derandomize=False,
    )
    try:
        return find(strategy, fails_and_keeps, settings=quiet, database_key=b"parity")
    except (NoSuchExample, Flaky):
        return None
    except _NoTriesLeft:
        return best[0] if best else None


def _without_contents(case: Case) -> str:
    """The call as text, without contents and layouts of the operands."""

    def bare(a: Arg) -> object:
        return a.shape if isinstance(a, TensorSpec) else tuple(map(bare, a)) if isinstance(a, tuple) else a

    return repr((tuple(map(bare, case.args)), tuple((n, bare(v)) for n, v in case.kwargs)))


def _keeping_sizes(reductions: Pass) -> Pass:
    """Only those reductions that change no size."""

    def kept(case: Case) -> Iterator[Case]:
        sizes = _without_contents(case)
        return (less for less in reductions(case) if _without_contents(less) == sizes)

    return kept


def walk(case: Case, fails: Callable[[Case], bool], passes: tuple[Pass, ...] = PASSES) -> Case:
    """Applies reductions until none of them gives a case that fails.

    After a success it continues with the next reduction and returns to the earlier ones in the next round, because reductions
    that failed before seldom succeed right after. No case is taken twice, because reductions can undo each other.
    """
    moved, taken = True, {case_text(case)}
    while moved:
        moved = False
        for reductions in passes:
            k, plainer = 0, reductions(case)
            while (less := next(plainer, None)) is not None:
                if less != case and (text := case_text(less)) not in taken and fails(less):
                    taken.add(text)
                    case, moved = less, True
                    plainer = islice(reductions(case), k, None)
                else:
                    k += 1
    return case


RARE = ("nan", "inf", "-inf", "max", "min", "0", "1", "subnormal")


def plainest(case: Case, aspect: Aspect, fails: Callable[[Case], bool]) -> Case:
    """The case without all that it can lose while it fails, one thing after another. fails: may return False for good once a
    time limit is over."""
    again = True
    while again:
        again = False
        for plainer in candidates(case, aspect):
            if fails(plainer):
                case, again = plainer, True
                break
    return case


def rare(case: Case) -> Iterator[Case]:
    """The cases with one rare value in place of all special ones, in each operand of numbers in turn."""
    specs = case.operands()
    for k, s in enumerate(specs):
        if s.values.literal is None and s.values.family not in (*MATRICES, "index", "unique", "sample") and s.numel:
            for word in (w for w in RARE if w in specials(s.dtype)):
                changed = replace(s, values=replace(s.values, specials=((0, word),)))
                yield case.with_operands([*specs[:k], changed, *specs[k + 1 :]])


def candidates(case: Case, aspect: Aspect) -> Iterator[Case]:
    """The cases with one thing less, those that lose most first."""
    unused = Cotangent() if aspect not in DERIVATIVES else replace(case.cotangent, layout="contiguous")
    parts = (
        {"into": "contiguous"}, {"after": ""}, {"sharing": ""}, {"under": "grad"}, {"cotangent": Cotangent()},
        {"cotangent": unused}, {"cotangent": replace(case.cotangent, seed=0)},
    )  # fmt: skip
    yield from (c for part in parts if (c := replace(case, **part)) != case)
    yield from (replace(case, kwargs=case.kwargs[:k] + case.kwargs[k + 1 :]) for k in range(len(case.kwargs)))
    specs = case.operands()
    for k, s in enumerate(specs):
        for plainer in _operands(s):
            yield case.with_operands([*specs[:k], plainer, *specs[k + 1 :]])


def _operands(s: TensorSpec) -> Iterator[TensorSpec]:
    v = s.values
    if s.layout:
        yield replace(s, layout=())
    if v.specials:
        yield replace(s, values=replace(v, specials=()))
    if s.on_cpu:
        yield replace(s, on_cpu=False)
    if not s.grad:
        yield replace(s, grad=True)
    if v.seed:
        yield replace(s, values=replace(v, seed=0))
    if len(s.layout) > 1:
        yield from (replace(s, layout=s.layout[:k] + s.layout[k + 1 :]) for k in range(len(s.layout)))
    if len(v.specials) > 1:
        yield from (
            replace(s, values=replace(v, specials=v.specials[:k] + v.specials[k + 1 :])) for k in range(len(v.specials))
        )
