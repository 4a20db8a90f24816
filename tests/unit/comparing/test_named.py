"""Models by name: packages of the shapes of timm, torchvision and transformers, each a few lines."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import parity
from parity.comparing import model_inputs
from parity.comparing.models import Made, Maker, functions
from parity.core import machine
from parity.core.errors import UsageError
from parity.devices import Fault, resolve
from parity.engine import own
from parity.report.words import reproduce
from parity.store.rows import is_named, is_own

STUBS = {
    "timm": """
import torch
class Net(torch.nn.Sequential):
    pretrained_cfg = {"input_size": (3, 8, 8)}
def list_models():
    return ["resnet18", "resnet50"]
def create_model(name, pretrained):
    assert not pretrained
    head = torch.nn.Linear(4, 2)
    torch.nn.init.zeros_(head.weight)
    return Net(torch.nn.Conv2d(3, 4, 3), torch.nn.GELU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), head)
""",
    "torchvision": "from torchvision import models\n",
    "torchvision/models": """
import torch
class Found(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Conv2d(3, 2, 3)
    def forward(self, images):
        return [self.net(i[None]) for i in images]
def resnet18(*, weights="IMAGENET", progress=True):
    assert weights is None
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 6 * 6, 2))
def fasterrcnn(*, weights=None, weights_backbone="IMAGENET"):
    assert weights_backbone is None
    return Found()
resnet18.__module__, fasterrcnn.__module__ = "torchvision.models.resnet", "torchvision.models.detection.faster_rcnn"
def list_models():
    return ["resnet18", "fasterrcnn"]
def get_model_builder(name):
    return globals()[name]
def get_model_weights(name):
    class Weights:
        @staticmethod
        def transforms():
            if name != "resnet18":
                raise AttributeError("crop_size")
            return type("T", (), {"crop_size": [6]})
        DEFAULT = type("W", (), {"transforms": transforms})
    return Weights
""",
    "transformers": """
import json, torch
from pathlib import Path
class BertConfig:
    model_type, attribute_map, sub_configs = "bert", {"layers": "num_hidden_layers"}, {}
    is_encoder_decoder = False
    def __init__(self, vocab_size=1000, hidden_size=256, layers=6, num_attention_heads=8, pad_token_id=0, eos_token_id=999,
                 kinds=None, architectures=()):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, layers
        self.num_attention_heads, self.pad_token_id, self.eos_token_id = num_attention_heads, pad_token_id, eos_token_id
        self.kinds, self.architectures = kinds or ["full"] * layers, architectures
        assert len(self.kinds) == layers
    def to_dict(self):
        return {("layers" if n == "num_hidden_layers" else n): v for n, v in vars(self).items()}
    to_diff_dict = to_dict
    @classmethod
    def from_dict(cls, d):
        return cls(**{("layers" if n == "num_hidden_layers" else n): v for n, v in d.items() if n != "model_type"}
                   | ({"layers": d["num_hidden_layers"]} if "num_hidden_layers" in d else {}))
    def get_text_config(self):
        return self
class AutoConfig:
    @staticmethod
    def from_pretrained(folder, local_files_only, trust_remote_code):
        assert local_files_only and not trust_remote_code
        return BertConfig(**json.loads((Path(folder) / "config.json").read_text()))
class BertModel(torch.nn.Module):
    config_class, main_input_name = BertConfig, "input_ids"
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.words = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(config.hidden_size, config.hidden_size) for _ in config.kinds)
    def forward(self, input_ids=None, labels=None):
        x = self.words(input_ids)
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return {"last_hidden_state": x}
class Trainer:
    pass
MODEL_MAPPING = {BertConfig: BertModel}
""",
    "nets": """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    def forward(self, x):
        return self.net(x)
def pair():
    return Net(), torch.ones(3, 4)
def sized(n):
    return Net()
ready, number = Net(), 3
""",
    "breaks": "import nowhere\n",
}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the packages, which go before installed ones of their names."""
    for name, text in STUBS.items():
        path = tmp_path / f"{name}.py" if name in ("nets", "breaks") else tmp_path / name / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for module in [m for m in sys.modules if m.partition(".")[0] == name.partition("/")[0]]:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def maker(place: str, *given: str) -> Maker:
    (make,) = functions(place, given=given).values()
    return make


def made(place: str, *given: str) -> Made:
    return maker(place, *given)()


def test_a_model_of_timm_has_the_size_of_its_own_and_random_weights_of_one_seed() -> None:
    """Constant parameters get a random part: no gradient would pass a head of zeros."""
    make = maker("timm:resnet18")
    (one, (x,), _), (two, (y,), _) = make(), make()
    assert make.said == "inputs float32[2, 3, 8, 8].normal(), from its pretrained_cfg"
    assert torch.equal(x, y)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))  # type: ignore[attr-defined]  # a module
    assert not one.training  # type: ignore[attr-defined]  # a module
    assert all(p.std() > 0 for p in one.parameters())  # type: ignore[attr-defined]  # a module


def test_a_fault_in_a_model_by_name_is_named_and_a_healthy_device_agrees() -> None:
    model, inputs, kwargs = made("timm:resnet18")
    assert parity.locate(model, *inputs, device="sim", backward=False, **kwargs).agrees
    fault = Fault("planted", ("gelu",), lambda call: call.run() * 1.01, level="kernel")
    found = parity.locate(model, *inputs, device=resolve("sim", (fault,)), backward=False, **kwargs)
    assert found.first is not None
    assert found.first.operator == "aten::gelu"


def test_models_of_torchvision_load_no_weights_and_take_images_of_their_size() -> None:
    assert made("torchvision:resnet18")[1][0].shape == (2, 3, 6, 6)
    (images,) = made("torchvision:fasterrcnn")[1]
    assert [tuple(i.shape) for i in images] == [(3, 128, 128)] * 2


def test_a_class_of_transformers_has_its_own_config_or_a_small_one(packages: Path) -> None:
    """Ids are those of plain tokens; a list with an entry for each layer is cut."""
    whole, _, kwargs = made("hf:BertModel")
    assert len(whole.layers) == 6  # type: ignore[attr-defined]  # of the stub
    assert 0 < kwargs["input_ids"].min() <= kwargs["input_ids"].max() < 999
    make = maker("hf-small:BertModel")
    small, _, _ = make()
    assert make.said == "inputs input_ids=int64[2, 16].index(1, 127), from its config"
    config = small.config  # type: ignore[attr-defined]  # of the stub
    assert (config.vocab_size, config.hidden_size, config.kinds, config.eos_token_id) == (128, 64, ["full"] * 2, 127)
    (packages / "here").mkdir()
    (packages / "here" / model_inputs.CONFIG).write_text('{"layers": 3, "architectures": ["BertModel"]}')
    assert len(made("hf:here")[0].layers) == 3  # type: ignore[attr-defined]  # of the stub
    (packages / "here" / model_inputs.CONFIG).write_text("{")
    with pytest.raises(UsageError, match=r"hf:here: transformers does not read its config.json \(JSONDecodeError: "):
        functions("hf:here")


def test_a_model_that_the_memory_does_not_hold_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 1 << 20)
    with pytest.raises(UsageError, match=r"hf:BertModel has 0.0 billion parameters.* take hf-small:BertModel$"):
        made("hf:BertModel")


def test_a_factory_of_a_package_is_a_function_a_class_or_a_model() -> None:
    assert made("nets:pair")[1][0].shape == (3, 4)
    for name in ("Net", "ready"):
        make = maker(f"nets:{name}")
        assert make()[1][0].shape == (2, 4)
        assert make.said == "inputs float32[2, 4].normal(), from its first layer"
    (x,) = made("nets:pair", "float32[5,4]")[1]
    assert x.shape == (5, 4)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("timm:resnet81", "timm:resnet81: there is no model 'resnet81'; did you mean 'resnet18' or 'resnet50'?"),
        ("torchvision:resnet", "torchvision:resnet: there is no model 'resnet'; did you mean 'resnet18'?"),
        (
            "hf:BertModl",
            "no folder with a config.json; nothing is downloaded: hf:FOLDER takes one that is here; did you mean 'BertM",
        ),
        ("hf:Trainer", "hf:Trainer: Trainer is no model with a config of its own; name one, such as hf:BertModel"),
        ("nets:Nett", "nets:Nett: there is no model 'Nett' in nets; did you mean 'Net'"),
        ("nets:number", "nets:number is int; name a function or class without parameters that makes a model"),
        ("nets:sized", "nets:sized has parameters; give a function or class without any, which makes a model"),
        (
            "breaks:net",
            "breaks does not import (ModuleNotFoundError: No module named 'nowhere'); pip install nowhere, or mend it",
        ),
        ("tim:resnet18", "tim:resnet18: there is no module tim; did you mean 'timm'?"),
        ("no.such:net", "there is no module no; models of libraries are timm:NAME, torchvision:NAME, hf:NAME, hf-small:NAME"),
    ],
)
def test_mistakes_are_one_line_with_the_nearest_names(place: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        functions(place)
    assert says in str(raised.value)


def test_a_package_that_is_not_there_or_does_not_load(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "timm" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    with pytest.raises(
        UsageError, match=r"timm does not load \(RuntimeError: operator torchvision::nms.*install the build of timm for torch"
    ):
        functions("timm:resnet18")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for place, package in (("timm:resnet18", "timm"), ("hf-small:BertModel", "transformers")):
        with pytest.raises(UsageError, match=f"^{package} is not installed; pip install {package}$"):
            functions(place)


@pytest.mark.parametrize(
    ("raises", "says"),
    [
        ("import no_such_package_at_all", "no_such_package_at_all"),
        ("import no_such_package_at_all.inner", "no_such_package_at_all"),
        ("try:\n    import PIL_missing\nexcept ImportError as e:\n    raise RuntimeError('failed') from e", "PIL_missing"),
        ("raise ImportError('tokenizers>=0.22,<=0.23.0 is required for a normal functioning of this module, but found 0.1')",
         "'tokenizers>=0.22,<=0.23.0'"),
        ("from importlib import metadata\nraise metadata.PackageNotFoundError(\"The 'regex>=1' distribution was not found\")",
         "'regex>=1'"),
    ],
)  # fmt: skip
def test_a_package_that_a_library_needs_is_named_with_its_line_of_pip(raises: str, says: str, packages: Path) -> None:
    """And not a build for another torch."""
    (packages / "timm" / "__init__.py").write_text(raises)
    with pytest.raises(UsageError, match=rf"^timm does not load \(.*\); pip install {re.escape(says)}$"):
        functions("timm:resnet18")


@pytest.mark.parametrize(("torch_is", "index"), [("2.13.0+cpu", "cpu"), ("2.13.0+cu126", "cu126"), ("2.13.0", "")])
def test_what_is_built_for_one_torch_comes_from_the_index_of_that_torch(
    torch_is: str, index: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", torch_is)
    (packages / "timm" / "__init__.py").write_text("import torchvision")
    (packages / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    line = "pip install --force-reinstall --no-deps torchvision"
    line += f" --index-url https://download.pytorch.org/whl/{index}" if index else ""
    with pytest.raises(UsageError, match=rf"install the build of torchvision for torch {re.escape(torch_is)}: {line}$"):
        functions("timm:resnet18")


@pytest.mark.parametrize(
    ("place", "is_name", "is_ours"),
    [
        ("timm:resnet18", True, True),
        ("hf:some/folder", True, True),
        ("a.b:net", True, True),
        ("models.py:net", False, True),
        ("test_net.py::test_net", False, True),
        ("opinfo:add", False, False),
        ("modules:Linear", False, False),
        ("lib::op", False, False),
        ("softmax", False, False),
    ],
)
def test_what_names_a_model_and_what_an_op(place: str, is_name: bool, is_ours: bool) -> None:
    assert (is_named(place), is_own(place)) == (is_name, is_ours)
    assert own.are_models(place) is is_ours


def test_a_finding_in_a_model_by_name_is_shown_again_with_its_inputs() -> None:
    said = reproduce("timm:resnet18", "sim", options="--input=float32[2,3,8,8] --fail-on=void")
    assert said.partition(";")[0] == "reproduce: parity run timm:resnet18 --device=sim --input='float32[2,3,8,8]'"


def test_a_model_that_cannot_be_made_small_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(config: object) -> object:
        raise ValueError("heads do not divide")

    monkeypatch.setattr(model_inputs, "small", refuses)
    with pytest.raises(UsageError, match=r"cannot be made small \(ValueError: heads do not divide\); take hf:BertModel"):
        functions("hf-small:BertModel")
    assert isinstance(made("hf:BertModel")[0], nn.Module)
