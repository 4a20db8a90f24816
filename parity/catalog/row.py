"""A row of the catalog: the declaration of one op, in parts: what the call does, what may be drawn for it, what it refuses, how
its results are judged, and what it counts as.

Rows are declared in the shape in which they are read: `Row(..., forms=Forms(out=True))` gives `row.forms.out`. A part that
a row names replaces the one in the `partial` of its family: nothing is merged, so that each part is read in one place. What
only a few ops need is a `Quirk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import NamedTuple

from parity.catalog.draw import Arguments, Draw
from parity.core.case import Arg, Case, OpClass, source_of
from parity.core.dtypes import BOOL, COMPLEX, FLOATS, INTS

Signature = Callable[[Draw], Arguments]
Lesser = Callable[[Case], Iterator[Case]]

FLOATING = (*FLOATS, *COMPLEX)
NUMERIC = (*FLOATS, *COMPLEX, *INTS)
REAL = (*FLOATS, *INTS)
EVERY = (*FLOATS, *COMPLEX, *INTS, *BOOL)
EXACT = OpClass.EXACT
ELEMENTWISE = OpClass.ELEMENTWISE
CONTRACTION = OpClass.CONTRACTION
COMPOSITE = OpClass.COMPOSITE
SOLVER = OpClass.SOLVER
SELECTION = OpClass.SELECTION
DECOMPOSITION = OpClass.DECOMPOSITION
RANDOM = OpClass.RANDOM
METADATA = OpClass.METADATA
# Gradients that are scattered and summed by atomics, in half precision for half types (seen on CUDA).
SCATTERED = ("backward",)
METHOD = "torch.Tensor.*_"  # the in-place method of the same name
GLUE = "parity.catalog.glue.calls.*"  # parity's own function of the same name
RAW = ("kernels", "gradients", "forms")  # families of raw kernels, which check no shape: no argument is left out or filled in


class Wrong(NamedTuple):
    """One argument that makes the op refuse a legal call.

    where: its position among the positional arguments, or its keyword. word: the kind of error, one of `case.ERROR_KINDS`.
    needs: a keyword that the call must have for `value` to be wrong, or "".
    """

    where: int | str
    value: Arg
    word: str = "argument"
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Forms:
    """What the call does with its operands and results, and in which forms torch has it.

    inplace: dotted path of the in-place form, or "". out: whether the call takes out=.
    mutates: the call itself writes into its first argument (copy_, setitem, index_add_).
    view: the result aliases the first argument. strides: torch promises the strides of the result.
    promotes: torch promotes: operands may have different dtypes, and integers become floats if the result is a float.
    updates: the call also changes operands (running statistics), so each run gets copies.
    """

    inplace: str = ""
    out: bool = False
    mutates: bool = False
    view: bool = False
    strides: bool = False
    promotes: bool = False
    updates: bool = False


@dataclass(frozen=True, slots=True)
class Draws:
    """What may be drawn.

    finite: NaN, Inf and numbers out of range are undefined.
    choices: numbers of operands that select something (a sign, a degree, a bin), so their rounding is not modelled.
    places: integer operands are indices to write to, so none repeats, and samples keep their values.
    cases: factor for the number of cases: more for ops whose many arguments must meet, less where a case is slow.
    on_cpu: operands that may stay on the CPU in addition to 0-d ones: "either" side of a copy, the "indices", any but the first
    ("rest"), or "all" (no operand on another device is an error).
    packed: the op refuses operands that are not dense, so only one in this many gets a layout (0: no restriction).
    unexpanded: the reference reads outside operands with strides of 0 (torch 2.13), so none is drawn.
    spatial: number of dimensions that a window moves along.
    nondeterministic: dtypes that are not drawn in torch's deterministic mode, which refuses the op or uses another formula.
    lesser: yields the call with smaller sizes, for ops whose sizes depend on each other in a way that shrinking does not know;
    or None.
    """

    finite: bool = False
    choices: tuple[int, ...] = ()
    places: bool = False
    cases: float = 1
    on_cpu: str = ""
    packed: int = 0
    unexpanded: bool = False
    spatial: int = 0
    nondeterministic: tuple[str, ...] = ()
    lesser: Lesser | None = None


@dataclass(frozen=True, slots=True)
class Refuses:
    """What the op refuses, and what it takes or leaves unchecked although others refuse it.

    wrong: arguments that it refuses. sized: tuples of integers among its arguments are sizes, which must not be negative.
    fits: "always" if the last dimension of the first operand must match another operand or size, "filled" if that is checked
    only if operands have elements; "never" if torch leaves it to the kernels of some devices to check shapes.
    raises_on: "singular" or "indefinite" matrices as first operand raise, because they have no factors; or "".
    alike: operands of different dtypes are an error (other ops promote them).
    takes: kinds of dtypes ("int", "complex") that the CPU accepts although torch's OpInfo does not list them.
    wraps: negative indices count from the end.
    unchecked: the kernel does not check its arguments (kernels below torch's public functions, recurrent layers): wrong ones
    make it access memory outside its operands.
    """

    wrong: tuple[Wrong, ...] = ()
    sized: bool = False
    fits: str = ""
    raises_on: str = ""
    alike: bool = False
    takes: tuple[str, ...] = ()
    wraps: bool = False
    unchecked: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """How the results are judged, in addition to the rule of the row.

    relation: the check that distinguishes right from wrong answers if several are right (`parity.judging.relations`), or "".
    rounds_between: half-precision kernels round between their stages, also on correct devices; reason in a comment.
    accumulates: the passes ("forward", "backward") in which correct devices sum in the half type itself: atomics, running
    values that are stored.
    stages: the passes in which correct devices store partial sums (one per batch element, or per tap) in the half type and sum
    those, or store a factor that elements share.
    ulp: name of the function in the devices' ULP tables, if not the row's own.
    oracle: "wide" (the same call in float64), "exact" (the reference's own result is the truth), or a dotted path of a
    function of the same arguments.
    law: name of the distribution or mask that a random op promises (`parity.judging.laws`), or "".
    transform: a discrete Fourier transform, whose error is bounded relative to the norm of its result only.
    gauss: complex products may use three real products (Gauss's trick), whose error bound is three times as large.
    by_norm: computed from singular values or eigenvalues; the error is bounded relative to the norm of the matrix only.
    bias: position, among the floating operands, of the one that is added after a sum of products; None if there is none.
    """

    relation: str = ""
    rounds_between: bool = False
    accumulates: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    ulp: str = ""
    oracle: str = "wide"
    law: str = ""
    transform: bool = False
    gauss: bool = False
    by_norm: bool = False
    bias: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What the row counts as in coverage.

    opinfo: names of torch's OpInfo entries that it covers ("name" or "name:variant").
    under: the OpInfo entry, or the row, that it counts as; "" to find it by its names.
    mps: "own" if MPS has an operator for it that no other device has, "convolution" or "transposed" if a simulated device runs
    it under another name in torch; or "".
    """

    opinfo: tuple[str, ...] = ()
    under: str = ""
    mps: str = ""


class Quirk(Enum):
    """What is true of a few ops only, in one sentence each."""

    MASK = "the first operand is a mask, which keeps its dtype if those of the others are mixed"
    TRANSFERS = "the op is itself a copy between dtypes and devices, so these are drawn for it more often"
    NUMBER = "torch reads the last positional argument as a Python number on any device"
    CHANCES = "the last operand holds probabilities or rates, which must not be negative"
    READS_PAST = "indices past the end are not checked"
    RUNNING = "results are partial sums of one another, so they share rounding errors"
    # It reads by strides of its own, so the oracle's operands keep their layout.
    MEMORY = "the op reads memory around its operand's elements"
    # torch 2.13: batch_norm's gradients for (N, C), (N, C, 1) and channels_last read strided ones beyond their ends.
    DENSE = "the reference reads operands of one dimension as dense unless the first one is (N, C, L)"
    # torch 2.13; the first operand keeps its gradient if it has a layout.
    UNFROZEN = "the reference crashes when only other operands require gradients and the first one is in channels_last"


@dataclass(frozen=True, slots=True)
class Row:
    """One op of the suite.

    A `*` in `call`, `forms.inplace` and `judged.law` stands for the name, an entry `*` in `counts.opinfo` for the public name
    of `call`; the constructor replaces them.

    name: the name that people type ("add", "layer_norm", "linalg.svd"): the public name without `torch.` or `nn.functional.`.
    signature: draws the arguments of a call.
    rule: the op class, hence the rule that judges its results (gradients by `OpClass.of_gradients`).
    call: dotted path of the function ("torch.add", "torch.nn.functional.layer_norm", "torch.Tensor.copy_").
    dtypes: dtypes of the op's main operand that the reference takes. grad: those of them with a backward; () for none.
    """

    name: str
    signature: Signature
    _: KW_ONLY
    family: str
    rule: OpClass
    call: str = "torch.*"
    dtypes: tuple[str, ...] = FLOATS
    grad: tuple[str, ...] = ()
    forms: Forms = Forms()
    draws: Draws = Draws()
    refuses: Refuses = Refuses()
    judged: Judged = Judged()
    counts: Counts = Counts()
    quirks: tuple[Quirk, ...] = ()

    def __post_init__(self) -> None:
        call = self.call.replace("*", self.name)
        public = call.removeprefix("torch.").removeprefix("Tensor.")
        opinfo = tuple([public if entry == "*" else entry for entry in self.counts.opinfo])
        object.__setattr__(self, "call", call)
        object.__setattr__(self, "forms", replace(self.forms, inplace=self.forms.inplace.replace("*", self.name)))
        object.__setattr__(self, "judged", replace(self.judged, law=self.judged.law.replace("*", self.name)))
        object.__setattr__(self, "counts", replace(self.counts, opinfo=opinfo))

    @property
    def is_sampled(self) -> bool:
        """Whether its calls are samples of torch's own test data, which say neither what an operand is for nor its domain."""
        return source_of(self.name) != "native"


OWN = Counts(("*",))  # as the OpInfo entry with the name of the function
OUT = Forms(out=True)
POINTWISE = Forms(inplace=METHOD, out=True, strides=True, promotes=True)
ROUNDED = Judged(rounds_between=True)
UNCHECKED = Refuses(unchecked=True)
