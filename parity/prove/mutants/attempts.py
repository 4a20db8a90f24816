"""Arguments for the search of a witness: torch's OpInfo samples and the row's own, with one thing changed on purpose."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.execution import execute as ex
from parity.execution.inputs import build, torch_word
from parity.generation import generate
from parity.prove.mutants.mutant import Mutant

Leaves = list[Any]
SAMPLES = 40  # of an OpInfo entry in a dtype
LIMIT = 1 << 17  # elements of all operands
MOST = 120_000  # of a dimension
# What is changed for a class; all others are left as they are.
TARGETS: dict[str, tuple[str, ...]] = {
    "strides": ("gaps", "permuted", "expanded"), "offset": ("offset",), "channels_last": ("channels_last",),
    "lazy": ("lazy",), "alias": ("alias",), "nonfinite": ("plant",), "region": ("plant",), "zero": ("plant",),
    "tie": ("plant",), "beyond": ("size",), "narrow": ("plant", "none"), "empty": ("empty",), "scalar": ("scalar",),
    "broadcast": ("broadcast",), "rank": ("rank",), "form": ("form",), "argument": ("numbers", "none"),
    "negative": ("numbers", "none"), "number": ("numbers",), "mixed": ("dtype",),
    "gradient": ("permuted", "none", "broadcast", "expanded", "scalar"), "view": ("permuted", "offset"),
}  # fmt: skip
# Values to plant, by the first word of a mutant's.
PLANTED = {
    "nan": "nan", "inf": "inf", "out_nan": "nan", "out_inf": "inf", "subnormal": "subnormal", "huge": "huge", "large": "large",
    "tiny": "tiny", "beyond": "beyond", "in": "-0.0", "out": "-0.0", "half": "half", "equal": "equal", "int_max": "max",
    "int_min": "min", "int_negative": "negative", "int_float32": "whole", "int_32": "whole", "int_out": "whole",
}  # fmt: skip
FORMS = {
    "odd": (3, 5, 7), "one": (1,), "multiple": (5, 9, 11, 17, 19), "power": (16, 32, 64), "wide": (210, 300), "tall": (210,),
    "ones": (1,),
}  # fmt: skip


class Base(NamedTuple):
    """A call on the CPU: the function, its in-place form, whether it takes out=, its arguments, and whether it writes into
    the first."""

    function: Callable[..., Any]
    inplace: Callable[..., Any] | None
    out: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mutates: bool


@functools.cache
def _entries() -> dict[str, list[Any]]:
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError:  # expecttest is not there: the row's own arguments alone
        return {}
    table: dict[str, list[Any]] = {}
    for o in op_db:
        table.setdefault(f"{o.name}:{o.variant_test_name}".rstrip(":"), []).append(o)
    return table


@functools.lru_cache(maxsize=64)
def _samples(entry: str, dtype: str) -> list[Base]:
    found: list[Base] = []
    for o in _entries().get(entry, ()):
        try:
            for _, s in zip(range(SAMPLES), o.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)):
                found.append(Base(o.op, o.inplace_variant, o.supports_out, (s.input, *s.args), dict(s.kwargs), False))
        except Exception:  # an entry that cannot make samples of this dtype
            continue
    return found


def base(row: Row, dtype: str, draw: random.Random, sizes: Sizes) -> Base | None:
    """Arguments to begin with; None for a call that is to be refused."""
    if row.counts.opinfo and draw.random() < 0.5 and (pool := _samples(draw.choice(row.counts.opinfo), dtype)):
        b = draw.choice(pool)
        args, kwargs = tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (b.args, b.kwargs))
        return b._replace(args=args, kwargs=kwargs)
    case = generate.nth(row, dtype, sizes, "witness", 1 + draw.randrange(1 << 20), mixes=False).case
    if case.refused:
        return None
    inputs, p = build(case), ex.program(row)
    args, kwargs = ex.arguments(case, inputs, [o.view for o in inputs.operands], torch_word, "cpu")
    return Base(p.function, p.inplace, p.out, args, dict(kwargs), row.forms.mutates)


def changed(m: Mutant, leaves: Leaves, draw: random.Random, what: str) -> Leaves | None:
    """The leaves of the arguments with one change; None where it cannot be made."""
    spots = [k for k, v in enumerate(leaves) if isinstance(v, Tensor)]
    word, _, last = m.word.rpartition("_")
    if what == "none":
        return leaves
    if what == "numbers":
        return numbers(leaves, draw)
    if what == "empty":
        return resized(leaves, "any", 0, draw)
    if what == "size":
        return resized(
            leaves, word if word in ("last", "first", "second") else "any", round(17 * (MOST / 17) ** draw.random()), draw
        )
    if what == "form":
        return resized(leaves, "any" if m.word in ("tall", "ones") else "last", draw.choice(FORMS.get(m.word, (7,))), draw)
    if not spots:
        return None
    aimed = last.isdigit() and int(last) < len(spots) and m.direction != "backward" and draw.random() < 0.8
    k = spots[int(last) if aimed else draw.randrange(len(spots))]
    new = list(leaves)
    if what == "alias":
        new[k] = new[spots[0]]
    elif what == "scalar":
        for j in spots if m.word == "all" else (k,):
            new[j] = new[j].reshape(-1)[0] if new[j].numel() else new[j]
    elif what == "rank":
        return _ranked(new, spots, int(m.word), k, draw)
    else:
        own = word if what in ("gaps", "permuted", "expanded") and word in ("gaps", "permuted", "expanded") else what
        new[k] = _operand(new[k], own, m, draw)
    return new


def _operand(t: Tensor, what: str, m: Mutant, draw: random.Random) -> Tensor:
    if what == "plant":
        word = next((p for w, p in PLANTED.items() if m.word.startswith(w)), draw.choice(tuple(PLANTED.values())))
        return planted(t, word, draw)
    if what == "dtype":
        return t.to(
            draw.choice((torch.float16, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.float64, torch.bool))
        )
    if what == "lazy":
        conj = m.word.startswith("conj")
        return t.conj() if conj else torch._neg_view(t) if t.is_floating_point() or t.is_complex() else t
    if what == "broadcast":
        how = m.word.rpartition("_")[0] or draw.choice(("middle", "first", "last", "rank"))
        if how == "rank":
            return t[0] if t.dim() > 1 and t.shape[0] else t
        d = {"middle": 1, "first": 0}.get(how, t.dim() - 1)
        return t.narrow(d, 0, min(1, t.shape[d])) if t.dim() > d >= 0 else t
    return relaid(t, what, draw)


def relaid(t: Tensor, how: str, draw: random.Random) -> Tensor:
    """The same values in another layout."""
    if how == "offset" and t.numel():
        more = torch.cat((t.reshape(-1)[:1].expand(9), t.reshape(-1)))
        return more[9:].view(t.shape)
    if not t.dim():
        return t
    if how == "gaps":
        d = draw.randrange(t.dim())
        return torch.stack((t, t.flip(d)), d + 1).flatten(d, d + 1)[tuple([slice(None)] * d + [slice(None, None, 2)])]
    if how == "permuted":
        order = draw.sample(range(t.dim()), t.dim())
        return t.permute(order).contiguous().permute([order.index(k) for k in range(t.dim())])
    if how == "expanded":
        d = draw.randrange(t.dim())
        return t.narrow(d, 0, min(1, t.shape[d])).expand(t.shape)
    if how == "channels_last" and t.dim() in (4, 5):
        return t.contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)
    return t


def planted(t: Tensor, what: str, draw: random.Random) -> Tensor:
    """The tensor with special values in a few places."""
    if not t.numel() or t.dtype is torch.bool or t.is_complex():
        return t
    flat = t.clone(memory_format=torch.contiguous_format).view(-1)
    at = draw.sample(range(flat.numel()), min(flat.numel(), draw.choice((1, 2, 6))))
    values: dict[str, Any]
    if t.is_floating_point():
        f = torch.finfo(t.dtype)
        inf = draw.choice((float("inf"), -float("inf")))
        values = {"nan": float("nan"), "inf": inf, "-0.0": -0.0, "subnormal": f.tiny / 4, "huge": f.max * 0.9}
        values |= {"large": f.max**0.7, "tiny": f.tiny * 3, "beyond": draw.choice((-1, 1)) * 110.0}
        values["half"] = draw.choice((0.5, 1.5, 2.5, -0.5, -2.5))
    else:
        i = torch.iinfo(t.dtype)
        values = {"max": i.max, "min": i.min, "negative": -3 if i.min < 0 else 3}
        values["whole"] = min(i.max, draw.choice((2**24 + 1, 2**31 + 7, 2**53 + 1)))
    if what == "equal":
        flat[at] = flat[0].item()
    elif what in values:
        flat[at] = values[what]
    return flat.view(t.shape)


def resized(leaves: Leaves, where: str, to: int, draw: random.Random) -> Leaves | None:
    """One size of an operand becomes another, in all operands and integers that have the same; None where it gets too large."""
    ts = [t for t in leaves if isinstance(t, Tensor) and t.dim() > 0]
    if not ts:
        return None
    x = draw.choice(ts)
    d = {"last": x.dim() - 1, "first": 0, "second": min(1, x.dim() - 1)}.get(where, draw.randrange(x.dim()))
    old, every = x.shape[d], draw.random() < 0.6
    new, total = [], 0
    for t in leaves:
        if isinstance(t, Tensor) and t.dim():
            for k in range(t.dim()):
                if t.shape[k] == old and ((every and old != 1) or (t is x and k == d)):
                    if t.numel() // max(old, 1) * to > LIMIT or (old == 0 and to):
                        return None
                    t = t.narrow(k, 0, 0) if not to else t.index_select(k, torch.arange(to) % old)
            total += t.numel()
        elif isinstance(t, int) and not isinstance(t, bool) and t == old and every and draw.random() < 0.5:
            t = to
        new.append(t)
    return new if total <= LIMIT else None


def numbers(leaves: Leaves, draw: random.Random) -> Leaves | None:
    """One or two numbers, flags or missing arguments become others; None where there are none."""
    spots = [k for k, v in enumerate(leaves) if isinstance(v, (bool, int, float)) or v is None]
    if not spots:
        return None
    new = list(leaves)
    for k in draw.sample(spots, min(len(spots), draw.choice((1, 1, 2)))):
        v = leaves[k]
        if isinstance(v, bool):
            new[k] = not v
        elif isinstance(v, int):
            new[k] = draw.choice((0, 1, 2, 3, -1, -2, v + 1, v - 1))
        elif isinstance(v, float):
            new[k] = draw.choice((0.0, 0.5, -1.5, 2.0, 1.0, 3.0, float("inf"), v * 1.5, 2000.0))
        else:
            new[k] = draw.choice((True, 1, 2, 0.5))
    return new


def _ranked(leaves: Leaves, spots: list[int], rank: int, k: int, draw: random.Random) -> Leaves:
    """Operand k, and most others with it, with as many dimensions."""

    def to(t: Tensor, more: int) -> Tensor:
        for _ in range(abs(more)):
            t = t.unsqueeze(0) if more > 0 else t[0] if t.dim() and t.shape[0] else t
        return t

    more = rank - leaves[k].dim()
    return [to(v, more) if j in spots and (j == k or draw.random() < 0.7) else v for j, v in enumerate(leaves)]
