"""The plan that all items of a run share, made from its options in each process."""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from parity import catalog, tolerance
from parity.catalog.draw import Sizes
from parity.checks.check import Result, Settings, unwatched
from parity.core import extensions, processes, state
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, UsageError, near
from parity.core.results import Record
from parity.devices import load_faults, resolve
from parity.devices.base import Device
from parity.devices.preflight import is_fast
from parity.devices.setup import leaving_no_mode, refuse_modes, run_setup
from parity.engine import suite
from parity.engine.options import RunOptions
from parity.engine.reading import STUDIES
from parity.engine.rounds import Seen, TimeLimit
from parity.engine.suite import Item, RunProfile
from parity.execution.execute import attribute
from parity.findings import known_file
from parity.findings.known import Known
from parity.generation import room
from parity.generation.generate import Drawn
from parity.judging.rules import has_rule
from parity.store.rows import ItemRow
from parity.tolerance import Tables

# Each call of a case may take this long: of 200,000 on an H100 that 27 processes shared, one that compiles its kernel took
# 14.6 s, and ten others more than 5 s ...
BASE_SECONDS = 20.0
SECONDS_PER_ELEMENT = 2e-5  # ... and this per element of its operands, or of the largest result
SECONDS_PER_TENSOR = 0.1  # ... and this per operand: optimizers of many parameters call a kernel for each, several times
NOTHING_SEEN = Seen()


class Study:
    """The plain study: every method leaves the run as it is. looks_everywhere: whether the run also looks where only findings
    count: in memory filled with NaN, for leaks, and for the causes of what it found when all items are done."""

    looks_everywhere = True

    def begin(self) -> None:
        """An item begins."""

    def cases(self, item: Item, sizes: Sizes, seed: str) -> Iterator[tuple[int, bool, Drawn]] | None:
        """(ordinal, pinned, case) of other cases than those of the profile; None for the profile's."""
        return None

    def settings(self, how: Settings) -> Settings:
        """How a case is checked. how: as an ordinary run checks it."""
        return how

    def watching(self, case: Case, device: Device, results: list[Result]) -> AbstractContextManager[None]:
        """Entered around each case, whose results grow inside."""
        return unwatched(case, device, results)

    def is_over(self, item: Item, counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether the item needs no further case. counts: aspect -> status -> records so far."""
        return False

    def noted(self, row: ItemRow) -> ItemRow:
        """The row of an item that is through, with what was noted of it."""
        return row


def study_of(name: str | None) -> Study:
    """The study of this name, which is loaded now; the plain one for none. Raises UsageError for an unknown name."""
    if not name:
        return Study()
    if name not in STUDIES:  # a run file may name anything
        raise UsageError(f"no study '{name[:40]}'; {near(name, STUDIES)}")
    study: Study = importlib.import_module(STUDIES[name]).STUDY()
    return study


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What all items of a run share. profile: the sizes and numbers that `options.profile` names; power: the fraction of cases
    that are judged once more with errors put in; takes: the dtypes that the device accepted at the start; limit: of time, if
    the run has one; known: the file of known findings; later: whether a part of its own looks for the causes of what an item
    found; study: what the run does otherwise, or notes besides; seen: the causes that it has found; first: is called with
    the first finding of an item as soon as a case shows it."""

    device: Device
    cpu: Device
    tables: Tables
    profile: RunProfile
    options: RunOptions = field(default_factory=RunOptions)
    power: float = 0.0
    takes: frozenset[str] = frozenset()
    limit: TimeLimit | None = None
    known: Known | None = None
    later: bool = False
    study: Study = field(default_factory=Study)
    seen: Seen = NOTHING_SEEN
    first: Callable[[Record], None] | None = None

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return math.inf if self.limit is None else self.limit.left

    def patience(self, case: Case) -> float:
        """Seconds that each call of a case may take before it counts as hung: as the options say, or `patience`."""
        return self.options.hang_after or patience(case)


def patience(case: Case) -> float:
    """Seconds that each call of a case may take before it counts as hung."""
    most = max(case.numel, room.made(suite.row(case.op), case).largest)
    return BASE_SECONDS + SECONDS_PER_ELEMENT * most + SECONDS_PER_TENSOR * len(case.operands())


def prepare(setup: str | None) -> None:
    """Import torch in a process of a run, and run the setup file: before OpInfo is imported, which freezes the backend flags,
    and before items are collected, to which the file may add some."""
    processes.prepare_torch()
    refuse_modes()
    if setup:
        run_setup(setup)
    with leaving_no_mode("importing what installed packages and [tool.parity] add"):
        extensions.load()


def check(items: Iterable[Item]) -> None:
    """Raise UsageError for a row of others whose class has no rule, or which calls a function that is not there."""
    for row in {i.row.name: i.row for i in items if i.row.name in catalog.ADDED}.values():
        if not has_rule(row):
            remedy = f"add one: rules.add(OpClass('{row.rule}'), Composite()) of parity.judging.rules"
            raise UsageError(f"{catalog.place(row.name)} is of the class '{row.rule}', which has no rule; {remedy}")
        for path in filter(None, (row.call, row.forms.inplace)):
            try:
                attribute(path)
            except CaseError:
                remedy = "name what can be imported, such as torch.ops.mine.wave, or rows.wave of a file rows.py"
                raise UsageError(f"{catalog.place(row.name)} calls {path}, which is not there; {remedy}") from None


def run_plan(options: RunOptions, power: float, left: float | None, later: bool = False, seen: Seen = NOTHING_SEEN) -> RunPlan:
    """The RunPlan of this process. power, later, seen: see `RunPlan`; left: seconds until the time is over."""
    prepare(options.setup)
    device = resolve(options.device, load_faults(options.faults) if options.faults else ())
    tables = tolerance.load(device.name, known_ops={r.name for r in suite.rows("all")}, fast=is_fast(device))
    cpu, profile = resolve("cpu"), suite.profile(options.profile)
    state.watch(name for r in catalog.ROWS.values() for name in (r.call, r.forms.inplace) if name.startswith("torch."))
    gc.freeze()  # torch and the catalog stay alive, so the collector need not scan them
    with device.active():
        takes = frozenset(d for d in FACTS if device.takes(getattr(torch, d)))
    limit = None if left is None else TimeLimit(time.monotonic() + left)
    held = known_file.read(Path(options.known)) if options.known else None
    return RunPlan(device, cpu, tables, profile, options, power, takes, limit, held, later, study_of(options.study), seen)
