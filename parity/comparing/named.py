"""Models by name, without a file: `timm:resnet18`, `torchvision:vit_b_16`, `hf:BertModel`, `hf-small:BertModel`, `hf:FOLDER`
with a config.json, and `package.module:factory`.

Weights are random, of one seed, and nothing is downloaded. What is constant at the start (biases, norms, heads of zeros) gets a
random part, because it would hide an error: no gradient passes a head of zeros, and a norm that is left out shows only where
its weight is not 1.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from parity.comparing import model_inputs
from parity.comparing.model_inputs import BATCH, Wants, image
from parity.core import machine
from parity.core.errors import UsageError, absent, mending, near
from parity.devices.setup import add_folder_to_path
from parity.store.rows import LIBRARIES

SPREAD = 0.02  # standard deviation of what a constant parameter gets
COPIES = 5  # of its weights that a comparison holds at once: both sides, their gradients, and half of a truth in float64
BUILT = ("torchvision", "torchaudio")  # extensions of torch, built for one version and one kind of device
BUILDS = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")  # of torch's version: the kind, as the index of its wheels calls it
PACKAGES = dict(zip(LIBRARIES, ("timm", "torchvision", "transformers", "transformers")))
Factory = Callable[[], Any]


def factory(place: str) -> Factory:
    """What makes the model of a name; it returns the model and what it wants, or what a factory of a package returns. Raises
    UsageError, with the package that is missing or the nearest names."""
    source, _, name = place.partition(":")
    if source not in PACKAGES:
        return _of_package(source, name)
    package = _imported(PACKAGES[source])
    if source == "timm":
        return _of_timm(package, place, name)
    if source == "torchvision":
        return _of_torchvision(package.models, place, name)
    return _of_transformers(package, place, name)


def _imported(package: str) -> Any:
    """A library. Raises UsageError if it is not installed or does not load."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{package} is not installed; {_install(package)}")
    try:
        return importlib.import_module(package)
    except Exception as e:  # an extension for another torch raises this and that
        raise _unloaded(package, e) from e


def _held(package: Any, name: str) -> Any:
    """What a library calls so, which it may import only now; None if there is nothing. Raises UsageError if it does not
    load."""
    try:
        return getattr(package, name, None) if name.isidentifier() else None
    except Exception as e:
        raise _unloaded(f"{package.__name__}.{name}", e) from e


def _unloaded(what: str, e: BaseException) -> UsageError:
    """That a library, or a class of it, does not load. The innermost cause says why: a package that it needs, or one that was
    built for another torch, which is the one that raises."""
    while e.__cause__ is not None:
        e = e.__cause__
    if package := absent(e):
        return UsageError(f"{what} does not load ({_first_line(e)}); {_install(package)}")
    frames = [f.f_globals.get("__name__", "").partition(".")[0] for f, _ in traceback.walk_tb(e.__traceback__)]
    last = next((n for n in reversed(frames) if n in BUILT), what.partition(".")[0])
    return UsageError(
        f"{what} does not load ({_first_line(e)}); install the build of {last} for torch {torch.__version__}: "
        f"{_install(last, ' --force-reinstall --no-deps')}"
    )


def _install(package: str, how: str = "") -> str:
    """The line of pip for a package. What is built for one torch comes from the index that this torch came from."""
    build = BUILDS.search(torch.__version__) if package in BUILT else None
    index = f" --index-url https://download.pytorch.org/whl/{build[1]}" if build else ""
    return f"pip install{how} {package}{index}"


def _first_line(e: BaseException) -> str:
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:120]}"


def _seeded(build: Callable[[], nn.Module], *wants: Wants) -> Factory:
    """A model in eval mode whose constant parameters got a random part."""

    def make() -> Any:
        model = build().eval()
        with torch.no_grad():
            for p in model.parameters():
                if p.is_floating_point() and not p.is_meta and p.numel() > 1 and bool((p == p.flatten()[0]).all()):
                    p.add_(torch.randn_like(p), alpha=SPREAD)
        return model, *wants

    return make


def _unknown(place: str, name: str, known: Iterable[str], more: str = "") -> UsageError:
    hint = near(name, known)
    return UsageError(f"{place}: there is no model '{name}'{more}{f'; {hint}' if hint else ''}")


# ------------------------------------------------------------------------------------------------------------- the libraries


def _of_timm(timm: Any, place: str, name: str) -> Factory:
    if name not in (known := timm.list_models()):
        raise _unknown(place, name, known)
    return _seeded(lambda: timm.create_model(name, pretrained=False))


def _of_torchvision(models: Any, place: str, name: str) -> Factory:
    if name not in (known := models.list_models()):
        raise _unknown(place, name, known)
    builder = models.get_model_builder(name)
    # Else a detector downloads its backbone.
    unloaded = {n: None for n in ("weights", "weights_backbone") if n in inspect.signature(builder).parameters}
    kind, size = builder.__module__.removeprefix("torchvision.models.").partition(".")[0], 224
    try:
        size = max(models.get_model_weights(name).DEFAULT.transforms().crop_size)
    except (AttributeError, TypeError, ValueError):  # detectors and flows crop nothing
        size = 128 if kind in ("detection", "optical_flow", "segmentation") else size
    texts = {
        "detection": f"({image(3, size, size)}, {image(3, size, size)})",
        "video": image(BATCH, 3, 16, size, size),
        "optical_flow": f"{image(BATCH, 3, size, size)}, {image(BATCH, 3, size, size)}",
    }
    wants = Wants((texts.get(kind, image(BATCH, 3, size, size)),), "as its weights take them")
    return _seeded(lambda: builder(**unloaded), wants)


def _of_transformers(transformers: Any, place: str, name: str) -> Factory:
    if (Path(name) / model_inputs.CONFIG).is_file():
        try:
            config = transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
        except Exception as e:  # what is in the folder may be anything
            raise UsageError(f"{place}: transformers does not read its {model_inputs.CONFIG} ({_first_line(e)})") from e
        name = next(iter(config.architectures or ()), "")
        kind = _held(transformers, name) or transformers.MODEL_MAPPING.get(type(config))
    else:
        kind, config = _held(transformers, name), None
    if not inspect.isclass(kind) or nn.Module not in kind.__mro__ or getattr(kind, "config_class", None) is None:
        if kind is not None:
            raise UsageError(f"{place}: {name} is no model with a config of its own; name one, such as hf:BertModel")
        of_models = (n for n in dir(transformers) if not n.endswith(("Config", "Tokenizer", "Processor", "Fast")))
        remedy = ", and no folder with a config.json; nothing is downloaded: hf:FOLDER takes one that is here"
        raise _unknown(place, name, of_models, remedy)
    made: Any = kind
    config = made.config_class() if config is None else config
    if place.startswith("hf-small:"):
        try:
            config = model_inputs.small(config)
        except Exception as e:  # a config's class may refuse any two values
            raise UsageError(f"{place}: its config cannot be made small ({_first_line(e)}); take hf:{name}") from e
    return _seeded(lambda: _fitting(lambda: made(config), place))


def _fitting(build: Callable[[], nn.Module], place: str) -> nn.Module:
    """A model, if the memory holds what a comparison of it takes. Raises UsageError: the system would end this process, and
    maybe others."""
    if torch.get_default_device().type == "meta":
        return build()
    with torch.device("meta"):
        parameters = [*build().parameters()]
    need, free = COPIES * sum(p.numel() * p.element_size() for p in parameters), machine.free_memory()
    if 0 < free < need:
        count = sum(p.numel() for p in parameters) / 1e9
        less = f"take hf-small:{place.partition(':')[2]}" if place.startswith("hf:") else "parity audit --shapes needs none"
        raise UsageError(
            f"{place} has {count:.1f} billion parameters; comparing it takes {machine.size(need)} of memory, and "
            f"{machine.size(free)} are free; {less}"
        )
    return build()


# ---------------------------------------------------------------------------------------------------------------- a package


def _of_package(module: str, name: str) -> Factory:
    """A factory of an installed module, or of one in the current folder: a function or class without required parameters, or a
    model itself."""
    place = f"{module}:{name}"
    add_folder_to_path(Path(module))
    try:
        held = vars(importlib.import_module(module))
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):  # one that the module itself imports
            raise UsageError(f"{module} does not import ({type(e).__name__}: {e}); {mending(e)}") from e
        hint = near(module, LIBRARIES)
        known = (
            f"; {hint}" if hint.startswith("did") else f"; models of libraries are {', '.join(f'{n}:NAME' for n in LIBRARIES)}"
        )
        raise UsageError(f"{place}: there is no module {e.name}{known}") from None
    except (Exception, SystemExit) as e:  # a module may raise anything
        raise UsageError(f"{module} does not import ({type(e).__name__}: {e}); {mending(e)}") from e
    if name not in held:
        raise _unknown(place, name, (n for n, v in held.items() if callable(v) and not n.startswith("_")), f" in {module}")
    made = held[name]
    if isinstance(made, nn.Module):
        return lambda: made
    if not callable(made):
        raise UsageError(f"{place} is {type(made).__name__}; name a function or class without parameters that makes a model")
    return made  # type: ignore[no-any-return]  # whatever it returns is looked at where it is called
