"""Does `parity.assert_parity` fit models as their libraries write them? `python -m tests.bench networks real_models`.

Small configurations with random weights, nothing is downloaded; a model whose library is not installed is named and skipped.
Each runs in a process of its own: on the healthy simulated device, on the one with MPS's limits and on the honest one
(`sim:honest`), in eval mode, as it trains, in half types and under autocast, and with an operator that it uses made 1 %
wrong. A row for each: what was said, the seconds that it took, those of a plain forward and backward pass on the CPU, and the
warnings that came.

    as it should be    healthy and honest agree, a fault is found, and nothing is refused
    LOOK               anything else: a false alarm, a fault that was missed, an error

`--device cuda` runs them on a device as it is instead, with TF32 off: nothing is planted there, and all is to agree. `--list`
names the models, `--settings WORD` takes the settings whose names hold the word, `--locate` asks `parity.locate` too.
The exit code is 1 where a row is otherwise than it should be.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import subprocess
import sys
import time
import timeit
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import front
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves, tree_map

import parity
from parity.core.errors import ParityError
from parity.devices import Call, Device, Fault, resolve
from parity.devices.sim import honest

PATIENCE = 900  # seconds for one model
# Operators that a fault strikes, the first three that a model runs: what is made 1 % too large is their first result, or the
# running variance.
ATEN_STRUCK = (
    "gelu_backward", "native_layer_norm_backward", "_softmax", "native_group_norm_backward", "native_batch_norm",
    "silu_backward", "native_batch_norm_backward", "hardswish_backward", "_fused_rms_norm", "rsqrt", "sigmoid", "tanh_backward",
    "convolution", "relu", "mm",
)  # fmt: skip
ATEN_WRITES_BUFFERS = "native_batch_norm"


@dataclass(frozen=True, slots=True)
class Made:
    """A model with its inputs. half: it takes half types; trains: it takes the same inputs in train mode. keep: names of inputs
    that stay on the CPU."""

    model: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    half: bool = True
    trains: bool = True
    keep: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------------ the models


@functools.cache
def _torchvision() -> Any:
    """torchvision, which others import too; where its extension does not load (a wheel for CUDA next to torch for the CPU), its
    operators in Python take the place."""
    spec = importlib.util.find_spec("torchvision")
    folders = spec.submodule_search_locations if spec is not None else None
    operators: Any = torch.ops
    try:
        operators.load_library(next(p for folder in folders or () for p in Path(folder).glob("_C*.so")))
    except (OSError, StopIteration):
        kind: Any = torch.library.Library
        library = kind("torchvision", "FRAGMENT")
        _KEPT.append(library)
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", _nms, "CompositeExplicitAutograd")
    found = importlib.import_module("torchvision")
    if not found.extension._has_ops():
        boxes, align = (vars(importlib.import_module(f"torchvision.ops.{n}")) for n in ("boxes", "roi_align"))
        boxes["_assert_has_ops"] = lambda: None
        align["is_compile_supported"] = lambda kind: True  # takes its formula in Python, which it would compile
        align["_roi_align"] = align["_roi_align"].__wrapped__
    return found


_KEPT: list[Any] = []


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    order, kept = scores.argsort(descending=True, stable=True).tolist(), []
    x1, y1, x2, y2 = dets.unbind(1)
    area = (x2 - x1) * (y2 - y1)
    gone = torch.zeros(len(order), dtype=torch.bool, device=dets.device)
    for i in order:
        if gone[i]:
            continue
        kept.append(i)
        wide = (x2.minimum(x2[i]) - x1.maximum(x1[i])).clamp(min=0)
        inside = wide * (y2.minimum(y2[i]) - y1.maximum(y1[i])).clamp(min=0)
        gone |= inside / (area + area[i] - inside) > iou_threshold
    return torch.tensor(kept, dtype=torch.int64, device=dets.device)


def resnet18() -> Made:
    return Made(_torchvision().models.resnet18(num_classes=10), (torch.randn(2, 3, 64, 64),))


def mobilenet_v3_small() -> Made:
    return Made(_torchvision().models.mobilenet_v3_small(num_classes=10), (torch.randn(2, 3, 64, 64),))


def vit_b_16() -> Made:
    kind = _torchvision().models.VisionTransformer
    model = kind(64, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    nn.init.normal_(model.heads.head.weight, std=0.1)  # zeros otherwise, which no gradient passes
    return Made(model, (torch.randn(2, 3, 64, 64),))


def fasterrcnn() -> Made:
    make = _torchvision().models.detection.fasterrcnn_mobilenet_v3_large_320_fpn
    model = make(
        weights=None, weights_backbone=None, num_classes=5, min_size=64, max_size=96, box_detections_per_img=10,
        rpn_pre_nms_top_n_test=40, rpn_post_nms_top_n_test=20,
    )  # fmt: skip
    return Made(model.eval(), ([torch.rand(3, 64, 80), torch.rand(3, 72, 64)],), half=False, trains=False)


def _hugging(config: str, model: str, **options: Any) -> nn.Module:
    transformers = importlib.import_module("transformers")
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made


TINY = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def bert() -> Made:
    model = _hugging("BertConfig", "BertForSequenceClassification", **TINY, max_position_embeddings=64)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    inputs = {"input_ids": torch.randint(99, (2, 12)), "attention_mask": mask, "labels": torch.tensor([0, 1])}
    return Made(model, (), inputs)


def gpt2() -> Made:
    sizes = {"vocab_size": 99, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = _hugging("GPT2Config", "GPT2LMHeadModel", bos_token_id=1, eos_token_id=2, **sizes)
    ids = torch.randint(99, (2, 12))
    return Made(model, (ids,), {"labels": ids})


def _decoder(kind: str, **more: Any) -> Made:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {**TINY, **ends, "num_key_value_heads": 2, "max_position_embeddings": 64, **more}
    return Made(_hugging(f"{kind}Config", f"{kind}ForCausalLM", **sizes), (torch.randint(99, (2, 12)),), {"use_cache": True})


def llama() -> Made:
    return _decoder("Llama")


def mistral() -> Made:
    return _decoder("Mistral", sliding_window=4)


def gemma() -> Made:
    return _decoder("Gemma", head_dim=8)


def t5() -> Made:
    sizes = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model = _hugging("T5Config", "T5ForConditionalGeneration", **sizes, decoder_start_token_id=0)
    return Made(model, (), {"input_ids": torch.randint(99, (2, 12)), "labels": torch.randint(99, (2, 7))})


def whisper() -> Made:
    sides = {f"{s}_{k}": n for s in ("encoder", "decoder") for k, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    sizes = {"vocab_size": 99, "num_mel_bins": 8, "d_model": 32, "max_source_positions": 30, "max_target_positions": 30}
    model = _hugging("WhisperConfig", "WhisperForConditionalGeneration", **sides, **tokens, **sizes, dropout=0.1)
    return Made(model, (torch.randn(2, 8, 60),), {"decoder_input_ids": torch.randint(99, (2, 7))})


def clip() -> Made:
    image = {**{k: n for k, n in TINY.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}
    text = {**TINY, "eos_token_id": 98}
    model = _hugging("CLIPConfig", "CLIPModel", text_config=text, vision_config=image, projection_dim=16)
    ids = torch.randint(98, (2, 9))
    ids[:, -1] = 98  # the one end of the text, which the model looks for
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}
    return Made(model, (), inputs)


def unet() -> Made:
    kind = importlib.import_module("diffusers").UNet2DConditionModel
    model = kind(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=24, attention_head_dim=8,
    )  # fmt: skip
    return Made(model, (torch.randn(1, 4, 16, 16), 7, torch.randn(1, 5, 24)))


def timm_efficientnet() -> Made:
    model = importlib.import_module("timm").create_model("efficientnet_b0", num_classes=10, drop_rate=0.2)
    return Made(model, (torch.randn(2, 3, 64, 64),))


def timm_convnext() -> Made:
    model = importlib.import_module("timm").create_model("convnext_atto", num_classes=10)
    return Made(model, (torch.randn(2, 3, 64, 64),))


def gcn() -> Made:
    layers = importlib.import_module("torch_geometric.nn")

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = layers.GCNConv(8, 16), layers.GCNConv(16, 4)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            hidden = F.dropout(F.relu(self.one(x, edges)), 0.5, self.training)
            return F.log_softmax(self.two(hidden, edges), -1)

    return Made(Graph(), (torch.randn(12, 8), torch.randint(12, (2, 40))))


def lightning() -> Made:
    name = "lightning" if importlib.util.find_spec("lightning") is not None else "pytorch_lightning"  # its older name
    base = importlib.import_module(name).LightningModule

    class Classifier(base):  # type: ignore[misc,valid-type]  # a class that only the library knows
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            return loss

    return Made(Classifier().training_step, ((torch.randn(8, 16), torch.randint(4, (8,))), 0))


class Recurrent(nn.Module):
    """Sequences of several lengths, packed, with the state of the last step."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cells, self.head = kind(8, 16, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(32, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, state = self.cells(packed)
        assert isinstance(out, PackedSequence)
        return self.head(pad_packed_sequence(out, batch_first=True)[0]), state


def lstm() -> Made:
    return Made(Recurrent(nn.LSTM), (torch.randn(3, 6, 8), torch.tensor([6, 2, 4])))


def gru() -> Made:
    return Made(Recurrent(nn.GRU), (torch.randn(3, 6, 8), torch.tensor([6, 2, 4])), keep=("lengths",))


MODELS = {
    f.__name__: f
    for f in (
        resnet18, mobilenet_v3_small, vit_b_16, fasterrcnn, bert, gpt2, llama, mistral, gemma, t5, whisper, clip, unet,
        timm_efficientnet, timm_convnext, gcn, lightning, lstm, gru,
    )
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the settings


@dataclass(frozen=True, slots=True)
class Setting:
    """device: its name; faults: what is planted; train, dtype, autocast: how the model runs; wanted: "agrees" or
    "found"."""

    name: str
    device: str = "sim"
    faults: tuple[Fault, ...] = ()
    train: bool = False
    dtype: torch.dtype | None = None
    autocast: torch.dtype | None = None
    wanted: str = "agrees"


def planted(operator: str) -> Fault:
    """The first result 1 % too large, or what batch_norm adds to its running variance."""

    def effect(call: Call) -> Any:
        before = [t.clone() if isinstance(t, Tensor) else None for t in call.args]
        made = call.run()
        if operator == ATEN_WRITES_BUFFERS:
            variance, old = call.args[4], before[4]
            if old is not None:
                variance.copy_(old + 0.99 * (variance - old))
            return made
        return (made[0] * 1.01, *made[1:]) if isinstance(made, tuple) else made * 1.01

    return Fault(f"bench-{operator}", (operator,), effect)


def reached(make: Callable[[], Made], train: bool) -> set[str]:
    """Which of the operators of `ATEN_STRUCK` the model runs on the simulated device."""
    seen: set[str] = set()

    def passing(name: str) -> Callable[[Call], Any]:
        def effect(call: Call) -> Any:
            seen.add(name)
            return call.run()

        return effect

    faults = tuple(Fault(f"bench-{n}", (n,), passing(n)) for n in ATEN_STRUCK)
    said(make, Setting("reached", faults=faults, train=train), False)
    return seen


def owner(model: Callable[..., Any]) -> nn.Module | None:
    """The module behind a model or a method of it."""
    found = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    return found if isinstance(found, nn.Module) else None


def prepared(made: Made, setting: Setting) -> Made:
    """The model in the mode and the dtype of a setting, its inputs with it."""
    module = owner(made.model)
    if module is not None:
        module.train(setting.train)
    if setting.dtype is None:
        return made
    if module is not None:
        module.to(setting.dtype)

    def cast(x: Any) -> Any:
        return x.to(setting.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    return Made(made.model, tree_map(cast, made.inputs), tree_map(cast, dict(made.kwargs)), keep=made.keep)


def under(made: Made, setting: Setting) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What is compared, and its inputs: the model itself, or a function that runs it under autocast."""
    if setting.autocast is None:
        return made.model, made.inputs
    method = "" if isinstance(made.model, nn.Module) else made.model.__name__

    def step(model: Any, *inputs: Any, **kwargs: Any) -> Any:
        with torch.autocast(next(iter(model.parameters())).device.type, dtype=setting.autocast):
            return (getattr(model, method) if method else model)(*inputs, **kwargs)

    def packed(model: Any, x: Any, lengths: Any) -> Any:  # its parameters have the names that stay on the CPU
        return step(model, x, lengths)

    return (packed if made.keep else step), (owner(made.model), *made.inputs)


def once(made: Made) -> Any:
    """A plain pass on the CPU, with its gradients."""
    found = made.model(*made.inputs, **made.kwargs)
    outs = [t for t in tree_leaves(_opened(found)) if isinstance(t, Tensor) and t.requires_grad]
    if outs:
        torch.autograd.backward([t.float().sum() for t in outs])
    return found


def _opened(x: Any) -> Any:
    return dict(x) if hasattr(x, "keys") else x


def modes(made: Made, device: str) -> Iterator[Setting]:
    """How a model runs on a device on which nothing is planted: for evaluation, in training, in half types."""
    yield Setting(device, device)
    if made.trains:
        yield Setting("train", device, train=True)
    if made.half:
        for dtype in (torch.float16, torch.bfloat16):
            yield Setting(str(dtype).removeprefix("torch."), device, dtype=dtype)
        yield Setting("autocast", device, autocast=torch.bfloat16)


def settings(made: Made, used: set[str], trained: set[str]) -> Iterator[Setting]:
    """The settings that a model takes on simulated devices."""
    yield Setting("sim:mps", "sim:mps")
    for s in modes(made, "sim"):
        yield s
        yield replace(s, name="honest" if s.name == "sim" else f"{s.name} honest", faults=tuple(honest.FAULTS))
    for name in [n for n in ATEN_STRUCK if n in (trained if n == ATEN_WRITES_BUFFERS else used)][:3]:
        yield Setting(f"{name} off", faults=(planted(name),), train=name == ATEN_WRITES_BUFFERS, wanted="found")


# ------------------------------------------------------------------------------------------------------------ what is said


def said(make: Callable[[], Made], setting: Setting, locate: bool) -> tuple[str, str, list[str], tuple[float, float], str]:
    """("agrees", "found", "refused" or "error", the first line, the warnings, the seconds that it and a plain pass took, what
    `locate` says)."""
    torch.manual_seed(0)
    made = prepared(make(), setting)
    device: Device = resolve(setting.device, setting.faults)
    fn, inputs = under(made, setting)
    plain = min(timeit.repeat(lambda: once(Made(fn, inputs, made.kwargs)), number=1, repeat=2))
    module = owner(made.model)
    if module is not None:
        module.zero_grad()
    torch.set_float32_matmul_precision("highest")
    with torch.backends.__allow_nonbracketed_mutation():  # torch's own tests freeze the flags where they are imported
        torch.backends.cudnn.allow_tf32 = False
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = parity.assert_parity(fn, *inputs, device=device, keep_on_cpu=made.keep, **made.kwargs)
            word, line = "agrees", f"share {found.share:.2g}, {len(found.verdicts)} tensors"
        except parity.ParityFailure as e:
            word, line = "found", str(e).partition("\n")[0]
        except ParityError as e:
            word, line = "refused", str(e)
        except Exception as e:
            word, line = "error", f"{type(e).__name__}: {e}"
    seconds = time.perf_counter() - started
    where = ""
    if locate:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            where = parity.locate(fn, *inputs, device=device, keep_on_cpu=made.keep, **made.kwargs).headline
    return word, line, [str(w.message) for w in heard if issubclass(w.category, parity.ParityWarning)], (seconds, plain), where


def one(name: str, only: str, locate: bool, device: str) -> int:
    """Print the rows of a model; 1 if one is otherwise than it should be."""
    front.in_one_thread()
    make = MODELS[name]
    if importlib.util.find_spec("torchvision") is not None:
        _torchvision()
    torch.manual_seed(0)
    try:
        made = make()
    except ImportError as e:
        print(f"{name:<19}skipped: {e.name or e} is not installed", flush=True)
        return 0
    if device != "sim":
        asked = list(modes(made, device))
    else:
        asked = list(settings(made, reached(make, False), reached(make, True) if made.trains else set()))
    bad = 0
    for setting in asked:
        if only not in setting.name:
            continue
        word, line, heard, (seconds, plain), where = said(make, setting, locate)
        right = word == setting.wanted
        bad += not right
        told = "as it should be" if right else "LOOK"
        print(f"{name:<19}{setting.name:<32}{told:<16}{word:<9}{seconds:6.2f} s {plain:7.4f} s  {line[:400]}", flush=True)
        bad += bool(heard)
        for text in dict.fromkeys(heard):
            print(f"{'':<19}  warning: {text[:300]}", flush=True)
        if where:
            print(f"{'':<19}  locate: {where[:300]}", flush=True)
    return 1 if bad else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run each model in a process of its own; the exit code."""
    parser = front.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all by default")
    parser.add_argument("--settings", default="", metavar="WORD", help="only settings whose names hold this")
    parser.add_argument("--locate", action="store_true", help="ask parity.locate too")
    parser.add_argument("--device", default="sim", help="another device than sim is asked as it is")
    parser.add_argument("--list", action="store_true", help="name the models")
    parser.add_argument("--here", action="store_true", help="run the one model in this process")
    o = parser.parse_args(argv)
    if o.list:
        print(*MODELS, sep="\n")
        return 0
    names = front.chosen(o.models, [*MODELS], parser)
    if o.here:
        return max(one(name, o.settings, o.locate, o.device) for name in names)
    wrong = 0
    for name in names:
        rest = ["--settings", o.settings, "--device", o.device, *(["--locate"] if o.locate else [])]
        try:
            done = subprocess.run([sys.executable, __file__, name, "--here", *rest], timeout=PATIENCE)
            wrong += done.returncode != 0
        except subprocess.TimeoutExpired:
            print(f"{name:<19}LOOK: not done in {PATIENCE} s", flush=True)
            wrong += 1
    print(f"{len(names) - wrong} of {len(names)} models are as they should be, or skipped")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
