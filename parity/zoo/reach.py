"""Which rows of the catalog a fault concerns: by name, and by what each row was seen to call on a healthy device."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.overrides import TorchFunctionMode

from parity import execute as ex
from parity import suite
from parity.catalog import opinfo
from parity.catalog.row import Row
from parity.checking.check import Settings, check, quiet
from parity.devices import Fault
from parity.devices.sim import SimDevice
from parity.devices.sim.functions import DUNDERS, answers_to, public_name
from parity.devices.sim.seats import ALSO_CALLED
from parity.dtypes import FACTS
from parity.errors import CaseError
from parity.examine import Plan
from parity.generation import generate
from parity.inputs import build
from parity.zoo.subjects import Subject

RECORDED = {"float": 4, "complex": 1, "int": 1, "bool": 1}  # cases per kind of dtype that tell what a row calls
USING = 12  # rows that call the faulty op, beside those that are named like it
COMPOSITES, BYSTANDERS = 2, 3
# Uploads, downloads and allocations belong to every op. These rows have operands and results of every kind of layout.
SPREAD = (
    *("to", "copy_", "clone", "contiguous", "neg", "add", "sum_dim", "cat", "transpose", "expand", "setitem", "index_select"),
    *("where", "matmul", "softmax", "real", "conj", "view_as_real", "getitem", "empty_like", "zeros_like", "repeat"),
)
# A row of glue is about few functions, beside methods and what makes its operands.
GLUE, METHODS, SPELLED = "parity.", "torch.Tensor.", 2
PREPARING = ("zeros", "zeros_like", "ones_like", "empty", "tensor", "full_like", "eye", "arange", "cat", "maximum")
_PREFIXES = ("native_", "linalg_", "fft_", "special_")
_SUFFIXES = ("_backward", "_backward_data", "_backward_overrideable", "_overrideable", "_forward", "_ex", "_impl")


@dataclass(frozen=True, slots=True)
class Reach:
    """What a row calls. kernels: aten overloads, forward, backward, in-place and out= alike; functions: public names."""

    kernels: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Route:
    """Where one fault is looked for, by names of rows.

    named: the rows of its ops. using: rows that call its ops, looked at where the named ones show nothing. composites: rows
    beyond its ops that use them, told as such. bystanders: rows that never reach it. entries: the OpInfo entries of its ops.
    absent: rows that it names and that this profile does not run.
    """

    named: tuple[str, ...] = ()
    using: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    bystanders: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------------- recording


class _Recorder(TorchFunctionMode):
    """Notes the public functions that are called from outside; what these call themselves is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := public_name(func)) is not None:
            self.names.add(name)
        return func(*args, **(kwargs or {}))


def record(row: Row, device: SimDevice, plan: Plan) -> Reach:
    """What a row calls in a few of its cases on a healthy simulated device, whose log this takes over meanwhile."""
    kernels: list[str] = []
    recorder = _Recorder()
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
            with recorder:
                ex.attempt(functools.partial(ex.forward, program, case, inputs, placed, False), "run")
    finally:
        device.seat.log = None
        device.seat.touch()
    forms = (public_name(f) for f in (ex.program(row).function, ex.program(row).inplace) if f is not None)
    return Reach(frozenset(kernels), frozenset((*recorder.names, *(n for n in forms if n))))


def _asked(row: Row) -> Iterator[tuple[str, int]]:
    """(dtype, ordinal) of the cases that are recorded: several of the first dtype, one of another of each kind."""
    seen: set[str] = set()
    for dtype in sorted(row.dtypes, key=lambda d: d != "float32"):
        kind = FACTS[dtype].kind
        if kind not in seen:
            yield from ((dtype, k) for k in range(RECORDED[kind] if seen else max(RECORDED.values())))
            seen.add(kind)


# --------------------------------------------------------------------------------------------------------------- matching


def reaches(fault: Fault, reach: Reach) -> bool:
    """Whether one of these calls is the fault's."""
    ops = frozenset(fault.ops)
    if fault.level == "function":
        return any(not answers_to(n).isdisjoint(ops) for n in reach.functions)
    if fault.level == "kernel":
        bases = ((k, k.partition(".")[0]) for k in reach.kernels)
        return any(not ops.isdisjoint((k, b, _stripped(b), ALSO_CALLED.get(b, b))) for k, b in bases)
    return True


def _stripped(name: str) -> str:
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _spoken(fault: Fault) -> frozenset[str]:
    """Short names of what a fault's ops belong to: "linalg_inv_ex" and "linalg.inv" are both "inv"."""
    words: set[str] = set()
    for op in fault.ops:
        last = op.rpartition("::")[2].partition(".")[0] if fault.level == "kernel" else op.rpartition(".")[2]
        last = DUNDERS.get(last, last)
        word = _stripped(last).strip("_")
        words.update((_stripped(last), word))
        for prefix in _PREFIXES:
            word = word.removeprefix(prefix)
        words.add(word)
        words.update(word.removesuffix(s) for s in _SUFFIXES)
    return frozenset(words)


def _called(row: Row) -> frozenset[str]:
    """Short names of a row: its own, those of the functions it calls and of the OpInfo entries it covers."""
    names = (row.name, row.call, row.inplace, *(n.partition(":")[0] for n in row.opinfo))
    parts = (_stripped(n.removeprefix(opinfo.PREFIX).partition(":")[0].rpartition(".")[2]) for n in names if n)
    return frozenset(w for p in parts for w in (p, p.strip("_")))


def choose(subject: Subject, seen: Mapping[str, Reach], profile: suite.Profile) -> Route:
    """Where to look for one fault: rows of the profile's source; `seen` tells of the native rows what they call."""
    fault = subject.fault
    rows = {r.name: r for r in suite.rows(profile.source)}
    native = {n: r for n, r in rows.items() if r.family != "opinfo"}
    words = _spoken(fault)
    everywhere = fault.level in ("transfer", "allocation")
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
    """Rows whose glue calls the public function of one of these rows, and hardly more: another spelling of the same op
    ("lstm_dropout" of `torch.lstm`)."""
    mains = {f for n in named if n in seen for f in _mains(rows[n], seen[n])}
    glue = (n for n, r in rows.items() if r.call.startswith(GLUE) and n in seen)
    return [n for n in glue if len(own := _mains(rows[n], seen[n])) <= SPELLED and not mains.isdisjoint(own)]


def _mains(row: Row, reach: Reach) -> frozenset[str]:
    """The public functions that a row is about: all that it calls but what prepares operands and results."""
    return frozenset(f for f in reach.functions if not f.startswith(METHODS) and f.rpartition(".")[2] not in PREPARING)


def _by_directness(names: Iterable[str], seen: Mapping[str, Reach]) -> list[str]:
    """Rows that call little else first."""
    return sorted(names, key=lambda n: len(seen[n].kernels))


def _entries(rows: Sequence[Row], listed: Sequence[str], words: frozenset[str]) -> tuple[str, ...]:
    """The OpInfo entries of these rows, of the OpInfo rows listed, and of everything named like the fault's ops."""
    found = [e for r in rows for e in r.opinfo]
    found += [n.removeprefix(opinfo.PREFIX) for n in listed if n.startswith(opinfo.PREFIX)]
    found += [e for e in opinfo.ENTRIES if e.partition(":")[0].rpartition(".")[2] in words]
    return tuple(e for e in dict.fromkeys(found) if e in opinfo.ENTRIES and e not in opinfo.OUT_OF_REACH)


def _bystanders(seed: str, rows: Sequence[Row]) -> Iterator[str]:
    """A few rows of different families, other ones for each fault, the same ones in every run."""
    families: set[str] = set()
    for r in sorted(rows, key=lambda r: zlib.crc32(f"{seed}:{r.name}".encode())):
        if "float32" in r.dtypes and r.family not in families and len(families) < BYSTANDERS:
            families.add(r.family)
            yield r.name
