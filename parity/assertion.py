"""For people's own functions and modules: the same three runs (reference, device, float64) and the same judge as the suite.

`assert_parity(model, x, device="mps")` compares outputs, gradients, and whatever the call writes;
`compare(fn, on_device, on_cpu, x)` judges two results that are there already.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import TreeSpec, keystr, tree_flatten_with_path, tree_unflatten

from parity import execute as ex
from parity import tolerance
from parity.catalog.draw import Call
from parity.catalog.row import Row
from parity.devices import Device, resolve
from parity.dtypes import FACTS
from parity.errors import NothingCompared, UsageError
from parity.execute import Live, Named
from parity.judge import Bench, judge
from parity.measures import bit_equal
from parity.oracle import PERTURBATIONS, Oracle, widen
from parity.rounding import Rounding, perturbed
from parity.values import pool, window
from parity.vocabulary import Computed, Measure, OpClass, Outcome, Raised, Status, Verdict

# Whatever a function does inside, its results are compositions; half types are rounded after every step of it.
ROW = Row(
    name="assert_parity",
    family="own",
    rule=OpClass.COMPOSITE,
    call="",
    signature=lambda draw: Call(()),
    rounds_between=True,
)
STATUS_OF = {"refused": Status.UNSUPPORTED, "oom": Status.OOM, "error": Status.ERROR}
SEED = 0
# How many roundoffs the inputs of a function are moved by that cannot run in float64: well above its own rounding.
COARSE = 8.0
Put = Callable[[Tensor], Tensor]


# -------------------------------------------------------------------------------------------------------------- the result


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared: a verdict per tensor (`out`, `out['logits']`, `grad[0.weight]`, `buffer[1.running_mean]`).

    subject: "Net on mps". notes: what was not compared or stands on weaker ground, and work that fell back to the CPU.
    """

    subject: str
    verdicts: tuple[tuple[str, Verdict], ...]
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[tuple[str, Verdict], ...]:
        """The verdicts that are not agreement, in the order of the tensors."""
        return tuple((n, v) for n, v in self.verdicts if v.status is not Status.AGREE)

    @property
    def share(self) -> float:
        """The largest error that was measured, in units of its budget; bit-equal tensors count as 0."""
        return max((v.measure.share or 0.0 for _, v in self.verdicts if v.measure is not None), default=0.0)

    def __str__(self) -> str:
        agreed = [f"{n} ({_ratio(v)})" for n, v in self.verdicts if v.status is Status.AGREE]
        lines = [line for n, v in self.findings for line in _told(self.subject, n, v)]
        if agreed:
            lines.append(f"{self.subject}: {len(agreed)} of {len(self.verdicts)} tensors agree: {', '.join(agreed)}")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


class ParityFailure(AssertionError):
    """The device does not do what the CPU does. comparison, verdicts: all tensors, agreeing ones too."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(str(comparison))
        self.comparison = comparison
        self.verdicts = comparison.verdicts


def _ratio(v: Verdict) -> str:
    share = None if v.measure is None else v.measure.share
    return v.measure.screen if share is None and v.measure else f"{share or 0.0:.2g} of the budget"


def _told(subject: str, name: str, v: Verdict) -> Iterator[str]:
    """One finding in the grammar of all of parity's faces."""
    m = v.measure
    where = f" in {name}" if name else ""
    scaled = m is not None and m.share is not None and 0.0 < m.share < math.inf
    how = f", {m.share:.3g} times the budget" if scaled and m is not None else f": {v.reason}" if v.reason else ""
    yield f"{subject}: {v.status}{where}{how}" + (f" ({v.tolerance.origin})" if scaled and v.tolerance else "")
    if m is None or not m.device:
        return
    truth = f", truth {m.truth}" if m.truth else ""
    own = "" if m.reference_share is None else f" (reference's own share {m.reference_share:.2g})"
    yield f"  worst at {list(m.index)}: device {m.device}, reference {m.reference or m.truth}{truth}{own}"
    if m.mismatched > 1:
        yield f"  {m.mismatched} of {m.total} elements are outside"


# ------------------------------------------------------------------------------------------------------ what is to be run


@dataclass(frozen=True, slots=True)
class _Subject:
    """A function with its arguments, as the caller gave them. method: which one of the module, "" for the module itself.

    leaves, names, tree: the arguments' leaves, what a message calls them, and how they are put together. coarsest: the
    floating dtype with the largest roundoff that goes in. extents: how many elements of each storage go in.
    """

    name: str
    function: Callable[..., Any]
    module: nn.Module | None
    method: str
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    tree: TreeSpec
    coarsest: torch.dtype
    extents: Mapping[tuple[int, torch.dtype], int]


def _subject(fn: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> _Subject:
    if not callable(fn):
        raise UsageError(f"the function is {fn!r}; give a function or an nn.Module first, and its inputs after it")
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    module = owner if isinstance(owner, nn.Module) else None
    method = "" if module is fn or module is None else fn.__name__
    for name, p in module.named_parameters() if module is not None else ():
        if isinstance(p, UninitializedParameter):
            raise UsageError(f"parameter '{name}' has no shape yet; run the lazy module once on the CPU first")
    paths, tree = tree_flatten_with_path((tuple(inputs), dict(kwargs)))
    positions = _positions(fn.forward if isinstance(fn, nn.Module) else fn, len(inputs))
    names = tuple(_leaf_name(path, positions) for path, _ in paths)
    leaves = tuple(x for _, x in paths)
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    title = getattr(fn, "__name__", type(fn).__name__)
    if module is not None:
        tensors += [*module.parameters(), *module.buffers()]
        title = type(module).__name__ + (f".{method}" if method else "")
    return _Subject(title, fn, module, method, leaves, names, tree, _coarsest(tensors), _extents(tensors))


def _coarsest(tensors: Sequence[Tensor]) -> torch.dtype:
    floats = [t.dtype for t in tensors if _known(t) and FACTS[_name(t.dtype)].is_inexact]
    return max(floats, key=lambda d: FACTS[_name(d)].unit_roundoff, default=torch.float32)


def _extents(tensors: Sequence[Tensor]) -> dict[tuple[int, torch.dtype], int]:
    extents: dict[tuple[int, torch.dtype], int] = {}
    for t in tensors:
        if _is_dense(t):
            extents[_storage(t)] = max(_end(t), extents.get(_storage(t), 0))
    return extents


def _positions(function: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # torch's builtins tell no signature
        parameters = ()  # type: ignore[assignment]  # as empty as it looks
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    missing = count - len(names)
    return names + ([rest] if missing == 1 and rest == "input" else [f"{rest}[{i}]" for i in range(missing)])


def _leaf_name(path: Any, positions: Sequence[str]) -> str:
    head = positions[path[1].idx] if path[0].idx == 0 else str(path[1].key)
    return head + str(keystr(path[2:]))


def _name(word: torch.dtype | torch.layout) -> str:
    return str(word).removeprefix("torch.")


def _known(t: Tensor) -> bool:
    """Whether parity can judge tensors of this kind: strided, and no float8, complex32 or quantised dtype."""
    return _is_dense(t) and _name(t.dtype) in FACTS


def _is_dense(t: Tensor) -> bool:
    """Whether it is strides over a storage."""
    return t.layout is torch.strided and not t.is_nested


def _storage(t: Tensor) -> tuple[int, torch.dtype]:
    return t.untyped_storage().data_ptr(), t.dtype


def _end(t: Tensor) -> int:
    """One past the last element of its storage that a strided tensor reaches."""
    return 0 if not t.numel() else int(t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())))


# ------------------------------------------------------------------------------------------------------------- one side


class _Placer:
    """Puts tensors on one side: storages travel whole and once, the views are cut there with their strides and offsets, so
    that inputs which share memory still do."""

    def __init__(self, subject: _Subject, put: Put) -> None:
        self._extents, self._put = subject.extents, put
        self._bases: dict[tuple[int, torch.dtype], Tensor] = {}

    def __call__(self, t: Tensor) -> Tensor:
        """The counterpart of a tensor, detached."""
        plain = t.detach()
        if not _is_dense(plain) or not plain.numel():
            return self._put(plain.cpu())
        plain = plain.conj() if t.is_conj() else plain
        plain = torch._neg_view(plain) if t.is_neg() else plain
        key = _storage(t)
        if key not in self._bases:
            self._bases[key] = self._put(plain.as_strided((self._extents[key],), (1,), 0).cpu())
        made = self._bases[key].as_strided(t.shape, t.stride(), t.storage_offset())
        made = made.conj() if t.is_conj() else made
        return torch._neg_view(made) if t.is_neg() else made


@dataclass(frozen=True, slots=True)
class _Run:
    """A forward call: what came out, what it may have written (buffers, inputs), and the leaves that want a gradient."""

    outputs: Named
    written: Named
    leaves: Named


def _forward(s: _Subject, put: Put, backward: bool) -> _Run:
    """Run the subject on copies of everything. Raises what it raises."""
    place = _Placer(s, put)
    leaves: list[tuple[str, Tensor]] = []
    copies: list[Any] = []
    watched: list[tuple[str, Tensor]] = []
    for name, x in zip(s.names, s.leaves):
        if not isinstance(x, Tensor):
            copies.append(x)
            continue
        copies.append(place(x))
        if x.requires_grad and backward:
            leaves.append((name, copies[-1].requires_grad_()))
        if _is_dense(x):
            watched.append((f"after[{name}]", copies[-1]))
    function = s.function
    if s.module is not None:
        memo: dict[int, Any] = {}
        for name, p in s.module.named_parameters():
            memo[id(p)] = q = nn.Parameter(_own(place(p), p), requires_grad=p.requires_grad)
            if p.requires_grad and backward:
                leaves.append((f"self.{name}" if name in s.names else name, q))
        for name, b in s.module.named_buffers():
            memo[id(b)] = c = _own(place(b), b)
            if _is_dense(b):
                watched.append((f"buffer[{name}]", c))
        module = copy.deepcopy(s.module, memo)
        function = getattr(module, s.method) if s.method else module
    args, kwargs = tree_unflatten(copies, s.tree)
    with torch.set_grad_enabled(backward):
        outputs = _outputs(function(*args, **kwargs), s.coarsest)
    return _Run(outputs, tuple((n, t.detach()) for n, t in watched), tuple(leaves))


def _own(placed: Tensor, original: Tensor) -> Tensor:
    """A parameter or buffer with memory of its own where it is contiguous, so that it does not hang on a larger storage."""
    return placed if not original.is_contiguous() else placed.clone()


def _outputs(result: Any, coarsest: torch.dtype) -> Named:
    """Every tensor of a result by its path, `out[0]['x']`; Python's numbers become 0-d ones, as exact as what went in."""
    found: list[tuple[str, Tensor]] = []
    for path, x in tree_flatten_with_path(result)[0]:
        if isinstance(x, (float, complex)):
            wanted = coarsest.to_complex() if isinstance(x, complex) else coarsest.to_real()
            found.append((f"out{keystr(path)}", torch.tensor(x, dtype=wanted if _name(wanted) in FACTS else None)))
        elif isinstance(x, (bool, int)):
            found.append((f"out{keystr(path)}", torch.tensor(x)))
        elif isinstance(x, Tensor):
            found.append((f"out{keystr(path)}", x if x.layout is torch.strided or x.is_nested else x.to_dense()))
    return tuple(found)


def _gradients(run: _Run, tracked: Sequence[str], cotangents: Sequence[Tensor]) -> Named:
    """grad[leaf] of every leaf that the tracked outputs depend on. Raises what autograd raises."""
    outputs = tuple((n, t) for n, t in run.outputs if n in tracked)
    fed = [c.to(t.dtype) for c, (_, t) in zip(cotangents, outputs)]
    live = Live(outputs, tuple(enumerate(t for _, t in run.leaves)))
    names = {f"grad[{i}]": f"grad[{n}]" for i, (n, _) in enumerate(run.leaves)}
    return tuple((names[n], g if g.layout is torch.strided else g.to_dense()) for n, g in ex.backward(live, fed))


def _tracked(run: _Run) -> tuple[str, ...]:
    return tuple(n for n, t in run.outputs if t.requires_grad)


def _cotangents(run: _Run) -> list[Tensor]:
    """One fixed pseudo-random gradient per output that has one."""
    made = []
    for i, (_, t) in enumerate((n, t) for n, t in run.outputs if t.requires_grad):
        made.append(window(pool("normal", _name(t.dtype)), t.numel(), SEED, 50 + i).clone().view(t.shape))
    return made


# ------------------------------------------------------------------------------------------------------------ the oracle


class _Truth(Oracle):
    """The subject in float64, with the sensitivity of its results. Where it cannot run there, the reference stands in."""

    def __init__(self, s: _Subject, backward: bool, cotangents: Sequence[Tensor], reference: Mapping[str, Tensor]) -> None:
        # Nothing of the base class is kept: it knows cases of the catalog, this knows functions. The judge asks both alike.
        self._s, self._backward, self._fed, self._reference = s, backward, cotangents, reference
        self._found: dict[str, Tensor] | None = None
        self._moved: dict[float, tuple[dict[str, Tensor], tuple[float, float]]] = {}
        self.refused = ""

    def _all(self, put: Put, fed: Sequence[Tensor]) -> dict[str, Tensor]:
        with _seeded():
            run = _forward(self._s, put, self._backward)
            grads = _gradients(run, _tracked(run), fed) if fed else ()
        return {n: t.detach() for n, t in (*run.outputs, *run.written, *grads)}

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result; the reference's, widened, where the subject does not run in float64."""
        if self._found is None:
            got = ex.attempt(lambda: self._all(_fresh_wide, self._fed), "run")
            if isinstance(got, Raised):
                self.refused = f"{got.type}: {got.message}"
                got = {n: widen(t, None) for n, t in self._reference.items()}
            self._found = got
        return self._found.get(name)

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """Largest change where everything that goes in, and every step, is moved by u or the inputs' coarser roundoff."""
        assert self._found is not None
        moved = self._by(max(u, between))[0]
        return moved.get(name, torch.zeros(self._found[name].shape, dtype=torch.float64))

    def extremes(self, u: float, between: float) -> tuple[float, float]:
        """(smallest, largest) finite magnitude but 0 that a kernel gave on the way."""
        return self._by(max(u, between))[1]

    def holds(self, what: str) -> bool:
        """NaN and Inf count as they come."""
        return False

    def coarsest(self) -> float:
        """Every step is moved by the inputs' coarsest roundoff already."""
        return 0.0

    def magnitudes(self, name: str) -> None:
        """Nobody knows what a function sums."""

    def flushed(self, name: str, smallest_normal: float) -> None:
        """Subnormals count as they are."""

    def _by(self, u: float) -> tuple[dict[str, Tensor], tuple[float, float]]:
        u = max(u, FACTS[_name(self._s.coarsest)].unit_roundoff)
        if u not in self._moved:
            self._moved[u] = self._measured(u)
        return self._moved[u]

    def _measured(self, u: float) -> tuple[dict[str, Tensor], tuple[float, float]]:
        assert self._found is not None
        factor = COARSE if self.refused else 1.0
        moved: dict[str, Tensor] = {}
        low, high = math.inf, 0.0
        for k in range(PERTURBATIONS):
            count = itertools.count(101 * k)

            def put(t: Tensor, count: Iterator[int] = count) -> Tensor:
                made = perturbed(_fresh_wide(t), factor * u, next(count))
                return made.to(t.dtype) if self.refused else made

            fed = [perturbed(widen(c, None), factor * u, 101 * k + 50) for c in self._fed]
            with Rounding(factor * u, k) as mode:
                got = ex.attempt(functools.partial(self._all, put, fed), "run")
            low, high = min(low, mode.smallest), max(high, mode.largest)
            for n, t in {} if isinstance(got, Raised) else got.items():
                at = self._found.get(n)
                if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                    change = torch.nan_to_num((widen(t, None) - at).abs().to(torch.float64) / factor, 0.0, 0.0, 0.0)
                    moved[n] = torch.maximum(moved[n], change) if n in moved else change
        return moved, (low, high)


def _fresh_wide(t: Tensor) -> Tensor:
    made = widen(t, None)
    return made.clone() if made is t else made


@contextmanager
def _seeded(seed: int = SEED) -> Iterator[None]:
    """The CPU's generator at a fixed state, and full precision; both as before afterwards."""
    with torch.random.fork_rng(devices=[]), ex.full_precision():
        torch.default_generator.manual_seed(seed)
        yield


# ------------------------------------------------------------------------------------------------------------ the faces


@functools.lru_cache(maxsize=16)
def _resolved(name: str) -> Device:
    return resolve(name)


@functools.lru_cache(maxsize=16)
def _tables(name: str) -> tolerance.Tables:
    return tolerance.load(name)


def assert_parity(
    fn: Callable[..., Any],
    *inputs: Any,
    device: str | Device = "auto",
    backward: bool = True,
    atol: float | None = None,
    **kwargs: Any,
) -> Comparison:
    """Assert that `fn(*inputs, **kwargs)` computes the same on the device as on the CPU, up to rounding.

    Compared are the outputs, the buffers and inputs that the call writes, and (`backward`) the gradients of all parameters
    and inputs that require one; without `backward` it runs under no_grad. Everything is copied: nothing of the caller's
    changes. atol: absolute errors against the truth up to it agree whatever the tables say.

    Raises ParityFailure for findings and refusals, NothingCompared where no number came out, UsageError for a function that
    draws random numbers or does not run on the CPU, DeviceError for a device that is not here.
    """
    __tracebackhide__ = True
    if atol is not None and not 0 <= atol < math.inf:
        raise UsageError(f"atol is {atol!r}; give a number that is 0 or more, or None for the tolerance tables alone")
    target = _resolved(device) if isinstance(device, str) else device
    comparison = _judged(_subject(fn, inputs, kwargs), target, backward, atol)
    if comparison.findings:
        raise ParityFailure(comparison)
    return comparison


def _judged(s: _Subject, device: Device, backward: bool, atol: float | None) -> Comparison:
    title = f"{s.name} {_name(s.coarsest)} on {device.name}"
    run, reference = _reference(s, backward)
    cotangents = _cotangents(run) if backward else []
    tracked = _tracked(run) if backward else ()
    notes = [] if cotangents or not backward else ["no gradients: no output depends on anything that requires one"]
    ours, problem = _with_gradients(run, reference, tracked, cotangents)
    notes += [f"no gradients: the CPU has none ({problem.message})"] if problem is not None else []
    if problem is not None:
        tracked, cotangents = (), []
    fallbacks: list[str] = []
    with ex.listening(fallbacks):
        theirs = _on_device(s, device, backward, tracked, cotangents)
    notes += [f"ran on the CPU: {f}" for f in sorted(set(fallbacks))]
    if isinstance(theirs, Raised):
        verdict = Verdict(STATUS_OF[theirs.kind], f"{theirs.type} in {theirs.stage}: {theirs.message}")
        return Comparison(title, (("", verdict),), tuple(notes))
    truth = _Truth(s, backward, cotangents, ours)
    idle = _untouched(s, theirs, ours)
    theirs, ours = ({n: t for n, t in side.items() if n not in idle} for side in (theirs, ours))
    return _verdicts(title, theirs, ours, truth, _tables(device.name), atol, notes)


def _untouched(s: _Subject, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> set[str]:
    """Names of the inputs and buffers that neither side wrote. Their bits tell: batch_norm writes without a new version."""
    before = {f"after[{n}]": x for n, x in zip(s.names, s.leaves) if isinstance(x, Tensor)}
    before |= {f"buffer[{n}]": b for n, b in s.module.named_buffers()} if s.module is not None else {}
    return {n for n, x in before.items() if n in ours and n in theirs and _kept(x, theirs[n]) and _kept(x, ours[n])}


def _kept(before: Tensor, after: Tensor) -> bool:
    if not _known(before):
        return True
    before = before.detach().cpu()
    return before.shape == after.shape and before.dtype == after.dtype and bit_equal(before, after)


def _reference(s: _Subject, backward: bool) -> tuple[_Run, dict[str, Tensor]]:
    """The run on the CPU. Raises UsageError where it does not run there, or not twice alike."""
    with _seeded():
        run = ex.attempt(lambda: _forward(s, torch.clone, backward), "run")
    if isinstance(run, Raised):
        raise UsageError(
            f"{s.name} raises on the CPU, so there is nothing to compare with: {run.type}: {run.message}; "
            "give inputs that it takes there"
        )
    results: dict[str, Tensor] = {n: t.detach() for n, t in (*run.outputs, *run.written)}
    if not _alike(results, _again(s, backward, SEED + 1)):
        if _alike(results, _again(s, backward, SEED)):
            raise UsageError(f"{s.name} draws random numbers, which no two devices share; call .eval() or fix the mask")
        if not _alike(results, _again(s, backward, SEED), 1e-3):
            raise UsageError(
                f"two equal runs of {s.name} on the CPU differ by more than rounding; call .eval(), fix the random numbers "
                "that it draws, or write to all memory that it reads"
            )
    return run, results


def _again(s: _Subject, backward: bool, seed: int) -> dict[str, Tensor]:
    with _seeded(seed):
        run = _forward(s, torch.clone, backward)
    return {n: t.detach() for n, t in (*run.outputs, *run.written)}


def _alike(a: Mapping[str, Tensor], b: Mapping[str, Tensor], relative: float | None = None) -> bool:
    """Whether two runs gave the same bits or, with `relative`, the same up to that part of each tensor's largest number."""
    if list(a) != list(b):
        return False
    for x, y in zip(a.values(), b.values()):
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if not _known(x) or bit_equal(x, y):
            continue
        if relative is None:
            return False
        p, q = (torch.nan_to_num(t.abs().to(torch.float64)) for t in (x, y))
        if p.numel() and float((p - q).abs().max()) > relative * float(p.max()):
            return False
    return True


def _with_gradients(
    run: _Run, results: Mapping[str, Tensor], tracked: Sequence[str], cotangents: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Raised | None]:
    if not cotangents:
        return dict(results), None
    with _seeded():
        grads = ex.attempt(lambda: _gradients(run, tracked, cotangents), "backward")
    return (dict(results), grads) if isinstance(grads, Raised) else ({**results, **dict(grads)}, None)


def _on_device(
    s: _Subject, device: Device, backward: bool, tracked: Sequence[str], cotangents: Sequence[Tensor]
) -> dict[str, Tensor] | Raised:
    """All results of the device, on the CPU, or what it raised."""
    with torch.random.fork_rng(devices=[]), device.active():
        device.seed(SEED)
        run = ex.attempt(lambda: _forward(s, device.upload, backward), "run")
        if isinstance(run, Raised):
            return run
        results = ex.computed((*((n, t.detach()) for n, t in run.outputs), *run.written), device)
        if isinstance(results, Raised) or not cotangents or _tracked(run) != tuple(tracked):
            return results if isinstance(results, Raised) else dict(_tensors(results))
        fed = [device.upload(c) for c in cotangents]
        grads = ex.attempt(lambda: _gradients(run, tracked, fed), "backward")
        more = grads if isinstance(grads, Raised) else ex.computed(grads, device)
        return more if isinstance(more, Raised) else {**dict(_tensors(results)), **dict(_tensors(more))}


def _tensors(outcome: Outcome) -> Named:
    assert isinstance(outcome, Computed)
    return outcome.tensors


def _verdicts(
    title: str,
    theirs: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    truth: Oracle,
    tables: tolerance.Tables,
    atol: float | None,
    notes: Sequence[str],
) -> Comparison:
    """A verdict per tensor. Raises NothingCompared."""
    bench = Bench(ROW, tables, truth, None, False)
    found: list[tuple[str, Verdict]] = []
    told = list(notes)
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in theirs or name not in ours:
            text = "is missing on the device" if name in ours else "exists on the device only"
            found.append((name, Verdict(Status.MALFORMED, f"{name} {text}", Measure(name, problem="missing"))))
        elif not _known(ours[name]) or not _known(theirs[name]):
            told.append(f"{name} is {_name(ours[name].dtype)} ({_name(ours[name].layout)}), which parity does not compare")
        else:
            pass_ = "backward" if name.startswith("grad[") else "forward"
            verdict = judge(bench, {name: theirs[name]}, {name: ours[name]}, pass_)[0]
            found.append((name, _within(verdict, atol)))
    if not any(ours[n].numel() for n, _ in found if n in ours) and not any(v.status.is_finding for _, v in found):
        raise NothingCompared(f"{title}: no tensor with elements came out; return what is to be compared")
    refused = truth.refused if isinstance(truth, _Truth) else ""
    if refused:
        told.append(f"judged against the reference: it does not run in float64 ({refused})")
    return Comparison(title, tuple(found), tuple(told))


def _within(v: Verdict, atol: float | None) -> Verdict:
    m = v.measure
    small = atol is not None and m is not None and m.problem == "value" and m.max_abs is not None and m.max_abs <= atol
    return replace(v, status=Status.AGREE, reason=f"within atol={atol:g}") if small and v.status.is_finding else v


def compare(
    fn: Callable[..., Any],
    device_result: Any,
    reference_result: Any,
    *inputs: Any,
    device: str | Device | None = None,
    **kwargs: Any,
) -> Comparison:
    """Judge two results of `fn(*inputs, **kwargs)` that are there already: the device's and the reference's.

    Results are tensors or nests of them, on any device. The function runs on the CPU in float64 only, for the truth.
    device: whose tolerance table judges; by default the result's own, and the default table for results on the CPU.
    Findings are in the Comparison, never raised. Raises NothingCompared and UsageError as `assert_parity` does.
    """
    s = _subject(fn, inputs, kwargs)
    theirs, ours = (_outputs(r, s.coarsest) for r in (device_result, reference_result))
    if device is None:
        place = next((t.device.type for _, t in theirs if t.device.type != "cpu"), "cpu")
    else:
        place = device if isinstance(device, str) else device.name
    here = [{n: t.detach().cpu().resolve_conj().resolve_neg() for n, t in side} for side in (theirs, ours)]
    truth = _Truth(s, False, (), here[1])
    return _verdicts(f"{s.name} {_name(s.coarsest)} on {place}", here[0], here[1], truth, _tables(place), None, ())
