"""What a run would cost on a Mac: the graphs that MPS compiles and keeps, and with them minutes and memory on three machines.

Items of the run, evenly spaced, are examined on `sim:mps`, and each call that reaches the device is counted by what MPS does
for it. An operator whose MPS kernel is the function that the CPU has as well (`CPU, CUDA, MPS: exp_out` in torch's operator
table) is a Metal kernel behind a stub: it is loaded once for a dtype. One with a function of its own (`MPS: softmax_mps_out`)
compiles a graph for each new key: operator, shapes, dtypes and scalars, without strides. Some of these functions call Metal
kernels, too, and no table says which, so the graphs are the most that a run can need.

The costs of a graph, a kernel, a call and a copy are data (cost.toml), from public reports: a low, a middle and a high value.
Those of an archive of `parity doctor` were measured, and replace them for its machine.
Whether the processes of a run share one compiler is not known: low compiles in all of them at once, high one graph at a time.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parity import tolerance
from parity.core import untrusted
from parity.core.backends.mps import KEY
from parity.core.machine import MOST_WORKERS, NEED, PART
from parity.core.results import COMPARED
from parity.devices import Call, Fault, resolve
from parity.devices.costs import Costs
from parity.devices.operator_table import functions, table_path
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import SHRINK, RunOptions
from parity.engine.planning import RunPlan
from parity.report.words import clock, plural

TABLE = Path(__file__).with_name("cost.toml")
DEVICE = "sim:mps"
ITEMS = 400  # items that are examined at most; the figures of a run are scaled from them
LEVELS = ("low", "middle", "high")
# Calls that compile nothing: memory, and copies.
FREE = frozenset(
    ("empty", "empty_like", "empty_strided", "detach", "alias", "resize_", "set_", "permute", "copy_", "_to_copy", "_copy_from")
    + ("_copy_from_and_resize", "_efficientzerotensor", "_local_scalar_dense")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """What one piece of a run takes, by level. unit: what is counted; source: where the values are from."""

    unit: str
    source: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: of the CPU, of which a run takes one process each; memory: in GB."""

    cores: int
    memory: int

    @property
    def workers(self) -> int:
        """The processes that a run starts there, as `parity.core.machine` has it."""
        return max(1, min(MOST_WORKERS, self.cores, int(PART * self.memory * 1e9) // NEED))


MACHINES = (Machine(3, 7), Machine(8, 16), Machine(12, 32))  # a hosted runner, an M2, an M4 Pro
OF_AN_ARCHIVE = ".zip"  # how the name of a file ends that `parity doctor --archive` wrote


@dataclass(slots=True)
class Counted:
    """What some items call on the device. keys: of graphs; kernels: Metal kernels by function and dtype; items, of: how many
    were examined, of how many."""

    keys: set[tuple[Any, ...]] = field(default_factory=set)
    kernels: set[tuple[Any, ...]] = field(default_factory=set)
    graphs: Counter[str] = field(default_factory=Counter)
    graph_calls: int = 0
    kernel_calls: int = 0
    copies: int = 0
    checks: int = 0
    items: int = 0
    of: int = 0

    def call(self, call: Call) -> bool:
        """Count a call of a kernel; False, because as the condition of a fault it is never to strike."""
        if call.op.partition(".")[0] in FREE:
            return False
        o = call.outline
        if is_metal(call.op):
            self.kernel_calls += 1
            self.kernels.add((o.op, o.dtypes))
        else:
            self.graph_calls += 1
            self.keys.add((o.op, o.shapes, o.dtypes, repr(o.scalars)))
        return False

    def copy(self, call: Call) -> bool:
        """Count a copy from or to the CPU."""
        self.copies += 1
        return False

    @property
    def scale(self) -> float:
        """How many times as much the whole run is."""
        return self.of / max(1, self.items)

    @property
    def rate(self) -> float:
        """Graphs per 1,000 checks."""
        return 1000 * len(self.keys) / max(1, self.checks)


@dataclass(frozen=True, slots=True)
class Modelled:
    """A run on a machine. seconds: with costs low, middle and high, where each process compiles for itself; queued: the same
    where one compiler serves all; memory: bytes of all processes with their graphs."""

    machine: Machine
    seconds: tuple[float, float, float]
    queued: tuple[float, float, float]
    memory: tuple[float, float, float]


@functools.cache
def metal() -> frozenset[str]:
    """The overloads whose MPS kernel is a function that the CPU has as well: Metal kernels behind a stub. Raises DeviceError
    where torch has no operator table."""
    table = functions(untrusted.text(table_path(), 8 << 20))
    return frozenset(name for name, shared in table.items() if any({KEY, "CPU"} <= keys for keys in shared))


@functools.cache
def known_metal() -> frozenset[str]:
    """The overloads with a function of their own on MPS that public source shows to call Metal kernels."""
    return frozenset(_table()["metal"]["overloads"])


def graphs() -> frozenset[str]:
    """The overloads with a function of their own on MPS that may compile a graph."""
    table = functions(untrusted.text(table_path(), 8 << 20))
    own = {name for name, shared in table.items() if any(KEY in keys and "CPU" not in keys for keys in shared)}
    return frozenset(name for name in own - known_metal() if name.partition(".")[0] not in FREE)


def is_metal(op: str) -> bool:
    """Whether MPS runs this operator by a Metal kernel. What the simulated device calls by another name than MPS (convolutions,
    recurrent cells) is none."""
    return op in metal() or op in known_metal()


def costs() -> Mapping[str, Cost]:
    """The table, by piece."""
    return {name: Cost(**entry) for name, entry in _table().items() if name != "metal"}


def measured(there: Costs) -> Mapping[str, Cost]:
    """The table with what was measured on a machine in place of the reports. What nothing measures stays."""
    table = dict(costs())
    for name, s in there.pieces.items():
        table[name] = Cost(table[name].unit, f"measured there, {plural(s.samples, 'time')}", s.low, s.middle, s.high)
    return table


def _table() -> dict[str, Any]:
    return untrusted.toml(TABLE.read_text(encoding="utf-8"))


def count(options: RunOptions, hear: Callable[[int, int], None] = lambda done, total: None) -> Counted:
    """What the run that these options ask for calls on the device, from at most `ITEMS` of its items. Raises UsageError."""
    profile = suite.profile(options.profile)
    selected = suite.shard(
        suite.select(options.op, options.family, options.dtype, options.source or profile.source), options.shard
    )
    every = -(-len(selected) // ITEMS)
    chosen = selected[::every]
    counted = Counted(items=len(chosen), of=len(selected))
    faults = (
        Fault("calls", ("*",), Call.run, counted.call),
        Fault("copies", ("upload", "download"), Call.run, counted.copy, level="transfer"),
    )
    asked = RunOptions(device=DEVICE, skip=(SHRINK,), seed=options.seed, examples=options.examples)
    threads, parallel = torch.get_num_threads(), torch.autograd.is_multithreading_enabled()
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    try:
        plan = RunPlan(resolve(DEVICE, faults), resolve("cpu"), tolerance.load(DEVICE), profile, asked)
        for k, item in enumerate(chosen, 1):
            before = len(counted.keys)
            done = examine(item, plan, NoJournal())
            counted.graphs[item.row.name] += len(counted.keys) - before
            counted.checks += sum(n for c in done.summary.counts.values() for s, n in c.items() if s in COMPARED)
            hear(k, len(chosen))
    finally:
        torch.set_num_threads(threads)
        torch.autograd.set_multithreading_enabled(parallel)
    return counted


def modelled(counted: Counted, machine: Machine, table: Mapping[str, Cost]) -> Modelled:
    """A run on a machine: its work goes to all processes, and so do the graphs, or they wait for one compiler."""
    n, scale = machine.workers, counted.scale
    seconds, queued, memory = [], [], []
    for level in LEVELS:
        cost = {name: getattr(c, level) for name, c in table.items()}
        work = scale * (
            counted.checks * cost["check"]
            + counted.graph_calls * cost["graph_call"]
            + counted.kernel_calls * cost["kernel_call"]
            + counted.copies * cost["copy"]
        )
        loading = n * len(counted.kernels) * cost["kernel"]  # each process loads its own
        compiling = scale * len(counted.keys) * cost["graph"]
        seconds.append(cost["start"] + (work + loading + compiling) / n)
        queued.append(cost["start"] + work / n + loading + compiling)
        memory.append(n * cost["process"] + scale * len(counted.keys) * cost["graph_memory"])
    return Modelled(machine, _three(seconds), _three(queued), _three(memory))


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = values
    return low, middle, high


def render(counted: Counted, profile: str, there: Costs | None = None) -> str:
    """The count, minutes and memory by machine, and where the costs are from. there: those of one machine, for which the run is
    modelled then."""
    table, whole = costs() if there is None else measured(there), counted.scale
    machines = MACHINES if there is None else (Machine(there.cores, round(there.memory / 1e9)),)
    first = modelled(counted, machines[0], table)
    said = "Costs, from public reports and not from a Mac" if there is None else f"Costs, measured on {there.where}"
    lines = [
        f"{profile} profile: {counted.items:,} of {plural(counted.of, 'op x dtype pair')} on {DEVICE}, "
        f"{plural(counted.checks, 'check')}",
        f"torch {torch.__version__}: {plural(len(graphs()), 'overload')} with a function of MPS's own, which may compile a "
        f"graph; {len(metal() | known_metal())} are Metal kernels",
        f"a whole run: {whole * counted.checks:,.0f} checks, {whole * len(counted.keys):,.0f} graphs at most, "
        f"{len(counted.kernels):,} Metal kernels or more in each process",
        "most graphs: " + (", ".join(f"{op} {n}" for op, n in counted.graphs.most_common(8) if n) or "none"),
        "",
        f"{'time':<28}{'low':>9}{'middle':>20}{'high':>10}   memory: low, middle, high",
        *(_row(modelled(counted, machine, table)) for machine in machines),
        "middle: each process compiles for itself, and all wait for one compiler",
        "",
        f"{said}: low, middle, high",
        *(f"  {c.low:g}, {c.middle:g}, {c.high:g} {c.unit}: {c.source}" for c in table.values()),
        "",
        f"MODELLED  {counted.rate:.0f} graphs for 1,000 checks at most; {machines[0].cores} cores, {machines[0].memory} GB: "
        f"{clock(first.seconds[1])} to {clock(first.queued[1])} at the middle cost",
    ]
    return "\n".join(lines)


def _row(m: Modelled) -> str:
    processes = f"{m.machine.workers} process{'es' * (m.machine.workers > 1)}"
    where = f"{m.machine.cores} cores, {m.machine.memory} GB, {processes}"
    middle = f"{clock(m.seconds[1])} to {clock(m.queued[1])}"
    sizes = ", ".join(f"{n / 1e9:.1f}" for n in m.memory)
    return f"{where:<28}{clock(m.seconds[0]):>9}{middle:>20}{clock(m.queued[2]):>10}   {sizes} GB"
