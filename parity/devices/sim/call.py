"""Call: what a fault sees of one call on a simulated device, and what it can do with it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.core.errors import FaultError
from parity.core.observer import in_backward

SAME = {"input": "self", "self": "input"}  # torch's documentation and its schemas differ
WRAPPED: list[Tensor] = []  # tensors that torch or parity made of plain numbers, for the duration of the call
FORMATS = (
    ("contiguous", torch.contiguous_format),
    ("channels_last", torch.channels_last),
    ("channels_last_3d", torch.channels_last_3d),
)


@dataclass(frozen=True, slots=True)
class CallOutline:
    """The outline of a call: what a cache might use as its key. Hashable.

    op: as Call.op. shapes, dtypes, strides: of every operand in order. scalars: the arguments that hold no tensor, in order,
    followed by keyword arguments; lists as tuples.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    strides: tuple[tuple[int, ...], ...]
    scalars: tuple[Any, ...]


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call that a fault sees.

    op: aten overload ("add.out", "copy_"), public name ("torch.nn.functional.linear"), "upload", "download" or "empty".

    args, kwargs: as passed; an effect may replace entries before `run`. outs: the destinations of an in-place or out= call
    (function level: out=, self of in-place methods, item assignment and augmented operators, the first operand under
    inplace=True). history: names of the earlier calls on this device, newest last; only kept while faults are planted; at most
    256. seen: outlines of the earlier calls that reached this fault's ops on this device, newest last; at most 256. state: a
    dict for this fault on this device, empty at first, kept as long as the device. fresh: whether torch made the destination
    for this call. grad_mode: whether the caller was recording gradients. origin: (args, kwargs) as the caller passed them, with
    the device's own tensors.
    """

    op: str
    level: str
    args: list[Any]
    kwargs: dict[str, Any]
    outs: tuple[Tensor, ...]
    history: Sequence[str]
    _run: Callable[[Call], Any]
    origin: tuple[Any, ...] = ()
    _resolved: Mapping[int, frozenset[str]] = field(default_factory=dict)
    fresh: bool = False
    grad_mode: bool = field(default_factory=torch.is_grad_enabled)
    seen: Sequence[CallOutline] = ()
    state: MutableMapping[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the arguments for the caller's own, where the device got these."""
        self.origin = self.origin or (tuple(self.args), dict(self.kwargs))

    def handed_to(self, run: Callable[[Call], Any], seen: Sequence[CallOutline], state: MutableMapping[Any, Any]) -> Call:
        """This call as another fault sees it: the same arguments, with that fault's own `run`, `seen` and `state`."""
        return dataclasses.replace(self, _run=run, seen=seen, state=state)

    # -------------------------------------------------------------------------------------------------- what it looks at

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Every tensor among the arguments in order, including those in lists, without out= destinations."""
        tensors: list[Tensor] = []
        written = {id(o) for o in self.outs}
        for a in (*self.args, *[v for v in self.kwargs.values() if id(v) not in written]):
            if isinstance(a, Tensor):
                tensors.append(a)
            elif isinstance(a, (list, tuple, dict)):
                tensors += [t for t in tree_leaves(a) if isinstance(t, Tensor)]
        return tuple(tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments in their order, as torch declares them; empty for transfers and allocations."""
        return tuple(n for n, _ in self._declared())

    def argument(self, name: str) -> Any:
        """The argument of that name, however it was passed; its default if it was left out. Raises FaultError if the call has
        none of that name."""
        if name in self.kwargs:
            return self.kwargs[name]
        declared = self._declared()
        k = _position(declared, name)
        if k is None:
            raise FaultError(f"{self.op} has no argument '{name}'; it has {', '.join(self.names) or 'no names'}")
        if k < len(self.args):
            return self.args[k]
        own, default = declared[k]
        return self.kwargs.get(own, None if default is inspect.Parameter.empty else default)

    def replace(self, name: str, value: Any) -> None:
        """Set the argument of that name for `run`. Raises FaultError as `argument` does."""
        self.argument(name)
        k = _position(self._declared(), name)
        if name not in self.kwargs and k is not None and k < len(self.args):
            self.args[k] = value
        else:
            self.kwargs[name] = value

    def _declared(self) -> tuple[tuple[str, Any], ...]:
        if self.level not in ("kernel", "function"):
            return ()
        return _names_of(self.op, self.level, len(self.args), frozenset(self.kwargs))

    @property
    def is_in_place(self) -> bool:
        """Whether the destination is the first operand itself, written as `a.add_(b)` or as `add(a, b, out=a)`."""
        if not self.outs or not self.args or not isinstance(self.args[0], Tensor):
            return False
        x, out = self.args[0], self.outs[0]
        return x.data_ptr() == out.data_ptr() and x.shape == out.shape and x.stride() == out.stride()

    @property
    def destination(self) -> str:
        """What the call writes into: "in place" (its first operand), "given" (out= of the caller), "fresh" (made by torch for
        this call), or "" where there is none and the kernel makes its own result."""
        if not self.outs:
            return ""
        return "in place" if self.is_in_place else "fresh" if self.fresh else "given"

    def base_shape(self, t: Tensor) -> tuple[int, ...]:
        """The shape of the tensor that an operand is a view of; its own shape if it is no view. Where torch does not know the
        base (after `detach`), all elements of its memory in one dimension."""
        own = next((x for x in self._tensors() if _same_place(x, t)), t)
        if own._is_view() and own._base is not None:
            return tuple(own._base.shape)
        count = own.untyped_storage().nbytes() // own.element_size() if own.layout is torch.strided else own.numel()
        return tuple(own.shape) if count == own.numel() else (count,)

    def _tensors(self) -> list[Tensor]:
        """The device's own tensors among what the caller passed."""
        return [x for x in tree_leaves(self.origin) if isinstance(x, Tensor)]

    @property
    def outline(self) -> CallOutline:
        """This call as an entry of `seen`."""
        tensors = self.operands
        values = [*self.args, *(v for v in self.kwargs.values() if not any(v is o for o in self.outs))]
        scalars = tuple(_hashable(v) for v in values if not isinstance(v, Tensor) and not _holds_tensor(v))
        return CallOutline(
            self.op,
            tuple(tuple(t.shape) for t in tensors),
            tuple(t.dtype for t in tensors),
            tuple(t.stride() if t.layout is torch.strided else () for t in tensors),
            scalars,
        )

    @property
    def direction(self) -> str:
        """'backward' inside a backward pass, else 'forward'."""
        return "backward" if in_backward() else "forward"

    @property
    def requires_grad(self) -> bool:
        """Whether any tensor operand of the caller requires a gradient (for backward kernels: any of their own operands)."""
        return any(t.requires_grad for t in tree_leaves(self.origin) if isinstance(t, Tensor))

    def is_scalar(self, i: int | str) -> bool:
        """Whether argument `i` (or the one of that name) is a Python number, or was one before torch wrapped it. A 0-d tensor
        does not count."""
        args, kwargs = self.origin
        value = kwargs.get(i) if isinstance(i, str) else args[i] if i < len(args) else None
        return isinstance(value, (bool, int, float, complex)) or any(value is w for w in WRAPPED)

    def conj(self, t: Tensor) -> bool:
        """Whether the caller passed this operand lazily conjugated. At kernel level this includes a bit that torch resolved
        just before the kernel; the caller's own `resolve_conj()` as the last step looks the same."""
        return t.is_conj() or "conj" in self._resolved.get(t.data_ptr(), ())

    def neg(self, t: Tensor) -> bool:
        """Whether the caller passed this operand lazily negated; see `conj`."""
        return t.is_neg() or "neg" in self._resolved.get(t.data_ptr(), ())

    def memory(self, t: Tensor) -> Tensor:
        """The whole storage of an operand or destination as one dense vector, including what lies outside of a view."""
        return t.detach().as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)

    base = memory

    def memory_format(self, t: Tensor) -> str:
        """The first that fits of "contiguous", "channels_last" and "channels_last_3d", else "strided"."""
        return next((name for name, form in FORMATS if _fits(t, name, form)), "strided")

    # -------------------------------------------------------------------------------------------------- what it can have done

    def run(self) -> Any:
        """The healthy result, or that of the next matching fault. An out= or in-place call returns its destination."""
        return self._run(self)

    def run_with_gradient(self, effect: Callable[[Tensor], Tensor]) -> Any:
        """The healthy forward; in the backward every gradient of a tensor argument passes through `effect(gradient)`.

        Function level only: at kernel level the gradient is computed by a kernel of its own.
        """
        if self.level != "function":
            raise FaultError(f"run_with_gradient works at function level; for {self.op} name its backward kernel instead")
        if self.outs:
            # With the identity before it, an in-place call would write into the identity's result.
            result = self.run()
            if isinstance(result, Tensor) and result.grad_fn is not None:
                result.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else effect(g) for g in gi))
            return result

        def tap(a: Any) -> Any:
            return _tap(a, effect) if isinstance(a, Tensor) and a.requires_grad else a

        args, kwargs = tree_map(tap, (self.args, self.kwargs))
        return self._run(dataclasses.replace(self, args=args, kwargs=kwargs))


# --------------------------------------------------------------------------------------------- the names of its arguments


@functools.lru_cache(maxsize=4096)
def _names_of(op: str, level: str, given: int, keywords: frozenset[str]) -> tuple[tuple[str, Any], ...]:
    """(name, default) of the arguments of a call in their order; empty if torch declares none. given: how many were passed by
    position; keywords: names of the others. The default is `inspect.Parameter.empty` where there is none."""
    if level == "function":
        signature = _of_python(op)
        if signature is not None:
            return signature
    exact, _, overload = op.rpartition("::")[2].rpartition(".") if level == "kernel" and "." in op else ("", "", "")
    space, _, bare = op.rpartition("::")
    packets, last = getattr(torch.ops, space or "aten"), bare.rpartition(".")[2]
    fits = []
    for base in dict.fromkeys(n for n in (exact, last.strip("_"), last) if n):
        packet = getattr(packets, base, None)
        for one in () if packet is None else (overload,) if base == exact else packet.overloads():
            declared = getattr(packet, one)._schema.arguments
            held = {a.name for a in declared}
            if len(declared) >= given:  # a public function may have keywords that its operator does not have
                strange = sum(k not in held and SAME.get(k) not in held for k in keywords)
                fits.append((strange, declared))
    best = min(fits, key=lambda f: f[0])[1] if fits else ()
    return tuple((a.name, a.default_value if a.has_default_value() else inspect.Parameter.empty) for a in best)


def _of_python(op: str) -> tuple[tuple[str, Any], ...] | None:
    """The parameters of a function that is written in Python; None for others."""
    function: Any = torch
    for part in op.removeprefix("torch.").split("."):
        function = getattr(function, part, None)
    try:
        parameters = inspect.signature(function).parameters.values() if isinstance(function, Callable) else ()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a builtin
        return None
    if not parameters or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return tuple((p.name, p.default) for p in parameters)


def _position(names: Sequence[tuple[str, Any]], wanted: str) -> int | None:
    return next((k for k, (n, _) in enumerate(names) if wanted in (n, SAME.get(n))), None)


# ------------------------------------------------------------------------------------------------------- what it looks at


def _fits(t: Tensor, name: str, form: torch.memory_format) -> bool:
    rank = {"channels_last": 4, "channels_last_3d": 5}.get(name)
    return (rank is None or t.dim() == rank) and t.is_contiguous(memory_format=form)


def _same_place(own: Tensor, t: Tensor) -> bool:
    """Whether a tensor of the device and one of the host are the same view of the same memory."""
    if own is t:
        return True
    strided = own.layout is torch.strided and t.layout is torch.strided
    return strided and own.data_ptr() == t.data_ptr() and own.shape == t.shape and own.stride() == t.stride()


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict)) and any(isinstance(v, Tensor) for v in tree_leaves(value))


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return tuple(sorted((str(k), _hashable(v)) for k, v in value.items())) if isinstance(value, dict) else value


class _Tap(torch.autograd.Function):
    """The identity in the forward; applies the effect to the gradient in the backward."""

    @staticmethod
    def forward(x: Tensor, effect: Callable[[Tensor], Tensor]) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.effect = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.effect(gradient), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, effect: Callable[[Tensor], Tensor]) -> Any:
        return _tap(x, effect), in_dims[0]


_tap: Any = _Tap.apply  # untyped in torch
