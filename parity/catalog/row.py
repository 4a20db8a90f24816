"""A row of the catalog: one op, declared in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parity.catalog.draw import Call, Draw
from parity.dtypes import BOOL, COMPLEX, FLOATS, INTS
from parity.vocabulary import Case, OpClass

Signature = Callable[[Draw], Call]
Lesser = Callable[[Case], Iterator[Case]]

FLOATING = (*FLOATS, *COMPLEX)
NUMERIC = (*FLOATS, *COMPLEX, *INTS)
REAL = (*FLOATS, *INTS)
EVERY = (*FLOATS, *COMPLEX, *INTS, *BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One op of the suite.

    name: what a person types ("add", "layer_norm", "linalg.svd"): the public name without `torch.` or `nn.functional.`.
    call: dotted path of the function ("torch.add", "torch.nn.functional.layer_norm", "torch.Tensor.copy_").
    rule: the op class, hence the rule that judges its results (gradients are always judged as composites).
    dtypes: dtypes of the op's main operand that the reference takes. grad: those of them with a backward; () for none.
    inplace: dotted path of the in-place form, or "". out: whether `call` takes out=.
    mutates: `call` itself writes into its first argument (copy_, setitem, index_add_).
    view: the result aliases the first argument. strides: torch promises the strides of the result.
    promotes: torch promotes: operands may have different dtypes where there are several, integers become floats where the
    result is one.
    unexpanded: the reference itself reads beside an operand that has strides of 0 (torch 2.13), so that none is drawn.
    unfrozen: the reference ends the process for the gradients of other operands alone, where the first one is in channels_last
    (torch 2.13), so that its own is asked for too, as long as it has a layout.
    updates: the call changes operands beside its result (running statistics), so that each run gets copies.
    places: integer operands say where to write, so that none repeats, and samples keep their numbers.
    finite: NaN, Inf and numbers out of range are undefined.
    choices: operands, by number, that stand for a choice (a sign, a degree, a bin): no rounding moves them.
    tames: keyword arguments beside which the operands before them hold only what the call asks for.
    memory: the op reads what lies beside its operand's elements in memory, by strides of its own, so that the oracle's operands
    lie as the case's do.
    never: pairs of features (`parity.features`) that torch refuses together in this op; reason in a comment.
    packed: the op refuses operands that are not dense in memory, so that one in so many gets a layout (0: all may).
    relation: how several right answers are told from wrong ones (`parity.judging.relations`), or "" where there is only one.
    rounds_between: half-precision kernels that round between their stages even on honest devices; reason in a comment.
    accumulates: the passes ("forward", "backward") in which honest devices add up in the half type itself: atomics, running
    values that are stored.
    stages: the passes in which honest devices keep partial sums (one for each batch element, one for each tap) in the half
    type and add those up, or a factor that elements share.
    ulp: name of the function in the devices' ULP tables, if not the row's own.
    oracle: "wide" (the same call in float64), "exact" (the reference's own result is the truth), or a dotted path of a
    function of the same arguments.
    opinfo: names of torch's OpInfo entries that it covers ("name" or "name:variant").
    lesser: the call with smaller sizes, for ops whose sizes belong together in a way that shrinking cannot see; or None.
    """

    name: str
    family: str
    rule: OpClass
    call: str
    signature: Signature
    dtypes: tuple[str, ...] = FLOATS
    grad: tuple[str, ...] = ()
    inplace: str = ""
    out: bool = False
    mutates: bool = False
    view: bool = False
    strides: bool = False
    promotes: bool = False
    packed: int = 0
    memory: bool = False
    unexpanded: bool = False
    unfrozen: bool = False
    updates: bool = False
    places: bool = False
    finite: bool = False
    choices: tuple[int, ...] = ()
    tames: tuple[str, ...] = ()
    never: tuple[tuple[str, str], ...] = ()
    relation: str = ""
    rounds_between: bool = False
    accumulates: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    ulp: str = ""
    oracle: str = "wide"
    opinfo: tuple[str, ...] = ()
    lesser: Lesser | None = None
