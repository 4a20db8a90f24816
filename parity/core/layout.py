"""Layouts: the shape of the dense base that a view is taken from, and the strides of the view. Pure arithmetic;
`parity.execution.inputs` makes the tensors.

A layout is a tuple of steps, applied to the base in order. Each step is a name and integers:

    ("flat", before, after)      base is 1-d; skip `before` elements, leave `after` behind, view as the shape
    ("select", i, n)             base has a leading dimension n; take base[i]
    ("slice", dim, before, after)  narrow: `before` and `after` elements of the dimension are cut off
    ("step", dim, k, start)      base[..., start::k, ...]
    ("transpose", i, j)          exchange two dimensions
    ("permute", *dims)           base.permute(dims)
    ("channels_last",)           dense with the channel dimension last in memory (rank 3 to 5)
    ("expand", dim)              the dimension is 1 in the base, stride 0 in the view; only as the last steps
    ("conj",) ("neg",)           lazy conjugate or negative bit over a base that holds the opposite
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from parity.core.case import Layout, Step
from parity.core.errors import CaseError

Shape = tuple[int, ...]

ARITY = {
    "flat": 2, "select": 2, "slice": 3, "step": 3, "transpose": 2, "permute": None, "channels_last": 0, "expand": 1, "conj": 0,
    "neg": 0,
}  # fmt: skip
# Names for layouts of tensors whose shape is not known when the case is drawn: destinations and cotangents.
WORDS = ("contiguous", "offset", "transposed", "stepped", "step_outer", "columns", "rows", "reversed", "channels_last")
# For cotangents alone: strides of 0, as the backward of sum() and of a sum over a dimension passes them on.
EXPANDED = ("expanded", "expanded_first", "expanded_last")


def channels_last_permutation(rank: int) -> tuple[int, ...]:
    """The permutation that turns an NHWC base into an NCHW view."""
    return (0, rank - 1, *range(1, rank - 1))


def permutation(step: Step, rank: int) -> tuple[int, ...]:
    """The dims of a permuting step for a tensor of this rank."""
    word, *ints = step
    if word == "channels_last":
        return channels_last_permutation(rank)
    if word == "permute":
        return tuple(int(i) for i in ints)
    i, j = int(ints[0]) % rank, int(ints[1]) % rank
    order = list(range(rank))
    order[i], order[j] = order[j], order[i]
    return tuple(order)


def before(shape: Shape, step: Step) -> Shape:
    """The shape that a tensor must have so that `step` turns it into `shape`."""
    word, *ints = step
    a = [int(i) for i in ints]
    s = list(shape)
    if word == "flat":
        n = 1
        for d in shape:
            n *= d
        return (a[0] + n + a[1],)
    if word == "select":
        return (a[1], *shape)
    if word == "slice":
        s[a[0]] += a[1] + a[2]
    elif word == "step":
        s[a[0]] *= a[1]
    elif word == "expand":
        s[a[0]] = min(1, s[a[0]])
    elif word in ("transpose", "permute", "channels_last"):
        p = permutation(step, len(shape))
        for i, k in enumerate(p):
            s[k] = shape[i]
    return tuple(s)


@functools.lru_cache(maxsize=4096)
def base_shape(shape: Shape, layout: Layout) -> Shape:
    """Shape of the dense base of a view of `shape`."""
    for step in reversed(layout):
        shape = before(shape, step)
    return shape


@functools.lru_cache(maxsize=8192)
def form(shape: Shape, layout: Layout) -> tuple[tuple[int, ...], int] | None:
    """(strides, offset), in elements, of the view of `shape` in its dense base; None if a step sets a lazy bit."""
    strides, offset = list(dense(base_shape(shape, layout))), 0
    for k, (word, *ints) in enumerate(layout):
        i = [int(n) for n in ints]
        if word == "flat":
            apart = strides[0]
            strides, offset = [apart * n for n in dense(base_shape(shape, layout[k + 1 :]))], offset + i[0] * apart
        elif word == "select":
            offset += i[0] * strides.pop(0)
        elif word == "slice":
            offset += i[1] * strides[i[0]]
        elif word == "step":
            offset += i[2] * strides[i[0]]
            strides[i[0]] *= i[1]
        elif word == "expand":
            strides[i[0]] = 0 if shape[i[0]] > 1 else strides[i[0]]  # torch leaves the strides of size-1 dimensions
        elif word in ("conj", "neg"):
            return None
        else:
            strides = [strides[d] for d in permutation((word, *ints), len(strides))]
    return tuple(strides), offset


@functools.lru_cache(maxsize=4096)
def dense(shape: Shape) -> Shape:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return tuple(strides[::-1])


def strides_differ(shape: Shape, one: Shape, other: Shape) -> bool:
    """Whether two tensors of this shape have other strides; those of dimensions of size 1 and of empty tensors say nothing."""
    return one != other and 0 not in shape and any(a != b for a, b, n in zip(one, other, shape) if n > 1)


def memory_format(shape: Shape, strides: Shape) -> str:
    """How a tensor with these strides, in elements, lies in memory: "contiguous", "channels last" (the channels innermost, rank
    4 and 5), "permuted" (dense, in another order of the dimensions), "expanded" (with strides of 0) or "with gaps". Strides of
    dimensions of size 1 do not count."""

    def is_dense(order: Sequence[int]) -> bool:
        kept = [d for d in order if shape[d] > 1]
        return tuple(strides[d] for d in kept) == dense(tuple(shape[d] for d in kept))

    rank = len(shape)
    if is_dense(range(rank)):
        return "contiguous"
    if rank in (4, 5) and is_dense((0, *range(2, rank), 1)):
        return "channels last"
    if any(s == 0 and n > 1 for s, n in zip(strides, shape)):
        return "expanded"
    return "permuted" if is_dense(sorted(range(rank), key=lambda d: strides[d], reverse=True)) else "with gaps"


def check(shape: Shape, layout: Layout) -> None:
    """Raises CaseError if a step does not fit the shape."""
    for k in range(len(layout) - 1, -1, -1):
        step = layout[k]
        word, rank = step[0], len(shape)
        if word not in ARITY:
            raise CaseError(f"unknown layout '{word}' (known: {', '.join(ARITY)})")
        if ARITY[str(word)] not in (None, len(step) - 1):
            raise CaseError(f"layout '{word}' takes {ARITY[str(word)]} integers, got {list(step[1:])}")
        dims = step[1:2] if word in ("slice", "step", "expand") else step[1:] if word in ("transpose", "permute") else ()
        if any(not -rank <= int(d) < rank for d in dims):
            raise CaseError(f"layout {word}{step[1:]} does not fit a tensor of rank {rank}")
        if word == "permute" and sorted(int(d) for d in step[1:]) != list(range(rank)):
            raise CaseError(f"layout permute{step[1:]} is no permutation of {rank} dimensions")
        if word == "channels_last" and not 3 <= rank <= 5:
            raise CaseError(f"layout channels_last needs rank 3 to 5, got {rank}")
        if word == "step" and (int(step[2]) < 1 or not 0 <= int(step[3]) < int(step[2])):
            raise CaseError(f"layout step{step[1:]}: needs a step of 1 or more and 0 <= start < step")
        if word == "select" and not 0 <= int(step[1]) < int(step[2]):
            raise CaseError(f"layout select{step[1:]}: the index must lie inside the extent")
        if word == "expand" and any(s[0] != "expand" for s in layout[k + 1 :]):
            raise CaseError("layout expand must come last")
        shape = before(shape, step)


@functools.lru_cache(maxsize=4096)
def named(word: str, shape: Shape) -> Layout:
    """The layout with this name (`WORDS`, `EXPANDED`) for a shape; contiguous if the rank of the shape is too small for it."""
    rank = len(shape)
    if word == "offset":
        return (("flat", 3, 1),)
    if word == "expanded":
        return tuple(("expand", d) for d in range(rank))
    if rank >= 1:
        if word == "stepped":
            return (("step", -1, 2, 0),)
        if word == "step_outer":
            return (("step", 0, 2, 1),)
        if word == "columns":
            return (("slice", -1, 1, 1),)
        if word == "rows":
            return (("slice", 0, 1, 1),)
        if word == "expanded_first":
            return (("expand", 0),)
        if word == "expanded_last":
            return (("expand", -1),)
    if rank >= 2:
        if word == "transposed":
            return (("transpose", -2, -1),)
        if word == "reversed":
            return (("permute", *reversed(range(rank))),)
    if word == "channels_last" and 3 <= rank <= 5:
        return (("channels_last",),)
    return ()


def overlaps(layout: Layout) -> bool:
    """Whether elements of the view share memory, so that torch refuses to write into it."""
    return any(step[0] == "expand" for step in layout)
