"""A caller's function with its arguments, and a run of it on one side: its results, its writes and its gradients."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torch.utils._pytree import TreeSpec, keystr, tree_leaves, tree_map, tree_unflatten

from parity.comparing.choices import Choices
from parity.comparing.draws import SharedRandom, streams
from parity.comparing.leaves import (
    OWN,
    as_parameter,
    attributes,
    dressed,
    flattened,
    held,
    is_array,
    is_number,
    is_wrapper,
    kind,
    leaves,
    loose,
    opened,
    parts,
    rebuilt,
    refused,
    unplaced,
)
from parity.core import compiler
from parity.core.dtypes import FACTS
from parity.core.errors import UsageError
from parity.core.results import Raised
from parity.execution import execute as ex
from parity.execution.execute import Live, Named
from parity.execution.values import pool, window
from parity.oracle.float64 import widen

SEED = 0
SHAPED = "its lazy modules got their shapes by a first call on the CPU, of a copy"
Put = Callable[[Tensor], Tensor]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A function with its arguments, as the caller gave them. method: the name of a method of the module, "" for the module
    itself.

    leaves, names, tree: the leaves of the arguments, their names in messages, and their structure. kept: names of the leaves
    that stay on the CPU. held: the tensors in each leaf that is a user-defined object. coarsest: the floating dtype of the
    inputs with the largest roundoff. extents: how many elements of each storage are needed. draws: whether it draws random
    numbers, which then come from the CPU's generator with one seed for every run. spread: how far two equal runs on the CPU are
    apart, by the results that are not equal. choices: notes or follows those that torch leaves to a device. on_draw: called at
    each draw. shaped: whether lazy modules were called once, as `SHAPED` says.
    """

    name: str
    function: Callable[..., Any]
    module: nn.Module | None
    method: str
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    held: tuple[Named, ...]
    tree: TreeSpec
    kept: frozenset[str]
    coarsest: torch.dtype
    extents: Mapping[tuple[int, torch.dtype], int]
    draws: bool = False
    spread: Mapping[str, Tensor] = field(default_factory=dict)
    choices: Choices | None = None
    on_draw: Callable[[], None] | None = None
    shaped: bool = False

    @property
    def arguments(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors among the arguments, by name."""
        for name, x, inner in zip(self.names, self.leaves, self.held):
            yield from ((name, x),) if isinstance(x, Tensor) else inner

    @property
    def given(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors with memory among the arguments, by name; a wrapper's by those of its parts."""
        for n, t in self.arguments:
            yield from parts(n, t)

    @property
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that goes to the device: the inputs, the parameters and the buffers, by name."""
        yield from self.given
        for n, t in own_tensors(self.module):
            yield from parts(n, t)

    def is_finite(self, more: Iterable[Tensor]) -> bool:
        """Whether no NaN or Inf is among its floating tensors and these."""
        floats = (t for t in (*(t for _, t in self.tensors), *more) if t.is_floating_point() or t.is_complex())
        return all(bool(widen(t, None).isfinite().all()) for t in floats)

    @property
    def moves(self) -> bool:
        """Whether any tensor is copied to the device."""
        return next(self.tensors, None) is not None

    @property
    def dtype(self) -> str:
        """The dtype in messages and commands."""
        return shown_dtype([x.dtype for _, x in self.tensors if known(x)])

    @property
    def unplaced(self) -> str:
        """The first tensor that a simulated device cannot hold, and what it can; empty if it can hold all."""
        every = (*self.arguments, *own_tensors(self.module))
        return next((f"'{n}' of {self.name} is {why}" for n, x in every if (why := unplaced(x))), "")


def subject(
    fn: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any], keep_on_cpu: Sequence[str] = ()
) -> Subject:
    """A function with its arguments. keep_on_cpu: names of inputs that stay on the CPU. Raises UsageError if it is not a
    function, for a lazy module whose first call raises, and for a name that no input has."""
    if not callable(fn):
        raise UsageError(f"the function is {fn!r}; give a function or an nn.Module first, and its inputs after it")
    if shaped := has_lazy((getattr(fn, "__self__", fn), tuple(inputs), dict(kwargs))):
        fn, inputs, kwargs = with_shapes(fn, inputs, kwargs)
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    module = owner if isinstance(owner, nn.Module) else None
    method = "" if module is fn or module is None else fn.__name__
    for name, p in module.named_parameters() if module is not None else ():
        if is_lazy(p):
            raise UsageError(f"parameter '{name}' has no shape after a first call, which did not use it; leave it out")
        if p.is_meta:
            raise UsageError(
                f"parameter '{name}' is on the meta device and has no numbers; load or initialize the weights first"
            )
    paths, tree = flattened((tuple(inputs), dict(kwargs)))
    positions = _positions(fn.forward if isinstance(fn, nn.Module) else fn, len(inputs))
    names = tuple(_leaf_name(path, positions) for path, _ in paths)
    given = tuple(x for _, x in paths)
    for name in keep_on_cpu:
        if not any(n == name or n.startswith((f"{name}[", f"{name}.")) for n in names):
            raise UsageError(f"keep_on_cpu names '{name}', which no input is called; allowed: {', '.join(names) or 'nothing'}")
    inner = tuple(() if isinstance(x, Tensor) else held(x, n) for n, x in zip(names, given))
    whole = [(n, x) for n, x in zip(names, given) if isinstance(x, Tensor)]
    whole += [*(named for some in inner for named in some), *own_tensors(module)]
    title = getattr(fn, "__name__", getattr(fn, "_qualname", type(fn).__name__))  # the latter of an operator of torch.library
    if module is not None:
        title = type(module).__name__ + (f".{method}" if method else "")
    for n, t in whole:
        refused(n, title, t)
    tensors = [t for n, x in whole for _, t in parts(n, x)]
    floor = coarsest(t.dtype for t in tensors if known(t))
    kept = frozenset(n for n in names if any(n == k or n.startswith((f"{k}[", f"{k}.")) for k in keep_on_cpu))
    return Subject(title, fn, module, method, given, names, inner, tree, kept, floor, _extents(tensors), shaped=shaped)


def has_lazy(given: Any) -> bool:
    """Whether a module among these has a tensor without a shape."""
    modules = (x for x in tree_leaves(given) if isinstance(x, nn.Module))
    return any(is_lazy(t) for m in modules for _, t in own_tensors(m))


def with_shapes(
    fn: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """The same with copies of the modules after a first call, which gives lazy ones their shapes. Raises UsageError where that
    call raises."""
    every = (x for x in tree_leaves((getattr(fn, "__self__", fn), tuple(inputs), dict(kwargs))) if isinstance(x, nn.Module))
    lazy = (b for m in every for b in m.buffers() if is_lazy(b))
    buffer: Any = UninitializedBuffer  # wrongly typed in torch
    memo = {id(b): buffer(False, b.device, b.dtype) for b in lazy}  # Python cannot copy them

    def near(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, Tensor) else copied(x, memo, type(x).__name__)

    def kept(x: Any) -> Any:
        return memo[id(x)] if isinstance(x, nn.Module) else x

    owner = getattr(fn, "__self__", fn)
    if isinstance(owner, nn.Module):
        fn = near(owner) if fn is owner else getattr(near(owner), fn.__name__)
    args, named = tree_map(near, (tuple(inputs), dict(kwargs)))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        got = ex.attempt(lambda: fn(*args, **named), "run")
    if isinstance(got, Raised):
        raise UsageError(f"the first call, which gives lazy modules their shapes, raises on the CPU: {got.type}: {got.message}")
    args, named = tree_map(kept, (tuple(inputs), dict(kwargs)))
    return fn, args, named


def own_tensors(module: nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    """The parameters and the buffers of a module, by name."""
    if module is not None:
        yield from module.named_parameters()
        yield from module.named_buffers()


def is_compiled(fn: Callable[..., Any]) -> bool:
    """Whether torch.compile made it."""
    return type(fn).__name__ == "OptimizedModule" or hasattr(fn, "_torchdynamo_orig_callable")


def original(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The eager code that torch.compile was given; the function itself if it was not."""
    given: Any = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", fn)
    return given if is_compiled(fn) else fn


def parts_compiled(module: nn.Module | None) -> tuple[bool, bool]:
    """Whether torch.compile made some part of a module, and whether `Module.compile` did, which a copy does not keep."""
    parts = list(module.modules()) if module is not None else []
    return any(map(is_compiled, parts)), any(getattr(m, "_compiled_call_impl", None) is not None for m in parts)


def uncompiled() -> AbstractContextManager[Any]:
    """A context in which eager code runs instead of what torch.compile made of it. It does not import torch's compiler, which
    takes a second: before the program has, nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if compiler.is_imported() else nullcontext()


def shown_dtype(dtypes: Sequence[torch.dtype]) -> str:
    """The dtype that stands for those of some tensors: the coarsest floating one; where none is, the first."""
    plain = bool(dtypes) and not any(d.is_floating_point or d.is_complex for d in dtypes)
    return word(dtypes[0] if plain else coarsest(dtypes))


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The floating dtype with the largest roundoff, float32 if there is none. All dtypes must be in FACTS."""
    floats = [d for d in dtypes if FACTS[word(d)].is_inexact]
    return max(floats, key=lambda d: FACTS[word(d)].unit_roundoff, default=torch.float32)


def _extents(tensors: Sequence[Tensor]) -> dict[tuple[int, torch.dtype], int]:
    extents: dict[tuple[int, torch.dtype], int] = {}
    for t in tensors:
        if is_dense(t):
            extents[_storage(t)] = max(_end(t), extents.get(_storage(t), 0))
    return extents


def _positions(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the function's positional parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # torch's builtins have no signature
        parameters = ()  # type: ignore[assignment]  # an empty tuple instead of a view
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    missing = count - len(names)
    return names + ([rest] if missing == 1 and rest == "input" else [f"{rest}[{i}]" for i in range(missing)])


def _leaf_name(path: Any, positions: Sequence[str]) -> str:
    head = positions[path[1].idx] if path[0].idx == 0 else str(path[1].key)
    return head + str(keystr(path[2:]))


def word(word: torch.dtype | torch.layout) -> str:
    return str(word).removeprefix("torch.")


def known(t: Tensor) -> bool:
    """Whether parity can judge such a tensor: strided, and no float8, complex32 or quantized dtype."""
    return is_dense(t) and word(t.dtype) in FACTS


def is_dense(t: Tensor) -> bool:
    """Whether the tensor is strided over a storage of its own."""
    return t.layout is torch.strided and not (t.is_nested or t._is_zerotensor() or is_wrapper(t))


def _storage(t: Tensor) -> tuple[int, torch.dtype]:
    return t.untyped_storage().data_ptr(), t.dtype


def _end(t: Tensor) -> int:
    """One past the last element of its storage that a strided tensor reaches."""
    return 0 if not t.numel() else int(t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())))


# ------------------------------------------------------------------------------------------------------------- one side


class _Placer:
    """Copies tensors to one side. Each storage is copied once, and the views are recreated on it with their strides and
    offsets, so that inputs which share memory still do."""

    def __init__(self, subject: Subject, put: Put) -> None:
        self._extents, self._put = subject.extents, put
        self._bases: dict[tuple[int, torch.dtype], Tensor] = {}
        # Parts of wrappers and their copies: jagged tensors of one raggedness share their offsets.
        self._inner: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, t: Tensor) -> Tensor:
        """The copy of a tensor, detached, of the same class."""
        if is_wrapper(t):
            return rebuilt(t, self._part)
        return dressed(self._dense(t), t)

    def _part(self, t: Tensor) -> Tensor:
        if id(t) not in self._inner:
            self._inner[id(t)] = t, self(t)  # alive, so that no other tensor gets its id
        return self._inner[id(t)][1]

    def moved(self, t: Tensor) -> Tensor:
        """The copy of a tensor that is none of the subject's: what a module's own `_apply` takes along."""
        return rebuilt(t, self.moved) if is_wrapper(t) else dressed(self._put(t.detach().cpu()), t)

    def _dense(self, t: Tensor) -> Tensor:
        plain = t.detach()
        if not is_dense(plain) or not plain.numel():
            return self._put(ex.with_memory(plain).cpu())
        plain = plain.conj() if t.is_conj() else plain
        plain = torch._neg_view(plain) if t.is_neg() else plain
        key = _storage(t)
        if key not in self._bases:
            self._bases[key] = self._put(plain.as_strided((self._extents[key],), (1,), 0).cpu())
        view = self._bases[key].as_strided(t.shape, t.stride(), t.storage_offset())
        view = view.conj() if t.is_conj() else view
        return torch._neg_view(view) if t.is_neg() else view


@dataclass(frozen=True, slots=True)
class ForwardRun:
    """A forward call: its outputs, what it may have written (buffers, inputs), and the leaves that require a gradient.

    computed: names of the outputs that were Python or numpy numbers, which have no device. bare: (path, type) of the outputs
    that hold no numbers. handed: what drew the random numbers of a subject that draws some. modules: the copies of modules, of
    the one that was called by "", and of those among the arguments by their names.
    """

    outputs: Named
    computed: frozenset[str]
    bare: tuple[tuple[str, str], ...]
    written: Named
    leaves: Named
    handed: SharedRandom | None = None
    modules: Mapping[str, nn.Module] = field(default_factory=dict)


def forward(
    s: Subject,
    put: Put,
    backward: bool,
    around: AbstractContextManager[Any] | None = None,
    stay: Put | None = None,
    wrap: Wrap | None = None,
    compiled: bool = False,
) -> ForwardRun:
    """Run the subject on copies of everything, with the call itself inside `around`. stay: how inputs that stay on the CPU are
    copied, `put` by default. wrap: makes what is called of the copied function. compiled: whether what torch.compile made runs
    so, instead of the eager code that it was made of.
    Raises what the function raises, and UsageError for a value that cannot be copied or opened."""
    place = _Placer(s, put)
    near = place if stay is None else _Placer(s, stay)
    wanted: list[tuple[str, Tensor]] = []
    copies: list[Any] = []
    watched: list[tuple[str, Tensor]] = []
    memo: dict[int, Any] = {}  # shared by all arguments: an optimizer's parameters are those of the model
    for name, x, inner in zip(s.names, s.leaves, s.held):
        for n, t in ((name, x),) if isinstance(x, Tensor) else inner:
            if id(t) in memo:
                continue
            memo[id(t)] = c = _placed(t, near if name in s.kept else place, backward)
            wanted += [(n, c)] if t.requires_grad and backward else []
            watched += [(f"after[{part}]", x) for part, x in parts(n, c) if is_dense(x)]
        keeps = inner or isinstance(x, nn.Module)  # what a call leaves in a module must not reach the next side
        copies.append(memo[id(x)] if isinstance(x, Tensor) else copied(x, memo, name) if keeps else x)
    function, module = s.function, None
    if s.module is not None:
        for name, p in s.module.named_parameters():
            memo[id(p)] = q = as_parameter(_own(place(p), p), p)
            if p.requires_grad and backward:
                wanted.append((f"self.{name}" if name in s.names else name, q))
        for name, b in s.module.named_buffers():
            memo[id(b)] = c = _own(place(b), b)
            watched += [(f"buffer[{part}]", x) for part, x in parts(name, c) if is_dense(x)]
        placed = {id(t) for t in memo.values()}
        module = copied(s.module, memo, s.name)
        _place_scripted(module, s.module, memo)
        _move(module, placed, place)
        function = getattr(module, s.method) if s.method else module
    function = function if wrap is None else wrap(function)
    args, kwargs = tree_unflatten(copies, s.tree)
    handed = SharedRandom(s.on_draw) if s.draws else None
    with streams() if s.draws else nullcontext():
        if s.draws:
            torch.default_generator.manual_seed(SEED)
        as_asked = nullcontext() if compiled else uncompiled()
        with (
            torch.set_grad_enabled(backward),
            as_asked,
            around or nullcontext(),
            handed or nullcontext(),
            s.choices or nullcontext(),
        ):
            result = function(*args, **kwargs)
    outputs = outputs_of(result, s.coarsest)
    left = tuple((n, t.detach()) for n, t in watched)
    return ForwardRun(*outputs, left, tuple(wanted), handed, modules_in(s, module, copies))


def modules_in(s: Subject, called: Any, given: Sequence[Any]) -> dict[str, nn.Module]:
    """The modules of a call, as `ForwardRun` has them. called: what was called; given: the leaves of its arguments."""
    return {n: x for n, x in zip(("", *s.names), (called, *given)) if isinstance(x, nn.Module)}


def _move(module: nn.Module, placed: set[int], place: _Placer) -> None:
    """Let the modules of a copy that have an `_apply` or `to` of their own take along what is no parameter and no buffer, as
    when a user moves them. placed: ids of the tensors that lie there already."""
    kept: list[Tensor] = []  # alive, so that no other tensor gets its id

    def moved(t: Tensor) -> Tensor:
        if id(t) in placed:
            return t
        kept.append(place.moved(t))
        placed.add(id(kept[-1]))
        return kept[-1]

    for m in module.modules():
        if not _is_torchs(type(m)._apply):
            m._apply(moved)  # type: ignore[no-untyped-call]  # as torch has it
    first = next((t for _, t in own_tensors(module)), None)
    if first is not None and not first.is_cpu and not _is_torchs(type(module).to):
        module.to(first.device)


def _is_torchs(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).partition(".")[0] == "torch"


def _place_scripted(twin: nn.Module, original: nn.Module, memo: Mapping[int, Any]) -> None:
    """Give a copy of a scripted or traced module its placed tensors: torch copies these modules without the memo."""
    if not isinstance(original, torch.jit.ScriptModule):
        return
    twins = dict(twin.named_modules())
    for prefix, m in original.named_modules():
        own = twins[prefix]
        for name, t in (*m.named_parameters(recurse=False), *m.named_buffers(recurse=False)):
            setattr(own, name, memo[id(t)])


def _placed(t: Tensor, place: Put, backward: bool) -> Tensor:
    """The copy of a tensor that may require a gradient."""
    if isinstance(t, nn.Parameter):
        return as_parameter(place(t), t)
    return place(t).requires_grad_(t.requires_grad and backward)


def copied(x: Any, memo: dict[int, Any], name: str) -> Any:
    """A deep copy in which the placed tensors replace the originals. Raises UsageError if Python cannot copy it."""
    for m in x.modules() if isinstance(x, nn.Module) else ():  # an operator is one for all copies
        memo |= {id(v): v for v in vars(m).values() if hasattr(v, "_opoverload")}
    before = dict(memo)
    twin = ex.attempt(lambda: copy.deepcopy(x, memo), "run")
    if not isinstance(twin, Raised):
        return twin
    if isinstance(x, nn.Module) and (results := [t for _, t in loose(x) if not t.is_leaf and id(t) not in before]):
        # A module that ran before may keep its activations, which Python does not copy because they have a graph.
        before |= {id(t): t.detach().clone() for t in results}
        memo.clear()
        memo.update(before)
        twin = ex.attempt(lambda: copy.deepcopy(x, memo), "run")
        if not isinstance(twin, Raised):
            return twin
    part = ""
    for prefix, m in x.named_modules() if isinstance(x, nn.Module) else (("", x),):
        for k, v in attributes(m):
            alone = functools.partial(copy.deepcopy, v, dict(before))
            if not part and k not in OWN and isinstance(ex.attempt(alone, "run"), Raised):
                part = f" because of its attribute '{prefix + '.' if prefix else ''}{k}', a {kind(v)}"
    raise UsageError(
        f"{name} cannot be copied{part} ({twin.type}: {twin.message}); parity works on copies, so that yours stays as it is: "
        "keep such things out of it, or give its class a __deepcopy__"
    )


def _own(placed: Tensor, original: Tensor) -> Tensor:
    """A parameter or buffer with memory of its own if it is contiguous, so that it does not keep a larger storage alive."""
    if type(placed) is not Tensor or is_wrapper(placed):
        return placed
    alone = placed.untyped_storage().nbytes() == placed.numel() * placed.element_size()
    return placed if alone or not original.is_contiguous() else placed.clone()


def outputs_of(result: Any, coarsest: torch.dtype) -> tuple[Named, frozenset[str], tuple[tuple[str, str], ...]]:
    """Every tensor of a result by its path, `out[0]['x']`, the names of those that were numbers or arrays, and (path, type) of
    the leaves that hold no number. Numbers become 0-d tensors; Python floats get the precision of the inputs.

    Raises UsageError for a value that cannot be opened.
    """
    tensors: list[tuple[str, Tensor]] = []
    bare: list[tuple[str, str]] = []
    numbers: set[str] = set()
    for path, x in leaves(result, "out"):
        if isinstance(x, Tensor):
            tensors += opened(path, x)
            continue
        if not is_array(x) and not is_number(x):
            bare.append((path, kind(x)))
            continue
        numbers.add(path)
        if isinstance(x, (float, complex)):
            wanted = coarsest.to_complex() if isinstance(x, complex) else coarsest.to_real()
            tensors.append((path, torch.tensor(x, dtype=wanted if word(wanted) in FACTS else None)))
        elif isinstance(x, (np.ndarray, np.generic)):
            tensors.append((path, torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("=")))))
        else:
            tensors.append((path, torch.tensor(x)))
    return tuple(tensors), frozenset(numbers), tuple(bare)


def gradients(run: ForwardRun, tracked: Sequence[str], cotangents: Sequence[Tensor]) -> Named:
    """grad[leaf] of every leaf that the tracked outputs depend on. Raises what autograd raises."""
    outputs = tuple((n, t) for n, t in run.outputs if n in tracked)
    fed = [c.to(t.dtype) for c, (_, t) in zip(cotangents, outputs)]
    live = Live(outputs, tuple(enumerate(t for _, t in run.leaves)))
    names = {f"grad[{i}]": n for i, (n, _) in enumerate(run.leaves)}
    with run.handed or nullcontext():  # checkpoints run their forward pass again
        grads = ex.backward(live, fed)
    return tuple((f"grad[{part}]", x) for n, g in grads for part, x in opened(names[n], g))


def tracked_outputs(run: ForwardRun) -> tuple[str, ...]:
    return tuple(n for n, t in run.outputs if t.requires_grad)


def fixed_cotangents(run: ForwardRun) -> list[Tensor]:
    """One fixed pseudo-random cotangent for each output that requires a gradient."""
    cotangents = []
    for i, (_, t) in enumerate((n, t) for n, t in run.outputs if t.requires_grad):
        cotangents.append(window(pool("normal", word(t.dtype)), t.numel(), SEED, 50 + i).clone().view(t.shape))
    return cotangents
