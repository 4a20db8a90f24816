"""Inputs of a model that comes without any: as they were given, or made from what the model says of itself.

Inputs are texts in parity's notation of tensors, `float32[2, 3, 64, 64].normal()` or `input_ids=int64[2, 16].index(1, 99)`, so
that the values are equal on every machine, and what is printed of them is what `--input` takes. Each candidate is tried with
one pass on the CPU, and the first that the model takes is used.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from parity.comparing import hugging
from parity.comparing.hugging import BATCH, STEPS, ids, image
from parity.comparing.subject import SEED
from parity.core import notation
from parity.core.case import Arg, TensorSpec, Values, map_operands_in
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, UsageError
from parity.core.notation import spec_text
from parity.execution import inputs

SIZES = {1: (64, 1024, 16000), 2: (32, 64, 28, 224), 3: (8, 16, 32)}  # by dimensions: image sizes to try, the cheapest first
CHANNELS_LAST = "float32[1, 3, 224, 224]"  # the example in messages
MOST = 12  # candidates that are tried, since each takes a pass
FLAG = "--input"
Given = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Wants:
    """What a library says that a model takes: texts of inputs, the likeliest first, and where they come from."""

    texts: Sequence[str]
    source: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a model. said: what they are and where they come from, "" where a person gave them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    said: str = ""


def given(texts: Sequence[str], model: object = None) -> Given:
    """The inputs that some texts describe, each a tensor or any argument, or name=tensor. Integers without a range are indices
    that the smallest embedding of the model has. Raises UsageError for a text that does not parse."""
    rows = [m.num_embeddings for m in _modules(model) if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]

    def ranged(spec: TensorSpec) -> Arg:
        plain = spec.values == Values() and FACTS[spec.dtype].kind == "int"
        return TensorSpec(spec.dtype, spec.shape, spec.layout, Values("index", (0, min(rows, default=2)))) if plain else spec

    try:
        case = notation.parse(f"inputs({', '.join(texts)})")
        args, kwargs = map_operands_in((case.args, case.kwargs), ranged)
        built = inputs.build(type(case)(case.op, case.dtype, args, kwargs))
    except CaseError as e:
        how = f"give tensors, such as {FLAG} '{CHANNELS_LAST}' or {FLAG} 'mask=bool[2, 16]'"
        why = str(e).partition("; copy it")[0].replace("this is not a case id", "this cannot be read")
        raise UsageError(f"{FLAG} {', '.join(texts)}: {why}; {how}") from None
    place = next((p.device for m in _modules(model) for p in m.parameters()), torch.device("cpu"))
    tensors = [o.view.to(place) for o in built.operands]
    return (
        tuple(inputs.realise(a, tensors, inputs.torch_word) for a in built.args),
        {k: inputs.realise(v, tensors, inputs.torch_word) for k, v in built.kwargs.items()},
    )


def made(model: nn.Module, wants: Wants | None = None) -> Inputs:
    """Inputs that the model takes. wants: those that its library knows of, which are tried first. Raises UsageError with the
    flag that gives them, where none could be made."""
    tried: list[str] = []
    for text, source, make in itertools.islice(_candidates(model, wants), MOST):
        args, kwargs = make()
        if not (problem := _refused(model, args, kwargs)):
            return Inputs(args, kwargs, f"inputs {text}, {source}")
        tried.append(f"{text}, {source}: {problem}")
    kind = type(model).__name__
    why = "it has no config, dummy_inputs, example_inputs, input_size or first layer that says what it takes"
    if tried:
        why = f"it does not take {tried[0]}" + (f" (nor {len(tried) - 1} more)" if len(tried) > 1 else "")
    raise UsageError(f"no inputs could be made for {kind}, {why}; give them: {FLAG} '{CHANNELS_LAST}'")


def takes_some(model: nn.Module) -> bool:
    """Whether a model can be called with inputs."""
    return bool(_parameters(model))


def _refused(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What a model raises for these inputs, in one line; "" if it takes them. No buffer, mode or generator is changed."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            torch.manual_seed(SEED)
            model(*args, **kwargs)
    except Exception as e:  # a model may raise anything
        return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:120]}"
    finally:
        for m, training in modes:
            m.training = training
    return ""


# ------------------------------------------------------------------------------------------------------ what may be its inputs

Candidate = tuple[str, str, Callable[[], Given]]


def _candidates(model: nn.Module, wants: Wants | None) -> Iterator[Candidate]:
    """(in words, where it comes from, what makes it) of what a model may take, the likeliest first."""
    seen: set[str] = set()
    for text, source in (*_texts(wants), *hugging.texts(model), *_sizes(model)):
        yield from _once(text, source, model, seen)
    for name in ("example_inputs", "example_input_array", "dummy_inputs"):
        yield from _attribute(model, name)
    for text in _first_layers(model):
        yield from _once(text, "from its first layer", model, seen)


def _once(text: str, source: str, model: nn.Module, seen: set[str]) -> Iterator[Candidate]:
    if text not in seen:
        seen.add(text)
        yield text, source, lambda: given((text,), model)


def _texts(wants: Wants | None) -> Iterator[tuple[str, str]]:
    yield from ((t, wants.source) for t in wants.texts) if wants is not None else ()


def _sizes(model: nn.Module) -> Iterator[tuple[str, str]]:
    """What timm writes down of a model: the size of its images."""
    for name in ("pretrained_cfg", "default_cfg"):
        size = (getattr(model, name, None) or {}).get("input_size") if isinstance(getattr(model, name, None), dict) else None
        if size:
            yield image(BATCH, *size), f"from its {name}"


def _attribute(model: nn.Module, name: str) -> Iterator[Candidate]:
    """Inputs that a model holds or makes: a tensor, several, or by name."""
    try:
        held = getattr(model, name, None)
        held = held() if callable(held) and not isinstance(held, Tensor) else held
    except Exception:  # a property of somebody's class, which may need what is not there
        return
    found: Given | None = None
    if isinstance(held, Tensor):
        found = ((held,), {})
    elif isinstance(held, Mapping) and held:
        found = ((), {str(k): v for k, v in held.items()})
    elif isinstance(held, (tuple, list)) and held:
        found = (tuple(held), {})
    if found is not None:
        named = [*((f"{k}=", v) for k, v in found[1].items()), *(("", v) for v in found[0])]
        text = ", ".join(n + _outline(v) for n, v in named)
        copied: Given = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, found)
        yield text, f"its {name}", lambda: copied


def _outline(value: object) -> str:
    if isinstance(value, Tensor):
        return spec_text(TensorSpec(str(value.dtype).removeprefix("torch."), tuple(value.shape), grad=True))
    return type(value).__name__


def _first_layers(model: nn.Module) -> Iterator[str]:
    """Inputs of the first layers that say what they take, in the order in which the model holds them, for each parameter of
    forward that needs a value."""
    required = max(1, sum(p.default is p.empty for p in _parameters(model).values()))
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()), "float32")
    for layer in model.modules():
        for text in _of_layer(layer, dtype):
            yield ", ".join([text] * required)


def _of_layer(layer: nn.Module, dtype: str) -> Iterator[str]:
    for dims, kinds in enumerate(_SPATIAL, 1):
        if isinstance(layer, kinds):
            channels = int(getattr(layer, "in_channels", 0) or getattr(layer, "num_features", 0))
            yield from (image(BATCH, channels, *[size] * dims, dtype=dtype) for size in SIZES[dims] if channels)
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        yield ids(0, layer.num_embeddings, BATCH, STEPS)
    features = next((getattr(layer, n) for kind, n in _FEATURES.items() if isinstance(layer, kind)), 0)
    if isinstance(features, int) and features:
        yield image(BATCH, features, dtype=dtype)
        yield image(BATCH, STEPS, features, dtype=dtype)


_SPATIAL = (
    (nn.Conv1d, nn.ConvTranspose1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
)
_FEATURES: dict[type[nn.Module], str] = {
    nn.Linear: "in_features",
    nn.RNNBase: "input_size",
    nn.RNNCellBase: "input_size",
    nn.MultiheadAttention: "embed_dim",
    nn.BatchNorm1d: "num_features",
}


def _modules(model: object) -> Iterator[nn.Module]:
    yield from model.modules() if isinstance(model, nn.Module) else ()


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters
