"""How many pairs of an op and a dtype were effectively compared, in the unit of torch's own suite: OpInfo entry x dtype.

A native row counts under the entry that it covers, and extra only where OpInfo lacks its op. A pair counts in an aspect where
a record of that aspect holds a comparison; whatever else was drawn, refused or void, does not count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parity.catalog import opinfo
from parity.catalog.row import Row
from parity.checking.derivatives import TWICE, promises
from parity.checking.gauge import GAUGES
from parity.judging.relations import GAUGE_DEPENDENT
from parity.vocabulary import COMPARED, Aspect, Status

ASPECTS = (Aspect.FORWARD, Aspect.BACKWARD, Aspect.INPLACE, Aspect.OUT, Aspect.DOUBLE)
TRIES = 10  # cases of an item that are drawn before an aspect without a comparison is given up
# What torch 2.13's TestConsistency (test/test_mps.py, CPU against MPS in the same dtype) compares, its skips and expected
# failures taken off.
TEST_MPS = {Aspect.FORWARD: 4432, Aspect.BACKWARD: 883, Aspect.INPLACE: 0, Aspect.OUT: 0, Aspect.DOUBLE: 0}
# Rows without an entry of their own whose op OpInfo has under quite another name, or that another row without an entry is a
# variant of: they count there, and are no op more.
UNDER: dict[str, str] = {
    "rfloordiv": "floor_divide",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "unique_rows": "unique_consecutive",
    "attention_banned": "nn.functional.scaled_dot_product_attention",
    "attention_dropout": "nn.functional.scaled_dot_product_attention",
    "nll_loss_forward": "nn.functional.nll_loss",
    "nll_loss2d_forward": "nn.functional.nll_loss",
    "softmax_backward": "_softmax_backward_data",
    "upsample_linear1d": "nn.functional.interpolate:linear",
    "upsample_bilinear2d": "nn.functional.interpolate:bilinear",
    "upsample_bicubic2d": "nn.functional.interpolate:bicubic",
    "upsample_trilinear3d": "nn.functional.interpolate:trilinear",
    "im2col": "nn.functional.unfold",
    "col2im": "fold",
    "index": "__getitem__",
    "getitem_advanced": "__getitem__",
    "index_put_kernel": "index_put",
    "setitem_advanced": "setitem",
    "feature_dropout_": "nn.functional.dropout2d",
    "feature_alpha_dropout_": "nn.functional.feature_alpha_dropout:with_train",
    "lstm_dropout": "lstm",
    "lstm_output": "lstm",
    "lstm_packed": "lstm",
    "lstm_states": "lstm",
    "gru_packed": "gru",
    "attention_autocast": "nn.functional.scaled_dot_product_attention",
    "attention_packed": "nn.functional.scaled_dot_product_attention",
    "attention_turned": "nn.functional.scaled_dot_product_attention",
    "copy_from": "copy_",
    "reshape_alias": "view",
    "log_sigmoid_forward_written": "nn.functional.logsigmoid",
    "randperm_written": "randperm",
    "range_written": "range",
    "fused_rms_norm": "nn.functional.rms_norm",
    "solve_info": "linalg.solve_ex",
    "inv_info": "linalg.inv_ex",
    "cholesky_info": "linalg.cholesky_ex",
    "lu_factor_info": "linalg.lu_factor_ex",
    "native_dropout": "nn.functional.dropout",
}
# The same by how their names begin.
KINDS = {
    "upsample_nearest": "nn.functional.upsample_nearest",
    "_upsample_nearest_exact": "nn.functional.interpolate:nearest-exact",
    "reflection_pad": "nn.functional.pad:reflect",
    "replication_pad": "nn.functional.pad:replicate",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
}
# What rows append to an op's name for another way to call it.
SUFFIXES = (
    "kernel", "written", "train", "running", "sampled", "limited", "number", "edges", "dims", "zeros", "fractional",
    "autocast", "packed", "turned", "without", "statistics", "channels", "last", "cross",
)  # fmt: skip


@functools.cache
def _last_words() -> dict[str, str]:
    """Last word of an entry's name -> entry: plain ones before variants, torch's own names before those of its parts."""
    order = sorted(opinfo.ENTRIES, key=lambda key: (":" in key, key.count("."), not key.startswith("nn.")))
    found: dict[str, str] = {}
    for key in order:
        last = key.partition(":")[0].rpartition(".")[2]
        found.setdefault(last if last.startswith("__") else last.strip("_"), key)
    return found


def units(row: Row) -> tuple[str, ...]:
    """What the row counts under: OpInfo entries, or an op of its own that OpInfo lacks."""
    if row.opinfo:
        return row.opinfo
    if row.name in UNDER:
        return (UNDER[row.name],)
    kind = next((entry for start, entry in KINDS.items() if row.name.startswith(start)), "")
    if kind and not row.name.removesuffix("_written").endswith("_backward"):
        return (kind,)
    bare = row.call.removeprefix("torch.").removeprefix("Tensor.")
    if exact := next((n for n in (bare, bare.rstrip("_")) if n in opinfo.ENTRIES), ""):
        return (exact,)
    return (next((_last_words()[n] for n in _names(row) if n in _last_words()), row.name),)


def _names(row: Row) -> tuple[str, ...]:
    """Names under which the row's op may be known: its own, with or without what it appends, and its function's."""
    own = row.name
    while "_" in own and own.rpartition("_")[2] in SUFFIXES:
        own = own.rpartition("_")[0]
    function = "" if row.call.startswith("operator.") else row.call.rpartition(".")[2]
    return own.strip("_"), own.rpartition(".")[2].strip("_"), function.strip("_")


def applies(unit: str, dtype: str, aspect: Aspect) -> bool:
    """Whether OpInfo says that a pair has this aspect on the CPU; False for what is no entry."""
    e = opinfo.ENTRIES.get(unit, opinfo.Entry())
    return {
        Aspect.FORWARD: dtype in e.dtypes,
        Aspect.BACKWARD: dtype in e.backward,
        Aspect.INPLACE: e.inplace and dtype in e.dtypes,
        Aspect.OUT: e.out and dtype in e.dtypes,
        Aspect.DOUBLE: e.gradgrad and dtype in e.backward,
    }[aspect]


def lacking(row: Row, dtype: str, aspect: Aspect) -> str:
    """Why no case of a row in a dtype can come to an aspect; "" where one can."""
    if aspect is Aspect.FORWARD:
        return ""
    if aspect is Aspect.INPLACE:
        return "" if row.mutates or row.inplace else "the row has no in-place form"
    if row.mutates and aspect is not Aspect.BACKWARD:
        return "the op itself writes into its first operand"
    if aspect is Aspect.OUT:
        return "" if row.out else "the row has no out= form"
    if row.relation in GAUGE_DEPENDENT and row.relation not in GAUGES:
        return f"gradients of several right answers ({row.relation}) are not compared"
    if dtype not in row.grad:
        return "the row has no gradient in this dtype"
    if aspect is Aspect.DOUBLE and dtype not in TWICE:
        return f"second derivatives are compared in {', '.join(TWICE)}"
    return "" if aspect is Aspect.BACKWARD or promises(row, "gradgrad") else "torch has no second derivative"


def reached(row: Row, dtype: str, counts: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether every aspect that the row can come to holds a comparison. counts: aspect -> status -> records."""
    first = Aspect.INPLACE if row.mutates else Aspect.FORWARD
    wanted = (a for a in (first, *ASPECTS[1:]) if not lacking(row, dtype, a))
    return all(any(s in COMPARED for s in counts.get(a, ())) for a in wanted)


# ---------------------------------------------------------------------------------------------------------- the count


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run knows of one item. counts: aspect -> status -> records; void: reason -> cases."""

    row: Row
    dtype: str
    counts: Mapping[str, Mapping[str, int]]
    void: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair in one aspect. state: compared, void or not reached. entry: whether OpInfo itself has the pair in this aspect.
    by: which sources compared it ("native", "opinfo")."""

    unit: str
    dtype: str
    aspect: Aspect
    state: str
    entry: bool
    by: frozenset[str] = frozenset()
    reason: str = ""


def tally(seen: Iterable[Seen], units_asked: Iterable[tuple[str, str]] = ()) -> tuple[Pair, ...]:
    """All pairs of what was seen, and of `units_asked` (OpInfo entry, dtype) where nothing was seen of them, in every aspect
    that they have."""
    of: dict[tuple[str, str], list[Seen]] = {pair: [] for pair in units_asked}
    for s in seen:
        for unit in units(s.row):
            of.setdefault((unit, s.dtype), []).append(s)
    made = []
    for (unit, dtype), some in of.items():
        for aspect in ASPECTS:
            entry = applies(unit, dtype, aspect)
            pair = _pair(unit, dtype, aspect, entry, some)
            if entry or pair.state == "compared" or any(not lacking(s.row, dtype, aspect) for s in some):
                made.append(pair)
    return tuple(made)


def _pair(unit: str, dtype: str, aspect: Aspect, entry: bool, some: list[Seen]) -> Pair:
    by = frozenset(_source(s.row) for s in some if COMPARED & set(_records(s, unit, aspect)))
    if by:
        return Pair(unit, dtype, aspect, "compared", entry, by)
    if not some:
        return Pair(unit, dtype, aspect, "not reached", entry, reason=opinfo.OUT_OF_REACH.get(unit, "not selected"))
    able = [s for s in some if not lacking(s.row, dtype, aspect)]
    if not able:
        return Pair(unit, dtype, aspect, "not reached", entry, reason=lacking(some[-1].row, dtype, aspect))
    told = {status for s in able for status in _records(s, unit, aspect)}
    void = next((why for s in able for why in s.void), "")
    if Status.VOID in told or not any(s.counts for s in able):
        return Pair(unit, dtype, aspect, "void", entry, reason=void or "no case could be drawn")
    others = ", ".join(sorted(told))
    return Pair(unit, dtype, aspect, "not reached", entry, reason=others or f"none of {TRIES} cases came to it")


def _records(s: Seen, unit: str, aspect: Aspect) -> Mapping[str, int]:
    """Status -> records of an aspect. Where an entry's own callable writes into its operand, that is its forward too."""
    told = s.counts.get(aspect, {})
    if aspect is Aspect.FORWARD and not told and s.row.mutates and (unit in opinfo.MUTATES or unit not in opinfo.ENTRIES):
        return s.counts.get(Aspect.INPLACE, {})
    return told


def _source(row: Row) -> str:
    return "opinfo" if row.family == "opinfo" else "native"
