"""Simulated rounding in float64: operands and results of kernels move by a relative roundoff."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from parity.execution import values
from parity.oracle import fast_convolution as fast
from parity.oracle.decompositions import adjoints, antialiased, attention, softmax, stepwise, stored, windows
from parity.oracle.summation import CHAIN, CHAINS, FLOAT32_ROUNDOFF, LONG, OF_ONE, SIZES, chain_loss, float32_chain_loss, terms

Factors: TypeAlias = npt.NDArray[np.float64]
DOUBLE = (torch.float64, torch.complex128)
# Kernels whose gradients torch computes by another formula under a dispatch mode.
MODE_DEPENDENT = ("prod", "cumprod")
COUNTS = ("sum", "cumsum", "scatter_add", "index_add")
# Kernels that move numbers without rounding them.
_MOVERS = """_to_copy abs amax amin aminmax bernoulli cat ceil clamp clamp_max clamp_min clone complex conj_physical
    constant_pad_nd copysign cummax cummin _cummax_helper diag_embed diagonal_backward embedding empty empty_like
    empty_strided expand_copy flip floor fmax fmin full full_like gather hardshrink hardtanh heaviside im2col imag index
    index_copy index_fill index_select kthvalue masked_fill masked_scatter masked_select max maximum median min minimum mode
    msort nan_to_num nanmedian neg new_empty new_empty_strided new_full new_zeros ones ones_like pixel_shuffle
    pixel_unshuffle real reflection_pad1d reflection_pad2d reflection_pad3d relu repeat replication_pad1d
    replication_pad2d replication_pad3d roll round scalar_tensor scatter select_backward select_scatter sgn sign
    slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu trunc unfold_copy
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy where zeros zeros_like max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d max_unpool2d max_unpool3d"""
# Fused kernels whose formulas lose digits inside.
FUSED = """gelu gelu_backward native_layer_norm native_layer_norm_backward native_group_norm
    native_group_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit _softmax
    _softmax_backward_data _log_softmax _log_softmax_backward_data silu_backward mish_backward elu_backward softplus
    softplus_backward log_sigmoid_forward log_sigmoid_backward glu glu_backward hardswish_backward logit
    logit_backward huber_loss_backward smooth_l1_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    grid_sampler_2d _fused_rms_norm _fused_rms_norm_backward logaddexp logaddexp2 _euclidean_dist xlogy
    special_entr special_log_ndtr special_xlog1py sinc lerp addcmul addcdiv addr cumprod logsumexp"""
# A loss whose second result is a mask of 0 and 1, which its gradient checks.
_MOVERS += " multilabel_margin_loss_forward"
_MOVERS += " copy fill zero set resize normal uniform bernoulli exponential"
# Norms; exact if their order only picks an element or counts.
NORMS = ("linalg_vector_norm", "norm")
ARITHMETIC = ("add", "sub", "rsub", "mul")
# Complex ones: each part is a sum of products that may cancel.
PRODUCTS = ("mul", "div", "reciprocal")
# In-place views: they write no elements.
TURNS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_", "detach_")
EXACT_KERNELS = frozenset(_MOVERS.split())


@functools.lru_cache(maxsize=16)
def _factors(u: float) -> Tensor:
    """1 + u or 1 - u, in a fixed random order."""
    signs = (values.words(0, 1 << 16) & np.uint64(1)).astype("float64") * 2 - 1
    return torch.from_numpy(1 + u * signs)  # by numpy: under a mode that rounds, torch would keep rounded factors


def perturbed(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative +-u, signs from a fixed stream."""
    if not (t.is_floating_point() or t.is_complex()):
        return t
    n, stream = t.numel(), _factors(u)
    start = (key * 4099) % (1 << 16)
    if n > 1 << 16 and not t.is_complex():
        return _tiled(t.detach().contiguous().view(-1), stream.roll(-start)).view(t.shape)
    some = stream[start : start + n] if start + n <= 1 << 16 else stream[torch.arange(start, start + n) % (1 << 16)]
    factors = some.view(t.shape)
    if t.is_complex():  # part by part: a complex product makes both parts NaN if one is NaN or Inf
        return torch.complex(t.real * factors, t.imag * factors)
    return t * factors


@functools.lru_cache(maxsize=16)
def _single_factors(u: float) -> Tensor:
    """`_factors` in float32."""
    return _factors(u).to(torch.float32)


def perturb(t: Tensor, u: float, key: int, out: Tensor) -> None:
    """`perturbed` into a tensor like it, or in place; in one pass where that can be. u: at least a unit in the last place."""
    flat = t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))
    if t.numel() <= FEW or not flat or t.stride() != out.stride() or t.dtype not in (torch.float32, torch.float64):
        out.copy_(perturbed(t, u, key))
        return
    tile = _single_factors(u) if t.dtype is torch.float32 else _factors(u)
    source, target = (x.as_strided((t.numel(),), (1,)) for x in (t, out))
    _tiled(source, tile.roll(-((key * 4099) % (1 << 16))), target)


def _tiled(t: Tensor, tile: Tensor, moved: Tensor | None = None) -> Tensor:
    """A flat tensor times a tile that is repeated along it: one pass over memory. moved: where it is written."""
    whole = t.numel() // tile.numel() * tile.numel()
    moved = torch.empty_like(t) if moved is None else moved
    torch.mul(t[:whole].view(-1, tile.numel()), tile, out=moved[:whole].view(-1, tile.numel()))
    torch.mul(t[whole:], tile[: t.numel() - whole], out=moved[whole:])
    return moved


def shifted(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element of a matrix moved by u times the largest element of that matrix.

    This is the error in the operand of an algorithm that is stable by norm, not by element.
    """
    if t.dim() < 2 or not t.numel() or not (t.is_floating_point() or t.is_complex()):
        return perturbed(t, u, key)
    largest = torch.nan_to_num(t.abs(), 0.0, 0.0, 0.0).amax((-2, -1), keepdim=True)
    real = torch.ones(t.shape, dtype=largest.dtype)
    sides = [perturbed(real, u, key + 3 * k) - 1.0 for k in range(2 if t.is_complex() else 1)]
    return t + largest * (torch.complex(*sides) if t.is_complex() else sides[0])


MANY = 1 << 17  # elements above which factors are taken by place: looking each number up costs as much as the kernel
FEW = 1 << 10  # elements that are asked at once
_TILE = 65_521  # a prime, so that rows of usual lengths meet it at other places
_TABLE = 12  # bits of a place in the table of factors
_SAMPLES = 64  # even, and more than there are samples: turned keys are those of no other sample
_TURN = np.uint64(0x2545F4914F6CDD1D)
_DOWN, _CHOICES = np.uint64(64 - _TABLE), np.uint64(60)


def _chosen(u: float, key: int, n: int) -> Factors:
    """n factors, 1 + u/2 to 1 + u or 1 - u/2 to 1 - u in eight steps each, in a fixed random order."""
    steps = np.array([1 + u * (sign * (0.5 + k / 14)) for sign in (-1.0, 1.0) for k in range(8)])
    chosen: Factors = steps[(values.words(key, n) >> _CHOICES).astype(np.int64)]
    return chosen


@functools.lru_cache(maxsize=16)
def _table(u: float) -> Factors:
    """The factors that numbers are looked up in."""
    return _chosen(u, 2, 1 << _TABLE)


@functools.lru_cache(maxsize=1)
def _places() -> npt.NDArray[np.uint64]:
    """What is added to the bits of a number, by its place."""
    return np.arange(MANY, dtype=np.uint64) * _TURN


@functools.lru_cache(maxsize=4096)
def _multiplier(key: int) -> np.uint64:
    """An odd number for every key."""
    return np.uint64((0x9E3779B97F4A7C15 + 2 * key * int(_TURN)) % (1 << 64))


def _hashed(raw: npt.NDArray[np.uint64], u: float, key: int) -> Factors:
    """A factor for every number, from its bits; odd keys: from bits and place.

    Multiplicative hashing (Knuth, The Art of Computer Programming 3, section 6.4): the upper bits of the product depend on all
    bits of the number. The factors of the table are random, so that numbers in a row get unrelated ones.
    """
    if key % 2:
        raw = raw + _places()[: raw.size]
    mixed = raw * _multiplier(key)
    mixed >>= _DOWN
    return _table(u).take(mixed.view(np.int64))


@functools.lru_cache(maxsize=16)
def _tile(u: float) -> Factors:
    """Factors by place, twice in a row: from any place of the first on there is a whole tile."""
    tile = _chosen(u, 1, _TILE)
    return np.concatenate((tile, tile))


@functools.lru_cache(maxsize=1)
def _signs() -> Factors:
    """The directions of `_tile`."""
    return np.sign(_tile(0.5) - 1.0)


def _start(numbers: Factors, key: int) -> int:
    """Where a tile begins: another place for other numbers, so that two kernels in a row do not move an element alike."""
    some = numbers[:: max(1, numbers.size // 7)].view(np.uint64)
    return (int(np.bitwise_xor.reduce(some)) * int(_TURN) + key * 4099) % _TILE


def _from(tile: Factors, numbers: Factors, key: int) -> Tensor:
    """A tile for these numbers, of a tensor twice its length."""
    start = _start(numbers, key)
    return torch.from_numpy(tile[start : start + _TILE])


def rounded(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative u / 2 to u, up or down.

    A constant u would let two kernels in a row cancel in every fourth case. Even keys hash the value, so that equal numbers
    stay equal, as under rounding. Odd keys hash value and place, as if equal numbers were computed in different ways. Of many
    elements, each takes its factor from its place alone.
    """
    if t.dtype not in DOUBLE:
        return t
    parts = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    moved = _times(parts, _numbers(parts.resolve_neg().contiguous()), u, key)
    return torch.view_as_complex(moved) if t.is_complex() else moved


def _numbers(t: Tensor) -> Factors:
    """The elements of a contiguous tensor, flattened, in numpy: for a dozen elements its calls cost a third of torch's."""
    numbers: Factors = t.numpy().reshape(-1)
    return numbers


def _times(t: Tensor, numbers: Factors, u: float, key: int) -> Tensor:
    """`rounded` for a tensor whose numbers are already known."""
    if numbers.size > MANY:
        return _tiled(torch.from_numpy(numbers), _from(_tile(u), numbers, key)).view(t.shape)
    return torch.from_numpy((numbers * _hashed(numbers.view(np.uint64), u, key)).reshape(t.shape))


def by_modulus(x: Tensor, moved: Tensor) -> Tensor:
    """`rounded` complex numbers with each part moved in units of the modulus instead of its own; zero parts stay zero."""
    before, after = (torch.view_as_real(t.detach().resolve_conj()) for t in (x, moved))
    off = (after - before) / before.abs() * x.abs().unsqueeze(-1)
    after.copy_(torch.where(off.isfinite(), before + off, after))
    return moved


def rounded_at_least(x: Tensor, u: float, key: int, least: float) -> Tensor:
    """x as `rounded` moves it, but at least by `least` or 3/4 of the way to zero: small numbers lose digits, but not to 0."""
    moved = rounded(x, u, key)
    if moved is x:
        return x
    parts, turned = (torch.view_as_real(t) if t.is_complex() else t for t in (x.detach().resolve_conj(), moved))
    before, after = (_numbers(t.resolve_neg().contiguous()) for t in (parts, turned))
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(before)
        off = np.maximum(u * size, least)
        np.minimum(off, 0.75 * size, out=off)
        off *= np.sign(after - before)
        off += before
    if not size.max(initial=0.0) < np.inf:
        off = np.where(np.isfinite(before), off, before)
    turned.copy_(torch.from_numpy(off).view(turned.shape))
    return moved


def extremes(t: Tensor) -> tuple[float, float]:
    """(smallest, largest) finite magnitude of the non-zero elements; (inf, 0) without any."""
    size = t.detach().abs().to(torch.float64).numpy()  # numpy knows no bfloat16
    if not size.size:
        return float("inf"), 0.0
    low, high = float(np.minimum.reduce(size, None)), float(np.maximum.reduce(size, None))
    if low > 0.0 and high < np.inf:  # so there is no NaN either
        return low, high
    size = size[(size > 0) & (size < np.inf)]
    return (float(size.min()), float(size.max())) if size.size else (float("inf"), 0.0)


def _largest(numbers: Factors) -> float:
    """The largest finite magnitude; 0 without any."""
    if not numbers.size:
        return 0.0
    high = max(float(np.maximum.reduce(numbers)), -float(np.minimum.reduce(numbers)))
    if high < np.inf:
        return high
    size = np.abs(numbers)
    return float(np.where(size < np.inf, size, 0.0).max())


def _has_small(numbers: Factors, below: float) -> bool:
    """Whether some number that is not 0 has a magnitude below this."""
    small = np.abs(numbers) < below
    return bool(small.any()) and bool(np.count_nonzero(small) + np.count_nonzero(numbers) > numbers.size)


def _variance(x: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """(variance, mean) as two sums, one after the other; decompositions of norms do not split them."""
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    less = float(correction) if correction is not None else 1.0 if unbiased is None else float(unbiased)
    dims = list(range(x.dim())) if dim is None or dim == [] else dim
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    n = x.numel() / max(1, mean.numel())
    squares = torch.view_as_real(centred).square().sum(-1) if x.is_complex() else centred * centred
    return squares.sum(dims, keepdim=keepdim) / max(0.0, n - less), mean if keepdim else mean.squeeze(dims)


def _spreads() -> Mapping[Any, Callable[..., Any]]:
    """Formulas of var, std and their pairs with the mean, by overload."""

    def of(pick: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: pick(_variance(*args, **kwargs))

    aten = torch.ops.aten
    ways: dict[Any, Callable[[Any], Any]] = {
        aten.var: lambda f: f[0],
        aten.std: lambda f: f[0].sqrt(),
        aten.var_mean: lambda f: f,
        aten.std_mean: lambda f: (f[0].sqrt(), f[1]),
    }
    return {getattr(op, kind): of(pick) for op, pick in ways.items() for kind in ("default", "dim", "correction")}


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Formulas of fused kernels and variances; variances alone if this torch has no decompositions."""
    try:
        from torch._decomp import get_decompositions
    except ImportError:
        return _spreads()
    packets = [getattr(torch.ops.aten, name) for name in FUSED.split() if hasattr(torch.ops.aten, name)]
    fused: Mapping[Any, Callable[..., Any]] = get_decompositions(packets)
    formulas = {**fused, **_spreads(), **antialiased(), **attention(), **softmax(), **stepwise(), **windows()}
    return {**formulas, **adjoints(formulas)}


def _picks(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a norm of this order is an element or a count, so that nothing is rounded."""
    order = kwargs.get("ord", kwargs.get("p", args[1] if len(args) > 1 else 2))
    return order in (0, float("inf"), -float("inf"))


def _wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in DOUBLE and x.device.type != "meta"


class Kernel(NamedTuple):
    """What is known of a kernel before it runs. formula: its decomposition, or None. aliases: a result is an operand; writes:
    and is written. exact: it rounds nothing; counts, norm: nothing in some calls. turn: what it adds to odd keys inside."""

    name: str
    formula: Callable[..., Any] | None
    aliases: bool
    writes: bool
    exact: bool
    counts: bool
    norm: bool
    turn: int


@functools.cache
def kernel_of(func: Any) -> Kernel:
    """The facts about an overload, cached."""
    name = func._schema.name.removeprefix("aten::")
    aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
    writes = any(a.is_write for a in aliases)
    counts = (name.rstrip("_") if writes else name) in COUNTS
    turn = _SAMPLES * (1 + zlib.crc32(name.encode()) % 1000)
    return Kernel(name, _decompositions().get(func), bool(aliases), writes, name in EXACT_KERNELS, counts, name in NORMS, turn)


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Moves the floating result of every kernel that rounds, forward and backward, by a relative +-u, as rounding would.

    It covers what perturbed inputs cannot: sums that cancel whatever the inputs (the gradient of a bias before batch_norm is
    0), backward formulas that use a rounded saved result, and numbers that half-precision kernels pass to each other.

    A fused kernel with a decomposition is replaced by it, and nested ones too, with the steps rounded by `inside`: the formula
    cancels there, too. A device has functions of its own inside a fused kernel: with odd keys a step there moves otherwise than
    the same kernel outside. (Else the tanh in gelu's gradient and that in its second derivative cancel for some elements.)
    Numbers passed between kernels move by at least `least` (`rounded_at_least`), steps of a formula by `inside_least`. steps:
    (u, least) of the next call of a kernel, by its name, if these differ. Long sums also lose, at any depth, what one chain of
    additions loses. largest: the largest finite magnitude that any kernel returned.
    """

    def __init__(
        self,
        u: float,
        key: int,
        inside: float | None = None,
        least: float = 0.0,
        inside_least: float = 0.0,
        steps: Callable[[str], tuple[float, float]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self._u, self._key, self._inside, self._least = u, key, u if inside is None else inside, least
        self._inside_least, self._steps = inside_least, steps
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}
        self._apart: list[Any] = []  # fused kernels being computed by their formulas
        self.largest = 0.0
        self.met_mode_dependent = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and torch's guard against that would cost a good part of each kernel's time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kernel = kernel_of(func)
        formula = None if func in self._apart else kernel.formula
        if self._steps is not None and not self._apart and not kernel.exact and not (kernel.aliases and not kernel.writes):
            args = self._step(kernel, args)
        if formula is not None:
            before, self._key = self._key, self._key + (kernel.turn if self._key % 2 else 0)
            self._apart.append(func)
            try:
                with self:
                    result = formula(*args, **(kwargs or {}))
            finally:
                self._apart.pop()
                self._key = before
        else:
            result = func(*args, **(kwargs or {}))
        name = kernel.name
        if kernel.aliases:
            if kernel.writes and not (kernel.counts and self._counts(result, args)):
                self._rounded_in_place(name, result)
            return result
        if func is stored:
            return rounded_at_least(result, self._u, self._key, self._least) if _wide(result) else result
        self.met_mode_dependent |= name in MODE_DEPENDENT
        exact = kernel.exact and not (name == "sgn" and _wide(result) and result.is_complex())  # a complex sign is a quotient
        if exact or (kernel.norm and _picks(args, kwargs or {})) or (kernel.counts and self._counts(result, args)):
            return result
        if formula is None and _wide(result) and result.numel():
            count = terms(name, result, args)
            if count == 1 and name in OF_ONE:
                return result
            if count >= LONG:
                size = result if name in SIZES else func(*(a.abs() if _wide(a) else a for a in args), **(kwargs or {}))
                lost = self._inside * count**0.5 / 4.0 * size.abs()
                if name in CHAINS and self._inside == FLOAT32_ROUNDOFF and result.dtype is torch.float64:
                    lost = torch.maximum(lost, float32_chain_loss(func, result, args) / 4.0)
                if (
                    name in ("sum", "mean")
                    and count <= CHAIN
                    and result.dtype is torch.float64
                    and self._inside == FLOAT32_ROUNDOFF
                ):
                    dims = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
                    biased = chain_loss(args[0], dims).view(result.shape) / (count if name == "mean" else 1.0)
                    lost = torch.maximum(lost, biased / 4.0)
                if name == "convolution" and self._u > self._inside and fast.is_fast(args[1], args[3], args[5]):
                    tiles = fast.of_result(args[0], args[1], args[6], args[8])
                    lost = torch.maximum(lost, fast.HALF_SHARE * self._u * tiles)
                result = self._off_by(result, lost)
        if name == "convolution_backward" and not self._apart:
            result = self._tiles_lost(result, args)
        if name in PRODUCTS and _wide(result) and result.is_complex():
            moved = self._rounded(result)
            return moved if moved is result else by_modulus(result, moved)
        change = self._rounded_but_whole if self._apart and name in ARITHMETIC else self._rounded
        return change(result) if isinstance(result, Tensor) else tree_map(change, result)

    def _tiles_lost(self, result: Any, args: Any) -> Any:
        """The gradients of a convolution, off by what fast algorithms lose in their tiles."""
        grad, x, weight, _, stride, _, dilation, transposed, _, groups, mask = args
        if not (_wide(grad) and grad.dtype is torch.float64 and grad.numel() and fast.is_fast(weight, stride, dilation)):
            return result
        to_input, to_weight, to_bias = result
        if mask[0] and self._u > self._inside:
            tiles = fast.of_input_gradient(grad, weight, transposed, groups)
            to_input = self._off_by(to_input, (fast.HALF_SHARE * self._u * tiles).expand_as(to_input))
        if mask[1]:
            count = grad.shape[0] * (x if transposed else grad)[0, 0].numel()
            tiles = fast.of_weight_gradient(x, grad, weight, transposed, groups)
            lost = (
                max(self._inside * max(count, LONG) ** 0.5 / 4.0, fast.HALF_SHARE * (self._u > self._inside) * self._u) * tiles
            )
            to_weight = self._off_by(to_weight, lost.expand_as(to_weight))
        return to_input, to_weight, to_bias

    def _step(self, kernel: Kernel, args: Any) -> Any:
        """Use the rounding of the step's own dtype, for its operands too, because autocast casts them first."""
        assert self._steps is not None
        self._u, self._least = self._steps(kernel.name)
        if self._u <= self._inside:
            return args
        cast = tree_map(self._cast, args)
        if kernel.writes:  # in place: a copy would take what it writes
            return (args[0], *cast[1:])
        return (*cast[:3], *args[3:]) if "batch_norm" in kernel.name else cast  # batch_norm writes its running statistics

    def _cast(self, x: Any) -> Any:
        return rounded(x, self._u, self._key) if _wide(x) and x.layout is torch.strided and not x._is_zerotensor() else x

    def _counts(self, result: Any, args: Any) -> bool:
        """Whether a sum is one of integers that every dtype adds exactly: formulas use such sums as counts, and test for 1."""
        for t in (result, *args):
            if isinstance(t, Tensor) and t.dtype is torch.float64:
                some = t[(0,) * (t.dim() - 1)] if t.numel() > FEW and t.dim() > 1 else t  # one row tells it, nearly always
                if not (bool(self._whole(some).all()) and (some is t or bool(self._whole(t).all()))):
                    return False
        return True

    def _whole(self, t: Tensor) -> Tensor:
        """Where numbers are integers that every dtype adds exactly."""
        whole = t == t.trunc()
        return whole & (t.abs() <= 1.0 / self._inside) if bool(whole.any()) else whole

    def _off_by(self, x: Tensor, lost: Tensor) -> Tensor:
        plain = torch.view_as_real(x).select(-1, 0) if x.is_complex() else x
        if plain.numel() > MANY:
            numbers = _numbers(plain.detach().resolve_neg().contiguous())
            return x + _tiled(lost.contiguous().view(-1), _from(_signs(), numbers, self._key)).view(x.shape)
        return x + torch.where(rounded(plain, 0.5, self._key) < plain, -lost, lost)

    def _rounded(self, x: Any) -> Any:
        if not (isinstance(x, Tensor) and x.layout is torch.strided and not x._is_zerotensor() and x.dtype in DOUBLE):
            return x
        if x.device.type == "meta":  # some formulas compute on meta tensors to get the shape of a result
            return x
        plain = x.detach() if x.dtype is torch.float64 and x.is_contiguous() and not x.is_neg() else None
        numbers = None if plain is None else _numbers(plain)
        u, least = (self._inside, self._inside_least) if self._apart else (self._u, self._least)
        if plain is None or numbers is None:
            low, high = extremes(x)
            small = low * u < least
        else:
            high, small = _largest(numbers), least > 0.0 and _has_small(numbers, least / u)
        self.largest = max(self.largest, high)
        if small:
            moved = rounded_at_least(x, u, self._key, least)
        else:
            moved = rounded(x, u, self._key) if plain is None or numbers is None else _times(plain, numbers, u, self._key)
        if moved is not x and moved.stride() == x.stride() and x.storage_offset() == 0:
            self._moved[moved.data_ptr()] = moved, x  # `moved` is kept alive, so that nothing else gets its address
        return moved

    def _rounded_but_whole(self, x: Any) -> Any:
        """`_rounded`, but integers that a formula adds stay exact: they are indices, and one slightly lower would be the one
        before."""
        moved = self._rounded(x)
        if moved is not x and x.dtype is torch.float64:
            whole = self._whole(x)
            if whole.any():
                moved.copy_(torch.where(whole, x, moved))
        return moved

    def _rounded_in_place(self, name: str, x: Any) -> None:
        """Round in place a tensor that a kernel wrote and that autograd already knows."""
        if not isinstance(x, Tensor) or name in TURNS or x.device.type == "meta":
            return
        self._moved.pop(x.data_ptr(), None)
        if name.rstrip("_") not in EXACT_KERNELS and x.dtype in DOUBLE and x.layout is torch.strided and not x.is_conj():
            x.copy_(rounded(x, self._inside if self._apart else self._u, self._key))

    def unrounded(self, t: Tensor) -> Tensor:
        """A final result as its kernel returned it: the rounding of the result itself is not part of the sensitivity."""
        known = self._moved.get(t.data_ptr())
        if known is None or known[0].dtype != t.dtype or t.storage_offset() or t.is_conj() or t.is_neg():
            return t
        return known[1].detach().as_strided(t.shape, t.stride())  # kernels may transpose their results in place
