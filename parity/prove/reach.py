"""Measures how many of a device's kernels a run reaches: torch's operator table against what compared cases dispatched.

An operator counts where a result that holds a comparison dispatched it on the device of the run. Operators that exist on MPS
alone count only where MPS itself was the device, or where `sim:mps` compared their public op whole.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from textwrap import wrap

import torch

from parity import catalog
from parity.core import outputs
from parity.core.backends.mps import KEY
from parity.core.errors import DeviceError, OutputError, RunFileError
from parity.core.results import COMPARED
from parity.core.version import __version__
from parity.devices.operator_table import Table, installed, table_path
from parity.engine.child import Child, End, Watch, surroundings
from parity.engine.options import SHRINK
from parity.engine.reading import HANG_AFTER
from parity.faces.guarded import COMMAND
from parity.store import run_file
from parity.store.rows import ItemRow, Run

# Dispatch keys by which another kind of device, or a composition that runs anywhere, has the operator too.
SHARED_WITH = ("CPU", "CUDA", "XPU", "MTIA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
WHOLE_ON = ("mps", "sim:mps")
# Operators on MPS alone that a simulated device has under the names that torch gives to any other device -> that name, and
# what the rows whose public op it is say of MPS (`Row.mps`). The others the simulated device has under their own names.
ATEN_STANDS_FOR: dict[str, tuple[str, str]] = {
    "_mps_convolution": ("convolution_overrideable", "convolution"),
    "mps_convolution_backward": ("convolution_backward_overrideable", "convolution"),
    "_mps_convolution_transpose": ("convolution_overrideable", "transposed"),
    "mps_convolution_transpose_backward": ("convolution_backward_overrideable", "transposed"),
}
EXPLAINED: dict[str, str] = {
    "_assert_async": "gives nothing that could be compared",
    "_assert_async.msg": "gives nothing that could be compared",
}
WIDTH = 120
PATIENCE = "120"  # seconds: noting what is dispatched takes a multiple of the time where a backward is a loop of small calls
USABLE = (0, 1, 3)  # exit codes of a run that ended: what it found is not the question here


class State(StrEnum):
    """What the runs say of an operator."""

    REACHED = "reached"
    WHOLE = "on MPS alone, reached"
    MISSED = "not reached"


MEANING = {
    State.REACHED: "a compared case dispatched it",
    State.WHOLE: "its public op was compared whole on sim:mps, or it was dispatched on MPS",
    State.MISSED: "see the reasons",
}


@dataclass(frozen=True, slots=True)
class Operator:
    """One overload with a kernel. rows: rows of the catalog whose compared cases dispatched it. reason: why none did."""

    name: str
    state: State
    rows: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """All operators with an MPS kernel in a torch. runs: what was run, in words."""

    torch: str
    operators: tuple[Operator, ...]
    runs: tuple[str, ...]

    def of(self, state: State) -> tuple[Operator, ...]:
        """The operators in this state."""
        return tuple(o for o in self.operators if o.state is state)

    @property
    def reached(self) -> int:
        """How many count."""
        return len(self.operators) - len(self.of(State.MISSED))


# --------------------------------------------------------------------------------------------------------------- counting


def audit(runs: Sequence[Run], table: Table | None = None) -> Audit:
    """The operators of a table, by default the installed torch's, against these runs: of that torch, or of the installed one.

    Raises DeviceError where torch has no table, RunFileError for runs that noted no operator or were of another torch.
    """
    table = table or installed()
    keys = table.keys
    for run in runs:
        _usable(run, table.torch)
    done: dict[str, dict[str, None]] = {}
    whole: dict[str, dict[str, None]] = {}
    idle: dict[str, str] = {}
    for run in runs:
        into = [done, whole] if run.header.fingerprint.device in WHOLE_ON else [done]
        for item in run.items:
            for name in (*item.operators, *_stood_for(item)):
                for counts in into:
                    counts.setdefault(name, {})[item.op] = None
            for name, why in item.idle.items():
                idle.setdefault(name, f"{item.op} {item.dtype}, {why}")
    made = []
    for name in sorted(n for n, having in keys.items() if KEY in having):
        alone = not keys[name].intersection(SHARED_WITH)
        rows = (whole if alone else done).get(name)
        state = State.MISSED if rows is None else State.WHOLE if alone else State.REACHED
        reason = "" if rows is not None else _reason(name, alone, done, idle)
        made.append(Operator(name, state, tuple(rows or ()), reason))
    return Audit(table.torch, tuple(made), tuple(_described(run, table.torch) for run in runs))


def _usable(run: Run, of: str) -> None:
    """Refuse a run that cannot be set against the table of a torch."""
    there = run.header.fingerprint.torch
    if _release(there) not in (_release(of), _release(str(torch.__version__))):
        raise RunFileError(
            f"the run was made with torch {there}, and the operator table is that of torch {of}; run it again, or name "
            "the wheel of that torch with --wheel"
        )
    if not any(i.operators or i.idle for i in run.items):
        raise RunFileError("the run noted no operator; make it with: parity run --study reach, on another device than the CPU")


def _release(version: str) -> str:
    return version.partition("+")[0]


def _stood_for(item: ItemRow) -> Iterable[str]:
    """Operators on MPS alone whose public op this item compared whole."""
    row = catalog.ROWS.get(item.op.rpartition(".")[2])
    kind = "" if row is None else row.counts.mps
    return (alone for alone, (seen, word) in ATEN_STANDS_FOR.items() if word == kind and seen in item.operators)


def _reason(name: str, alone: bool, done: dict[str, dict[str, None]], idle: dict[str, str]) -> str:
    """Why an operator does not count."""
    if name in EXPLAINED:
        return EXPLAINED[name]
    if alone:
        return "exists on MPS alone, and no run on mps or sim:mps compared its public op whole"
    if name in idle:
        return f"nothing was compared: {idle[name]}"
    base = name.partition(".")[0].removesuffix("_")
    others = sorted(n for n in done if n.partition(".")[0].removesuffix("_") == base)
    return f"never dispatched; reached are {', '.join(others)}" if others else "never dispatched"


def _described(run: Run, of: str) -> str:
    h = run.header
    compared = sum(n for i in run.items for c in i.counts.values() for s, n in c.items() if s in COMPARED)
    what = f"{h.profile} profile on {h.fingerprint.device}" + (" (SIMULATED)" if h.fingerprint.simulated else "")
    if _release(h.fingerprint.torch) != _release(of):
        what += f" with torch {h.fingerprint.torch}"
    dead = f"; {len(run.deaths)} cases ended their process and are left out" if run.deaths else ""
    return f"{what}: {len({i.op for i in run.items})} ops, {len(run.items)} op x dtype pairs, {compared:,} comparisons{dead}"


# ---------------------------------------------------------------------------------------------------------------- running


def fresh(asked: Sequence[str], hear: Callable[[str], None]) -> list[Run]:
    """The quick profile on `sim`, and what exists on MPS alone on `sim:mps`. asked: options of both runs; hear: called with how
    far they are.

    Raises DeviceError where a run broke off.
    """
    table_path()  # rather now than after minutes
    of_mps = tuple(r.name for r in catalog.ROWS.values() if r.counts.mps)
    with tempfile.TemporaryDirectory(prefix="parity-reach-") as folder:
        return [_run("sim", (), asked, Path(folder), hear), _run("sim:mps", of_mps, asked, Path(folder), hear)]


def _run(device: str, ops: Sequence[str], asked: Sequence[str], folder: Path, hear: Callable[[str], None]) -> Run:
    """One run in a process of its own, as anybody would start it."""
    path = folder / f"{device.replace(':', '-')}.jsonl"
    argv = [
        "run", *ops, "--profile", "quick", *asked, "--device", device, "--study", "reach",
        "--skip", SHRINK, "--output", str(path), "--findings", str(folder / "findings"),
    ]  # fmt: skip
    hear(f"{device}: {len(ops) or 'all'} ops of the quick profile")
    # What the operators that are missing on MPS would do with a fallback is not what the profile is asked for.
    env = {HANG_AFTER: PATIENCE} | {k: v for k, v in surroundings().items() if k != "PYTORCH_ENABLE_MPS_FALLBACK"}
    log, rest, code = folder / "log", "", -1
    with (
        log.open("w") as out,
        log.open() as said,
        Child(COMMAND, (argv, None), Watch(math.inf), environment=env, out=out) as run,
    ):
        while not isinstance(event := run.hear(1.0), End):
            *whole, rest = (rest + said.read()).split("\n")
            for line in whole:
                if line.lstrip()[:4].partition("%")[0].isdigit():
                    hear(f"{device}: {line.strip()}")
            code = code if event is None else event["code"]
    if code not in USABLE:
        last = next((x for x in reversed(log.read_text().splitlines()) if x.strip()), event.died)
        raise DeviceError(f"the run on {device} broke off: {last}")
    return run_file.read(path)


# ------------------------------------------------------------------------------------------------------------------ words


def render(audit: Audit) -> str:
    """The operators by state, the reasons, and in the last line how many count."""
    missed = audit.of(State.MISSED)
    lines = [f"parity {__version__} reach: operators with an MPS kernel in torch {audit.torch}", *audit.runs]
    for state in (State.REACHED, State.WHOLE):
        if operators := audit.of(state):
            lines += ["", f"{state} ({len(operators)})", *_packed(operators)]
    if missed:
        lines += ["", f"{State.MISSED} ({len(missed)})", *_reasons(missed)]
    lines += ["", *_table(audit), "", last_line(audit)]
    return "\n".join(lines)


def last_line(audit: Audit) -> str:
    """N of M (x %)."""
    many = len(audit.operators)
    return f"{audit.reached} of {many} ({100 * audit.reached / max(1, many):.1f} %)"


def _packed(operators: Sequence[Operator]) -> Iterator[str]:
    """Overloads grouped by their common name: "add.Tensor .out"."""
    words = []
    for base, some in groupby(operators, lambda o: o.name.partition(".")[0]):
        overloads = [o.name.removeprefix(base) for o in some]
        words.append((base + " ".join(overloads)).replace(" ", "\0"))
    for line in wrap("  ".join(words), WIDTH - 2, break_long_words=False, break_on_hyphens=False):
        yield "  " + line.replace("\0", " ")


def _reasons(missed: Sequence[Operator]) -> Iterator[str]:
    wide = max(len(o.name) for o in missed)
    for o in missed:
        yield f"  {o.name:<{wide}}  {o.reason}"


def _table(audit: Audit) -> Iterator[str]:
    wide = max(map(len, State))
    yield f"{'state':<{wide}}  operators"
    for state in State:
        yield f"{state:<{wide}}  {len(audit.of(state)):>9}  {MEANING[state]}"


def write(audit: Audit, path: Path) -> None:
    """Write everything as JSON. Raises OutputError."""
    tree = {
        "parity": __version__,
        "torch": audit.torch,
        "runs": audit.runs,
        "reached": audit.reached,
        "operators": {o.name: {"state": o.state, "rows": o.rows, "reason": o.reason} for o in audit.operators},
    }
    try:
        outputs.write(path, json.dumps(tree, indent=1) + "\n", "name another file with --output")
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another with --output") from None
