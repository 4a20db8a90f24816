"""The nouns, in the order a check meets them. All are frozen; none holds a tensor except the outcomes.

A **Case** says what to run, an **Outcome** what happened on one side, a **Measure** how far the two sides are apart, a
**Verdict** what that means, a **Record** all of it in a form that can be stored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from parity.errors import UsageError
from parity.swift import swift

if TYPE_CHECKING:
    from torch import Tensor


class Status(StrEnum):
    """What a check found. Every report uses these words."""

    AGREE = "agree"
    DRIFT = "drift"
    WRONG = "wrong"
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    FALLBACK = "fallback"
    UNSTABLE = "unstable"
    CRASH = "crash"
    HANG = "hang"
    KILLED = "killed"
    OOM = "oom"
    VOID = "void"

    @property
    def is_finding(self) -> bool:
        """Whether this status fails a run unless told otherwise."""
        return self in FINDINGS

    @property
    def is_comparison(self) -> bool:
        """Whether a record with this status says that both sides were compared."""
        return self in COMPARED


FINDINGS = frozenset(
    {Status.DRIFT, Status.WRONG, Status.MALFORMED, Status.ERROR, Status.UNSTABLE}
    | {Status.CRASH, Status.HANG, Status.KILLED, Status.OOM}
)
COMPARED = frozenset({Status.AGREE, Status.DRIFT, Status.WRONG, Status.MALFORMED, Status.UNSTABLE})
MEANING: dict[Status, str] = {
    Status.AGREE: "inside the tolerance",
    Status.DRIFT: "precision worse than the budget allows",
    Status.WRONG: "no rounding explains it; NaN or Inf where there is none; a write missing or beside its target",
    Status.MALFORMED: "wrong shape, dtype or aliasing, or computed what must be refused",
    Status.UNSUPPORTED: "the device refuses the op or the dtype, in the words it has for that",
    Status.ERROR: "the device raised where the reference ran",
    Status.FALLBACK: "ran on the CPU without being asked to",
    Status.UNSTABLE: "two equal runs differ, and one of them is outside the tolerance",
    Status.CRASH: "the process died",
    Status.HANG: "did not come back within its time",
    Status.KILLED: "the process was killed from outside, by a person or for its memory, and the case with it",
    Status.OOM: "the device ran out of memory",
    Status.VOID: "neither the reference nor the oracle could run it: says nothing",
}


def statuses(words: Collection[str], option: str) -> tuple[Status, ...]:
    """The statuses of these words, which are to fail. Raises UsageError for one that parity does not know, and for `agree`,
    naming the option."""
    known = [str(s) for s in Status if s is not Status.AGREE]
    for w in words:
        if w == Status.AGREE:
            raise UsageError(f"'{w}' for {option}: agreement is no failure; allowed: {', '.join(known)}")
        if w not in known:
            raise UsageError(f"unknown status '{w}' for {option}; allowed: {', '.join(known)}")
    return tuple(map(Status, words))


class Aspect(StrEnum):
    """One way of looking at a case; each gives a record of its own."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPLACE = "in-place"
    OUT = "out="
    REPEAT = "repeat"
    DOUBLE = "double backward"
    TANGENT = "forward-mode"
    TRANSFER = "transfer"
    REFUSAL = "refusal"


class OpClass(StrEnum):
    """Which rule judges an op (the numbers and their sources: `tolerances/default.toml`)."""

    EXACT = "exact"  # data movement, comparisons, integer and bit ops, rounding
    ELEMENTWISE = "elementwise"  # one rounded function per element; a ULP table per device
    CONTRACTION = "contraction"  # sums of products: matmul, conv, sum, cumsum, norm
    COMPOSITE = "composite"  # anything built of several roundings; also every gradient
    SELECTION = "selection"  # sort, topk, argmax ...: several answers can be right
    DECOMPOSITION = "decomposition"  # svd, eigh, qr ...: invariants instead of values
    SOLVER = "solver"  # solve, inv, lstsq ...: conditioned by the matrix
    RANDOM = "random"  # dropout, rand_like ...: a distribution instead of values
    METADATA = "metadata"  # only shape, dtype and layout are promised (empty_like)


# ------------------------------------------------------------------------------------------------------------- the case

Step: TypeAlias = tuple[str | int, ...]  # one view operation: its word and its integers, e.g. ("step", -1, 2)
Layout: TypeAlias = tuple[Step, ...]  # how a view is made from its dense base, first step first; () is contiguous


@swift
@dataclass(frozen=True, slots=True)
class Values:
    """What stands in a tensor: a family with its parameters, a seed, and up to eight planted specials.

    specials: (flat index, word) pairs; the words are keys of `parity.inputs.SPECIALS`.
    literal: the elements themselves, row-major, instead of a family (written by the last stage of shrinking).
    """

    family: str = "uniform"
    params: tuple[float | int, ...] = ()
    seed: int = 0
    specials: tuple[tuple[int, str], ...] = ()
    literal: tuple[float | int | bool | complex, ...] | None = None


@swift
@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A description of one tensor operand, never a tensor.

    grad: whether it requires a gradient in the backward aspect (floating and complex dtypes only).
    on_cpu: stays on the CPU on the device side too (0-d operands, which torch allows to mix).
    """

    dtype: str
    shape: tuple[int, ...]
    layout: Layout = ()
    values: Values = Values()
    grad: bool = True
    on_cpu: bool = False

    @property
    def numel(self) -> int:
        """Number of elements of the view."""
        n = 1
        for s in self.shape:
            n *= s
        return n


@dataclass(frozen=True, slots=True)
class Word:
    """An attribute of torch as an argument: a dtype, a memory format (`float16`, `channels_last`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A Python slice as an argument (Python's own is not hashable before 3.12)."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None


# What may come before a call on the device: what it does there is told in `parity.checking.prelude`.
PRELUDES = ("garbage", "other_scalar", "other_values", "smaller", "larger", "other_layout", "other_dtype")
# What may be wrong with a call that is drawn to be refused: `parity.checking.refusal` says how.
FLAWS = ("dtype", "shape", "dim", "index", "size", "inputs", "argument", "value", "chance", "device")

Arg: TypeAlias = Union[TensorSpec, Word, Slice, int, float, complex, bool, str, EllipsisType, "tuple[Arg, ...]", None]


@swift
@dataclass(frozen=True, slots=True)
class Cotangent:
    """The gradient that is fed into backward: which values, and in which layout word (`parity.layout.WORDS`)."""

    values: str = "ones"  # ones | normal | zero
    layout: str = "contiguous"
    seed: int = 0


@swift
@dataclass(frozen=True, slots=True)
class Case:
    """One call of one op, described completely: enough to rebuild it on any machine.

    into: the destination of the out= aspect: a layout word (`parity.layout.WORDS`), "empty", or a dtype to cast to.
    under: the mode of every call, of autograd or of its algorithms: a key of `parity.execute.MODES`.
    after: what the device does right before (a word of `PRELUDES`), or "".
    refused: what is wrong with the call (a word of `FLAWS`), so that it must be refused, or "".
    """

    op: str
    dtype: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    cotangent: Cotangent = Cotangent()
    into: str = "contiguous"
    under: str = "grad"
    after: str = ""
    refused: str = ""


# ---------------------------------------------------------------------------------------------------------- the outcome


@swift
@dataclass(frozen=True, slots=True)
class Computed:
    """The op ran. tensors: (name, tensor on the CPU) in a stable order; `base[...]` entries are whole destinations."""

    tensors: tuple[tuple[str, Tensor], ...]
    notes: tuple[str, ...] = ()  # "fallback: aten::X" for work that moved to the CPU


@dataclass(frozen=True, slots=True)
class Raised:
    """The op raised. kind: 'refused' (op or dtype not there), 'oom' or 'error'; stage: upload, run, backward, download."""

    kind: str
    type: str
    message: str
    stage: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process did. how: 'crash' or 'hang'; signal: its name, or the exit code in words; where: the Python stack."""

    how: str
    signal: str
    stage: str
    where: tuple[str, ...] = ()


Outcome: TypeAlias = Computed | Raised | Died


# ---------------------------------------------------------------------------------------------------- measure and verdict


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The numbers that judge one tensor, and where they come from.

    scale: factor on the sensitivity and the unit roundoff. output_ulp: roundings of the result allowed beside it, in ULP.
    ulp: bound of an elementwise function in ULP of the output, or None where no table row gives one; absolute: what may be
    added to it (fast functions near their zeros).
    origin: file and row, as a person would look it up ("tolerances/mps.toml: composite float16 backward").
    """

    rule: str
    scale: float
    output_ulp: float
    ulp: float | None
    origin: str
    reason: str = ""
    absolute: float = 0.0


@swift
@dataclass(frozen=True, slots=True)
class Measure:
    """How far one tensor of the device is from the reference and from the truth. Kept for passes too.

    share: the device's worst error against the truth in units of the budget; above 1 is outside. reference_share: the
    reference's own. measured: False where `share` is only an upper limit, known from a cheap screen (named in `screen`).
    index: of the worst element; device, reference, truth: its three values. total: elements compared; mismatched: those that
    are outside; unjudged: those of which any value would have been taken, and why.
    """

    tensor: str
    share: float | None = None
    reference_share: float | None = None
    measured: bool = False
    screen: str = ""
    max_abs: float | None = None
    max_ulp: float | None = None
    index: tuple[int, ...] = ()
    device: str = ""
    reference: str = ""
    truth: str = ""
    mismatched: int = 0
    total: int = 0
    problem: str = ""  # "" | value | class | shared | shape | dtype | beside | missing | index ...: the kind of difference
    budget: tuple[tuple[str, float], ...] = ()  # the terms of the budget at that element
    spread: float | None = None  # sums: root mean square of the errors in units of its limit
    certain: bool = False  # sums: an element is off by more than any order of adding explains
    unjudged: int = 0
    why: str = ""


@swift
@dataclass(frozen=True, slots=True)
class Verdict:
    """status, with one sentence of reason; the measure is the worst of the compared tensors, if there was one."""

    status: Status
    reason: str = ""
    measure: Measure | None = None
    tolerance: Tolerance | None = None

    @property
    def tensor(self) -> str:
        """Name of the tensor it speaks of."""
        return self.measure.tensor if self.measure else ""


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored of one aspect of one case."""

    case: str
    op: str
    dtype: str
    aspect: str
    status: str
    digest: str = ""
    pinned: bool = False
    reason: str = ""
    origin: str = ""
    measures: tuple[Measure, ...] = ()
    shrunk: str = ""
    script: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the same check is called in another run."""
        return self.case, self.aspect, self.digest


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that may change numerics between two runs; keys every baseline."""

    parity: str
    torch: str
    torch_git: str
    python: str
    os: str
    machine: str
    device: str  # as asked for and resolved: "mps", "cuda:0", "sim:mps"
    device_name: str  # chip or GPU, "simulated"
    driver: str = ""
    simulated: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # probed: subnormals kept or flushed, matmul precision, dtypes


Json: TypeAlias = dict[str, Any]
