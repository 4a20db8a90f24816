"""What `assert_parity` and `locate` cost over plain passes: `python tests/bench/models.py [MODEL ...]`.

Networks of a million parameters and more with random weights, as people use them, on the healthy simulated device and on the
honest one (`sim:honest`). For each the CPU seconds of a plain forward and backward pass on both sides (the device's own
work is in it), and how many times as many each question takes, in one thread. Nothing is planted, so all have to agree; the
exit code is 1 where one does not. `--most N` also fails where the default effort of `assert_parity` takes more than N times,
`--effort` and `--locate` choose what is asked, `--device` another device than the two, `--compile` a compiler. Nothing is
downloaded. `--fault` asks of devices instead on each of which one operator is 1 % wrong, which has to be found; without an
operator these are the first three of `real_models.ATEN_STRUCK` that the model runs.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from real_models import ATEN_STRUCK, ATEN_WRITES_BUFFERS, Made, _hugging, _opened, _torchvision, planted, reached
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import parity
from parity.comparing.comparison import EFFORTS
from parity.devices import Device, resolve
from parity.devices.sim import honest


def resnet18() -> Made:
    return Made(_torchvision().models.resnet18(), (torch.randn(2, 3, 64, 64),))


def mobilenet_v3_small() -> Made:
    return Made(_torchvision().models.mobilenet_v3_small(), (torch.randn(2, 3, 64, 64),))


def vit_b_16() -> Made:
    model = _torchvision().models.vit_b_16(image_size=64)
    nn.init.normal_(model.heads.head.weight, std=0.1)  # zeros otherwise, which no gradient passes
    return Made(model, (torch.randn(2, 3, 64, 64),))


def bert() -> Made:
    size = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = _hugging("BertConfig", "BertForSequenceClassification", **size)
    mask = torch.ones(2, 32, dtype=torch.int64)
    mask[1, 20:] = 0
    ids = torch.randint(30522, (2, 32))
    return Made(model, (), {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1])})


def gpt2() -> Made:
    model = _hugging("GPT2Config", "GPT2LMHeadModel", n_layer=4, n_embd=256, n_head=4)
    ids = torch.randint(50257, (2, 32))
    return Made(model, (ids,), {"labels": ids})


MODELS: dict[str, Callable[[], Made]] = {f.__name__: f for f in (mobilenet_v3_small, resnet18, bert, gpt2, vit_b_16)}


def plain(made: Made, device: Device) -> tuple[float, float]:
    """CPU seconds of a forward and backward pass: on the CPU, and on the device."""
    seconds = []
    with device.active():
        for place in (torch.device("cpu"), device.torch_device):
            model, inputs, kwargs = tree_map(
                lambda x: x.to(place) if isinstance(x, (Tensor, nn.Module)) else x,  # noqa: B023 -- called at once
                (copy.deepcopy(made.model), made.inputs, dict(made.kwargs)),
            )
            took = []
            for _ in range(3):
                began = time.process_time()
                found = model(*inputs, **kwargs)
                outs = [t for t in tree_leaves(_opened(found)) if isinstance(t, Tensor) and t.requires_grad]
                torch.autograd.backward(outs, [torch.ones_like(t) for t in outs])
                device.synchronize()
                took.append(time.process_time() - began)
            seconds.append(min(took))
    return seconds[0], seconds[1]


def asked(run: Callable[[], Any]) -> tuple[float, str]:
    """(CPU seconds of a question, its answer where that is no agreement)."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = run()
            said = "" if getattr(found, "agrees", True) else str(found)
        except parity.ParityFailure as e:
            said = str(e)
    return time.process_time() - began, said.partition("\n")[0][:200]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each model and device; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--effort", action="append", choices=EFFORTS, help="of assert_parity; all by default")
    parser.add_argument("--locate", action="store_true", help="ask locate too")
    parser.add_argument("--device", help="another device than the healthy and the honest one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", metavar="BACKEND", help="also compile the model with it")
    parser.add_argument("--fault", nargs="?", const="", metavar="OPERATOR", help="ask of devices that compute it 1 %% wrong")
    parser.add_argument("--most", type=float, default=0.0, metavar="N", help="fail where the default effort takes more")
    o = parser.parse_args(argv)
    if odd := [m for m in o.models if m not in MODELS]:
        parser.error(f"there is no model '{odd[0]}'; allowed: {', '.join(MODELS)}")
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    if importlib.util.find_spec("torchvision") is not None:
        _torchvision()  # before transformers, which looks for it
    sides = {"healthy": resolve("sim"), "honest": resolve("sim", tuple(honest.FAULTS))}
    sides = {o.device: resolve(o.device)} if o.device else sides
    for side in sides.values():  # what is loaded once is no model's cost
        asked(lambda: parity.assert_parity(nn.Sequential(nn.Linear(99, 9), nn.GELU()), torch.randn(9, 99), device=side))  # noqa: B023
    bad = 0
    for name in o.models or MODELS:
        torch.manual_seed(0)
        made = MODELS[name]()
        module = made.model
        assert isinstance(module, nn.Module)
        module.eval().to(getattr(torch, o.dtype))
        inputs, kwargs = tree_map(
            lambda x: x.to(getattr(torch, o.dtype)) if isinstance(x, Tensor) and x.is_floating_point() else x,
            (made.inputs, dict(made.kwargs)),
        )
        made = Made(module, inputs, kwargs)
        many = sum(p.numel() for p in module.parameters()) / 1e6
        if o.fault is not None:
            used = reached(lambda: made, False)  # noqa: B023
            struck = [o.fault] if o.fault else [n for n in ATEN_STRUCK if n in used and n != ATEN_WRITES_BUFFERS][:3]
            sides = {n: resolve("sim", (planted(n),)) for n in struck}
        for word, device in sides.items():
            near, there = plain(made, device)
            given = {"device": device, **({"compile": o.compile} if o.compile else {}), **kwargs}
            questions: dict[str, Callable[[], Any]] = {
                e: lambda e=e: parity.assert_parity(module, *inputs, effort=e, **given)  # type: ignore[misc]  # noqa: B023
                for e in o.effort or EFFORTS
            }
            if o.locate:
                questions["locate"] = lambda: parity.locate(module, *inputs, **given)  # noqa: B023
            line = f"{name:<19}{many:5.1f} M {word:<12} plain {near:5.2f} + {there:5.2f} s"
            for question, run in questions.items():
                gc.collect()
                seconds, said = asked(run)
                times = seconds / (near + there)
                line += f"  {question} {seconds:6.1f} s = {times:5.1f}"
                wrong = bool(said) is (o.fault is None)
                bad += wrong or 0.0 < o.most < times * (question == "default")
                line += f" LOOK: {said or 'not found'}" if wrong else ""
            print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
