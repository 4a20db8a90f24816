"""Cases with one thing less: what the shrinker, which works on what was drawn, may leave in a least case.

The shrinker takes smaller choices for what was drawn, in the order of drawing. It can't take back a thing whose removal would
need another choice elsewhere, and it does not know which part of a case an aspect does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from parity.core.case import Case, Cotangent, TensorSpec
from parity.core.results import DERIVATIVES, Aspect
from parity.execution.values import MATRICES, specials

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
