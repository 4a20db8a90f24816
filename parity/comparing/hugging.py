"""Models of Hugging Face's transformers by their class: its config, made small where that is asked for, and the inputs that a
config stands for. Nothing is downloaded, and nothing of transformers is imported before a model of it is asked for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
