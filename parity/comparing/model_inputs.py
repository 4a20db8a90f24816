"""Inputs of a model that comes without any: as they were given, or made from what the model says of itself.

Inputs are texts in parity's notation of tensors, `float32[2, 3, 64, 64].normal()` or `input_ids=int64[2, 16].index(1, 99)`, so
that the values are equal on every machine, and what is printed of them is what `--input` takes. Each candidate is tried with
one pass on the CPU, and the first that the model takes is used.

Models of Hugging Face's transformers by their class: its config, made small where that is asked for, and the inputs that a
config stands for. Nothing is downloaded, and nothing of transformers is imported before a model of it is asked for.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from parity.comparing.subject import SEED
from parity.core import notation
from parity.core.case import Arg, TensorSpec, Values, map_operands_in
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, UsageError
from parity.core.notation import spec_text
from parity.execution import inputs

BATCH, STEPS = 2, 16  # samples, and elements of a sequence
SECOND = 16000  # samples of a second of sound, as these models take it
IMAGE = 64  # the side of an image where the config does not say one, and of a small model
CONFIG, ITS_CONFIG = "config.json", "from its config"

# ------------------------------------------------------------------------------------------------------------- small configs

# What a field of a config counts, by its name -> the value in a small model. The first pattern that fits decides.
SMALL: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), value)
    for pattern, value in {
        r"vocab(ulary)?_size": 128,
        r"num_(key_value|kv)_heads": 2,
        r"(.*_)?(num_|n_)?(attention_|self_attention_|cross_attention_)?heads?|n_head": 4,
        r"(.*_)?(num_|n_)?(hidden_|self_attends_per_)?(layers?|blocks?)|depth|num_hidden_groups": 2,
        r"(attention_|qk_|v_)?head_dim|d_kv|d_head|head_size": 16,
        r"(moe_|shared_expert_|.*_)?(intermediate|ffn|filter)_(size|dim)|d_ff|d_inner|n_inner|dff": 128,
        r"(encoder_|decoder_)?hidden_size|projection_size|d_model|n_embd|d_embed|dim|word_embed_proj_dim": 64,
        r"(.*_)?embed(ding)?_(dim|size)": 64,
        r"(n|num)_(routed_|local_)?experts": 4,
    }.items()
)


def small(config: Any) -> Any:
    """A config like this one with two small layers. Raises what the config's class raises for values that do not go
    together."""
    changed = _changed(config)
    parts = {n: _cut(part, _changed(part)) | {"model_type": part.model_type} for n, part in _parts(config).items()}
    return type(config).from_dict(_cut(config, changed) | parts)


def _changed(config: Any) -> dict[str, Any]:
    """The fields of a config that get a small value."""
    found: dict[str, Any] = {}
    if isinstance(depths := vars(config).get("depths"), (list, tuple)):  # stages of many widths, which have to go together
        return {"depths": [min(1, d) for d in depths]}
    for name in inspect.signature(type(config).__init__).parameters:
        name = type(config).attribute_map.get(name, name)
        now = vars(config).get(name)
        small = next((value for pattern, value in SMALL if pattern.fullmatch(name)), None)
        if small is not None and isinstance(now, int) and not isinstance(now, bool):
            found[name] = min(now, small)
    for name in (n for n in found if re.fullmatch(r"num_(key_value|kv)_heads", n)):  # a model without groups stays one
        found[name] = 4 if vars(config)[name] == vars(config).get("num_attention_heads") else found[name]
    if size := found.get("vocab_size"):  # special tokens that it has no room for get an id in it
        found |= {name: size - 1 - k for k, (name, value) in enumerate(sorted(_tokens(config).items())) if value >= size}
    if "image_size" in vars(config) and isinstance(config.image_size, int):
        patch = getattr(config, "patch_size", 1)
        found["image_size"] = IMAGE if isinstance(patch, int) and IMAGE % patch == 0 else config.image_size
    return found


def _parts(config: Any) -> dict[str, Any]:
    """The configs inside of a config: of its text, its images."""
    held = {name: getattr(config, name, None) for name in type(config).sub_configs}
    return {name: part for name, part in held.items() if hasattr(part, "to_diff_dict")}


def _cut(config: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says that its class's defaults don't, with these changes, and lists with an entry for each layer as long as
    there are layers now. Which stages are handed out is left to the class."""
    own = vars(config)
    cut = {own[n]: v for n, v in changed.items() if v != own.get(n) and re.search("layers?$|blocks?$|depth$", n)}
    said = {n: v for n, v in config.to_diff_dict().items() if not re.fullmatch("_?out_(features|indices)|stage_names", n)}
    return {n: v[: cut.get(len(v), len(v))] if isinstance(v, list) else v for n, v in said.items()} | dict(changed)


def _tokens(config: Any) -> dict[str, int]:
    """The ids of special tokens, by their names."""
    found = {n: v for n, v in vars(config).items() if re.search(r"_token_(id|index)$", n)}
    return {n: v for n, v in found.items() if isinstance(v, int) and v >= 0}


# ------------------------------------------------------------------------------------------------------------------- inputs


def image(*shape: int, dtype: str = "float32") -> str:
    """The text of images or features of this shape, in parity's notation."""
    return f"{dtype}[{', '.join(map(str, shape))}].normal()"


def ids(low: int, high: int, *shape: int) -> str:
    """The text of indices from low to below high."""
    return f"int64[{', '.join(map(str, shape))}].index({low}, {high})"


def texts(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(inputs in parity's notation, where they come from) that a model with a config may take, the likeliest first."""
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        return
    takes = inspect.signature(model.forward).parameters
    main = str(getattr(model, "main_input_name", "input_ids"))
    known: dict[str, list[str]] = {n: list(_of(n, config, model)) for n in takes if n in _KINDS}
    decoder = "decoder_input_ids" if getattr(config, "is_encoder_decoder", False) else ""
    both: list[str] = [n for n in ("input_ids", "pixel_values", "input_values", "input_features") if n in known]
    groups: list[list[str]] = [both, [main]]
    for names in groups + [[n] for n in both]:
        yield from _joined([n for n in dict.fromkeys((*names, decoder)) if known.get(n)], known)


def _joined(names: Sequence[str], known: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """All of these inputs, with each form of the one that has the most."""
    for k in range(max((len(known[n]) for n in names), default=0)):
        yield ", ".join(f"{n}={known[n][min(k, len(known[n]) - 1)]}" for n in names), ITS_CONFIG


def _of(name: str, config: Any, model: nn.Module) -> Iterator[str]:
    """The forms that an input may have, the likeliest first."""
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()), "float32")
    yield from (t.replace("float32", dtype) for t in _KINDS[name](config))


def _token_ids(config: Any) -> Iterator[str]:
    """Ids of plain tokens: special ones mean something else to a model."""
    text = config.get_text_config()
    rows = _first(text, "vocab_size", "text_vocab_size") or _first(config, "vocab_size")
    if not rows:
        return
    special = [*_tokens(config).values(), *_tokens(text).values()]
    high = min([rows, *(t for t in special if rows // 2 < t)])
    low = max([0, *(t + 1 for t in special if t <= rows // 2 and t < high - 2)])
    yield ids(low, high, BATCH, min(STEPS, _first(text, "max_position_embeddings", "n_positions") or STEPS))


def _images(config: Any) -> Iterator[str]:
    part = next((p for n, p in _parts(config).items() if n in ("vision_config", "backbone_config")), config)
    channels = _first(part, "num_channels", "in_channels", "in_chans") or _first(config, "num_channels") or 3
    size: Any = next((s for c in (part, config) if (s := getattr(c, "image_size", None))), 0)
    sides = [*size.values()] if isinstance(size, dict) else size if isinstance(size, (list, tuple)) else [size, size]
    for shape in [sides[-2:]] if all(sides) else [[s, s] for s in (IMAGE, 224)]:
        yield image(BATCH, channels, *shape)
        yield image(BATCH, _first(config, "num_frames", "tubelet_size") or 2, channels, *shape)


def _sound(config: Any) -> Iterator[str]:
    if bins := _first(config, "num_mel_bins"):
        yield image(BATCH, _first(config, "max_length") or STEPS, bins)
    yield image(BATCH, SECOND)
    yield image(BATCH, 1, SECOND)


def _features(config: Any) -> Iterator[str]:
    part = next((p for n, p in _parts(config).items() if n in ("audio_config", "encoder_config")), config)
    bins = (
        _first(part, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim", "feature_size")
        or 80
    )
    steps = 2 * (_first(part, "max_source_positions") or 50)
    yield image(BATCH, bins, steps)
    yield image(BATCH, min(steps, 100), bins)


# Names of inputs -> what a config says of them.
_KINDS = {
    "input_ids": _token_ids, "decoder_input_ids": _token_ids, "pixel_values": _images, "input_values": _sound,
    "input_features": _features,
}  # fmt: skip


def _first(config: Any, *names: str) -> int:
    """The first of these fields that is a number; 0 if none is."""
    return next((v for n in names if isinstance(v := getattr(config, n, None), int) and v), 0)


def labels(logits: Tensor) -> Iterator[Tensor]:
    """Labels that a model with a loss of its own may take for results of this shape, the likeliest first: of the last
    dimension, of the second one, and numbers. They are drawn by torch's generator."""
    shape = tuple(logits.shape)
    yield torch.randint(shape[-1], shape[:-1])
    yield torch.randint(shape[1], (shape[0], *shape[2:])) if len(shape) > 2 else torch.rand(shape)
    yield torch.rand(shape[:-1])


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
    for text, source in (*_texts(wants), *texts(model), *_sizes(model)):
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
