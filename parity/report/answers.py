"""What `--json` prints: one envelope for all commands, and what each of them answers. The schema is made from these classes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from parity.core.results import Record, StatusWord
from parity.core.status import Conclusion
from parity.core.stored import Number, words
from parity.report.run_answers import Causes, Difference, Listed, Matrix, Merged, Ran, Since, Support, Upgraded

if TYPE_CHECKING:
    VerdictWord: TypeAlias = str
else:
    VerdictWord = words("no verdict '{}'", Conclusion)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command says. command: its name, "parity" where the line names none that answers; code: its exit code; verdict: of
    what was asked about, or whether the command could answer at all; error: why it could not, empty where it could; data: the
    answer, null where there is none."""

    parity_answer: Literal[1]
    command: str
    version: str
    code: int
    verdict: VerdictWord
    error: str
    data: Any


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


NONE = "parity"  # what stands for the command where a line names none that answers
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
