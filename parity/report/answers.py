"""What `--json` prints: one envelope for all commands, and what each of them answers. The schema is made from these classes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from parity.core.results import AspectWord, Record, StatusWord
from parity.core.status import Conclusion, Status
from parity.core.stored import Number, words
from parity.core.version import __version__
from parity.findings.causes import WEIGHTS
from parity.store.rows import Ending

NOT_RUN = "not run"
SUPPORTED = ("works", "works in part", "drifts", "wrong", "fails", "refused", "falls back", "not judged")
if TYPE_CHECKING:
    PassWord: TypeAlias = str
    SupportWord: TypeAlias = str
    VerdictWord: TypeAlias = str
    Weight: TypeAlias = str
else:
    PassWord = words("no pass has the status '{}'", (*Status, NOT_RUN))
    SupportWord = words("no op '{}'", SUPPORTED)
    VerdictWord = words("no verdict '{}'", Conclusion)
    Weight = words("no class '{}'", WEIGHTS)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command says. code: its exit code; verdict: of what was asked about, or whether the command could answer at all;
    error: why it could not, empty where it could; data: the answer, null where there is none."""

    parity_answer: Literal[1]
    command: str
    version: str
    code: int
    verdict: VerdictWord
    error: str
    data: Any

    @classmethod
    def of(cls, command: str, code: int, error: str, data: Any, verdict: Conclusion | None = None) -> Answer:
        """The answer of a command of this version. verdict: where it is not what the exit code says."""
        return cls(1, command, __version__, code, verdict or Conclusion.of(code), error, data)


# ---------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What was run, and on what."""

    device: str
    device_name: str
    torch: str
    parity: str
    simulated: bool
    profile: str
    seed: str
    started: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of difference of an op in a dtype. case: the least one that shows it."""

    op: str
    dtype: str
    aspect: AspectWord
    status: StatusWord
    case: str
    reason: str


@dataclass(frozen=True, slots=True)
class Died:
    """A process that ended or hung in a case."""

    op: str
    dtype: str
    how: Ending
    case: str
    signal: str


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Findings with one origin. id: equal for equal facts, in every run; weight: its class, the worst first; sentence: for a
    person; subject, symptom, properties: the facts; known: why it is accepted, empty if it is new; case: the least case of its
    plainest finding; workaround: a way around it that agreed in all cases that it was tried in, empty if there is none."""

    id: str
    weight: Weight
    sentence: str
    subject: str
    symptom: str
    properties: tuple[str, ...]
    known: str
    case: str
    workaround: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    findings: tuple[Finding, ...]
    deaths: tuple[Died, ...]


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes of a run, the worst first. caveats: what a reader must know before, such as that nothing was compared."""

    parity_causes: Literal[1]
    run: RunInfo
    caveats: tuple[str, ...]
    causes: tuple[CauseRow, ...]


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """An op in a dtype. passes: the worst status of each pass."""

    op: str
    dtype: str
    passes: Mapping[str, PassWord]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Each op and dtype of a run."""

    parity_matrix: Literal[1]
    run: RunInfo
    ops: tuple[MatrixRow, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """A column of a table over runs. file: the run file; chip: the name of the device; caveats: as in `Causes`."""

    file: str
    device: str
    chip: str
    torch: str
    os: str
    simulated: bool
    parity: str
    started: str
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of an op in a dtype. where: a place in `Support.wheres`, from 0; passes: the worst status of each pass that
    ran; causes: ids of what was found in it, in `Support.causes`."""

    where: int
    dtype: str
    answer: SupportWord
    passes: Mapping[str, StatusWord]
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SupportedOp:
    """An op with all its cells. What is in no cell was not tested."""

    op: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Support:
    """Several runs side by side. causes: the sentence of each, by its id."""

    parity_support: Literal[1]
    wheres: tuple[Where, ...]
    ops: tuple[SupportedOp, ...]
    causes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that ended. file: the run file."""

    file: str
    report: Causes


@dataclass(frozen=True, slots=True)
class ListedOp:
    """An op that a run would take."""

    op: str
    family: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """The ops that a run would take."""

    ops: tuple[ListedOp, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """Shards as one run. file: what was written; machines: how those differ that the shards ran on; stopped: why it is not the
    whole run, empty where it is; known: what it says of the file of known findings."""

    file: str
    shards: int
    items: int
    records: int
    machines: tuple[str, ...]
    stopped: str
    known: tuple[str, ...]


# ------------------------------------------------------------------------------------------------------- two runs


@dataclass(frozen=True, slots=True)
class Side:
    """A run of two."""

    device: str
    device_name: str
    simulated: bool
    torch: str
    os: str
    parity: str
    seed: str
    profile: str
    selection: str
    started: str


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of the fingerprint that is another in the second run."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ChangedCause:
    """The cause of a change."""

    id: str
    weight: Weight
    sentence: str


@dataclass(frozen=True, slots=True)
class CellChange:
    """An op, dtype and aspect of which a finding changed. same_case: whether both runs have this case."""

    op: str
    dtype: str
    aspect: str
    before: str
    after: str
    case: str
    same_case: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Shift:
    """A drift of errors. cells: (op, dtype, aspect); cases: how many pairs; worse, better: how many of these; median,
    percentile_99: of the factor between both errors; p: of the test."""

    cells: tuple[tuple[str, ...], ...]
    cases: int
    worse: int
    better: int
    median: Number
    percentile_99: Number
    p: Number


@dataclass(frozen=True, slots=True)
class Pace:
    """A change of time or memory. before, after: seconds or bytes; noise: what a factor between two equal runs may be."""

    op: str
    dtype: str
    aspect: str
    cases: int
    factor: Number
    before: Number
    after: Number
    noise: Number


@dataclass(frozen=True, slots=True)
class Change:
    """What changed for one reason. about: in words."""

    about: str
    cause: ChangedCause | None
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    aspects: tuple[str, ...]
    case: str
    changes: tuple[CellChange, ...]
    shifts: tuple[Shift, ...]
    times: tuple[Pace, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed between two runs. fails: the groups that fail; doubts: why it is inconclusive; incomplete: what a run is
    missing; compared, drift, speed: how much was compared, and by which test; groups: the changes, by the name of their group;
    next: the next command."""

    parity_diff: Literal[1]
    exit_code: int
    fails: tuple[str, ...]
    headline: str
    before: Side
    after: Side
    changed: tuple[FieldChange, ...]
    warnings: tuple[str, ...]
    incomplete: tuple[str, ...]
    doubts: tuple[str, ...]
    compared: Mapping[str, Any]
    drift: Mapping[str, Any]
    speed: Mapping[str, Any]
    groups: Mapping[str, tuple[Change, ...]]
    next: str


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The same cases with two versions of torch. before, after: the run files."""

    before: str
    after: str
    diff: Difference


@dataclass(frozen=True, slots=True)
class Since:
    """The version since which a case gives another result. differs: whether any gives one; last: the last place before; first:
    the first that differs; answers: what the case gave, by place; skipped: why a place could not be asked."""

    case: str
    differs: bool
    last: str
    first: str
    answers: Mapping[str, str]
    skipped: Mapping[str, str]


# ------------------------------------------------------------------------------------------------------- people's code


@dataclass(frozen=True, slots=True)
class Compared:
    """A tensor, an operator or a step. error: in units of what rounding explains, null where none was measured."""

    where: str
    status: StatusWord
    error: Number | None
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A function of a file. error: why it could not be compared, empty where it was; agrees: whether nothing diverges;
    headline: the answer in one line; table: what differs, or each step of a training; text: all that a person reads; next: the
    next command; workaround: what was tried around the first operator and agreed."""

    function: str
    agrees: bool
    headline: str
    error: str = ""
    subject: str = ""
    table: tuple[Compared, ...] = ()
    text: tuple[str, ...] = ()
    next: str = ""
    workaround: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """Where functions diverge from the CPU."""

    functions: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A capture that was written."""

    function: str
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Audited:
    """What functions need of MPS: for each the operators with MPS's answer, known bugs and findings of runs, as
    `parity audit -o needs.json` writes them."""

    parity: str
    functions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operators with an MPS kernel in two versions of torch. gained: each with whether the operator is new; lost: each with
    whether the operator is gone."""

    before: str
    after: str
    gained: Mapping[str, bool]
    lost: Mapping[str, bool]
    kept: int


# ------------------------------------------------------------------------------------------------------- cases, tables, devices


@dataclass(frozen=True, slots=True)
class Replayed:
    """A case that was checked again. code: 0 where it agrees, 1 where it differs, 3 where nothing was compared; records: what
    was measured, as in run files; text: what a person reads of it; died: how its process ended, empty where it did not."""

    case: str
    code: int
    records: tuple[Record, ...]
    text: tuple[str, ...]
    died: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """Cases that were checked again, or records of a run that were explained."""

    cases: tuple[Replayed, ...]


@dataclass(frozen=True, slots=True)
class ToleranceRow:
    """A row of a table that was looked at. verdict: whether it applies; place: its file and line; row: its text."""

    verdict: str
    place: str
    row: str
    why: str


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Which tolerance applies. passes: by pass, empty where results must be equal and none does."""

    op: str
    rule: str
    dtype: str
    device: str
    passes: Mapping[str, tuple[ToleranceRow, ...]]


@dataclass(frozen=True, slots=True)
class KnownEntry:
    """An entry of a file of known findings. reason: with its link and last day; expired: whether that is over."""

    id: str
    sentence: str
    reason: str
    status: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: tuple[str, ...]
    expired: bool


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file of known findings, as it is now. problems: why it cannot be used as it is; added, updated, dropped: the ids of the
    entries that the command changed."""

    file: str
    entries: tuple[KnownEntry, ...]
    problems: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment that changes numbers."""

    name: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What a device answered. verdict: healthy, suspect or unusable; means: what that is; facts, machine: what was probed."""

    device: str
    verdict: str
    means: str
    reasons: tuple[str, ...]
    dtypes: tuple[str, ...]
    facts: Mapping[str, str]
    machine: Mapping[str, str]
    environment: tuple[Variable, ...]
    fingerprint: Mapping[str, Any]


# What each command answers, one of these. A command that is not here takes no --json.
ANSWERS: Mapping[str, tuple[type[Any], ...]] = {
    "run": (Ran, Listed),
    "report": (Causes, Matrix, Support),
    "diff": (Difference,),
    "upgrade": (Upgraded, Since),
    "merge": (Merged,),
    "replay": (Replay,),
    "explain": (Tolerance, Replay),
    "known": (KnownFile,),
    "locate": (Located, Recorded),
    "train": (Located,),
    "audit": (Audited, Kernels),
    "doctor": (Examined,),
}


def tree(value: Any) -> Any:
    """A value of these classes as JSON: every field, with NaN and infinities as strings."""
    return _spelled(msgspec.to_builtins(value, str_keys=True))


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _spelled(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text(value: Any) -> str:
    """The same as text."""
    return json.dumps(tree(value), indent=1, allow_nan=False)
