"""A failing case -> the least one. The only module that knows Hypothesis.

Hypothesis shrinks from the picks of the failing case over `cases(...)`, the same decode as the search's as a strategy; the
strategy is public, for people's own property tests. Before and behind it the case is walked down the reductions of
`parity.generation.plainer`, which change several parts together where no single pick does. All are bounded in their tries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import islice

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.errors import Flaky, NoSuchExample

from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.checking.prelude import unchecked
from parity.errors import ParityError
from parity.generation.generate import Drawn, decode
from parity.generation.plainer import ENOUGH, PASSES, Pass, elements
from parity.notation import case_text
from parity.vocabulary import Arg, Case, TensorSpec

PICK_TRIES = 200  # cases that Hypothesis may try; from far above it needs many more than the reductions do
WALK_TRIES = 800  # cases that may be tried along the reductions


@functools.lru_cache(maxsize=4096)
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


def cases(row: Row, dtype: str, sizes: Sizes | None = None) -> st.SearchStrategy[Case]:
    """A Hypothesis strategy of cases of a row, for property tests of one's own."""
    used = sizes or Sizes()

    @st.composite
    def strategy(draw: st.DrawFn) -> Case:
        return decode(row, dtype, lambda n: draw(_below(n)) if n > 1 else 0, used)

    return strategy()


ALL_HEALTH_CHECKS = tuple(HealthCheck)
# What building or calling a reduced case may raise whose arguments no longer belong together: such a case is of no use.
UNFIT = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, ParityError)


class _Asked:
    """Answers, each case asked once; `tries` cases at most, and all others do not fail."""

    def __init__(self, fails: Callable[[Case], bool], tries: int) -> None:
        self.tries, self._fails, self._answers = tries, fails, dict[str, bool]()

    def __call__(self, case: Case) -> bool:
        text = case_text(case)  # True and 1 are equal, their texts are not
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
    """The least case that fails, started from a failing one; None where it does not fail again.

    The reductions come first: they need fewer tries, and where they lead to few elements there is no more to gain. Where they
    get stuck, Hypothesis starts from the picks, and the lesser of the two counts; a case without picks (a pinned one, and the
    simplest) has none to start from. Where sizes must not change alone, because nobody checks them, the picks come first,
    unless the row itself knows which of them belong together (`Row.lesser`).
    """
    asked = _Asked(fails, 1)
    if not asked(drawn.case):
        return None

    def walked(case: Case) -> Case:
        asked.tries = WALK_TRIES
        return walk(case, asked, passes)

    # With other sizes an unchecked kernel would read and write beside its operands.
    passes = tuple(map(_of_one_size, PASSES)) if unchecked(row) else PASSES
    passes = passes if row.lesser is None else (row.lesser, *passes)
    found = None if unchecked(row) and row.lesser is None and drawn.picks else walked(drawn.case)
    if found is None or (drawn.picks and elements(found) > ENOUGH):
        asked.tries = PICK_TRIES
        other = walked(_by_picks(cases(row, dtype, sizes), drawn.picks, asked) or drawn.case)
        found = other if found is None else min(found, other, key=lambda c: (elements(c), len(case_text(c))))
    return found


class _Enough(BaseException):
    """No tries are left. Hypothesis would go on for five minutes: of exceptions, it takes all that are errors for failures."""


def _by_picks(strategy: st.SearchStrategy[Case], picks: tuple[int, ...], fails: _Asked) -> Case | None:
    """What Hypothesis makes of the picks; None where their case does not fail.

    The surplus 0 behind the picks matters: an entry that replays exactly is taken for already shrunk and returned as it is.
    """
    best: list[Case] = []

    def hears(case: Case) -> bool:
        if fails.tries <= 0:
            raise _Enough
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
        suppress_health_check=ALL_HEALTH_CHECKS,
        derandomize=False,
    )
    try:
        return find(strategy, hears, settings=quiet, database_key=b"parity")
    except (NoSuchExample, Flaky):
        return None
    except _Enough:
        return best[0] if best else None


def _sizes(case: Case) -> str:
    """All of a call but what its operands hold and how they lie."""

    def bare(a: Arg) -> object:
        return a.shape if isinstance(a, TensorSpec) else tuple(map(bare, a)) if isinstance(a, tuple) else a

    return repr((tuple(map(bare, case.args)), tuple((n, bare(v)) for n, v in case.kwargs)))


def _of_one_size(reductions: Pass) -> Pass:
    """Those reductions alone that leave all sizes as they are."""

    def kept(case: Case) -> Iterator[Case]:
        sizes = _sizes(case)
        return (less for less in reductions(case) if _sizes(less) == sizes)

    return kept


def walk(case: Case, fails: Callable[[Case], bool], passes: tuple[Pass, ...] = PASSES) -> Case:
    """Down the reductions until none of them leaves a case that fails.

    After a success the walk goes on where it stands and comes back to the rest in the next round, because what was of no use
    before seldom is of use behind it. No case is taken twice: what one reduction makes less, another one may make more.
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
