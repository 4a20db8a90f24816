"""Finds the operators and dtypes that a model needs and MPS does not have, without a Mac.

The model runs once, forward and backward, on the simulated device, which composes operators as MPS does (`linear`, `_lstm_mps`,
attention whole where no gradient is wanted ...), and not on the CPU, which takes other operators. The device refuses nothing
here, so that all that is missing shows in one run; it computes what MPS would refuse.
"""

from __future__ import annotations

import copy
import functools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from parity.comparing.advice import LENGTHS, advice
from parity.comparing.places import Place, PlacementWatch, Places
from parity.comparing.subject import SEED, SHAPED, Subject, forward, gradients, original, subject, tracked_outputs, word
from parity.core.errors import NothingCompared
from parity.core.observer import Functions, Operators, in_backward, lies_on, name_of, no_results
from parity.core.results import Raised
from parity.devices import Call, Fault
from parity.devices.mps_calls import NOT_ON_MPS, Answer, answer, refusal
from parity.devices.operator_table import Table, installed
from parity.devices.refusals import REFUSED, classify
from parity.devices.sim import SimDevice
from parity.devices.sim.device import without_other_backends
from parity.devices.sim.memory import to_sim
from parity.devices.sim.plans import unwritten
from parity.devices.sim.profile import LenientProfile, is_on_cpu, lenient_mps_profile
from parity.execution import execute as ex
from parity.locating.calls import shortened
from parity.locating.located import PASSES, plural
from parity.locating.needs import Match, Need, Needs
from parity.locating.search import cotangents_of

# What torch takes on the simulated device -> on MPS, and on MPS where the seventh argument says that it is transposed.
ATEN_AS_ON_MPS: dict[str, tuple[str, str]] = {
    "convolution_overrideable": ("_mps_convolution", "_mps_convolution_transpose"),
    "convolution_backward_overrideable": ("mps_convolution_backward", "mps_convolution_transpose_backward"),
}
TRANSPOSED = 6
# Cells that torch fuses on the simulated device and composes on MPS -> the function that composes them, its gates, the pass.
ATEN_CELLS = {
    "_thnn_fused_lstm_cell": ("lstm_cell", 4, "forward"),
    "_thnn_fused_lstm_cell_backward_impl": ("lstm_cell", 4, "backward"),
    "_thnn_fused_gru_cell": ("gru_cell", 3, "forward"),
    "_thnn_fused_gru_cell_backward": ("gru_cell", 3, "backward"),
}
# What the CPU makes of the `linear` in them, which the simulated device takes whole before the cell, as MPS does.
ATEN_OF_LINEAR = ("aten::t", "aten::addmm", "aten::mm", "aten::sum.dim_IntList", "aten::view")
# Functions in which the fused way multiplies matrices where the composed one calls `linear`.
ATEN_RECURRENT = ("torch.lstm", "torch.gru", "torch.lstm_cell", "torch.gru_cell")
ATEN_PRODUCTS = {"mm.out": ("aten::linear", "aten::linear_backward")}
MIXED = re.compile(rf"at least two devices|{LENGTHS.pattern}")
LARGE = 1 << 16  # elements of the tensors of a call from which on it is not computed, where only shapes are wanted


def audit(
    fn: Callable[..., Any],
    *inputs: Any,
    backward: bool = True,
    table: Table | None = None,
    faults: Iterable[Fault] = (),
    shapes: bool = False,
    **kwargs: Any,
) -> Needs:
    """What `fn(*inputs, **kwargs)` needs of MPS, forward and (`backward`) backward, on the CPU alone.

    The caller's objects stay unchanged. table: the operator table of another torch; the installed one's by default. faults:
    known bugs whose conditions are asked at each call; what they do is not done. shapes: compute nothing large, for models that
    this machine cannot run; tensors may be on torch's meta device. Raises UsageError for a function that does not
    run on the CPU, NothingCompared where no operator ran, DeviceError where torch cannot carry the simulated device.

    >>> parity.audit(torch.nn.Linear(4, 2), torch.randn(3, 4)).complete
    True
    """
    if shapes:
        fn, inputs, kwargs = _with_memory(fn, inputs, kwargs)
    s = subject(original(fn), inputs, kwargs, ())
    if not s.moves:
        raise NothingCompared(f"{s.name}: no input is a tensor, so nothing would reach MPS; give it tensors")
    cotangents = [] if shapes else cotangents_of(s)[: None if backward else 0]
    table = table or installed()
    profile = lenient_mps_profile()
    witness = _Witness(table, profile)
    device = SimDevice(profile, [witness.watcher(f) for f in faults])
    device.seat.computes = LARGE if shapes else None
    got = _run(s, device, witness, cotangents if not shapes else None if backward else [])
    broken = _said(got) if isinstance(got, Raised) else ""
    if not witness.counts and not broken:
        raise NothingCompared(f"{s.name}: no operator ran on the device")
    mixed = witness.places.now if broken and MIXED.search(broken) else None
    remedy = "" if mixed is None else advice(s, broken, "" if shapes else _made(s, device), mixed.line)
    why = "no backward pass: no output depends on an input or parameter that requires a gradient"
    notes = [why] if backward and not shapes and not cotangents and mixed is None else []
    notes += [SHAPED] if s.shaped else []
    if shapes:
        notes.append("nothing large was computed: where your code asks for values, it may have taken another branch")
    if broken and not shapes and got.stage == "backward" and _raises_on_cpu(s, cotangents):
        notes.append(f"the backward pass raises on the CPU as well ({broken}), and was not seen to its end")
        broken = ""
    notes += witness.notes()
    held = _refused_tensors(s, profile)
    return Needs(
        s.name, table.torch.partition("+")[0], witness.needs(), held, witness.matches(), broken, mixed, remedy, tuple(notes)
    )


def _refused_tensors(s: Subject, profile: LenientProfile) -> dict[str, tuple[str, ...]]:
    """The names of the tensors of each dtype that MPS does not have."""
    held: dict[str, tuple[str, ...]] = {}
    for name, t in s.tensors:
        if t.dtype in profile.refused_dtypes:
            held[word(t.dtype)] = (*held.get(word(t.dtype), ()), name)
    return held


def _made(s: Subject, device: SimDevice) -> str:
    """The last call that makes a tensor on the CPU, with its line; seen in one more run."""
    watch = PlacementWatch(device.torch_device.type)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), device.active(), without_other_backends():
        warnings.simplefilter("ignore")
        device.seed(SEED)
        ex.attempt(lambda: forward(s, device.upload, False, watch.over()), "run")
    return watch.made


def _said(r: Raised) -> str:
    """An exception in one line, with MPS for the simulated device."""
    return f"{r.type} in {r.stage}: " + re.sub(r"\bsim:\d+", "mps:0", (r.message.splitlines() or [""])[0])


def _raises_on_cpu(s: Subject, cotangents: Sequence[Tensor]) -> bool:
    """Whether the backward pass raises on the CPU, too."""
    with torch.random.fork_rng(devices=[]):
        run = forward(s, torch.clone, True)
        return isinstance(ex.attempt(lambda: gradients(run, tracked_outputs(run), cotangents), "backward"), Raised)


def _with_memory(fn: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The same with tensors of the CPU, which nobody has written, in place of those on the meta device."""

    def near(x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_meta:
            return unwritten(x, LARGE).requires_grad_(x.requires_grad)
        return x

    tensors = [*fn.parameters(), *fn.buffers()] if isinstance(fn, nn.Module) else []
    if any(t.is_meta for t in tensors):
        fn = copy.deepcopy(fn)
        for m in fn.modules():
            held: Any = (m._parameters, m._buffers)
            for some in held:
                for name, t in some.items():
                    if t is not None and t.is_meta:
                        made = unwritten(t, LARGE)
                        some[name] = nn.Parameter(made, t.requires_grad) if isinstance(t, nn.Parameter) else made
    return fn, tree_map(near, tuple(inputs)), tree_map(near, dict(kwargs))


def _run(s: Subject, device: SimDevice, witness: _Witness, cotangents: Sequence[Tensor] | None) -> Any:
    """Run the subject on the device: what the last step gave, or raised. cotangents: None for some of the outputs' own form."""

    def put(t: Tensor) -> Tensor:
        return device.upload(t) if t.numel() <= LARGE else to_sim(unwritten(t, LARGE), device.torch_device.index)

    put = put if device.seat.computes is not None else device.upload
    _cells()
    device.seat.witness = witness
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), device.active(), without_other_backends():
        warnings.simplefilter("ignore")
        device.seed(SEED)
        with witness.places.watching():
            run = ex.attempt(lambda: forward(s, put, cotangents is None or bool(cotangents), witness.listening()), "run")
            if isinstance(run, Raised):
                return run
            tracked = [t for _, t in run.outputs if t.requires_grad]
            cotangents = [unwritten(t, LARGE) for t in tracked] if cotangents is None else cotangents
            if not cotangents or len(tracked) != len(cotangents):
                return run
            fed = [put(c) for c in cotangents]
            with witness.listening(), Operators(witness.differentiated):
                got = ex.attempt(lambda: gradients(run, tracked_outputs(run), fed), "backward")
            return witness.ended or got


_Key = tuple[str, str, str, Answer, str]


class _Witness:
    """Called with each operator that the device runs, and keeps what MPS makes of it. counts: operator, dtype, pass, answer and
    MPS's words -> calls. followed: number of calls that need what was refused before. ended: what the backward pass raised."""

    def __init__(self, table: Table, profile: LenientProfile) -> None:
        self.table, self.profile = table, profile
        self.version = table.torch if re.match(r"\d+\.\d+", table.torch) else str(torch.__version__)
        self.places = Places("sim")
        self.counts: Counter[_Key] = Counter()
        self.followed = 0
        self.ended: Raised | None = None
        self.follows = False  # whether the function that runs now got what MPS cannot have
        self._first: dict[_Key, Place] = {}
        self._matches: Counter[str] = Counter()
        self._matched: dict[str, tuple[str, Place]] = {}
        self._listens = False
        self._refused = {word(d) for d in profile.refused_dtypes}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """What runs inside is the model, and not a copy to the device."""
        self._listens = True
        self.profile.refused.clear()
        try:
            with Functions(self._function):
                yield
        finally:
            self._listens = False

    def _function(self, func: Any, args: Any, kwargs: Any) -> Any:
        before, refused = self.follows, self.profile.refused_dtypes
        given = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        self.follows = any(x.dtype in refused and not x.is_cpu for x in given)
        try:
            return func(*args, **kwargs)
        except Exception as e:
            if classify(e) != REFUSED or not lies_on(self.places.kind, (args, kwargs)):
                raise
            return self._behind(e, func, args, kwargs)
        finally:
            self.follows = before

    def _behind(self, e: Exception, func: Any, args: Any, kwargs: Any) -> Any:
        """Note what a function refuses, and its result by the CPU, on the device, so that all behind it is seen as well. Raises
        the refusal where the CPU cannot run it either, or writes to a destination that it was given."""
        name = getattr(func, "__name__", "")
        try:
            if "out" in kwargs:
                raise e
            got = self._by_the_cpu(func, args, kwargs, name.endswith("_") and not name.endswith("__"))
        except Exception:
            raise e from None
        self._refuses(f"aten::{name}" if hasattr(torch.ops.aten, name) else name_of(func) or name, e, (args, kwargs))
        return got

    def differentiated(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator of the backward pass, with the CPU's result and a note where it is refused, as in `_behind`."""
        try:
            return func(*args, **kwargs)
        except Exception as e:
            with suppress(Exception):
                if self.ended is None and classify(e) == REFUSED and not func._schema.is_mutable:
                    got = self._by_the_cpu(func, args, kwargs)
                    self._refuses(func._schema.name, e, (args, kwargs))
                    return got
            self.ended = self.ended or Raised("error", type(e).__name__, ex.said(e), "backward")
            return no_results(func)

    def _by_the_cpu(self, func: Any, args: Any, kwargs: Any, writes: bool = False) -> Any:
        """The result of a call by the CPU, on the device. writes: into its first argument. Raises what the CPU raises."""
        there = next(
            x.device for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.device.type == self.places.kind
        )
        with self.places.paused():
            near = tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, (tuple(args), dict(kwargs)))
            got = func(*near[0], **near[1])
            got = args[0].copy_(got) if writes else got
            return tree_map(lambda x: x.to(there) if isinstance(x, Tensor) else x, got)

    def _refuses(self, operator: str, e: Exception, given: Any) -> None:
        dtypes = (word(x.dtype) for x in tree_leaves(given) if isinstance(x, Tensor))
        self._note(operator, next(dtypes), Answer.REFUSED, shortened(e))

    def __call__(self, qualified: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        refused = list(self.profile.refused)
        self.profile.refused.clear()
        if not self._listens or self.places.pausing or is_on_cpu():
            return
        tensors = [x for x in tree_leaves((tuple(args), result)) if isinstance(x, Tensor)]
        dtype = word(tensors[0].dtype) if tensors else ""
        unable = dtype in self._refused and not in_backward()  # reported where such a tensor is made
        for name in self._as_on_mps(qualified, args):
            found = answer(name, self.table)
            if unable and found is not Answer.MISSING:
                continue
            why = refusal(name, args, kwargs, self.version) if found is not Answer.MISSING else ""
            self._note(name, dtype, Answer.REFUSED if why else found, why)
        for what, why in dict.fromkeys(refused):
            if self.follows:
                self.followed += 1
            else:
                self._note("", what, Answer.REFUSED, why)

    def _as_on_mps(self, qualified: str, args: Sequence[Any]) -> tuple[str, ...]:
        """The operators that MPS takes for one of the simulated device."""
        name = qualified.removeprefix("aten::")
        if name in ATEN_AS_ON_MPS:
            return (f"aten::{ATEN_AS_ON_MPS[name][bool(args[TRANSPOSED])]}",)
        if name in ATEN_PRODUCTS and self.places.now.function in ATEN_RECURRENT:
            return (ATEN_PRODUCTS[name][in_backward()],)
        return _cells().get(name, (qualified,))

    def _note(self, name: str, dtype: str, found: Answer, why: str) -> None:
        pass_ = PASSES[in_backward()]
        key = name, dtype, pass_, found, why
        if found in NOT_ON_MPS:  # each place of its own
            place = self.places.now
            key = name, dtype, pass_, found, f"{why}\0{place.module}\0{place.line}"
        self.counts[key] += 1
        if key not in self._first:
            self._first[key] = self.places.now

    def needs(self) -> tuple[Need, ...]:
        """All that was seen, in the order of the first calls."""
        return tuple(
            Need(name, dtype, pass_, found, n, self._first[name, dtype, pass_, found, why], why.partition("\0")[0])
            for (name, dtype, pass_, found, why), n in self.counts.items()
        )

    def notes(self) -> list[str]:
        """What could not be seen, in words."""
        foreign = dict.fromkeys(n.operator for n in self.needs() if n.answer is Answer.UNKNOWN)
        more = f"not in the operator table of torch {self.table.torch}, so nothing is known of them: {', '.join(foreign)}"
        left = f"left out: {plural(self.followed, 'call')} on tensors that MPS would have refused to make before"
        return [*([more] if foreign else []), *([left] if self.followed else [])]

    def watcher(self, fault: Fault) -> Fault:
        """A fault that does nothing, and records where the condition of a known bug holds."""

        def holds(call: Call) -> bool:
            refused = self.profile.refused_dtypes  # MPS would not have come so far
            if not self._listens or any(t.dtype in refused for t in (*call.operands, *call.outs)):
                return False
            with suppress(Exception):  # conditions were written for the cases of reports, and may not know such a call
                return bool(fault.when(call))
            return False

        def noted(call: Call) -> Any:
            self._matches[fault.id] += 1
            self._matched.setdefault(fault.id, (call.op, self.places.now))
            return call.run()

        return replace(fault, when=holds, effect=noted)

    def matches(self) -> tuple[Match, ...]:
        """The known bugs whose conditions held."""
        return tuple(Match(id, *self._pair(id, n)) for id, n in self._matches.items())

    def _pair(self, id: str, n: int) -> tuple[str, int, Place]:
        operator, place = self._matched[id]
        return operator, n, place


@functools.cache
def _cells() -> dict[str, tuple[str, ...]]:
    """Fused cells -> the operators of which torch composes them. To be called outside of any kernel."""
    return {fused: _composed(*how) for fused, how in ATEN_CELLS.items()}


def _composed(function: str, gates: int, pass_: str) -> tuple[str, ...]:
    """The operators of which torch composes a recurrent cell."""
    x, h = torch.ones(1, 2), torch.ones(1, 2, requires_grad=True)
    weights = [torch.ones(2 * gates, 2, requires_grad=True) for _ in range(2)]
    biases = [torch.ones(2 * gates, requires_grad=True) for _ in range(2)]
    state: Any = (h, torch.ones(1, 2, requires_grad=True)) if gates == 4 else h
    names: dict[str, None] = {}

    def named(func: Any, args: Any, kwargs: Any) -> Any:
        names.setdefault(func.name().removesuffix(".default"))
        return func(*args, **kwargs)

    with torch.enable_grad(), Operators(named):
        result = getattr(torch, function)(x, state, *weights, *biases)
        if pass_ == PASSES[1]:
            outs = result if isinstance(result, tuple) else (result,)
            ones = [torch.ones(1, 2) for _ in outs]
            names.clear()
            torch.autograd.grad(outs, [*weights, *biases], ones)
    return tuple(n for n in names if n not in ATEN_OF_LINEAR)
