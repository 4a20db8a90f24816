"""What is said of runs for other programs: of one, of several, of what changed between two. Schemas are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from parity.core.results import AspectWord, StatusWord
from parity.core.status import Status
from parity.core.stored import Number, words
from parity.findings.weights import WEIGHTS
from parity.store.rows import Ending

NOT_RUN = "not run"
SUPPORTED = ("works", "works in part", "drifts", "wrong", "fails", "refused", "falls back", "not judged")
if TYPE_CHECKING:
    PassWord: TypeAlias = str
    SupportWord: TypeAlias = str
    Weight: TypeAlias = str
else:
    PassWord = words("no pass has the status '{}'", (*Status, NOT_RUN))
    SupportWord = words("no op '{}'", SUPPORTED)
    Weight = words("no class '{}'", WEIGHTS)


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
