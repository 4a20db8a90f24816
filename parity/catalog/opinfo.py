"""Adapter to torch's own test data (OpInfo): its samples give the operands; layouts and the rest are drawn as for other rows.

`opinfo_names.json` lists the entries, so that rows exist without importing torch; `tests/meta/torch_lists.py` regenerates
it. OpInfo is private, changes between versions, and importing it freezes `torch.backends` flags, so the first sample loads it.
A sample's `output_process_fn_grad`, which hides phases and ambiguities, is not used; the relations of the rows replace it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.catalog import opinfo_rules as rules
from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import Counts, Draws, Forms, Judged, Quirk, Refuses, Row
from parity.catalog.samples import (
    Sample,
    digest_of,
    draw_sample,
    dtype_of,
    evenly,
    generators,
    not_imported,
    outline,
    rebuilt,
    runs_dense,
    sample_of,
    stored,
    torch_version,
)
from parity.catalog.samples import tensors_of as tensors_of
from parity.core.case import OpClass, entry_of
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, near

PREFIX = "opinfo:"
NAMES = Path(__file__).with_name("opinfo_names.json")
LARGEST = 200_000  # elements; larger samples are left out
OUT_OF_RANGE = ("out of bounds", "index out of range")  # messages of the CPU for indices, but not for dims
KEPT = 64  # samples per op and dtype, evenly spaced


@dataclass(frozen=True, slots=True)
class OpInfoEntry:
    """Facts about an OpInfo entry, without importing it. dtypes, backward: on the CPU, of those that parity covers."""

    dtypes: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    out: bool = False
    inplace: bool = False
    gradgrad: bool = False
    forward_ad: bool = False


def _entry(tree: dict[str, Any]) -> OpInfoEntry:
    flags = tree.get("flags", "").split()
    return OpInfoEntry(
        dtypes=tuple(tree.get("dtypes", "").split()),
        backward=tuple(tree.get("backward", "").split()),
        out="out" in flags,
        inplace="inplace" in flags,
        gradgrad="gradgrad" in flags,
        forward_ad="forward_ad" in flags,
    )


ENTRIES: dict[str, OpInfoEntry] = {name: _entry(tree) for name, tree in stored(NAMES)["entries"].items()}

MUTATES = rules.MUTATES
OUT_OF_REACH: dict[str, str] = {
    **{name: "no dtype of parity's on the CPU" for name, entry in ENTRIES.items() if not entry.dtypes},
    **rules.OUT_OF_REACH,
}


def rows() -> tuple[Row, ...]:
    """A row named "opinfo:<entry>" per entry, without those in `OUT_OF_REACH`."""
    return tuple(_as_row(key, entry) for key, entry in ENTRIES.items() if key not in OUT_OF_REACH)


def _as_row(key: str, entry: OpInfoEntry) -> Row:
    base = key.partition(":")[0]
    known = key if key in rules.RULE_OF or key in rules.RELATION_OF else base
    rule, relation = rules.RELATION_OF.get(known, (rules.RULE_OF.get(known, OpClass.COMPOSITE), ""))
    relation = "order" if base in rules.ORDER else relation
    mutates = key in rules.MUTATES
    quirks = {
        Quirk.MEMORY: base in rules.MEMORY,
        Quirk.RUNNING: base in rules.RUNNING,
        Quirk.DENSE: base.endswith("batch_norm"),
        Quirk.UNFROZEN: base.endswith("group_norm"),
    }
    return Row(
        name=PREFIX + key,
        family="opinfo",
        rule=rule,
        call=PREFIX + key,
        signature=functools.partial(_draw, key),
        dtypes=entry.dtypes,
        grad=() if mutates else entry.backward,
        forms=Forms(
            inplace=PREFIX + key if entry.inplace and not mutates else "",
            out=entry.out and base not in rules.UNSAFE_OUT and base not in rules.FIRST_ONLY,
            mutates=mutates,
            updates=base in rules.UPDATES.split(),
        ),
        draws=Draws(
            finite=base in rules.FINITE_ONLY.split() or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
            choices=rules.CHOICES.get(key) or rules.CHOICES.get(base, ()),
            places=base in rules.WRITES_AT.split() or key in (*rules.OF_A_RANK, *rules.CHANCES),
            packed=6 if key in rules.PACKED else 0,
            unexpanded=base in ("median", "nanmedian", "masked.median") or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
            spatial=_spatial(base),
            nondeterministic=("uint8",) if base in rules.RESIZED else (),
        ),
        refuses=Refuses(unchecked=base.startswith(("_", "native_")) and not base.startswith("__")),
        judged=_judged(key, relation),
        counts=Counts((key,)),
        quirks=tuple(quirk for quirk, holds in quirks.items() if holds),
    )


def _judged(key: str, relation: str) -> Judged:
    base, _, variant = key.partition(":")
    plain_name = rules.SAME_KERNEL.get(base, base.removeprefix("masked."))
    # A variant may be another function (division that rounds down); the ULP tables have only the plain ones.
    plain = variant in ("", "no_rounding_mode")
    return Judged(
        relation=relation,
        rounds_between=not {key, base, plain_name}.isdisjoint(rules.ROUNDS_BETWEEN),
        accumulates=rules.ACCUMULATES.get(key) or rules.ACCUMULATES.get(plain_name, ()),
        stages=rules.STAGES.get(key, ()),
        ulp=rules.ULP_NAMES.get(base, base.split(".")[-1]) if plain else key,
        oracle="exact" if key in rules.DTYPE_BOUND or base in rules.DTYPE_BOUND else "wide",
        law=rules.LAWS.get(key, ""),
        transform=base in rules.TRANSFORMS or base.startswith("fft."),
        gauss=base.startswith("nn.functional.conv"),
        by_norm=base in rules.BY_NORM.split(),
        bias=rules.BIAS.get(base),
    )


def _spatial(base: str) -> int:
    """The number of dimensions of a pooling entry, from the end of its name; 0 for other entries."""
    return int(base[-2]) if "pool" in base and base.endswith(("1d", "2d", "3d")) else 0


def _draw(key: str, draw: Draw) -> Arguments:
    """One of the entry's samples."""
    return draw_sample(samples(key, draw.dtype), draw, on_cpu=key == "tensor_split")


# --------------------------------------------------------------------------------------------------------- with torch


@functools.cache
def database() -> dict[str, Any]:
    """All OpInfos by key. Raises CaseError if they cannot be imported."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except Exception as e:
        raise not_imported("torch's OpInfos", e) from e
    return {info.name + (f":{info.variant_test_name}" if info.variant_test_name else ""): info for info in op_db}


def _info(name: str) -> Any:
    key = entry_of(name)
    if key not in database():
        raise CaseError(f"torch {torch_version()} has no OpInfo '{key}'; {near(key, database()) or 'see parity run --list'}")
    return database()[key]


def callables(name: str) -> tuple[Callable[..., Any], Callable[..., Any] | None, bool]:
    """The function of an entry, its in-place form or None, and whether it takes out=. Raises CaseError."""
    info = _info(name)
    function: Callable[..., Any] = info.op
    if entry_of(name) in rules.FIRST_ONLY:

        def function(*args: Any, **kwargs: Any) -> Any:
            return info.op(*args, **kwargs)[0]

    return function, info.inplace_variant, bool(info.supports_out) and entry_of(name) not in rules.FIRST_ONLY


@functools.lru_cache(maxsize=4)
def samples(key: str, dtype: str) -> dict[int, Sample]:
    """The samples of an entry in a dtype by their index in OpInfo's own order. Raises CaseError."""
    info = _info(key)
    fit = {index: s for index, s in enumerate(_make_samples(info, dtype, grad=False)) if _fits(key, s)}
    if not fit:
        raise CaseError(f"OpInfo '{key}' has no sample in {dtype} that parity can take; choose another dtype or op")
    graded = list(_make_samples(info, dtype, grad=True)) if dtype in ENTRIES.get(key, OpInfoEntry()).backward else []
    # With gradients some entries give other samples. Their flags cannot be matched, so all inexact tensors get a gradient.
    match = [list(map(outline, tensors_of(g))) for g in graded]
    kept = {}
    for index in evenly(list(fit), KEPT):
        tensors = tuple(tensors_of(fit[index]))
        grads = tuple(FACTS[dtype_of(t)].is_inexact for t in tensors)
        if index < len(match) and match[index] == list(map(outline, tensors)):
            grads = tuple(bool(t.requires_grad) for t in tensors_of(graded[index]))
        args, kwargs = fit[index]
        kept[index] = Sample(args, kwargs, tensors, grads, digest_of((args, kwargs), tensors))
    return kept


@functools.lru_cache(maxsize=64)
def errors(key: str) -> dict[int, Sample]:
    """OpInfo's error inputs by index -1, -2 ...; only those that the CPU also refuses with dense operands.

    Empty if the entry has none, or fails to make them. Raises CaseError if OpInfo cannot be imported.
    """
    import torch

    def dense(x: Any) -> Any:
        return x.detach().clone(memory_format=torch.contiguous_format) if isinstance(x, torch.Tensor) else x

    info, kept = _info(key), dict[int, Sample]()
    for k, (args, kwargs) in enumerate(_error_inputs(info)):
        tensors = tuple(tensors_of((args, kwargs)))
        if not _fits(key, (args, kwargs)) or any(t.device.type != "cpu" for t in tensors):
            continue
        try:
            again = rebuilt((args, kwargs), dense)
            with warnings.catch_warnings(action="ignore"):
                info.op(*again[0], **again[1])
        except Exception as e:
            out = any(word in str(e) for word in OUT_OF_RANGE)
            kept[-1 - k] = sample_of(args, kwargs, lambda t: False, out)
    return kept


def _error_inputs(info: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all error inputs, with seeded generators."""
    with generators(seeded=True), contextlib.suppress(Exception):
        stream = () if info.error_inputs_func is None else info.error_inputs("cpu")
        return [((e.sample_input.input, *e.sample_input.args), dict(e.sample_input.kwargs)) for e in stream]
    return []


def raw_samples(name: str, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all samples of an entry as OpInfo makes them, including large ones. Raises CaseError."""
    return _make_samples(_info(name), dtype, grad)


def _make_samples(info: Any, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all samples; restores the global generators. Raises CaseError."""
    import torch

    with generators():
        try:
            stream = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=grad, set_seed=True)
            stream.test_fn = None  # otherwise a unittest on the stack seeds the samples by its name
            return [((s.input, *s.args), dict(s.kwargs)) for s in stream]
        except Exception as e:
            raise CaseError(f"OpInfo '{info.name}' cannot make its samples in {dtype}: {type(e).__name__}: {e}") from e


def _fits(key: str, sample: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a sample can be used: strided tensors of known dtypes, not too large, no reads outside them, no dropout."""
    import torch

    tensors = list(tensors_of(sample))
    drops = sample[1].get("dropout_p") or (key.endswith("multi_head_attention_forward") and sample[1].get("training"))
    known = all(t.layout is torch.strided and dtype_of(t) in FACTS for t in tensors)
    small = sum(t.numel() for t in tensors) <= LARGEST
    return known and small and not drops and (key.partition(":")[0] not in rules.MEMORY or runs_dense(_info(key).op, sample))
