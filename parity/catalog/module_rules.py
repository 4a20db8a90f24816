"""The rules that judge torch's modules: by the facts of the function that each one calls, or by none.

A module without a function of its own (recurrent layers, transformers) runs many kernels and is a composite.
"""

from __future__ import annotations

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
PACKED = ("nn.RNN", "nn.GRU")
PACKED_BY_PARITY = ("nn.LSTM",)
# Modules whose samples are also taken with a batch in which one sequence is padded: (2, 3, 4) and a mask of the keys.
PADDED = ("nn.TransformerEncoderLayer", "nn.TransformerEncoder")
