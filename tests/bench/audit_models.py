"""Are the answers of `parity audit --model` right? `python tests/bench/audit_models.py [MODEL ...] [--no-standin]`.

Models with small configurations and random weights are audited, and then really run where MPS's limits hold: on `sim:mps`,
which raises at the first operator or dtype missing on MPS (forgiven, the model runs once more, until it comes to its end), and
on the stand-in for MPS (tests/standin: torch's own dispatch key, so that torch's own code composes the operators), with the
fallback on, which names every operator without a kernel. What the audit missed or invented is named; the exit code is 1
where there is any. Models whose library is absent are skipped, and said so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[Any, tuple[Any, ...]]
STANDIN = Path(__file__).parents[1] / "standin"
ROUNDS = 40  # operators that one model may lack
OPERATOR = re.compile(r"The operator '(aten::[\w.]+)'")
REFUSED = ((re.compile("float64"), "float64"), (re.compile("ComplexDouble"), "complex128"))


class Absent(Exception):
    """A library that is not installed here, or does not load."""


_kept: list[Any] = []  # a Library unregisters when it is collected


def _declare() -> None:
    """torchvision's wheel for CUDA loads no operators next to a torch for the CPU, and asks for some when it is imported, which
    transformers does as well. The models here call none of them."""
    new: Any = torch.library.Library  # untyped in torch
    _kept.append(new("torchvision", "DEF"))
    for _ in range(ROUNDS):
        try:
            importlib.import_module("torchvision")
        except ImportError:
            return
        except RuntimeError as e:
            if (lacks := re.search(r"operator torchvision::(\w+) does not exist", str(e))) is None:
                return
            _kept[0].define(f"{lacks[1]}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
                del sys.modules[module]
        else:
            return


def library(name: str) -> Any:
    """A module. Raises Absent."""
    try:
        if not _kept:
            _declare()
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as e:
        raise Absent(f"{name.partition('.')[0]}: {type(e).__name__}: {(str(e).splitlines() or [''])[0]}") from e


# ------------------------------------------------------------------------------------------------------------ the models


def vision(name: str, size: int, **options: Any) -> Made:
    return getattr(library("torchvision.models"), name)(weights=None, **options), (torch.randn(2, 3, size, size),)


def resnet18() -> Made:
    return vision("resnet18", 64)


def mobilenet_v3_small() -> Made:
    return vision("mobilenet_v3_small", 64)


def vit_b_16() -> Made:
    return vision("vit_b_16", 32, image_size=32)


def hugging(name: str, sizes: dict[str, Any], **inputs: Tensor) -> Made:
    """A model of transformers: name, "Bert" of BertModel and BertConfig."""
    transformers = library("transformers")
    try:
        kind = getattr(transformers, f"{name}Model")
    except ModuleNotFoundError as e:
        raise Absent(str(e)) from e
    model = kind(getattr(transformers, f"{name}Config")(**sizes)).eval()
    return Holding(model, tuple(inputs)), tuple(inputs.values())


class Holding(nn.Module):
    """A model of transformers that takes its inputs by position and returns its tensors."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        found = self.model(**dict(zip(self.names, tensors)))
        return [t for t in found.values() if isinstance(t, Tensor) and t.is_floating_point()]


IDS = torch.arange(12).reshape(2, 6)
FEW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}


def bert() -> Made:
    return hugging("Bert", FEW, input_ids=IDS, attention_mask=torch.ones(2, 6, dtype=torch.long))


def gpt2() -> Made:
    return hugging("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 16}, input_ids=IDS)


def t5() -> Made:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
    return hugging("T5", sizes, input_ids=IDS, decoder_input_ids=IDS)


def llama() -> Made:
    return hugging("Llama", {**FEW, "num_key_value_heads": 2}, input_ids=IDS)


def whisper() -> Made:
    sizes: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50, "num_mel_bins": 8}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0}
    return hugging("Whisper", sizes, input_features=torch.randn(2, 8, 40), decoder_input_ids=IDS)


def clip() -> Made:
    text = {**FEW, "max_position_embeddings": 16, "eos_token_id": 11, "bos_token_id": 1, "projection_dim": 16}
    seen = {**{k: v for k, v in FEW.items() if k != "vocab_size"}, "image_size": 16, "patch_size": 8, "projection_dim": 16}
    sizes = {"text_config": text, "vision_config": seen, "projection_dim": 16}
    return hugging("CLIP", sizes, input_ids=IDS, pixel_values=torch.randn(2, 3, 16, 16))


class Packed(nn.Module):
    """LSTM and GRU over packed sequences, an LSTM over a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.dense = nn.LSTM(4, 5, 2), nn.GRU(5, 5, bidirectional=True), nn.LSTM(10, 3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4, 1]))
        y, _ = self.lstm(packed)
        y, _ = self.gru(y)
        padded, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        return self.dense(padded)[0]


def packed() -> Made:
    return Packed(), (torch.randn(6, 3, 4),)


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 2, 1)
        self.norm, self.group = nn.BatchNorm2d(8), nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Any:
        a = F.silu(self.norm(self.down(x)))
        b = F.gelu(self.group(self.deep(F.max_pool2d(a, 2))))
        c = F.interpolate(self.up(F.avg_pool2d(b, 2)), scale_factor=2.0, mode="bilinear")
        return self.last(torch.cat([a, c], 1))


def unet() -> Made:
    return UNet(), (torch.randn(2, 3, 16, 16),)


class Scorer(nn.Module):
    """Attention in training and in evaluation, with a whole encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            y = self.encoder(x)
        return F.scaled_dot_product_attention(y, y, y) + torch.norm(self.encoder(x), dim=-1, keepdim=True)


def encoder() -> Made:
    return Scorer().eval(), (torch.randn(2, 5, 16),)


def in_double() -> Made:
    def fn(x: Tensor) -> Any:
        return (x.double().cumsum(-1) / 3).float() + x

    return fn, (torch.randn(3, 4, requires_grad=True),)


def fourier() -> Made:
    def fn(x: Tensor) -> Any:
        y = torch.fft.rfft2(x)
        return torch.fft.irfft2(y * y.conj(), s=x.shape[-2:]) + torch.view_as_real(torch.fft.fft(x)).abs().sum()

    return fn, (torch.randn(2, 8, 8, requires_grad=True),)


def lacking() -> Made:
    def fn(x: Tensor) -> Any:
        y = torch.special.log_ndtr(x) + F.adaptive_max_pool3d(x[None, None], 2).mean()
        values, _ = torch.mode(x, -1)
        return y + values.unsqueeze(-1) + torch.linalg.eigvalsh(x @ x.mT).sum() + torch.logspace(0, 1, 3).sum()

    return fn, (torch.randn(4, 4, 4, requires_grad=True),)


def decomposed() -> Made:
    """What is always on the CPU, and what torch composes with float64 in between."""

    def fn(x: Tensor) -> Any:
        u, s, v = torch.linalg.svd(x)
        return u @ v * s.sum() + torch.linalg.pinv(x) + torch.linalg.lu_solve(*torch.linalg.lu_factor(x), x)

    return fn, (torch.eye(3) * 2 + torch.arange(9.0).reshape(3, 3) / 7,)


MODELS: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (
        *(resnet18, mobilenet_v3_small, vit_b_16, bert, gpt2, t5, llama, whisper, clip, packed, unet, encoder, in_double),
        *(fourier, lacking, decomposed),
    )
}


def made(name: str) -> Made:
    torch.manual_seed(0)
    return MODELS[name]()


# ----------------------------------------------------------------------------------------------------------- both answers


def told_by_audit(name: str) -> tuple[set[str], set[str]]:
    """Operators and dtypes that the audit says are missing. Raises RuntimeError where it did not see all."""
    import parity

    fn, inputs = made(name)
    found = parity.audit(fn, *inputs)
    if found.broken or found.mixed:
        raise RuntimeError(found.headline)
    return set(found.operators), set(found.dtypes)


def refused_by_sim(name: str) -> tuple[set[str], set[str]]:
    """Operators and dtypes at which `sim:mps` raises, each forgiven once it has. Raises what is no refusal."""
    from parity.devices.sim.device import SimDevice
    from parity.devices.sim.profile import mps_profile

    profile, operators, dtypes = mps_profile(), set[str](), set[str]()
    for _ in range(ROUNDS):
        device = SimDevice(replace(profile, name="strict"))
        try:
            with device.active():
                _run(name, device.torch_device)
        except (NotImplementedError, TypeError) as e:
            operator, text = OPERATOR.search(str(e)), str(e)
            if operator:
                operators.add(operator[1])
                profile = replace(profile, table=(profile.table or frozenset()) | {operator[1].removeprefix("aten::")})
                continue
            word = next((w for pattern, w in REFUSED if pattern.search(text)), None)
            if word is None:
                raise
            dtypes.add(word)
            kept = {d: c for d, c in profile.refused_dtypes.items() if str(d) != f"torch.{word}"}
            profile = replace(profile, refused_dtypes=kept)
            continue
        return operators, dtypes
    raise RuntimeError(f"{name} lacks more than {ROUNDS} things")


def fell_back(name: str) -> set[str]:
    """Operators for which torch on the stand-in warns that they fall back. To be called in a process of its own."""
    sys.path.append(str(STANDIN))
    importlib.import_module("standin_library").install()
    return _warned(name)


def _warned(name: str) -> set[str]:
    torch.set_warn_always(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run(name, torch.device("mps"))
    return {m[1] for w in caught if (m := OPERATOR.search(str(w.message)))}


def dispatched_there(name: str) -> set[str]:
    """Base names of the operators that torch dispatches under the key of MPS, on a stand-in on which all of them fall back but
    those that torch composes where there is no kernel. To be called in a process of its own."""
    sys.path.append(str(STANDIN))
    module: Any = importlib.import_module("standin_library")
    every = module.with_kernel()
    module.with_kernel = lambda: [n for n in every if composes(f"aten::{n}") or n in module.MIXING]
    module.install()
    return {base(n) for n in _warned(name)}


def dispatched_here(name: str) -> set[str]:
    """The same by the audit, without what `dispatched_there` cannot say."""
    sys.path.append(str(STANDIN))
    there, kernels = (importlib.import_module(m) for m in ("standin_library", "standin_kernels"))
    silent = {base(f"aten::{n}") for n in (*there.OWN, *there.VIEWS, *there.MIXING, *kernels.WHOLE)}
    fn, inputs = made(name)
    needs = importlib.import_module("parity").audit(fn, *inputs).needs
    names = [n.operator for n in needs if n.operator and n.answer in ("kernel", "no kernel") and not composes(n.operator)]
    return {base(n) for n in names} - silent


def composes(operator: str) -> bool:
    """Whether torch has a composition of an operator ("aten::linear") that runs without a kernel."""
    keys = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator, k) for k in keys)


def base(operator: str) -> str:
    """Without overload and underscore: one way calls `add.out`, another one `add.Tensor`."""
    return operator.partition(".")[0].rstrip("_")


def _run(name: str, device: torch.device) -> None:
    """The model, forward and backward, on a device."""
    fn, inputs = made(name)
    fn = fn.to(device) if isinstance(fn, nn.Module) else fn
    given = [x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs]
    found = fn(*given)
    outs = [t for t in (found if isinstance(found, (list, tuple)) else [found]) if t.requires_grad]
    if outs:  # cotangents come from the CPU, since making them on the device would be counted
        torch.autograd.backward(outs, [torch.ones(t.shape, dtype=t.dtype).to(device) for t in outs])


def standin(name: str, what: Callable[[str], set[str]]) -> set[str] | str:
    """What a function says in a process of its own on the stand-in, or why it says nothing."""
    command = [sys.executable, __file__, "--child", what.__name__, name]
    environment = {**os.environ, "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode == 0 and last.startswith("["):
        return set(json.loads(last))
    said = done.stderr.splitlines() if done.returncode == 1 else []
    return f"it ends ({said[-1][:120] if said else f'exit code {done.returncode}'})"


# ---------------------------------------------------------------------------------------------------------------- the page


def main() -> int:
    """Compare the answers for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--no-standin", action="store_true", help="leave the stand-in out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.child:
        warnings.simplefilter("ignore")
        print(json.dumps(sorted(globals()[o.child](o.models[0]))))
        return 0
    if unknown := [m for m in o.models if m not in MODELS]:
        parser.error(f"no model {unknown[0]}; allowed: {', '.join(MODELS)}")
    torch.autograd.set_multithreading_enabled(False)
    warnings.simplefilter("ignore")
    wrong = compared = told = same = apart = 0
    for name in o.models or MODELS:
        try:
            operators, dtypes = told_by_audit(name)
            there, kinds = refused_by_sim(name)
        except Absent as e:
            print(f"{name:<20} skipped, {e}", flush=True)
            continue
        compared += 1
        off = [*_apart("sim:mps", operators, there), *_apart("sim:mps", dtypes, kinds)]
        note = ""
        if not o.no_standin and not kinds:  # no fallback helps a dtype, so that the stand-in would end there
            seen, every = standin(name, fell_back), standin(name, dispatched_there)
            if isinstance(seen, str):
                note = f"; stand-in: {seen}"
            else:
                told += 1
                # Warned of and run on the CPU, too, whatever the environment says: no lack.
                off += _apart("the stand-in", operators, {n for n in seen if n not in ALWAYS})
            if isinstance(every, set):
                mine = dispatched_here(name)
                same += len(mine & every)
                note += f"; dispatched under MPS's key: {len(mine & every)} the same"
                note += "".join(f", {x} only here" for x in sorted(mine - every))
                note += "".join(f", {x} only there" for x in sorted(every - mine))
                apart += len(mine ^ every)
            else:
                note += f"; dispatched under MPS's key: {every}"
        wrong += len(off)
        lacks = ", ".join(sorted({*operators, *dtypes})) or "nothing"
        print(f"{name:<20} lacks {lacks}: {'; '.join(off) or 'none missed, none invented'}{note}", flush=True)
    print(f"{compared} models against sim:mps, {told} against the stand-in: {wrong} operators or dtypes missed or invented")
    print(f"operators dispatched under MPS's key, by model: {same} the same, {apart} otherwise")
    return 1 if wrong or not compared else 0


ALWAYS = ("aten::linalg_svd", "aten::linalg_svd.U", "aten::embedding_renorm_")


def _apart(where: str, told: set[str], there: set[str]) -> list[str]:
    return [
        *(f"missed {x} ({where})" for x in sorted(there - told)),
        *(f"invented {x} ({where})" for x in sorted(told - there)),
    ]


if __name__ == "__main__":
    sys.exit(main())
