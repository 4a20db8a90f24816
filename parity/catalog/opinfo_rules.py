"""The rules that judge torch's OpInfo entries and its modules: the op class of each, its relation, and other fields of its row.

Names are an entry's full key ("max:binary") or its name without the variant ("max").

A module without a function of its own (recurrent layers, transformers) runs many kernels and is a composite.
"""

from __future__ import annotations

from parity.catalog import ROWS
from parity.core.case import OpClass

_CUDA = "its kernels exist on CUDA only"
_SPARSE = "takes or gives a sparse tensor, which parity does not compare"
_TIES = "no relation distinguishes a tie under a mask from a wrong index"
OUT_OF_REACH: dict[str, str] = {
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
# For entries with several right answers: the relation that must hold, and the op class.
RELATIONS: dict[str, tuple[OpClass, str]] = {
    "sort": (OpClass.SELECTION, "sort"),
    "argsort": (OpClass.SELECTION, "argsort"),
    "topk": (OpClass.SELECTION, "topk"),
    "kthvalue": (OpClass.SELECTION, "kthvalue"),
    "median": (OpClass.SELECTION, "median nanmedian"),
    "mode": (OpClass.SELECTION, "mode"),
    "max_dim": (OpClass.SELECTION, "max:reduction_with_dim min:reduction_with_dim"),
    "argmax": (OpClass.SELECTION, "argmax"),
    "argmin": (OpClass.SELECTION, "argmin"),
    "cummax": (OpClass.SELECTION, "cummax cummin"),
    "unique": (OpClass.SELECTION, "unique"),
    "max_pool_indices": (OpClass.SELECTION, "nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d"),
    "adaptive_pool_indices": (
        OpClass.SELECTION,
        "nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d",
    ),
    "svd": (OpClass.DECOMPOSITION, "svd linalg.svd"),
    "eigh": (OpClass.DECOMPOSITION, "linalg.eigh"),
    "eig": (OpClass.DECOMPOSITION, "linalg.eig linalg.eigvals"),
    "lowrank": (OpClass.DECOMPOSITION, "svd_lowrank"),
    "pca_lowrank": (OpClass.DECOMPOSITION, "pca_lowrank"),
    "qr": (OpClass.DECOMPOSITION, "qr linalg.qr"),
    "lu": (OpClass.DECOMPOSITION, "lu linalg.lu linalg.lu_factor linalg.lu_factor_ex"),
    "lstsq": (OpClass.SOLVER, "linalg.lstsq"),
    "solve": (OpClass.SOLVER, "linalg.solve linalg.solve_ex"),
    "inv": (OpClass.SOLVER, "linalg.inv linalg.inv_ex"),
    "solve_triangular": (OpClass.SOLVER, "linalg.solve_triangular"),
    "cholesky": (OpClass.SOLVER, "linalg.cholesky linalg.cholesky_ex cholesky"),
    "svdvals": (OpClass.SOLVER, "linalg.svdvals"),
    "pinv_any_rank": (OpClass.SOLVER, "linalg.pinv pinverse"),
    "pinv_of_product": (OpClass.SOLVER, "linalg.pinv:singular"),
    "order": (OpClass.EXACT, "msort masked.median"),
    "eigvalsh": (OpClass.SOLVER, "linalg.eigvalsh"),
    "unpool": (OpClass.EXACT, "nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d"),
    "random": (
        OpClass.RANDOM,
        "bernoulli cauchy exponential geometric log_normal multinomial normal nn.functional.alpha_dropout "
        "nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d "
        "nn.functional.feature_alpha_dropout:with_train nn.functional.fractional_max_pool2d "
        "nn.functional.fractional_max_pool3d nn.functional.rrelu rand_like randint "
        "randint_like randn randn_like uniform",
    ),
    "uninitialised": (
        OpClass.METADATA,
        "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_",
    ),
}
# The distribution or mask that each random entry promises (`parity.judging.laws`).
LAWS = {
    "rand_like": "randn",  # the entry calls randn_like
    "randn_like": "randn", "bernoulli": "bernoulli", "multinomial": "multinomial", "uniform": "uniform_",
    "normal:in_place": "normal_", "exponential": "exponential_", "cauchy": "cauchy_", "log_normal": "log_normal_",
    "geometric": "geometric_", "randint_like": "randint_like", "nn.functional.dropout": "dropout",
    "nn.functional.dropout2d": "dropout2d", "nn.functional.dropout3d": "dropout3d",
    "nn.functional.alpha_dropout": "alpha_dropout", "nn.functional.feature_alpha_dropout:with_train": "feature_alpha_dropout",
    "nn.functional.feature_alpha_dropout:without_train": "feature_alpha_dropout", "nn.functional.rrelu": "rrelu",
    "nn.functional.fractional_max_pool2d": "fractional_max_pool", "nn.functional.fractional_max_pool3d": "fractional_max_pool",
}  # fmt: skip
# torch 2.13 on the CPU writes outside a destination whose batch dimensions cannot be merged (heap corruption).
UNSAFE_OUT = ("tril", "triu", "lu_unpack", "linalg.lu", "lu")
# In deterministic mode torch uses a formula in Python on all devices but the CPU, which rounds uint8 differently.
RESIZED = ("nn.functional.interpolate", "nn.functional.upsample_bilinear", "nn.functional.upsample_nearest")
# They read memory outside the elements of a view.
MEMORY = ("as_strided", "as_strided_copy", "as_strided_scatter")
# Their function fills its first argument.
MUTATES = ("cauchy", "exponential", "geometric", "log_normal", "normal:in_place", "uniform")
# Their meaning depends on the dtype (its neighbours, its limits, its eps), so float64 is no truth for them.
DTYPE_BOUND = (
    "nextafter", "nan_to_num", "frexp", "hash_tensor", "round:decimals_0", "round:decimals_3", "round:decimals_neg_3",
    "to", "bfloat16", "bool", "byte", "char", "double", "float", "half", "int", "long", "short", "cfloat", "cdouble",
    "nn.functional.rms_norm", "linalg.pinv", "pinverse", "linalg.matrix_rank", "linalg.lstsq",
)  # fmt: skip
# Entries that run the half-precision kernels of another one.
SAME_KERNEL = {
    "_batch_norm_with_update": "nn.functional.batch_norm", "_native_batch_norm_legit": "nn.functional.batch_norm",
    "native_batch_norm": "nn.functional.batch_norm", "_softmax_backward_data": "logsumexp",
    "nn.functional.upsample_bilinear": "nn.functional.interpolate:bilinear", "grid_sampler_2d": "nn.functional.grid_sample",
    "grid_sampler_3d": "nn.functional.grid_sample",
}  # fmt: skip
# Only the first result is compared: dtype and shape of the others (saved statistics) depend on the backend.
FIRST_ONLY = ("_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm", "native_layer_norm")
# Entries without a native row that would set these fields.
RUNNING = ("cumsum", "cumulative_trapezoid")
TRANSFORMS = ("stft", "istft")  # and all of torch.fft
BY_NORM = """linalg.cond linalg.eig linalg.eigh linalg.eigvals linalg.eigvalsh linalg.pinv linalg.svd linalg.svdvals pinverse
    svd svd_lowrank"""
# Position, among the floating operands, of the one that is added after a sum of products.
BIAS = {
    **dict.fromkeys(("addmm", "addmv", "addr", "baddbmm"), 0),
    "nn.functional.linear": 2,
    **{f"nn.functional.conv{kind}{n}d": 2 for kind in ("", "_transpose") for n in (1, 2, 3)},
}
# Names in the ULP tables that differ from those of the entries.
ULP_NAMES = {
    "true_divide": "div", "__radd__": "add", "__rsub__": "sub", "__rmul__": "mul", "__rdiv__": "div", "__rpow__": "pow",
}  # fmt: skip

# Integer operands are indices to write to; repeated ones leave the result undefined, so these are never expanded.
WRITES_AT = """scatter scatter_add scatter_reduce index_copy index_add index_fill index_put index_reduce put
    nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d masked_scatter"""
# Results for NaN, Inf and numbers out of range are undefined: casts to integers, hashes, recurrences that read out of bounds.
FINITE_ONLY = """byte char short int long hash_tensor special.chebyshev_polynomial_t special.chebyshev_polynomial_u
    special.chebyshev_polynomial_v special.chebyshev_polynomial_w special.shifted_chebyshev_polynomial_t
    special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
    special.hermite_polynomial_h special.hermite_polynomial_he special.laguerre_polynomial_l
    special.legendre_polynomial_p grid_sampler_2d grid_sampler_3d nn.functional.grid_sample"""
# Their samples are matrices of a certain rank, which a planted value would change.
OF_A_RANK = ("linalg.matrix_rank", "norm:subgradients_at_zero", "linalg.norm:subgradients_at_zero")
# Their samples are probabilities, which special values are not.
CHANCES = ("multinomial", "bernoulli", "nn.functional.binary_cross_entropy")
# They refuse operands that are not dense, or views of their samples.
PACKED = ("native_group_norm", "view_as_complex", "view_as_real", "kron", "as_strided:partial_views")
# Their calls also update operands (running statistics, weights with max_norm).
UPDATES = """nn.functional.embedding nn.functional.embedding_bag nn.functional.batch_norm nn.functional.instance_norm
    _batch_norm_with_update _native_batch_norm_legit native_batch_norm"""

CHOICES = {n: r.draws.choices for r in ROWS.values() if r.draws.choices for n in r.counts.opinfo}

RULE_OF = {name: rule for rule, names in RULES.items() for name in names.split()}
# The facts of a native row about half-precision kernels hold for its OpInfo entries.
ACCUMULATES = {n: r.judged.accumulates for r in ROWS.values() if r.judged.accumulates for n in r.counts.opinfo}
STAGES = {n: r.judged.stages for r in ROWS.values() if r.judged.stages for n in r.counts.opinfo}
ROUNDS_BETWEEN = {n for r in ROWS.values() if r.judged.rounds_between for n in r.counts.opinfo}
ROUNDS_BETWEEN |= {"nn.functional.grid_sample"}  # its samples in three dimensions, as the row grid_sample_3d
ROUNDS_BETWEEN |= {"nn.functional.linear_cross_entropy"}  # a single operator whose products are stored in the dtype
ORDER = ("quantile", "nanquantile")  # composites whose gradient goes to one of several equal elements
RELATION_OF = {name: (rule, word) for word, (rule, names) in RELATIONS.items() for name in names.split()}


# OpInfo entry -> the modules that call its function with their input, weight and bias, in this order.
CALLS = {
    "nn.functional.adaptive_avg_pool1d": "nn.AdaptiveAvgPool1d", "nn.functional.adaptive_avg_pool2d": "nn.AdaptiveAvgPool2d",
    "nn.functional.adaptive_avg_pool3d": "nn.AdaptiveAvgPool3d", "nn.functional.adaptive_max_pool1d": "nn.AdaptiveMaxPool1d",
    "nn.functional.adaptive_max_pool2d": "nn.AdaptiveMaxPool2d", "nn.functional.adaptive_max_pool3d": "nn.AdaptiveMaxPool3d",
    "nn.functional.avg_pool1d": "nn.AvgPool1d", "nn.functional.avg_pool2d": "nn.AvgPool2d",
    "nn.functional.avg_pool3d": "nn.AvgPool3d", "nn.functional.batch_norm": "nn.BatchNorm1d nn.BatchNorm2d nn.BatchNorm3d",
    "nn.functional.celu": "nn.CELU", "nn.functional.conv1d": "nn.Conv1d nn.LazyConv1d",
    "nn.functional.conv2d": "nn.Conv2d nn.LazyConv2d", "nn.functional.conv3d": "nn.Conv3d nn.LazyConv3d",
    "nn.functional.conv_transpose1d": "nn.ConvTranspose1d nn.LazyConvTranspose1d",
    "nn.functional.conv_transpose2d": "nn.ConvTranspose2d nn.LazyConvTranspose2d",
    "nn.functional.conv_transpose3d": "nn.ConvTranspose3d nn.LazyConvTranspose3d",
    "nn.functional.cosine_embedding_loss": "nn.CosineEmbeddingLoss", "nn.functional.elu": "nn.ELU",
    "nn.functional.fractional_max_pool2d": "nn.FractionalMaxPool2d",
    "nn.functional.fractional_max_pool3d": "nn.FractionalMaxPool3d", "nn.functional.l1_loss": "nn.L1Loss",
    "nn.functional.smooth_l1_loss": "nn.SmoothL1Loss", "nn.functional.linear": "nn.Linear",
    "nn.functional.bilinear": "nn.Bilinear", "nn.functional.max_pool1d": "nn.MaxPool1d",
    "nn.functional.max_pool2d": "nn.MaxPool2d", "nn.functional.max_pool3d": "nn.MaxPool3d",
    "nn.functional.kl_div": "nn.KLDivLoss", "nn.functional.mse_loss": "nn.MSELoss",
    "nn.functional.margin_ranking_loss": "nn.MarginRankingLoss",
    "nn.functional.multilabel_margin_loss": "nn.MultiLabelMarginLoss", "nn.functional.multi_margin_loss": "nn.MultiMarginLoss",
    "nn.functional.soft_margin_loss": "nn.SoftMarginLoss",
    "nn.functional.multilabel_soft_margin_loss": "nn.MultiLabelSoftMarginLoss", "nn.functional.nll_loss": "nn.NLLLoss",
    "nn.functional.gaussian_nll_loss": "nn.GaussianNLLLoss", "nn.functional.poisson_nll_loss": "nn.PoissonNLLLoss",
    "nn.functional.hinge_embedding_loss": "nn.HingeEmbeddingLoss", "nn.functional.huber_loss": "nn.HuberLoss",
    "nn.functional.binary_cross_entropy": "nn.BCELoss",
    "nn.functional.binary_cross_entropy_with_logits": "nn.BCEWithLogitsLoss",
    "nn.functional.cross_entropy": "nn.CrossEntropyLoss", "nn.functional.linear_cross_entropy": "nn.LinearCrossEntropyLoss",
    "nn.functional.ctc_loss": "nn.CTCLoss", "nn.functional.gelu": "nn.GELU", "nn.functional.glu": "nn.GLU",
    "nn.functional.group_norm": "nn.GroupNorm", "nn.functional.hardshrink": "nn.Hardshrink",
    "nn.functional.hardswish": "nn.Hardswish", "nn.functional.hardtanh": "nn.Hardtanh",
    "nn.functional.instance_norm": "nn.InstanceNorm1d nn.InstanceNorm2d nn.InstanceNorm3d",
    "nn.functional.local_response_norm": "nn.LocalResponseNorm", "nn.functional.layer_norm": "nn.LayerNorm",
    "nn.functional.rms_norm": "nn.RMSNorm", "nn.functional.embedding": "nn.Embedding", "nn.functional.relu": "nn.ReLU",
    "nn.functional.leaky_relu": "nn.LeakyReLU", "nn.functional.relu6": "nn.ReLU6", "nn.functional.prelu": "nn.PReLU",
    "sigmoid": "nn.Sigmoid", "nn.functional.logsigmoid": "nn.LogSigmoid", "nn.functional.silu": "nn.SiLU",
    "softmax": "nn.Softmax nn.Softmax2d", "log_softmax": "nn.LogSoftmax", "nn.functional.softmin": "nn.Softmin",
    "nn.functional.softplus": "nn.Softplus", "nn.functional.softshrink": "nn.Softshrink",
    "nn.functional.softsign": "nn.Softsign", "tanh": "nn.Tanh", "nn.functional.tanhshrink": "nn.Tanhshrink",
    "nn.functional.threshold": "nn.Threshold", "nn.functional.mish": "nn.Mish",
    "nn.functional.pad:reflect": "nn.ReflectionPad1d nn.ReflectionPad2d nn.ReflectionPad3d",
    "nn.functional.pad:replicate": "nn.ReplicationPad1d nn.ReplicationPad2d nn.ReplicationPad3d",
    "nn.functional.selu": "nn.SELU",
    "nn.functional.pad:constant": "nn.ZeroPad1d nn.ZeroPad2d nn.ZeroPad3d nn.ConstantPad1d nn.ConstantPad2d nn.ConstantPad3d",
    "nn.functional.pad:circular": "nn.CircularPad1d nn.CircularPad2d nn.CircularPad3d",
}  # fmt: skip
FUNCTION_OF = {module: entry for entry, modules in CALLS.items() for module in modules.split()}
# Their result and gradient go to one of several equal elements, so that the samples have none (`distinct`).
PICKS = tuple(m for m, entry in FUNCTION_OF.items() if "max_pool" in entry)
# The CPU crashes where integer operands have strides of 0 (torch 2.13).
UNEXPANDED = ("nn.CTCLoss",)
# Modules for which torch's tests make packed sequences when they are asked to, and one for which they don't.
PACKED_MODULES = ("nn.RNN", "nn.GRU")
PACKED_BY_PARITY = ("nn.LSTM",)
# Modules whose samples are also taken with a batch in which one sequence is padded: (2, 3, 4) and a mask of the keys.
PADDED = ("nn.TransformerEncoderLayer", "nn.TransformerEncoder")
