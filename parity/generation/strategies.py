"""A Hypothesis strategy for tensors with parity's layouts and values, for property tests of a user's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st

from parity.catalog.draw import Arguments
from parity.catalog.row import Row
from parity.core.case import OpClass, TensorSpec, Values
from parity.core.dtypes import FACTS
from parity.core.errors import UsageError
from parity.execution.inputs import operand
from parity.generation.generate import SEEDS, layout_of
from parity.generation.planting import contents

MOST_DIMENSIONS, LONGEST = 4, 8  # of the shapes that are drawn where none is given
DTYPES = tuple(FACTS)
# How the values of a user's operand are drawn: as those of an elementwise function, which takes any.
ROW = Row(name="tensors", family="own", rule=OpClass.COMPOSITE, call="", signature=lambda draw: Arguments(()))


def tensors(
    shape: int | Sequence[int] | st.SearchStrategy[Sequence[int]] | None = None,
    dtype: str | torch.dtype | st.SearchStrategy[str] = "float32",
    *,
    layouts: bool = True,
    specials: bool = False,
    requires_grad: bool = False,
) -> st.SearchStrategy[torch.Tensor]:
    """A strategy for tensors on the CPU, as parity's suite draws its operands.

    shape: a shape, or a strategy for shapes; by default up to 4 dimensions of up to 8 elements. dtype: a name, a torch.dtype or
    a strategy for names. layouts: also transposed, permuted, stepped, sliced, offset, expanded and channels-last views.
    specials: also NaN, Inf, zeros of both signs, and the ends of the range. requires_grad: for floating and complex tensors.

    Raises UsageError for a dtype that parity does not compare.

    >>> hypothesis.find(parity.tensors((2, 3), "float16"), lambda t: True).shape
    torch.Size([2, 3])
    """
    shape = (shape,) if isinstance(shape, int) else shape
    shapes = st.lists(st.integers(0, LONGEST), max_size=MOST_DIMENSIONS) if shape is None else shape
    names = dtype if isinstance(dtype, st.SearchStrategy) else _name(dtype)

    @st.composite
    def strategy(draw: st.DrawFn) -> torch.Tensor:
        def pick(n: int) -> int:
            return draw(st.integers(0, n - 1)) if n > 1 else 0

        name = _name(draw(names)) if isinstance(names, st.SearchStrategy) else names
        size = tuple(draw(shapes)) if isinstance(shapes, st.SearchStrategy) else tuple(shapes)
        spec = TensorSpec(name, size, values=Values("any"))
        if layouts:
            spec = replace(spec, layout=layout_of(spec, 0, ROW, pick))
        (spec,) = contents([spec], ROW, pick)
        seeded = replace(spec.values, seed=pick(SEEDS), specials=spec.values.specials if specials else ())
        view = operand(replace(spec, values=seeded), 0).view
        return view.requires_grad_(requires_grad and FACTS[name].is_inexact)

    return strategy()


def _name(dtype: str | torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in FACTS:
        raise UsageError(f"unknown dtype '{name}'; allowed: {', '.join(DTYPES)}")
    return name
