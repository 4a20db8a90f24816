"""Results of a case, in the order of a check: an Outcome of the reference and of the device, a Measure of the distance between
them, a Verdict, and a Record that can be stored. Only outcomes hold tensors."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta

from parity.core import picture
from parity.core.extensions import NAME, Words
from parity.core.layout import memory_format
from parity.core.status import BY_SEVERITY as BY_SEVERITY
from parity.core.status import COMPARED as COMPARED
from parity.core.status import DEATHS as DEATHS
from parity.core.status import FINDINGS as FINDINGS
from parity.core.status import SILENT as SILENT
from parity.core.status import Status as Status
from parity.core.status import statuses as statuses
from parity.core.stored import Count, Number, words

if TYPE_CHECKING:
    from torch import Tensor

# How the reason of a check begins that says nothing because of this torch, and not of the device.
MISSING = "this torch does not have"
OTHER_SIGNATURE = "this torch takes other arguments"
BOTH_REFUSE = "reference and device both refuse"


class Aspect(Words):
    """One kind of check of a case; each gives its own record. `Aspect("own-...")` is one of a file outside of the package."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPLACE = "in-place"
    OUT = "out="
    REPEAT = "repeat"
    DOUBLE = "double backward"
    TANGENT = "forward-mode"
    TRANSFER = "transfer"
    REFUSAL = "refusal"


DERIVATIVES = frozenset({Aspect.BACKWARD, Aspect.DOUBLE, Aspect.TANGENT})  # the aspects that the backward pass's rules judge


@dataclass(frozen=True, slots=True)
class Computed:
    """The op ran. tensors: (name, tensor on the CPU) in a stable order; `base[...]` entries are the whole memory of a
    destination."""

    tensors: tuple[tuple[str, Tensor], ...]
    notes: tuple[str, ...] = ()  # "fallback: aten::X" for work that moved to the CPU


@dataclass(frozen=True, slots=True)
class Raised:
    """The op raised. kind: 'refused' (op or dtype not supported), 'oom' or 'error'; stage: upload, run, backward, download."""

    kind: str
    type: str
    message: str
    stage: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process died. how: 'crash' or 'hang'; signal: name of the signal, or the exit code in words; where: Python stack."""

    how: str
    signal: str
    stage: str
    where: tuple[str, ...] = ()


Outcome: TypeAlias = Computed | Raised | Died


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of one tensor, and its origin.

    scale: factor on sensitivity times unit roundoff. output_ulp: added to that, for roundings of the result, in ULP.
    ulp: bound of an elementwise function in ULP of the output, or None if no table row gives one; absolute: added to that
    bound (fast functions near their zeros).
    origin: file and row, as a person would look it up ("tolerances/mps.toml: composite float16 backward").
    """

    rule: str
    scale: float
    output_ulp: float
    ulp: float | None
    origin: str
    reason: str = ""
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Measure:
    """Distance of one tensor of the device from the reference and from the truth. Stored for passes too.

    share: the device's worst error against the truth, divided by the budget; above 1 is a finding. reference_share: the same of
    the reference. measured: False if `share` is only an upper bound from a cheap test, which `screen` names.
    index: of the worst element; device, reference, truth: its three values. total: elements compared; mismatched: those above
    their budget; unjudged: those where any value is accepted; why: the reason for that. shape, errors, bins: of findings, the
    tensor's shape, the errors of its elements as letters on a grid, and the number of elements of each letter
    (`parity.core.picture`).
    """

    tensor: str
    share: Number | None = None
    reference_share: Number | None = None
    measured: bool = False
    screen: str = ""
    max_abs: Number | None = None
    max_ulp: Number | None = None
    index: tuple[int, ...] = ()
    device: str = ""
    reference: str = ""
    truth: str = ""
    mismatched: Count = 0
    total: Count = 0
    problem: str = ""  # "" | value | class | shared | shape | dtype | beside | missing | index ...: kind of difference
    budget: tuple[tuple[str, Number], ...] = ()  # the terms of the budget at that element
    spread: Number | None = None  # sums: root mean square of the errors in units of its limit
    reference_spread: Number | None = None  # the same of the reference, in the same units
    certain: bool = False  # sums: the error of an element exceeds the bound for every order of summation
    unjudged: Count = 0
    why: str = ""
    shape: tuple[int, ...] = ()
    errors: Letters = ""
    bins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.shape or self.errors or self.bins:
            picture.check(self.shape, self.errors, self.bins)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status with a reason in one sentence. measure: that of the worst of the compared tensors, if any was compared.

    excess: the end of the reason if it is `times_the_budget`. near: single elements are at most twice outside an estimate.
    """

    status: Status
    reason: str = ""
    measure: Measure | None = None
    tolerance: Tolerance | None = None
    excess: str | None = None
    near: bool = False

    @property
    def tensor(self) -> str:
        """Name of the tensor that the verdict is about."""
        return self.measure.tensor if self.measure else ""

    def of(self, m: Measure) -> Verdict:
        """The same verdict for another tensor of the comparison, with the error of that tensor in the reason."""
        if self.excess is None or m.share is None:
            return replace(self, measure=m)
        return replace(self, measure=m, reason=times_the_budget(m.share, self.excess))


MANY = 1e9  # budgets above which the number says nothing: a result that is wholly wrong is 2e7 of float32 away


def times_the_budget(share: float, more: str) -> str:
    """The reason of a finding whose error exceeds its budget. more: text after the number."""
    return f"{f'{share:.3g}' if share < MANY else 'over a billion'} times the budget{more}"


def left_unjudged(m: Measure) -> str:
    """How many elements of a tensor were judged, and why the others were not."""
    if m.unjudged == m.total:
        return f"no element could be judged: {m.why}"
    return f"{m.total - m.unjudged:,} of {m.total:,} elements judged: {m.why}"


@dataclass(frozen=True, slots=True)
class Cause:
    """What experiments with a finding's least case say about its origin (`parity.findings.causes`).

    subject: the operator of aten that first differs ("aten::exp") or, if no operator differs alone, the function of the row
    ("torch.softmax").
    symptom: one of `SYMPTOMS`, for errors followed by the message without its numbers.
    properties: those of the call without which it agrees, like "transposed operand" or "NaN"; or `UNSEARCHED`.
    """

    subject: str
    symptom: SymptomWord
    properties: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The properties without what chance decides: of a slice, the least case keeps the offset or the strides."""
        return tuple(dict.fromkeys(OFFSET_OPERAND if p == NON_CONTIGUOUS_OPERAND else p for p in self.properties))

    @property
    def kernel(self) -> str:
        """The subject without what stands around it: `_native_batch_norm_legit` is `batch_norm`, `conv1d` a convolution."""
        bare = self.subject if " " in self.subject else VARIANT.sub("", self.subject).replace(".", "_")
        return re.sub(r"^conv(_transpose)?[123]d$", r"convolution\1", bare)

    @property
    def says_all(self) -> bool:
        """Whether it is an error whose words name the check that raised it, so that operator and properties say no more."""
        kind, _, words = self.symptom.partition(": ")
        return kind in ("raises", "accepts") and bool(words) and not ANYBODYS.search(words)

    @property
    def facts(self) -> tuple[str, ...]:
        """What makes it this cause: two with equal facts are one. Words that anybody says are compared in whatever pass."""
        if self.says_all:
            return (self.symptom,)
        subject = self.kernel if " " in self.subject else f"aten::{self.kernel}"
        if shared := ANYBODYS.search(self.symptom.partition(": ")[2]):
            return subject, f"raises: {shared[0]}"
        return subject, self.symptom, *self.kinds

    @property
    def id(self) -> str:
        """Equal for equal facts, in every run and on every machine."""
        names = self.symptom.rpartition(": ")[2] if self.says_all else self.kernel.rpartition(":")[2]
        word = re.sub(r"\W+", "-", names)[:40].strip("-") or "cause"
        word += "-unsearched" if UNSEARCHED in self.properties and not self.says_all else ""
        return f"{word}-{hashlib.blake2b('|'.join(self.facts).encode(), digest_size=3).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Workaround:
    """A way around a finding that was tried (`parity.findings.workaround`). way: its name; cases: how many that fail as they
    are were tried with it; agreed: in how many of these the device agreed then."""

    way: str
    agreed: Count
    cases: Count

    def __post_init__(self) -> None:
        if self.agreed > self.cases:
            raise ValueError(f"{self.agreed} of {self.cases} cases agree with '{self.way[:60]}'")


# Words for the deciding properties of causes.
NON_CONTIGUOUS_OPERAND = "non-contiguous operand"
OFFSET_OPERAND = "offset operand"
STRIDED_DESTINATION = "strided destination"
OTHER_DESTINATION = "destination of another dtype"
LAZY_OPERAND = "lazy conj or neg operand"
CPU_OPERAND = "operand on the CPU"
EMPTY_OPERAND = "empty operand"
NON_FINITE = "NaN or Inf"
EXTREME_VALUES = "extreme values"
EARLIER_CALLS = "earlier calls"
HALF_TYPES = "half types"
NARROW_INTEGERS = "narrow integers"
UNSEARCHED = "no cause looked for"

# What stands around the name of a kernel in the names of torch's operators that call it.
VARIANT = re.compile(
    r"^(?:aten::|torch\.(?:nn\.functional\.)?)?_*(?:(?:native|cudnn|miopen|mps)_)?|_(?:efficient|flash|cudnn)(?=_attention)|"
    r"(?:_legit|_with_update|_no_training|_forward_only|_functional|_impl_index)*_*$"
)
# Words of errors that torch, Python or a driver raises for any operator.
ANYBODYS = re.compile(
    r"view size is not compatible|must match the size of tensor|expanded size of the tensor|is invalid for input of size|"
    r"shapes cannot be multiplied|shape mismatch: |out of memory|on the same device|^(?:Accelerator|Attribute|Type)Error in|"
    r"(?i:\b(?:invalid (?:argument|value)|(?:unknown|internal|unspecified|launch) (?:error|failure))(?: N)?$)"
)

# The symptoms of causes, and what each says of the subject.
SYMPTOMS = {
    "values": "gives wrong values", "memory": "writes outside its destination, or not at all",
    "metadata": "gives a wrong shape, dtype, stride or aliasing", "accepts": "computes what must be refused",
    "operands": "changes operands that it must only read", "law": "draws from a wrong distribution",
    "unstable": "gives different results in equal calls", "not reproduced": "was wrong once and never again",
    "raises": "raises where the CPU computes", "state": "changes the state of its process",
    "uncompared": "is not compared in all that was due", "flag": "is in force, and without it the device agrees",
    "memory exhausted": "runs out of memory", "dies": "ends or hangs the process",
}  # fmt: skip

if TYPE_CHECKING:
    StatusWord: TypeAlias = str
    AspectWord: TypeAlias = str
    SymptomWord: TypeAlias = str
else:  # what a field of a stored row may hold
    StatusWord = words("unknown status '{}'", Status)
    AspectWord = words("unknown aspect '{}'", Aspect, NAME)
    SymptomWord = words("unknown symptom '{}'", SYMPTOMS, re.compile(f"({'|'.join(SYMPTOMS)}):.*"))
Letters: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": f"^[{picture.LETTERS[0]}-{picture.LETTERS[-1]}-]*$"})]


@dataclass(frozen=True, slots=True)
class Record:
    """The stored result of one aspect of one case. shrunk: the least case; script: the file that shows the finding, in the
    folder of the run's scripts; cause: of a finding; count: cases of its op and dtype that showed it; others: some of those as
    they were drawn; gone: whether it was near its budget and was not reproduced in a fresh process, so that it does not count;
    also: further drawn cases that showed it and that the least case does not stand for (`parity.findings.recognition`); known:
    the entry of the file of known findings that it belongs to; by_chance: whether the least case agreed when it was run again;
    extent: at which values it shows, and how large the error is there (`parity.findings.regions`); ways: what was tried around
    it; near: of a drift that the whole run may call marginal (`parity.store.marginal`), the drawn cases that showed it."""

    case: str
    op: str
    dtype: str
    aspect: AspectWord
    status: StatusWord
    digest: str = ""
    pinned: bool = False
    reason: str = ""
    origin: str = ""
    measures: tuple[Measure, ...] = ()
    shrunk: str = ""
    script: str = ""
    cause: Cause | None = None
    count: Count = 0
    others: tuple[str, ...] = ()
    gone: bool = False
    also: tuple[str, ...] = ()
    known: str = ""
    by_chance: bool = False
    extent: tuple[tuple[str, Number], ...] = ()
    ways: tuple[Workaround, ...] = ()
    near: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it is a finding that was not dropped."""
        return self.status in FINDINGS and not self.gone

    @property
    def shows_alone(self) -> bool:
        """Whether its case shows it in a process of its own, as far as is known."""
        return self.status != Status.NOT_REPRODUCED and not (self.cause and EARLIER_CALLS in self.cause.properties)

    @property
    def unexplained(self) -> bool:
        """Whether it is a finding whose cause nobody has looked for, so that its case is as it was drawn."""
        return bool(self.shrunk) and self.status in FINDINGS and self.cause is None and not self.known

    @property
    def kind(self) -> tuple[str, ...]:
        """What a finding of its item shares with those of other cases."""
        return self.op, self.dtype, self.aspect, self.status, self.measures[0].tensor if self.measures else ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the same check in another run."""
        return self.case, self.aspect, self.digest


@dataclass(frozen=True, slots=True)
class MetadataNote:
    """A fresh result whose strides differ from the CPU's where torch promises none. aspect, tensor: of which check and which
    result; shape: of both; device, reference: the strides, in elements; case: the first that showed it; count: the checks of
    the item that showed the same words."""

    aspect: AspectWord
    tensor: str
    shape: tuple[int, ...]
    device: tuple[int, ...]
    reference: tuple[int, ...]
    case: str = ""
    count: Count = 1

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.device) == len(self.reference):
            of = f"{self.aspect} {self.tensor}, shape {self.shape}, strides {self.device} and {self.reference}"
            raise ValueError(f"no strides of a result: {of[:400]}")

    @property
    def words(self) -> str:
        """How the two lie in memory: "channels last instead of contiguous"."""
        there, here = memory_format(self.shape, self.device), memory_format(self.shape, self.reference)
        return f"{there} instead of {here}" if there != here else f"other strides, {here} as well"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that may change numerics between two runs; identifies a baseline."""

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
