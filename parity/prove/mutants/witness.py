"""A witness of a mutant: a public call whose answer differs from the healthy device's by far more than rounding explains. None
of parity's judging is used. A mutant without one counts for nothing."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.devices.sim import SimDevice
from parity.prove.mutants.attempts import LIMIT, PLANTED, TARGETS, Base, Leaves, base, changed, numbers, planted, resized
from parity.prove.mutants.mutant import Mutant, Witnessed

EPS = {
    torch.float32: 2.0**-23, torch.complex64: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7,
    torch.float64: 2.0**-52, torch.complex128: 2.0**-52,
}  # fmt: skip
IDLE = 400  # tries after which a condition that never held is given up
REPEATED = {"nth": 61, "error": 10}  # equal calls for classes that count them
DTYPES = ("float32", "float16", "bfloat16", "complex64", "int64", "int32", "uint8", "bool", "int16", "int8")
WIDE = {False: torch.float64, True: torch.complex128}


def search(m: Mutant, row: Row, faulty: SimDevice, healthy: SimDevice, seen: Witnessed, seconds: float, sizes: Sizes) -> str:
    """The witness in words, or "" if none was found in so many seconds of CPU time. seen: what the mutant of `faulty` counts
    in."""
    draw, until, tries = random.Random(m.id), time.process_time() + seconds, 0
    first = _dtypes(m, row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while time.process_time() < until and (tries < IDLE or seen.fired):
            tries += 1
            try:
                found = _tried(m, row, draw.choice(first), draw, (faulty, healthy), seen, sizes)
            except Exception:  # whatever torch raises for arguments that it does not take
                continue
            if found:
                return found
    return ""


def _dtypes(m: Mutant, row: Row) -> list[str]:
    """The dtypes that may show it."""
    able = [d for d in DTYPES if d in row.dtypes]
    wanted: Callable[[str], bool] = lambda d: True  # noqa: E731
    if m.kind == "dtype":
        wanted = lambda d: d == m.word  # noqa: E731
    elif m.kind == "lazy":
        wanted = lambda d: d == "complex64"  # noqa: E731
    elif m.word.startswith("int_"):
        wanted = lambda d: d.startswith("int")  # noqa: E731
    elif m.direction == "backward" or m.kind in ("gradient", "narrow", "nonfinite", "error", "zero"):
        wanted = lambda d: d == "float32"  # noqa: E731
    return [d for d in able if wanted(d)] or able or list(row.dtypes)


def _tried(
    m: Mutant, row: Row, dtype: str, draw: random.Random, devices: tuple[SimDevice, SimDevice], seen: Witnessed, sizes: Sizes
) -> str:
    """One try; the witness in words, or "". devices: the faulty and the healthy one."""
    faulty, healthy = devices
    b = base(row, dtype, draw, sizes)
    if b is None:
        return ""
    leaves, spec = tree_flatten((b.args, b.kwargs), is_leaf=lambda x: x is None)
    new = changed(m, leaves, draw, draw.choice(TARGETS.get(m.kind, ("none",))))
    if new is not None and draw.random() < 0.25:
        new = changed(m, new, draw, draw.choice(("permuted", "numbers", "plant", "offset", "size")))
    modes = _modes(m, b, bool(row.grad))
    if new is None or not modes or sum(v.numel() for v in new if isinstance(v, Tensor)) > LIMIT:
        return ""
    mode = draw.choice(modes)
    answer(b, new, spec, mode, None)  # raises where torch does not take the call
    runs = _runs(m, new, draw)
    before, good, bad, raised = seen.changed, None, None, ""
    with healthy.active():
        for leaves in runs[-2:]:
            good = answer(b, leaves, spec, mode, healthy.torch_device)
    with faulty.active():
        for leaves in runs:
            at = seen.changed
            try:
                bad, raised = answer(b, leaves, spec, mode, faulty.torch_device), ""
            except Exception as e:  # it shows that it raises
                bad, raised = None, f"raises {type(e).__name__}"
            if m.kind in REPEATED and seen.changed > at:
                break
    if seen.changed == before or good is None:
        return ""
    if not raised and bad is not None:
        try:
            truth: list[Tensor] | None = answer(b, runs[-1], spec, mode, None, wide=True)
        except Exception:  # not in float64
            truth = None
        raised = far(bad, good, truth, m.kind in ("region", "zero"))
    return (
        f"{getattr(b.function, '__name__', b.function)}({', '.join(map(_text, new))}) {mode} [{raised}]"[:400] if raised else ""
    )


def _text(v: Any) -> str:
    return f"{str(v.dtype)[6:]}{list(v.shape)}" if isinstance(v, Tensor) else repr(v)[:40]


def _runs(m: Mutant, new: Leaves, draw: random.Random) -> list[Leaves]:
    """The calls to make one after the other; the last one counts."""
    if m.kind in REPEATED:
        return [new] * REPEATED[m.kind]
    if m.kind == "after":
        other = resized(new, "any", draw.choice((2, 7, 40)), draw)
    elif m.kind == "cache" and m.word.startswith("values"):
        other = [v.flip(0) + 1 if isinstance(v, Tensor) and v.dim() and v.dtype is not torch.bool else v for v in new]
    elif m.kind == "cache":
        other = numbers(new, draw)
    else:
        return [new]
    return [new] if other is None else [other, new] if draw.random() < 0.5 else [new, other, new]


def _modes(m: Mutant, b: Base, grad: bool) -> list[str]:
    """The ways to call it that may show the mutant."""
    if m.direction == "backward":
        word = next((p for w, p in PLANTED.items() if m.word.startswith(w)), "")
        special = [f"grad:{word}"] * 2 if m.kind in ("nonfinite", "region", "zero", "tie") and word else []
        return [*special, "grad", "grad", "expanded", "permuted", "double", "alone"]
    if m.kind == "gradient":
        return ["double"] if m.word.startswith("double") else ["grad", "double", "alone", "expanded", "permuted"]
    modes = {"destination": ["inplace", "stepped", "offset"], "mode": ["forward", "no_grad", "grad"]}.get(
        m.kind, ["forward", "forward", "forward", "no_grad", *(["grad"] if grad else []), "inplace", "stepped"]
    )
    has_inplace = b.inplace is not None and not b.mutates
    return [w for w in modes if (w != "inplace" or has_inplace) and (w not in ("stepped", "offset") or b.out)]


# ---------------------------------------------------------------------------------------------------------------- running


def _on(device: Any, t: Tensor) -> Tensor:
    """The same view on the device."""
    if device is None:
        return t.clone() if t.layout is torch.strided else t
    t = t.detach()
    if t.layout is not torch.strided:
        return t.to(device)
    conj, neg = t.is_conj(), t.is_neg()
    t = t.conj() if conj else t
    t = torch._neg_view(t) if neg else t
    n = t.untyped_storage().nbytes() // t.element_size()
    there = t.as_strided((n,), (1,), 0).to(device).as_strided(t.shape, t.stride(), t.storage_offset())
    there = there.conj() if conj else there
    return torch._neg_view(there) if neg else there


def answer(b: Base, leaves: Leaves, spec: Any, mode: str, device: Any, wide: bool = False) -> list[Tensor]:
    """Everything that the call gives, on the CPU: results, gradients, memory of destinations. device: None for the CPU.
    wide: in float64."""
    torch.manual_seed(7)
    placed: dict[int, Tensor] = {}
    live: list[Tensor] = []
    grads = mode in ("grad", "expanded", "permuted", "double", "alone") or mode.startswith("grad:")

    def put(v: Any) -> Any:
        if isinstance(v, torch.device) and device is not None:
            return device
        if wide and isinstance(v, torch.dtype) and v in EPS:
            return WIDE[v.is_complex]
        if not isinstance(v, Tensor):
            return v
        if id(v) not in placed:
            t = _on(device, v.to(WIDE[v.is_complex()]) if wide and v.dtype in EPS else v)
            if grads and (t.is_floating_point() or t.is_complex()) and t.layout is torch.strided:
                t = t.detach().requires_grad_()
                live.append(t)
            placed[id(v)] = t
        return placed[id(v)]

    args, kwargs = tree_unflatten([put(v) for v in leaves], spec)
    if mode == "alone":
        for t in live[:-1]:
            t.requires_grad_(False)
        del live[:-1]
    if mode == "inplace":
        assert b.inplace is not None
        with torch.no_grad():
            return _here(tree_leaves((b.inplace(*args, **kwargs), args[0])))
    if mode in ("stepped", "offset"):
        return _into(b, args, kwargs, mode)
    with torch.set_grad_enabled(mode != "no_grad"):
        result = b.function(*args, **kwargs)
    found = _here(tree_leaves(result))
    outs = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad] if live else []
    return found + (_gradients(outs, live, mode, device) if outs else [])


def _here(values: list[Any]) -> list[Tensor]:
    return [t.detach().cpu().to_dense().resolve_conj().resolve_neg() for t in values if isinstance(t, Tensor)]


def _into(b: Base, args: Any, kwargs: Any, mode: str) -> list[Tensor]:
    """The memory around destinations that have gaps, or begin further back."""
    with torch.no_grad():
        views, memories = [], []
        for t in tree_leaves(b.function(*args, **kwargs)):
            memory = torch.zeros(2 * t.numel() + 7, dtype=t.dtype, device=t.device)
            dense = memory[5 : 5 + t.numel()].view(t.shape)
            gaps = memory[: 2 * t.numel()].view(*t.shape[:-1], -1)[..., ::2] if t.dim() else memory[3]
            views.append(gaps if mode == "stepped" else dense)
            memories.append(memory)
        b.function(*args, **kwargs, out=views[0] if len(views) == 1 else tuple(views))
    return _here(memories)


def _gradients(outs: list[Tensor], live: list[Tensor], mode: str, device: Any) -> list[Tensor]:
    made = []
    for t in outs:
        c = torch.linspace(0.5, 1.5, max(t.numel(), 1), dtype=torch.float64)[: t.numel()].reshape(t.shape)
        if mode == "expanded" and t.dim():
            c = c.narrow(-1, 0, min(1, t.shape[-1])).expand(t.shape)
        elif mode == "permuted" and t.dim() > 1:
            c = c.transpose(0, -1).contiguous().transpose(0, -1)
        c = c.to(t.dtype)
        c = planted(c, mode[5:], random.Random(5)) if mode.startswith("grad:") else c
        made.append(_on(device, c).requires_grad_(mode == "double"))
    first = torch.autograd.grad(outs, live, made, create_graph=mode == "double", allow_unused=True)
    found = [x for x in first if x is not None]
    again = [x for x in found if x.requires_grad] if mode == "double" else []
    if again:
        found += [
            x
            for x in torch.autograd.grad(again, [*live, *made], [torch.ones_like(x) for x in again], allow_unused=True)
            if x is not None
        ]
    return _here([x for x in found if not x._is_zerotensor()])


def far(a: list[Tensor], b: list[Tensor], truth: list[Tensor] | None, fine: bool = False) -> str:
    """How the mutant's answer `a` differs from the healthy one `b` by more than rounding explains; "" if it does not. fine: the
    smallest numbers count, too."""
    if [(x.shape, x.dtype) for x in a] != [(x.shape, x.dtype) for x in b]:
        return "another form"
    for k, (x, y) in enumerate(zip(a, b)):
        x, y = (torch.view_as_real(z.contiguous()) if z.is_complex() else z for z in (x, y))
        if not x.numel() or (not x.is_floating_point() and torch.equal(x, y)):
            continue
        if not x.is_floating_point():
            return f"result {k}: {int((x != y).sum())} of {x.numel()} whole numbers"
        if bool(((x.isnan() != y.isnan()) | (x.isinf() != y.isinf())).any()):
            return f"result {k}: NaN or Inf"
        finite = x.isfinite() & y.isfinite()
        off, size = (
            (z.double() * finite).nan_to_num(0.0, 0.0, 0.0) for z in ((x.double() - y.double()).abs(), y.double().abs())
        )
        noise = 0.0
        if truth is not None and k < len(truth):
            t = torch.view_as_real(truth[k].contiguous()) if truth[k].is_complex() else truth[k]
            if t.shape == y.shape and t.is_floating_point():
                noise = float(((y.double() - t).abs() * finite).nan_to_num(0.0, 0.0, 0.0).max())
        eps = EPS.get(x.dtype, 2.0**-23)
        # Sums of many elements round by the size of the largest.
        bound = 16 * eps * size + 4 * eps * size.max() + 20 * noise + (0 if fine else 4 * torch.finfo(x.dtype).tiny) + 1e-300
        if bool((off > bound).any()):
            j = int((off / bound).argmax())
            return f"result {k}: {float(x.reshape(-1)[j]):.6g} instead of {float(y.reshape(-1)[j]):.6g}"
        if fine and bool(((x == 0) & (y == 0) & (torch.signbit(x) != torch.signbit(y))).any()):
            return f"result {k}: sign of zero"
    return ""
