"""Adapter to torch's own test data (OpInfo), for breadth: its samples are the operands, everything else is drawn on them.

`opinfo_names.json` lists the entries, so that rows exist without importing anything; `python -m parity.catalog.opinfo`
writes it anew. OpInfo is private, changes between versions, and importing it freezes `torch.backends` flags: it is loaded
by the first sample. A case names its sample by index, torch version and digest. A
sample's `output_process_fn_grad`, which hides phases and ambiguities, is not used: the rows' relations are.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.catalog import ROWS
from parity.catalog.draw import Call, Draw
from parity.catalog.row import Row
from parity.dtypes import DEFAULT, FACTS
from parity.errors import CaseError, near
from parity.vocabulary import OpClass, TensorSpec, Values

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "opinfo:"
NAMES = Path(__file__).with_name("opinfo_names.json")
LARGEST = 200_000  # elements of a sample; larger ones say nothing that smaller ones do not
KEPT = 64  # samples per op and dtype, evenly spaced


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of an OpInfo without importing it. dtypes, backward: on the CPU, of those that parity covers."""

    dtypes: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    out: bool = False
    inplace: bool = False
    gradgrad: bool = False
    forward_ad: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One call: args and kwargs as OpInfo gave them, their tensors in tree order, and which may require a gradient."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Tensor, ...]
    grads: tuple[bool, ...]
    digest: str


def _entry(tree: dict[str, Any]) -> Entry:
    flags = tree.get("flags", "").split()
    return Entry(
        dtypes=tuple(tree.get("dtypes", "").split()),
        backward=tuple(tree.get("backward", "").split()),
        out="out" in flags,
        inplace="inplace" in flags,
        gradgrad="gradgrad" in flags,
        forward_ad="forward_ad" in flags,
    )


@functools.cache
def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(NAMES.read_text(encoding="utf-8"))
    return stored


ENTRIES: dict[str, Entry] = {name: _entry(tree) for name, tree in _stored()["entries"].items()}

_CUDA = "its kernels exist on CUDA only"
_SPARSE = "takes or gives a sparse tensor, which parity does not compare"
_TIES = "no relation tells a tie under a mask from a wrong index"
OUT_OF_REACH: dict[str, str] = {
    name: "no dtype of parity's on the CPU" for name, entry in ENTRIES.items() if not entry.dtypes
} | {
    "to": "its samples name devices, pinned memory and other layouts; the native row `to` covers it",
    "jiterator_unary": _CUDA,
    "jiterator_binary": _CUDA,
    "jiterator_binary_return_by_ref": _CUDA,
    "jiterator_2inputs_2outputs": _CUDA,
    "jiterator_4inputs_with_extra_args": _CUDA,
    "to_sparse": _SPARSE,
    "sparse.mm:reduce": _SPARSE,
    "sparse.sampled_addmm": _SPARSE,
    "chalf": "gives complex32, which parity does not cover",
    "masked.argmax": _TIES,
    "masked.argmin": _TIES,
    "broadcast_shapes": "computes with shapes alone: no tensor reaches a device",
}  # fmt: skip

# Which rule judges an entry, by its full key or by its name without variant. Whatever is not listed is a composite.
RULES: dict[OpClass, str] = {
    OpClass.EXACT: """
        H T mH mT t t_copy transpose transpose_copy movedim permute permute_copy squeeze squeeze_copy unsqueeze
        unsqueeze_copy view view_as view_copy view_as_real view_as_complex reshape reshape_as ravel flatten unflatten
        expand expand_as expand_copy broadcast_to broadcast_tensors alias_copy as_strided as_strided_copy
        as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag cartesian_prod combinations cat _chunk_cat chunk
        unsafe_chunk split split_with_sizes split_with_sizes_copy unsafe_split tensor_split dsplit hsplit vsplit dstack
        hstack vstack stack column_stack clone contiguous constant_pad_nd nn.functional.pad diag diag_embed diagflat
        diagonal diagonal_copy diagonal_scatter linalg.diagonal fft.fftshift fft.ifftshift fill flip fliplr flipud full
        full_like zeros zeros_like ones ones_like new_full new_ones new_zeros scalar_tensor eye gather index_copy
        index_fill index_select select select_scatter slice slice_scatter narrow narrow_copy masked_fill masked_scatter
        masked_select meshgrid nonzero nonzero_static argwhere nn.functional.one_hot nn.functional.channel_shuffle
        nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.unfold unfold unfold_copy
        repeat repeat_interleave roll rot90 scatter scatter_reduce:amax scatter_reduce:amin
        index_reduce:amax index_reduce:amin take take_along_dim tile tril triu tril_indices triu_indices unbind
        unbind_copy unravel_index where zero_ item to conj conj_physical resolve_conj resolve_neg real imag positive neg
        nn.functional.interpolate:nearest nn.functional.interpolate:nearest-exact nn.functional.upsample_nearest
        nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d
        nn.functional.feature_alpha_dropout:without_train __getitem__ _unsafe_masked_index lu_unpack all any allclose
        equal eq ne lt le gt ge isclose isfinite isin isinf isnan isneginf isposinf isreal signbit logical_and logical_or
        logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift
        __rand__ __ror__ __rxor__ bincount bucketize searchsorted count_nonzero gcd lcm heaviside copysign nextafter
        max:binary min:binary maximum minimum fmax fmin max:reduction_no_dim min:reduction_no_dim amax amin aminmax
        masked.amax masked.amin clamp clamp_max clamp_min ceil floor trunc round sign frac frexp nan_to_num
        fmod hash_tensor unique_consecutive nn.functional.relu nn.functional.relu6 nn.functional.hardtanh
        nn.functional.threshold nn.functional.hardshrink complex bfloat16 bool byte char double float half int long short
        cfloat cdouble linalg.matrix_rank""",
    OpClass.ELEMENTWISE: """
        abs sgn acos acosh add addcdiv addcmul angle arange asin asinh atan atan2 atanh cos cosh deg2rad diff digamma div
        erf erfc erfinv exp exp2 expm1 float_power floor_divide hypot i0 igamma igammac kron ldexp lerp lgamma log log10
        log1p log2 logaddexp logaddexp2 logit mul mvlgamma nn.functional.celu nn.functional.elu nn.functional.gelu
        nn.functional.hardsigmoid nn.functional.hardswish nn.functional.leaky_relu nn.functional.logsigmoid
        nn.functional.mish nn.functional.prelu nn.functional.selu nn.functional.silu nn.functional.softplus
        nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink native_dropout_backward outer polar
        polygamma pow rad2deg reciprocal remainder round:decimals_0 round:decimals_3 round:decimals_neg_3 rsqrt rsub
        sigmoid sin sinc sinh special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1
        special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v
        special.chebyshev_polynomial_w special.entr special.erfcx special.hermite_polynomial_h
        special.hermite_polynomial_he special.i0e special.i1 special.i1e special.laguerre_polynomial_l
        special.legendre_polynomial_p special.log_ndtr special.modified_bessel_i0 special.modified_bessel_i1
        special.modified_bessel_k0 special.modified_bessel_k1 special.ndtr special.ndtri special.polygamma
        special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.shifted_chebyshev_polynomial_t
        special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v
        special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0 special.xlog1py special.zeta sqrt square sub
        tan tanh true_divide xlogy __radd__ __rdiv__ __rmod__ __rmul__ __rpow__ __rsub__""",
    OpClass.CONTRACTION: """
        addbmm addmm addmv baddbmm bmm mm mv matmul __rmatmul__ dot vdot inner linalg.vecdot linalg.multi_dot einsum
        tensordot sum mean nansum nanmean cumsum masked.sum masked.mean masked.cumsum sum_to_size trace
        nn.functional.linear nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d
        nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.conv_transpose3d
        nn.functional.bilinear nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
        nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d
        nn.functional.interpolate:area index_add index_put put scatter_add scatter_reduce:sum scatter_reduce:mean
        index_reduce:mean _unsafe_masked_index_put_accumulate max_pool2d_with_indices_backward""",
    OpClass.SOLVER: """
        cholesky_inverse cholesky_solve geqrf linalg.cond linalg.det linalg.householder_product linalg.ldl_factor
        linalg.ldl_factor_ex linalg.ldl_solve linalg.lu_solve linalg.matrix_power linalg.matrix_norm linalg.norm linalg.slogdet
        linalg.tensorinv linalg.tensorsolve logdet lu_solve norm:nuc ormqr triangular_solve""",
}  # fmt: skip
# Where several answers are right: the relation that must hold, and the class that goes with it.
RELATIONS: dict[str, tuple[OpClass, str]] = {
    "sort": (OpClass.SELECTION, "sort"),
    "argsort": (OpClass.SELECTION, "argsort"),
    "topk": (OpClass.SELECTION, "topk"),
    "kthvalue": (OpClass.SELECTION, "kthvalue"),
    "median": (OpClass.SELECTION, "median nanmedian"),
    "mode": (OpClass.SELECTION, "mode"),
    "max_dim": (OpClass.SELECTION, "max:reduction_with_dim min:reduction_with_dim"),
    "argmax": (OpClass.SELECTION, "argmax argmin"),
    "cummax": (OpClass.SELECTION, "cummax cummin"),
    "unique": (OpClass.SELECTION, "unique"),
    "max_pool_indices": (
        OpClass.SELECTION,
        "nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.adaptive_max_pool1d "
        "nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d",
    ),
    "svd": (OpClass.DECOMPOSITION, "svd linalg.svd"),
    "eigh": (OpClass.DECOMPOSITION, "linalg.eigh"),
    "eig": (OpClass.DECOMPOSITION, "linalg.eig linalg.eigvals"),
    "qr": (OpClass.DECOMPOSITION, "qr linalg.qr"),
    "lu": (OpClass.DECOMPOSITION, "lu linalg.lu linalg.lu_factor linalg.lu_factor_ex"),
    "lstsq": (OpClass.SOLVER, "linalg.lstsq"),
    "solve": (OpClass.SOLVER, "linalg.solve linalg.solve_ex"),
    "inv": (OpClass.SOLVER, "linalg.inv linalg.inv_ex"),
    "solve_triangular": (OpClass.SOLVER, "linalg.solve_triangular"),
    "cholesky": (OpClass.SOLVER, "linalg.cholesky linalg.cholesky_ex cholesky"),
    "svdvals": (OpClass.SOLVER, "linalg.svdvals"),
    "pinv_any_rank": (OpClass.SOLVER, "linalg.pinv pinverse"),
    "order": (OpClass.EXACT, "msort masked.median"),
    "eigvalsh": (OpClass.SOLVER, "linalg.eigvalsh"),
    "random": (
        OpClass.RANDOM,
        "bernoulli cauchy exponential geometric log_normal multinomial normal nn.functional.alpha_dropout "
        "nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d "
        "nn.functional.feature_alpha_dropout:with_train nn.functional.fractional_max_pool2d "
        "nn.functional.fractional_max_pool3d nn.functional.rrelu rand_like randint "
        "randint_like randn randn_like uniform pca_lowrank svd_lowrank",
    ),
    "uninitialised": (
        OpClass.METADATA,
        "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_",
    ),
}
# Their callable itself fills its first argument.
# torch 2.13 on the CPU writes beside a destination of these whose batch dimensions cannot be merged (heap corruption).
UNSAFE_OUT = ("tril", "triu", "lu_unpack", "linalg.lu", "lu")
MUTATES = ("cauchy", "exponential", "geometric", "log_normal", "normal:in_place", "uniform")
# Their meaning depends on the dtype (its neighbours, its limits, its eps), so float64 is no truth for them.
DTYPE_BOUND = (
    "nextafter", "nan_to_num", "frexp", "hash_tensor", "round:decimals_0", "round:decimals_3", "round:decimals_neg_3",
    "to", "bfloat16", "bool", "byte", "char", "double", "float", "half", "int", "long", "short", "cfloat", "cdouble",
    "nn.functional.rms_norm", "linalg.pinv", "pinverse", "linalg.matrix_rank", "linalg.lstsq",
)  # fmt: skip
# Entries that run the half-precision kernels of another one.
SAME_KERNEL = {
    "_batch_norm_with_update": "nn.functional.batch_norm",
    "_native_batch_norm_legit": "nn.functional.batch_norm",
    "native_batch_norm": "nn.functional.batch_norm",
    "_softmax_backward_data": "logsumexp",
    "nn.functional.upsample_bilinear": "nn.functional.interpolate:bilinear",
    "grid_sampler_2d": "nn.functional.grid_sample",
    "grid_sampler_3d": "nn.functional.grid_sample",
}
# Their further results (saved statistics) are a backend's own affair: other dtypes and shapes are right, too.
FIRST_ONLY = ("_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm", "native_layer_norm")
# Other names of the functions in the ULP tables.
ULP_NAMES = {
    "true_divide": "div",
    "__radd__": "add",
    "__rsub__": "sub",
    "__rmul__": "mul",
    "__rdiv__": "div",
    "__rpow__": "pow",
}

# Integer operands are places to write to: repeated ones leave open which write comes last, so these are never expanded.
WRITES_AT = """scatter scatter_add scatter_reduce index_copy index_add index_fill index_put index_reduce put
    nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d masked_scatter"""
# What NaN, Inf and numbers out of range become is undefined: casts to integers, hashes, recurrences that read beside.
FINITE_ONLY = """byte char short int long hash_tensor special.chebyshev_polynomial_t special.chebyshev_polynomial_u
    special.chebyshev_polynomial_v special.chebyshev_polynomial_w special.shifted_chebyshev_polynomial_t
    special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
    special.hermite_polynomial_h special.hermite_polynomial_he special.laguerre_polynomial_l
    special.legendre_polynomial_p grid_sampler_2d grid_sampler_3d nn.functional.grid_sample"""
# Their calls update operands beside their results (running statistics, weights of a limited norm).
UPDATES = """nn.functional.embedding nn.functional.embedding_bag nn.functional.batch_norm nn.functional.instance_norm
    _batch_norm_with_update _native_batch_norm_legit native_batch_norm"""

_RULE_OF = {name: rule for rule, names in RULES.items() for name in names.split()}
# What the native row of an entry knows of its half-precision kernels holds for the entry.
_ACCUMULATES = {n: r.accumulates for r in ROWS.values() if r.accumulates for n in r.opinfo}
_ROUNDS_BETWEEN = {n for r in ROWS.values() if r.rounds_between for n in r.opinfo}
_ORDER = ("quantile", "nanquantile")  # composites that take their gradients from one of several equal elements
_RELATION_OF = {name: (rule, word) for word, (rule, names) in RELATIONS.items() for name in names.split()}


def rows() -> tuple[Row, ...]:
    """A row per entry within reach, named "opinfo:<entry>"."""
    return tuple(_as_row(key, entry) for key, entry in ENTRIES.items() if key not in OUT_OF_REACH)


def _as_row(key: str, entry: Entry) -> Row:
    base, _, variant = key.partition(":")
    known = key if key in _RULE_OF or key in _RELATION_OF else base
    rule, relation = _RELATION_OF.get(known, (_RULE_OF.get(known, OpClass.COMPOSITE), ""))
    plain_name = SAME_KERNEL.get(base, base.removeprefix("masked."))
    relation = "order" if base in _ORDER else relation
    mutates = key in MUTATES
    # A variant may be another function (division that rounds down); only the plain ones stand in the ULP tables.
    plain = variant in ("", "no_rounding_mode")
    return Row(
        name=PREFIX + key,
        family="opinfo",
        rule=rule,
        call=PREFIX + key,
        signature=functools.partial(_draw, key),
        dtypes=entry.dtypes,
        grad=() if mutates else entry.backward,
        inplace=PREFIX + key if entry.inplace and not mutates else "",
        out=entry.out and base not in UNSAFE_OUT and base not in FIRST_ONLY,
        mutates=mutates,
        relation=relation,
        rounds_between=not {key, base, plain_name}.isdisjoint(_ROUNDS_BETWEEN),
        accumulates=_ACCUMULATES.get(key) or _ACCUMULATES.get(plain_name, ()),
        updates=base in UPDATES.split(),
        places=base in WRITES_AT.split(),
        finite=base in FINITE_ONLY.split() or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
        unexpanded=base in ("median", "nanmedian", "masked.median") or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
        ulp=ULP_NAMES.get(base, base.split(".")[-1]) if plain else key,
        oracle="exact" if key in DTYPE_BOUND or base in DTYPE_BOUND else "wide",
        opinfo=(key,),
    )


def _draw(key: str, draw: Draw) -> Call:
    """One of the entry's samples: its index, a spec per tensor, and what ties the case to this torch."""
    kept = samples(key, draw.dtype)
    index = draw.choice(tuple(kept))
    sample = kept[index]
    specs = tuple(
        TensorSpec(
            _dtype(t),
            tuple(t.shape),
            values=Values("sample", (index, position)),
            grad=grad,
            on_cpu=key == "tensor_split" and position > 0,
        )
        for position, (t, grad) in enumerate(zip(sample.tensors, sample.grads))
    )
    return Call((index, *specs), (("torch", torch_version()), ("digest", sample.digest)))


# --------------------------------------------------------------------------------------------------------- with torch


def torch_version() -> str:
    """The installed torch without its build ("2.13.0" for "2.13.0+cpu")."""
    import torch

    return str(torch.__version__).partition("+")[0]


@functools.cache
def _database() -> dict[str, Any]:
    """All OpInfos by key. Raises CaseError where they cannot be imported."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except Exception as e:
        raise CaseError(
            f"torch's OpInfo cannot be imported ({type(e).__name__}: {e}); install what it needs: pip install numpy expecttest"
        ) from e
    return {info.name + (f":{info.variant_test_name}" if info.variant_test_name else ""): info for info in op_db}


def _info(name: str) -> Any:
    key = name.removeprefix(PREFIX)
    if key not in _database():
        raise CaseError(f"torch {torch_version()} has no OpInfo '{key}'; {near(key, _database()) or 'see parity run --list'}")
    return _database()[key]


def callables(name: str) -> tuple[Callable[..., Any], Callable[..., Any] | None, bool]:
    """The function of an entry, its in-place form or None, and whether it takes out=. Raises CaseError."""
    info = _info(name)
    function: Callable[..., Any] = info.op
    if name.removeprefix(PREFIX) in FIRST_ONLY:

        def function(*args: Any, **kwargs: Any) -> Any:
            return info.op(*args, **kwargs)[0]

    return function, info.inplace_variant, bool(info.supports_out) and name.removeprefix(PREFIX) not in FIRST_ONLY


@functools.lru_cache(maxsize=4)
def _samples(key: str, dtype: str) -> dict[int, Sample]:
    info = _info(key)
    fit = {index: s for index, s in enumerate(_generated(info, dtype, grad=False)) if _fits(key, s)}
    if not fit:
        raise CaseError(f"OpInfo '{key}' has no sample in {dtype} that parity can take; choose another dtype or op")
    indices = list(fit)
    if len(indices) > KEPT:
        indices = [indices[k * len(indices) // KEPT] for k in range(KEPT)]
    graded = list(_generated(info, dtype, grad=True)) if dtype in ENTRIES.get(key, Entry()).backward else []
    # With gradients some entries give other samples; then the flags cannot be matched, and all inexact tensors get one.
    match = [list(map(_spoken, tensors_of(g))) for g in graded]
    made = {}
    for index in indices:
        tensors = tuple(tensors_of(fit[index]))
        grads = tuple(FACTS[_dtype(t)].is_inexact for t in tensors)
        if index < len(match) and match[index] == list(map(_spoken, tensors)):
            grads = tuple(bool(t.requires_grad) for t in tensors_of(graded[index]))
        args, kwargs = fit[index]
        made[index] = Sample(args, kwargs, tensors, grads, _digest((args, kwargs), tensors))
    return made


def samples(name: str, dtype: str) -> dict[int, Sample]:
    """The samples of an entry in a dtype by their index in OpInfo's own order. Raises CaseError."""
    return _samples(name.removeprefix(PREFIX), dtype)


def as_given(name: str, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of every sample of an entry, just as OpInfo makes them, large ones too. Raises CaseError."""
    return _generated(_info(name), dtype, grad)


def _generated(info: Any, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all samples; the global generators are left as they were. Raises CaseError."""
    import numpy
    import torch

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    try:
        stream = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=grad, set_seed=True)
        stream.test_fn = None  # else a unittest on the stack seeds the samples by its name
        return [((s.input, *s.args), dict(s.kwargs)) for s in stream]
    except Exception as e:
        raise CaseError(f"OpInfo '{info.name}' cannot make its samples in {dtype}: {type(e).__name__}: {e}") from e
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])


def _fits(key: str, sample: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Dense tensors of dtypes that parity knows, not too large, and no dropout in an op that is judged by its values."""
    import torch

    found = list(tensors_of(sample))
    drops = sample[1].get("dropout_p") or (key.endswith("multi_head_attention_forward") and sample[1].get("training"))
    return (
        all(t.layout is torch.strided and _dtype(t) in FACTS for t in found)
        and sum(t.numel() for t in found) <= LARGEST
        and not drops
    )


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of an argument tree in order; one that stands in it twice comes twice."""
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(part)


def _dtype(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _spoken(t: Tensor) -> str:
    return f"{_dtype(t)}{list(t.shape)}"


def _rebuilt(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The tree with `leaf` applied to everything that is no list, tuple or dict; in the order of `tensors_of`."""
    if isinstance(tree, dict):
        return {k: _rebuilt(v, leaf) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_rebuilt(part, leaf) for part in tree]
    if type(tree) is tuple:
        return tuple(_rebuilt(part, leaf) for part in tree)
    return leaf(tree)


def _digest(tree: Any, tensors: Iterable[Tensor]) -> str:
    """8 hex digits over the bytes of the tensors and the text of everything else (without the addresses of functions)."""
    import torch

    h = hashlib.blake2b(digest_size=4)
    shown = repr(_rebuilt(tree, lambda x: _spoken(x) if isinstance(x, torch.Tensor) else x))
    h.update(re.sub(r" at 0x[0-9a-f]+", "", shown).encode())
    for t in tensors:
        flat = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        h.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return h.hexdigest()


def _sample(name: str, dtype: str, index: int) -> Sample:
    kept = samples(name, dtype)
    if index not in kept:
        raise CaseError(
            f"{name} has no sample {index} in {dtype} here (it has {len(kept)}, up to {max(kept)}); draw the case anew"
        )
    return kept[index]


def sample_tensor(name: str, dtype: str, index: int, position: int) -> Tensor:
    """The raw tensor at a position of a sample; do not write into it. Raises CaseError."""
    tensors = _sample(name, dtype, index).tensors
    if not 0 <= position < len(tensors):
        raise CaseError(
            f"sample {index} of {name} in {dtype} has {len(tensors)} tensors, none at {position}; draw the case anew"
        )
    return tensors[position]


def assemble(
    name: str, dtype: str, index: int, tensors: Iterable[Any], torch: str, digest: str, device: str = "cpu"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a sample with other tensors in their places, and `device` where the sample names the CPU.

    torch, digest: as the case has them. Raises CaseError where the sample here is another one, saying both.
    """
    import torch as library

    if torch != torch_version():
        raise CaseError(
            f"the case was drawn from the samples of torch {torch}, this is torch {torch_version()}; "
            "install that one, or draw anew"
        )
    sample = _sample(name, dtype, index)
    if digest != sample.digest:
        raise CaseError(
            f"sample {index} of {name} in {dtype} has digest {sample.digest} here and {digest} in the case: "
            "other values on another machine; replay it where it was found, or draw anew"
        )
    given = list(tensors)
    if len(given) != len(sample.tensors):
        raise CaseError(f"sample {index} of {name} in {dtype} takes {len(sample.tensors)} tensors, the case has {len(given)}")
    it = iter(given)

    def leaf(x: Any) -> Any:
        if isinstance(x, library.Tensor):
            return next(it)
        if isinstance(x, str) and x == "cpu":
            return device
        return library.device(device) if isinstance(x, library.device) else x

    args, kwargs = _rebuilt((sample.args, sample.kwargs), leaf)
    return args, kwargs


# ---------------------------------------------------------------------------------------------------------- the list


def generate() -> dict[str, Any]:
    """The content of `opinfo_names.json` for the installed torch."""
    import torch

    entries = {}
    for key, info in sorted(_database().items()):
        forward, backward = info.supported_dtypes("cpu"), info.supported_backward_dtypes("cpu")
        flags = {
            "out": info.supports_out,
            "inplace": info.inplace_variant is not None,
            "gradgrad": info.supports_autograd and info.supports_gradgrad,
            "forward_ad": info.supports_forward_ad,
        }
        tree = {
            "dtypes": " ".join(d for d in DEFAULT if getattr(torch, d) in forward),
            "backward": " ".join(d for d in DEFAULT if info.supports_autograd and getattr(torch, d) in backward),
            "flags": " ".join(flag for flag, is_set in flags.items() if is_set),
        }
        entries[key] = {word: text for word, text in tree.items() if text}
    return {"torch": torch_version(), "entries": entries}


def text(tree: dict[str, Any]) -> str:
    """The file: one line per entry, so that a new torch reads well in a diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in tree["entries"].items()]
    return f'{{"torch": {json.dumps(tree["torch"])}, "entries": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    made = generate()
    NAMES.write_text(text(made), encoding="utf-8")
    print(f"wrote {len(made['entries'])} entries of torch {made['torch']} to {NAMES.name}")
