"""Calls that an op refuses for a reason of its own: arguments that contradict one another or make no sense, matrices without
factors, sizes that do not fit, operands on two devices.

Only checks that torch makes in the operator or leaves to the kernel are listed. Checks in Python are the same for every device,
so they would test nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from parity.catalog.row import Quirk, Row, Wrong
from parity.core.case import Arg, Case, TensorSpec, Values

ErrorInput = tuple[str, Callable[[], Case]]
# Families in which every operator requires its operands on one device.
ONE_DEVICE = ("contractions", "linalg", "convolutions", "normalization", "losses", "attention")


def calls(row: Row, case: Case) -> Iterator[ErrorInput]:
    """(kind of error from `parity.core.case.ERROR_KINDS`, function that builds the case) for each that fits the case."""
    first = case.args[0] if case.args else None
    if not isinstance(first, TensorSpec):
        return
    some_empty = not all(s.numel for s in case.args if isinstance(s, TensorSpec))
    if first.shape and (row.refuses.fits == "always" or (row.refuses.fits == "filled" and not some_empty)):
        longer = replace(first, shape=(*first.shape[:-1], first.shape[-1] + 1))
        yield "shape", lambda: replace(case, args=(longer, *case.args[1:]))
    if some_empty:
        return  # some ops return before their checks if there are no elements
    for w in row.refuses.wrong:
        if _fits(w, case):
            yield w.word, lambda w=w: _with(case, w)  # type: ignore[misc]  # bound early
    if Quirk.CHANCES in row.quirks:
        place = max(k for k, a in enumerate(case.args) if isinstance(a, TensorSpec))
        yield "chance", lambda: replace(case, args=tuple(_negative(a) if k == place else a for k, a in enumerate(case.args)))
    if row.refuses.raises_on and min(first.shape[-2:]) > 1:
        number = -1 if row.refuses.raises_on == "indefinite" else 1  # a matrix of equal numbers is singular
        equal = replace(first, values=Values("inside", (number, number)), grad=False)
        yield "value", lambda: replace(case, args=(equal, *case.args[1:]))
        if row.refuses.raises_on == "indefinite":  # only the last matrix of a stack, by its last pivot or by a NaN
            for word in ("-1", "nan"):
                yield "value", lambda word=word: replace(case, args=(_last_pivot(first, word), *case.args[1:]))  # type: ignore[misc]
    if row.family in ONE_DEVICE and row.draws.on_cpu != "all" and first.shape:
        shaped = [k for k, a in enumerate(case.args) if k and isinstance(a, TensorSpec) and a.shape]
        if shaped:
            yield (
                "device",
                lambda: replace(case, args=tuple(_apart(a) if k == shaped[0] else a for k, a in enumerate(case.args))),
            )


def _last_pivot(matrices: TensorSpec, word: str) -> TensorSpec:
    """The matrices with this number in the last place of the diagonal of the last one."""
    v = matrices.values
    return replace(matrices, values=replace(v, specials=(*v.specials, (matrices.numel - 1, word))), grad=False)


def _negative(operand: Arg) -> Arg:
    assert isinstance(operand, TensorSpec)
    return replace(operand, values=Values("inside", (-1, -1)), grad=False)


def _apart(operand: Arg) -> Arg:
    assert isinstance(operand, TensorSpec)
    return replace(operand, on_cpu=True)


def _fits(wrong: Wrong, case: Case) -> bool:
    """Whether the case has the argument to replace, and the keyword without which the value would be legal."""
    if isinstance(wrong.where, int):
        return len(case.args) > wrong.where
    return not wrong.needs or wrong.needs in dict(case.kwargs)


def _with(case: Case, wrong: Wrong) -> Case:
    where = wrong.where
    if isinstance(where, int):
        return replace(case, args=tuple(wrong.value if k == where else a for k, a in enumerate(case.args)))
    return replace(case, kwargs=(*((n, v) for n, v in case.kwargs if n != where), (where, wrong.value)))
