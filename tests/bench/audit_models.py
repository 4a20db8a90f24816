"""Are the answers of `parity audit --model` right? `python -m tests.bench mps audit_models [MODEL ...] [--no-standin]`.

The models of `real_models.py`, and functions that MPS cannot run whole, are audited, and then really run where MPS's limits
hold: on `sim:mps`, which raises at the first operator or dtype missing on MPS (forgiven, the model runs once more, until it
comes to its end), and on the stand-in for MPS (tests/standin: torch's own dispatch key, so that torch's own code composes the
operators), with the fallback on, which names every operator without a kernel. What the audit missed or invented is named; the
exit code is 1 where there is any. Models whose library is absent are skipped, and said so.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import front
import real_models
import torch
import torch.nn.functional as F
from real_models import Made
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import parity
from parity.devices.sim.device import SimDevice
from parity.devices.sim.profile import mps_profile

STANDIN = Path(__file__).parents[1] / "standin"
ROUNDS = 40  # operators that one model may lack
OPERATOR = re.compile(r"The operator '(aten::[\w.]+)'")
REFUSED = ((re.compile("float64"), "float64"), (re.compile("ComplexDouble"), "complex128"))
ALWAYS = ("aten::linalg_svd", "aten::linalg_svd.U", "aten::embedding_renorm_")  # on the CPU whatever is set


# ------------------------------------------------------------------------------------------------------------ the models


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


def small_unet() -> Made:
    return Made(UNet(), (torch.randn(2, 3, 16, 16),))


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
    return Made(Scorer(), (torch.randn(2, 5, 16),))


def in_double() -> Made:
    def fn(x: Tensor) -> Any:
        return (x.double().cumsum(-1) / 3).float() + x

    return Made(fn, (torch.randn(3, 4, requires_grad=True),))


def fourier() -> Made:
    def fn(x: Tensor) -> Any:
        y = torch.fft.rfft2(x)
        return torch.fft.irfft2(y * y.conj(), s=x.shape[-2:]) + torch.view_as_real(torch.fft.fft(x)).abs().sum()

    return Made(fn, (torch.randn(2, 8, 8, requires_grad=True),))


def lacking() -> Made:
    def fn(x: Tensor) -> Any:
        y = torch.special.log_ndtr(x) + F.adaptive_max_pool3d(x[None, None], 2).mean()
        values, _ = torch.mode(x, -1)
        return y + values.unsqueeze(-1) + torch.linalg.eigvalsh(x @ x.mT).sum() + torch.logspace(0, 1, 3).sum()

    return Made(fn, (torch.randn(4, 4, 4, requires_grad=True),))


def decomposed() -> Made:
    """What is always on the CPU, and what torch composes with float64 in between."""

    def fn(x: Tensor) -> Any:
        u, s, v = torch.linalg.svd(x)
        return u @ v * s.sum() + torch.linalg.pinv(x) + torch.linalg.lu_solve(*torch.linalg.lu_factor(x), x)

    return Made(fn, (torch.eye(3) * 2 + torch.arange(9.0).reshape(3, 3) / 7,))


OWN = (small_unet, encoder, in_double, fourier, lacking, decomposed)
OF_LIBRARIES = ("resnet18", "mobilenet_v3_small", "vit_b_16", "bert", "gpt2", "t5", "llama", "whisper", "clip", "lstm", "gru")
MODELS = {n: real_models.MODELS[n] for n in OF_LIBRARIES} | {f.__name__: f for f in OWN}


def made(name: str) -> Made:
    """A model for evaluation. Raises ImportError without its library."""
    torch.manual_seed(0)
    found = MODELS[name]()
    return replace(found, model=found.model.eval()) if isinstance(found.model, nn.Module) else found


# ----------------------------------------------------------------------------------------------------------- both answers


def told_by_audit(name: str) -> tuple[set[str], set[str]]:
    """Operators and dtypes that the audit says are missing. Raises RuntimeError where it did not see all."""
    one = made(name)
    found = parity.audit(one.model, *one.inputs, **one.kwargs)
    if found.broken or found.mixed:
        raise RuntimeError(found.headline)
    return set(found.operators), set(found.dtypes)


def refused_by_sim(name: str) -> tuple[set[str], set[str]]:
    """Operators and dtypes at which `sim:mps` raises, each forgiven once it has. Raises what is no refusal."""
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
    torch.set_warn_always(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run(name, torch.device("mps"))
    return {m[1] for w in caught if (m := OPERATOR.search(str(w.message)))}


def _run(name: str, device: torch.device) -> None:
    """The model, forward and backward, on a device."""
    one = made(name)

    def moved(x: Any) -> Any:
        return x.detach().to(device).requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

    fn = one.model.to(device) if isinstance(one.model, nn.Module) else one.model
    inputs, kwargs = tree_map(moved, (one.inputs, dict(one.kwargs)))
    found = real_models._opened(fn(*inputs, **kwargs))
    outs = [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.requires_grad]
    if outs:  # cotangents come from the CPU, since making them on the device would be counted
        torch.autograd.backward(outs, [torch.ones(t.shape, dtype=t.dtype).to(device) for t in outs])


def standin(name: str) -> set[str] | str:
    """What `fell_back` says in a process of its own, or why it says nothing."""
    command, environment = [sys.executable, __file__, "--child", name], {**os.environ, "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode == 0 and last.startswith("["):
        return set(json.loads(last))
    said = done.stderr.splitlines() if done.returncode == 1 else []
    return f"it ends ({said[-1][:120] if said else f'exit code {done.returncode}'})"


# ---------------------------------------------------------------------------------------------------------------- the page


def main() -> int:
    """Compare the answers for each model."""
    parser = front.parser(__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--no-standin", action="store_true", help="leave the stand-in out")
    parser.add_argument("--child", action="store_true", help="used by the program itself")
    o = parser.parse_args()
    front.in_one_thread()
    if o.child:
        print(json.dumps(sorted(fell_back(o.models[0]))))
        return 0
    wrong = compared = told = 0
    for name in front.chosen(o.models, [*MODELS], parser):
        try:
            operators, dtypes = told_by_audit(name)
            there, kinds = refused_by_sim(name)
        except ImportError as e:
            print(f"{name:<20} skipped, {e.name or e} is not installed", flush=True)
            continue
        compared += 1
        off, note = [*_apart("sim:mps", operators, there), *_apart("sim:mps", dtypes, kinds)], ""
        if not o.no_standin and not kinds:  # no fallback helps a dtype, so that the stand-in would end there
            seen = standin(name)
            told += isinstance(seen, set)
            if isinstance(seen, str):
                note = f"; stand-in: {seen}"
            else:  # what is always warned of is no lack
                off += _apart("the stand-in", operators, {n for n in seen if n not in ALWAYS})
        wrong += len(off)
        lacks = ", ".join(sorted({*operators, *dtypes})) or "nothing"
        print(f"{name:<20} lacks {lacks}: {'; '.join(off) or 'none missed, none invented'}{note}", flush=True)
    print(f"{compared} models against sim:mps, {told} against the stand-in: {wrong} operators or dtypes missed or invented")
    return 1 if wrong or not compared else 0


def _apart(where: str, told: set[str], there: set[str]) -> list[str]:
    return [
        *(f"missed {x} ({where})" for x in sorted(there - told)),
        *(f"invented {x} ({where})" for x in sorted(told - there)),
    ]


if __name__ == "__main__":
    sys.exit(main())
