"""A case: one call of one op, described completely. It holds no tensor, so it can be stored, shrunk and rebuilt anywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, TypeAlias, Union

from parity.core.extensions import Words


class OpClass(Words):
    """Which rule judges an op (the numbers and their sources: `tolerances/default.toml`)."""

    EXACT = "exact"  # data movement, comparisons, integer and bit ops, rounding
    ELEMENTWISE = "elementwise"  # one rounded function per element; a ULP table per device
    CONTRACTION = "contraction"  # sums of products: matmul, conv, sum, cumsum, norm
    COMPOSITE = "composite"  # anything that rounds several times; also most gradients
    SELECTION = "selection"  # sort, topk, argmax ...: several answers can be right
    DECOMPOSITION = "decomposition"  # svd, eigh, qr ...: invariants instead of values
    SOLVER = "solver"  # solve, inv, lstsq ...: conditioned by the matrix
    RANDOM = "random"  # dropout, rand_like ...: a distribution instead of values
    METADATA = "metadata"  # only shape, dtype and layout are promised (empty_like)

    @property
    def of_gradients(self) -> OpClass:
        """The class whose rule judges the gradients of an op of this class. Gradients of sums are sums; all others round
        several times. Defined here because the tolerance tables need it too, and cannot import the rules."""
        return self if self is OpClass.CONTRACTION else OpClass.COMPOSITE

    @property
    def is_conditional(self) -> bool:
        """Whether results or their gradients exist only under conditions (distinct singular values, a regular matrix), or
        follow a law. Here, because what is drawn depends on it too, and cannot import the rules."""
        return self in (OpClass.DECOMPOSITION, OpClass.SOLVER, OpClass.RANDOM)

    @property
    def is_by_element(self) -> bool:
        """Whether each element of a result is a function of the elements of the operands at its place."""
        return self is OpClass.ELEMENTWISE


Step: TypeAlias = tuple[str | int, ...]  # one view operation: its name and its integers, e.g. ("step", -1, 2)
Layout: TypeAlias = tuple[Step, ...]  # how a view is made from its dense base, first step first; () is contiguous


@dataclass(frozen=True, slots=True)
class Values:
    """The contents of a tensor: a family with its parameters, a seed, and up to eight planted special values.

    specials: (flat index, word) pairs; the words are keys of `parity.execution.inputs.SPECIALS`.
    literal: the elements themselves, row-major, instead of a family.
    """

    family: str = "uniform"
    params: tuple[float | int, ...] = ()
    seed: int = 0
    specials: tuple[tuple[int, str], ...] = ()
    literal: tuple[float | int | bool | complex, ...] | None = None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A description of one tensor operand, never a tensor.

    grad: whether it requires a gradient in the backward aspect (floating and complex dtypes only).
    on_cpu: whether the operand stays on the CPU in the device's run too (torch accepts this of 0-d operands, for example).
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


# What may run on the device right before the call; `parity.checks.history` says what each does.
HISTORIES = (
    *("garbage", "other_scalar", "other_values", "smaller", "larger", "other_layout", "other_dtype"),
    *("larger_smaller", "other_grad", "other_presence", "destination", "sibling"),
)
# What may be wrong with a call that must be refused; `parity.checks.refusal` checks it.
ERROR_KINDS = ("dtype", "shape", "dim", "index", "size", "inputs", "argument", "value", "chance", "device")

Arg: TypeAlias = Union[TensorSpec, Word, Slice, int, float, complex, bool, str, EllipsisType, "tuple[Arg, ...]", None]


def operands_in(tree: Arg) -> list[TensorSpec]:
    """The operands in an argument, or in a tuple of arguments, from left to right."""
    specs: list[TensorSpec] = []
    _collect(tree, specs)
    return specs


def _collect(tree: Arg, specs: list[TensorSpec]) -> None:
    if isinstance(tree, TensorSpec):
        specs.append(tree)
    elif isinstance(tree, tuple):
        for a in tree:
            _collect(a, specs)


def map_operands_in(tree: Arg, change: Callable[[TensorSpec], Any]) -> Any:
    """The argument, or the tuple of arguments, with each operand replaced by `change(operand)`, from left to right."""
    if isinstance(tree, TensorSpec):
        return change(tree)
    return tuple([map_operands_in(a, change) for a in tree]) if isinstance(tree, tuple) else tree


# Values of a cotangent: nonfinite is normal with NaN and Inf in a few elements, huge and tiny are normal times a power of two.
COTANGENTS = ("ones", "normal", "zero", "nonfinite", "huge", "tiny")


@dataclass(frozen=True, slots=True)
class Cotangent:
    """The gradient that is passed to backward: its values (one of `COTANGENTS`), and its layout by name (`WORDS` and `EXPANDED`
    of `parity.core.layout`)."""

    values: str = "ones"
    layout: str = "contiguous"
    seed: int = 0


# torch's own test data. Their rows are named "<source>:<entry>"; a case of theirs names a sample by its index.
TORCH_DATA = ("opinfo", "modules", "optimizers")


@functools.cache
def source_of(op: str) -> str:
    """Which of torch's own test data an op is an entry of, or "native"."""
    source, found, _ = op.partition(":")
    return source if found and source in TORCH_DATA else "native"


def entry_of(op: str) -> str:
    """The name of an op without its source: "nn.LSTM:train" of "modules:nn.LSTM:train", "add" of "opinfo:add" and of "add"."""
    return op if source_of(op) == "native" else op.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Case:
    """One call of one op, described completely: enough to rebuild it on any machine.

    into: the destination of the out= aspect: a layout name (`parity.core.layout.WORDS`), "empty", or a dtype to cast to.
    under: the mode of torch in which every call runs: a key of `parity.execution.modes.MODES`.
    after: what the device runs right before the call (one of `HISTORIES`), or "".
    history: cases that the process checks before, in all their aspects, and that are not judged.
    sharing: "memory" if operands that are described alike are one tensor, else "".
    refused: what is wrong with the call (one of `ERROR_KINDS`), so that it must be refused, or "".
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
    sharing: str = ""
    history: tuple[Case, ...] = field(default=(), repr=False)  # its text seeds random choices, which a history must not change

    def operands(self) -> list[TensorSpec]:
        """All operands in the order of the text: those of the arguments, then those of the keyword arguments. Operand number k
        is element k of this list, everywhere."""
        specs: list[TensorSpec] = []
        for a in self.args:
            _collect(a, specs)
        for _, a in self.kwargs:
            _collect(a, specs)
        return specs

    def map_operands(self, change: Callable[[TensorSpec], TensorSpec]) -> Case:
        """The case with each operand replaced by `change(operand)`, in the order of `operands`."""
        return replace(self, args=map_operands_in(self.args, change), kwargs=map_operands_in(self.kwargs, change))

    def with_operands(self, specs: Iterable[TensorSpec]) -> Case:
        """The case with these operands in place of its own; there must be as many."""
        following = iter(specs)
        return self.map_operands(lambda _: next(following))

    @property
    def is_sample(self) -> bool:
        """Whether the case names a sample of torch's own test data."""
        return source_of(self.op) != "native"

    @property
    def numel(self) -> int:
        """Elements of all operands together."""
        return sum([s.numel for s in self.operands()])
