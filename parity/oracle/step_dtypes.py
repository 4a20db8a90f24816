"""The dtype in which each operator of a function runs: recorded on the CPU, and used when the function runs in float64.

A model under autocast takes float32 operands and computes half of its operators in a half type; one with half-type weights may
compute its softmax in float32. The effect of rounding depends on the dtype of each step, which only a run shows. So does the
meaning of numbers that a function takes from `torch.finfo`: the one added to a probability, or the one that masks a score.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from parity.core.dtypes import FACTS, HALF, DtypeFacts
from parity.core.observer import Functions, Operators
from parity.oracle.kernels import kernel_of, written
from parity.oracle.sensitivity import least_of

NARROW = (torch.float16, torch.bfloat16, torch.float32)
WIDE = {**dict.fromkeys(NARROW, torch.float64), torch.complex64: torch.complex128}
LAYERS = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")  # whose state is of their dtype at each step, as without them
PLAIN = (int, float, bool, type(None))
FINFO = torch.finfo


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _floats(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]


class CastTo(str):
    """The half type to which the result of a kernel of float32 was cast: that takes its operands as they are."""

    __slots__ = ()


def _place(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata) if t.layout is torch.strided else id(t)


class Recorded(Operators):
    """Records the dtypes of the results of each operator, in the order of its calls: the half type to which a result is cast
    afterwards, as attention is that computes in float32. asked: whether the dtype of a call is wanted; "" is recorded for the
    others."""

    def __init__(self, asked: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.dtypes: dict[str, list[str]] = defaultdict(list)
        self._asked = asked
        self._made: dict[int, tuple[str, int]] = {}  # by storage: the operator whose result it holds, and which of its calls

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        kernel, outputs = kernel_of(func), _floats(result) or _floats(written(func, args, kwargs))
        if not outputs or (kernel.aliases and not kernel.writes):
            return result
        if not kernel.exact:
            dtypes = self.dtypes[kernel.name]
            dtypes.append(_word(outputs[0].dtype) if self._asked() else "")
            self._made[_place(outputs[0])] = kernel.name, len(dtypes) - 1
        elif kernel.name == "_to_copy" and _word(outputs[0].dtype) in HALF and (made := self._made.get(_place(args[0]))):
            dtypes, call = self.dtypes[made[0]], made[1]
            dtypes[call] = dtypes[call] and max(dtypes[call], CastTo(_word(outputs[0].dtype)), key=_coarse)
        else:
            self._made.pop(_place(outputs[0]), None)
        return result


def with_autocast(here: Mapping[str, list[str]], there: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The dtypes of the steps on the CPU (here), each replaced by that of the same step on the device if it runs under autocast
    there and is coarser: every backend has its own list of the operators that autocast casts. there: as `Recorded` gives it for
    the device's forward pass; a derivative takes the dtype of its operator."""
    merged = {n: [str(d) for d in dtypes] for n, dtypes in here.items()} if there else dict(here)  # it casts operands, too
    for name, dtypes in (*merged.items(),):
        cast = there.get(name) or next((d for n, d in there.items() if name.startswith(f"{n}_backward")), [])
        known = [d for d in cast if d in FACTS]
        if known:
            fit = cast if len(cast) == len(dtypes) and name in there else [max(known, key=_coarse)] * len(dtypes)
            merged[name] = [max(pair, key=_coarse) for pair in zip(dtypes, fit)]
    return merged


def _coarse(dtype: str) -> float:
    return FACTS[dtype].unit_roundoff if dtype in FACTS else 0.0


class Steps:
    """The recorded dtypes, returned call by call. Make a new one for every run."""

    def __init__(self, dtypes: Mapping[str, list[str]]) -> None:
        self._dtypes = dtypes
        self._next: dict[str, int] = defaultdict(int)

    def dtype(self, name: str) -> str:
        """The dtype of the next call of an operator.

        After the recorded calls, the coarsest recorded one. For an operator that was never called that of `LAYERS`, whose step
        it may be, else "".
        """
        known = self._dtypes.get(name) or [d for layer in LAYERS for d in self._dtypes.get(layer, [])]
        at, self._next[name] = self._next[name], self._next[name] + 1
        if name in self._dtypes and at < len(known):
            return known[at]
        return max((d for d in known if d in FACTS), key=lambda d: FACTS[d].unit_roundoff, default="")

    def rounding(self, u: float, times: float, half: float, name: str) -> tuple[float, float, DtypeFacts, bool]:
        """(u, least, dtype, whether operands are cast to it) of the next call of an operator, as `Rounding` asks for them: its
        result moves by `times` roundoffs of its own dtype, in a half type by `half` times as many, and by u at least."""
        f = FACTS.get(own := self.dtype(name), FACTS["float32"])
        parts = half if f.name in HALF else 1.0
        return max(u, times * parts * f.unit_roundoff) if own in FACTS else u, least_of(f), f, not isinstance(own, CastTo)


@functools.cache
def _epsilon(dtype: torch.dtype) -> float:
    """The epsilon of a norm without one: that of the dtype, or of float32, in which torch 2.13 computes half types."""
    with _disable_current_modes():
        x = torch.full((1,), 2.0**-6, dtype=dtype)
        return FINFO(dtype if float(F.rms_norm(x, (1,))) < 0.9 else torch.promote_types(dtype, torch.float32)).eps


class Given:
    """What a run in float64 is given, each next to what both sides are given: these round it alike where it is cast to a half
    type, so that it is rounded there as well."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        for wide, t in pairs:
            self.note(wide, t)

    def note(self, wide: Tensor, t: Tensor) -> Tensor:
        """Note what stands for a tensor that was given, and return it."""
        if t.layout is torch.strided and t.stride() == wide.stride() and t.is_floating_point() and not t.is_nested:
            self._known[_place(wide)] = wide, t.detach()
        return wide

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What was given cast to a half type, in float64; None for anything else, and what was written since."""
        if (known := self._known.get(_place(x))) is None:
            return None
        wide, t = known
        with _disable_current_modes():
            part = t.as_strided(x.shape, x.stride(), t.storage_offset() + x.storage_offset() - wide.storage_offset())
            moved = torch.isclose(part.to(x.dtype), x.detach(), rtol=2.0**-18, atol=0.0, equal_nan=True)
            return part.to(dtype).to(x.dtype) if bool(moved.all()) else None


@contextmanager
def in_double(coarsest: torch.dtype, given: Given | None = None) -> Iterator[None]:
    """Every operator runs in float64 whatever dtype the function casts to, and tensors that the function makes are widened;
    only casts of what was given round. Norms without an epsilon use that of their input's dtype, which float64 would change:
    they keep `_epsilon(coarsest)`."""
    eps = _epsilon(coarsest) if coarsest.is_floating_point else None

    def with_epsilon(func: Any, args: Any, kwargs: Any) -> Any:
        # Inside of the public function no mode is in force, so that it is known by both names.
        if func in (torch.rms_norm, F.rms_norm) and eps is not None and kwargs.get("eps") is None and args[3:] in ((), (None,)):
            args, kwargs = args[:3], {**kwargs, "eps": eps}
        return func(*args, **kwargs)

    def wide(func: Any, args: Any, kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        narrows = given is not None and dtype in NARROW[:2] and kernel_of(func).name == "_to_copy"
        made = given.cast(args[0], dtype) if narrows and given is not None else None
        return _in_float64(func, args, kwargs) if made is None else made

    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Operators(wide), Functions(with_epsilon):
            yield
    finally:
        torch.set_default_dtype(kept)


def _may_change(a: Any) -> bool:
    """Whether an argument is, or may hold, what is not of float64."""
    if isinstance(a, Tensor):
        return a.dtype in WIDE
    return any(map(_may_change, a)) if isinstance(a, (list, tuple)) else not isinstance(a, PLAIN)


def _in_float64(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():  # what the kernels and their roundings call in turn is no function of the caller's
        if not kwargs and not any(map(_may_change, args)):
            return func(*args)  # nearly always
        given = _floats((args, kwargs))
        mixed = any(x.dtype in WIDE for x in given) and any(x.dtype not in WIDE for x in given)
        written = args[0] if kernel_of(func).writes and args else None  # a written tensor keeps its dtype and casts its input

        def change(a: Any) -> Any:
            if isinstance(a, torch.dtype):
                return WIDE.get(a, a)
            narrow = mixed and a is not written and isinstance(a, Tensor) and a.dtype in WIDE
            return a.to(WIDE[a.dtype]) if narrow else a

        return func(*tree_map(change, args), **tree_map(change, kwargs))


@contextmanager
def finfo_recorded() -> Iterator[list[torch.dtype]]:
    """The dtypes that `torch.finfo` is asked for inside, in the order of the calls."""
    asked: list[torch.dtype] = []

    def recording(type: torch.dtype | None = None) -> torch.finfo:
        asked.append(torch.get_default_dtype() if type is None else type)
        return FINFO(asked[-1])

    with _finfo_by(recording):
        yield asked


@contextmanager
def finfo_replayed(asked: Sequence[torch.dtype]) -> Iterator[None]:
    """`torch.finfo` answers inside as it did when it was recorded: the limits of a dtype belong to what a function means, and
    float64 has others."""
    left = iter(asked)

    def replaying(type: torch.dtype | None = None) -> torch.finfo:
        here = torch.get_default_dtype() if type is None else type
        own = next(left, here)
        return FINFO(own if here in (own, WIDE.get(own)) else here)

    with _finfo_by(replaying):
        yield


@contextmanager
def _finfo_by(answer: Callable[..., torch.finfo]) -> Iterator[None]:
    module: Any = torch
    kept, module.finfo = torch.finfo, answer
    try:
        yield
    finally:
        module.finfo = kept
