"""Finds the rows of the catalog that concern a fault: by name, and by what each row was recorded to call on a healthy
device."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.catalog import opinfo
from parity.catalog.row import Row
from parity.checks.check import Settings, check, quiet
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError
from parity.core.observer import Functions
from parity.devices import Fault
from parity.devices.sim import SimDevice
from parity.devices.sim.device import DUNDERS, answers_to, public_name
from parity.devices.sim.seats import ALSO_CALLED
from parity.engine import suite
from parity.engine.planning import RunPlan
from parity.execution import execute as ex
from parity.execution.inputs import build
from parity.generation import generate
from parity.zoo.subjects import FaultSubject

RECORDED = {"float": 4, "complex": 1, "int": 1, "bool": 1}  # cases to record, per kind of dtype
USING = 12  # rows that call the faulty op, in addition to those named like it
COMPOSITES, BYSTANDERS = 2, 3
# Every op uploads, downloads and allocates, so such faults are searched for in rows with all kinds of layouts.
SPREAD = (
    *("to", "copy_", "clone", "contiguous", "neg", "add", "sum_dim", "cat", "transpose", "expand", "setitem", "index_select"),
    *("where", "matmul", "softmax", "real", "conj", "view_as_real", "getitem", "empty_like", "zeros_like", "repeat"),
)
# Glue rows test few functions; methods, and functions that make operands, do not count.
GLUE, METHODS, SPELLED = "parity.", "torch.Tensor.", 2
PREPARING = ("zeros", "zeros_like", "ones_like", "empty", "tensor", "full_like", "eye", "arange", "cat", "maximum")
KERNELS = {"convolution": "convolution", "transposed": "convolution"}  # by `Row.mps`
_PREFIXES = ("native_", "linalg_", "fft_", "special_")
_SUFFIXES = ("_backward", "_backward_data", "_backward_overrideable", "_overrideable", "_forward", "_ex", "_impl")


@dataclass(frozen=True, slots=True)
class Reach:
    """What a row calls. kernels: aten overloads in forward and backward, with in-place and out= forms; functions: public
    names."""

    kernels: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Route:
    """Where to look for one fault, as names of rows.

    named: rows of its ops. using: rows that call its ops, tried if the named rows show nothing. composites: rows of other ops
    that use its ops; findings there are reported separately. bystanders: rows that never reach it. entries: the OpInfo entries
    of its ops. absent: rows that the fault names but this profile does not run.
    """

    named: tuple[str, ...] = ()
    using: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    bystanders: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------------- recording


def record(row: Row, device: SimDevice, plan: RunPlan) -> Reach:
    """Record what a row calls in a few of its cases on a healthy simulated device, whose log is used for it."""
    kernels: list[str] = []
    names: set[str | None] = {public_name(f) for f in (ex.program(row).function, ex.program(row).inplace) if f is not None}

    def named(func: Any, args: Any, kwargs: Any) -> Any:
        names.add(public_name(func))
        return func(*args, **kwargs)

    device.seat.log = kernels
    device.seat.touch()
    try:
        for dtype, ordinal in _asked(row):
            try:
                case = generate.nth(row, dtype, plan.profile.sizes, "reach", ordinal).case
                check(row, case, device, plan.cpu, plan.tables, Settings(), quiet, [])
                inputs, program = build(case), ex.program(row)
                placed = ex.place(inputs, device)
            except (CaseError, RuntimeError):
                continue
            with Functions(named):
                ex.attempt(functools.partial(ex.forward, program, case, inputs, placed, False), "run")
    finally:
        device.seat.log = None
        device.seat.touch()
    return Reach(frozenset(kernels), frozenset(n for n in names if n))


def _asked(row: Row) -> Iterator[tuple[str, int]]:
    """(dtype, ordinal) of the cases to record: several of the first dtype, and one of each other kind of dtype."""
    seen: set[str] = set()
    for dtype in sorted(row.dtypes, key=lambda d: d != "float32"):
        kind = FACTS[dtype].kind
        if kind not in seen:
            yield from ((dtype, k) for k in range(RECORDED[kind] if seen else max(RECORDED.values())))
            seen.add(kind)


# --------------------------------------------------------------------------------------------------------------- matching


def reaches(fault: Fault, reach: Reach) -> bool:
    """Whether the fault applies to one of these calls."""
    ops = frozenset(fault.ops)
    if not {"function", "kernel"}.issuperset(fault.levels):
        return True
    if "function" in fault.levels and any(not answers_to(n).isdisjoint(ops) for n in reach.functions):
        return True
    bases = ((k, k.partition(".")[0]) for k in reach.kernels if "kernel" in fault.levels)
    return any(not ops.isdisjoint((k, b, _stripped(b), ALSO_CALLED.get(b, b))) for k, b in bases)


def _stripped(name: str) -> str:
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _spoken(fault: Fault) -> frozenset[str]:
    """Short names of the ops of a fault: "linalg_inv_ex" and "linalg.inv" are both "inv"."""
    words: set[str] = set()
    for op in fault.ops:
        last = op.rpartition("::")[2].partition(".")[0] if fault.levels == ("kernel",) else op.rpartition(".")[2]
        last = DUNDERS.get(last, last)
        word = _stripped(last).strip("_")
        words.update((_stripped(last), word))
        for prefix in _PREFIXES:
            word = word.removeprefix(prefix)
        words.add(word)
        words.update(word.removesuffix(s) for s in _SUFFIXES)
    return frozenset(words)


def _called(row: Row) -> frozenset[str]:
    """Short names of a row: its own name, and those of the functions it calls, the OpInfo entries it covers, and the kernel of
    all convolutions."""
    names = (
        row.name,
        row.call,
        row.forms.inplace,
        *(n.partition(":")[0] for n in row.counts.opinfo),
        row.counts.mps and KERNELS.get(row.counts.mps),
    )
    parts = (_stripped(n.removeprefix(opinfo.PREFIX).partition(":")[0].rpartition(".")[2]) for n in names if n)
    return frozenset(w for p in parts for w in (p, p.strip("_")))


def choose(subject: FaultSubject, seen: Mapping[str, Reach], profile: suite.RunProfile) -> Route:
    """Where to look for one fault among the rows of the profile's source. seen: what the native rows were recorded to call."""
    fault = subject.fault
    rows = {r.name: r for r in suite.rows(profile.source)}
    native = {n: r for n, r in rows.items() if not r.is_sampled}
    words = _spoken(fault)
    everywhere = {"transfer", "allocation"}.issuperset(fault.levels)
    reached = [] if everywhere else _by_directness((n for n in native if reaches(fault, seen.get(n, Reach()))), seen)
    if subject.rows:
        named = [n for n in subject.rows if n in rows]
        using: list[str] = []
    elif everywhere:
        named, using = [n for n in SPREAD if n in native], []
    else:
        named = [n for n, r in native.items() if not words.isdisjoint(_called(r))]
        using = [n for n in reached if n not in named][:USING]
        if not named:
            named, using = using, []
    if not everywhere:
        named += [n for n in _same(named, rows, seen) if n in reached and n not in named]
        using = [n for n in using if n not in named]
    entries = _entries([native[n] for n in (*named, *using) if n in native], subject.rows, words)
    if profile.source == "all":
        named += [n for e in entries if (n := opinfo.PREFIX + e) in rows and n not in named]
    concerned = {*named, *using}
    outside = [] if everywhere else [n for n in native if n not in concerned and n not in reached]
    return Route(
        tuple(named),
        tuple(using),
        tuple([n for n in reached if n not in concerned][:COMPOSITES]),
        tuple(_bystanders(fault.id, [native[n] for n in outside])),
        entries,
        tuple(n for n in subject.rows if n not in rows),
    )


def _same(named: Iterable[str], rows: Mapping[str, Row], seen: Mapping[str, Reach]) -> list[str]:
    """Rows whose glue calls the public function of one of these rows and hardly anything else, such as "lstm_dropout" for
    `torch.lstm`."""
    mains = {f for n in named if n in seen for f in _mains(seen[n])}
    glue = (n for n, r in rows.items() if r.call.startswith(GLUE) and n in seen)
    return [n for n in glue if len(own := _mains(seen[n])) <= SPELLED and not mains.isdisjoint(own)]


def _mains(reach: Reach) -> frozenset[str]:
    """The public functions that a row tests: everything it calls except what prepares operands and results."""
    return frozenset(f for f in reach.functions if not f.startswith(METHODS) and f.rpartition(".")[2] not in PREPARING)


def _by_directness(names: Iterable[str], seen: Mapping[str, Reach]) -> list[str]:
    """The rows, those that call the fewest other functions first."""
    return sorted(names, key=lambda n: len(seen[n].kernels))


def _entries(rows: Sequence[Row], listed: Sequence[str], words: frozenset[str]) -> tuple[str, ...]:
    """The OpInfo entries of these rows, of the OpInfo rows in `listed`, and of everything named like the fault's ops."""
    entries = [e for r in rows for e in r.counts.opinfo]
    entries += [n.removeprefix(opinfo.PREFIX) for n in listed if n.startswith(opinfo.PREFIX)]
    entries += [e for e in opinfo.ENTRIES if e.partition(":")[0].rpartition(".")[2] in words]
    return tuple(e for e in dict.fromkeys(entries) if e in opinfo.ENTRIES and e not in opinfo.OUT_OF_REACH)


def _bystanders(seed: str, rows: Sequence[Row]) -> Iterator[str]:
    """A few rows of different families: different ones for each fault, the same ones in every run."""
    families: set[str] = set()
    for r in sorted(rows, key=lambda r: zlib.crc32(f"{seed}:{r.name}".encode())):
        if "float32" in r.dtypes and r.family not in families and len(families) < BYSTANDERS:
            families.add(r.family)
            yield r.name
