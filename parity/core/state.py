"""torch's global state that decides what is compared and computed, and what else of the process a call must leave as it was:
read before a call, and put back after it."""

from __future__ import annotations

import contextlib
import enum
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as modules

from parity.core import devices, processes

_C: Any = torch._C
_signal: Any = importlib.import_module("_signal")  # `signal.getsignal` takes ten times as long where Python handles the signal
dual_numbers: Any = forward_ad
SUBNORMAL = sys.float_info.min / 4
ENDLESS = 1000  # warnings of a call, from which on it is accused of them: torch's own warn once or twice
warned = [0]  # warnings that this process has heard (`parity.devices.refusals`)
_guards: list[Any] = []  # of inference mode: each ends what it began when nobody holds it


class Piece(NamedTuple):
    """A part of the state. name: in messages; read: its value; put: sets it; at_first: its value where torch was just
    imported, of those that nothing may set for good; may_grow: whether a larger number is put back without a word."""

    name: str
    read: Callable[[], Any]
    put: Callable[[Any], object]
    at_first: Any = None
    may_grow: bool = False


# ------------------------------------------------------------------------------------ modes: how a call is taken and recorded


def _put_inference(on: bool) -> None:
    threads = _C._is_multithreading_enabled()
    _guards.append(guard := torch.inference_mode(on))
    guard.__enter__()
    _C._set_multithreading_enabled(threads)  # the guard sets them, too


_inference, _grad, _any_autocast = torch.is_inference_mode_enabled, torch.is_grad_enabled, _C._is_any_autocast_enabled
_threads, _dtype = _C._is_multithreading_enabled, torch.get_default_dtype
_forward, _anomalies = _C._is_fwd_grad_enabled, _C.is_anomaly_enabled


def _has_autocast(kind: str) -> bool:
    """Whether torch casts by itself there; not where it does not know the type, as that of a package that nobody has imported
    yet, which is `privateuseone` to torch."""
    try:
        return torch.amp.is_autocast_available(kind)
    except RuntimeError:
        return False


AUTOCAST = [t for t in ("cpu", *devices.BACKENDS, "privateuseone") if _has_autocast(t)]


def _autocast() -> tuple[str, ...]:
    return tuple([t for t in AUTOCAST if torch.is_autocast_enabled(t)])


def _autocast_nesting() -> int:
    """How many regions of autocast are entered; torch reports it only when it changes."""
    return torch.autocast_increment_nesting() + 0 * torch.autocast_decrement_nesting() - 1


def _put_autocast(on: tuple[str, ...]) -> None:
    for t in AUTOCAST:
        torch.set_autocast_enabled(t, t in on)


def _level() -> int:
    return int(dual_numbers._current_level)


def _put_level(level: int) -> None:
    while _level() > level:
        dual_numbers.exit_dual_level()


def _put_anomalies(on: bool) -> None:
    _C.set_anomaly_enabled(on, True)


class _Stack(NamedTuple):
    """A stack of modes that see every call. Its methods are the `read` and `put` of a Piece."""

    length: Callable[[], int]
    at: Callable[[int], Any]
    pop: Callable[[], object]
    push: Callable[[Any], object]

    def read(self) -> tuple[Any, ...]:
        """The modes, the outermost first."""
        return tuple([self.at(k) for k in range(self.length())])

    def put(self, modes: tuple[Any, ...]) -> None:
        """Leave what was entered, and see to it that these modes are in force, whatever leaving the others did."""
        for mode in [m for m in reversed(self.read()) if m not in modes]:
            with contextlib.suppress(Exception):
                mode.__exit__(None, None, None)
        if self.read() != modes:
            for _ in self.read():
                self.pop()
            for mode in modes:
                self.push(mode)


FUNCTIONS = _Stack(
    _C._len_torch_function_stack, _C._get_function_stack_at, _C._pop_torch_function_stack, _C._push_on_torch_function_stack
)
OPERATORS = _Stack(
    _C._len_torch_dispatch_stack,
    _C._get_dispatch_stack_at,
    partial(_C._pop_torch_dispatch_stack, None),
    _C._push_on_torch_dispatch_stack,
)
# Inference mode changes the grad mode and forward gradients, so it is put back before them.
RECORDING = (
    Piece("inference mode", _inference, _put_inference, False),
    Piece("grad mode", _grad, _C._set_grad_enabled, True),
    Piece("autocast", _autocast, _put_autocast, ()),
    Piece("forward gradients", _forward, _C._set_fwd_grad_enabled, True),
    Piece("the level of dual numbers", _level, _put_level, -1),
    Piece("detection of anomalies in backward", _anomalies, _put_anomalies, False),  # it raises where a gradient is NaN
)
# A mode sees what puts the others back, so it goes first.
TAKING = (
    Piece("the function modes", FUNCTIONS.read, FUNCTIONS.put, ()),
    Piece("the dispatch modes", OPERATORS.read, OPERATORS.put, ()),
    *RECORDING,
)
MODES = (
    *TAKING,
    Piece("the threads of backward", _threads, _C._set_multithreading_enabled),
    Piece("the default dtype", _dtype, torch.set_default_dtype),
    # At once, because parity itself would fail next. torch's code generator raises it, which harms nobody.
    Piece("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, may_grow=True),
)


def modes() -> list[Any]:
    """The values of MODES now; written out, because it is asked before and after each call."""
    return [
        FUNCTIONS.read() if _C._len_torch_function_stack() else (),
        OPERATORS.read() if _C._len_torch_dispatch_stack() else (),
        _inference(),
        _grad(),
        _autocast() if _any_autocast() else (),
        _forward(),
        _level(),
        _anomalies(),
        _threads(),
        _dtype(),
        sys.getrecursionlimit(),
    ]


# ------------------------------------------------------------------------------------------------- flags: how it is computed


MIXED = "mixed"  # in place of a value: torch refuses to give some where its backends, or parts of one, differ
PRECISION = "float32_matmul_precision"


def _pair(name: str) -> Piece:
    """A flag that torch's backends read."""
    get, put = getattr(_C, f"_get_{name}"), getattr(_C, f"_set_{name}")

    def read() -> Any:
        try:
            return get()
        except RuntimeError:
            return MIXED

    def back(value: Any) -> None:
        if value != MIXED:
            put(*value) if isinstance(value, tuple) else put(value)

    return Piece(name, read if name == PRECISION or name.endswith("tf32") else get, back)


def _attention(name: str) -> Piece:
    return Piece(f"{name}_sdp", getattr(_C, f"_get_{name}_sdp_enabled"), getattr(_C, f"_set_sdp_use_{name}"))


HOOKS = [v for k, v in vars(modules).items() if k.startswith("_global_") and k.endswith(("ward_hooks", "ward_pre_hooks"))]


def _put_hooks(numbers: tuple[int, ...]) -> None:
    for hooks, number in zip(HOOKS, numbers):
        while len(hooks) > number:
            hooks.popitem()


def _put_saving(hooks: Any) -> None:
    while _C._autograd._top_saved_tensors_default_hooks(False) not in (hooks, None):
        _C._autograd._pop_saved_tensors_default_hooks()


def _folder() -> str:
    """The current folder; empty where somebody has removed it."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _put_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _handler(name: str) -> Piece:
    """What a signal calls. Only the main thread may set it, and nothing sets one that is not Python's."""
    number = getattr(signal, name)

    def read() -> Any:
        handler = _signal.getsignal(number)
        return signal.Handlers(handler) if type(handler) is int else handler

    def put(handler: Any) -> None:
        with contextlib.suppress(ValueError, TypeError):
            signal.signal(number, handler)

    return Piece(f"the handler of {name}", read, put)


SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGUSR1")  # that change what becomes of a run
PAIRS = """cublas_allow_tf32 cublas_allow_fp16_accumulation cudnn_deterministic cudnn_enabled mkldnn_enabled
    mkldnn_deterministic nnpack_enabled qengine math_sdp_allow_fp16_bf16_reduction
    cpu_allow_fp16_reduced_precision_reduction deterministic_fill_uninitialized_memory"""
OF_BACKENDS = [f.pair for b in devices.all_backends() for f in b.flags if f.pair != PRECISION]
_DEVICE: Any = torch._GLOBAL_DEVICE_CONTEXT
FLAGS = (
    Piece("the default device", lambda: getattr(_DEVICE, "device_context", None), partial(setattr, _DEVICE, "device_context")),
    _pair(PRECISION),  # first, because it sets others
    *(_pair(name) for name in (*PAIRS.split(), *OF_BACKENDS) if hasattr(_C, f"_get_{name}")),
    *(_attention(name) for name in ("flash", "mem_efficient", "math", "cudnn")),
    Piece("the number of threads", torch.get_num_threads, torch.set_num_threads),
    Piece(
        "deterministic algorithms",
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
        lambda v: _C._set_deterministic_algorithms(v[0], warn_only=v[1]),
    ),
    Piece("flushing of subnormals", lambda: SUBNORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    Piece("hooks on saved tensors", partial(_C._autograd._top_saved_tensors_default_hooks, False), _put_saving),
    Piece("the seed of random numbers", torch.default_generator.initial_seed, torch.default_generator.manual_seed),
    Piece("hooks on modules", lambda: tuple(map(len, HOOKS)), _put_hooks),
    Piece("the current folder", _folder, _put_folder),
    *(_handler(name) for name in SIGNALS if hasattr(signal, name)),
)
WHOLE = (*MODES, *FLAGS)
_FLAG_READERS = [p.read for p in FLAGS]


def whole() -> list[Any]:
    """The values of WHOLE now."""
    return modes() + [read() for read in _FLAG_READERS]


class _Functions:
    """Public functions of a module or a class, as they were when they were first seen."""

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self.owner = owner
        # Asked for first: a namespace of torch.ops makes its operators when they are.
        held = [n for n in names if hasattr(owner, n) and n in vars(owner)]
        self.names = held if isinstance(owner, ModuleType) else [*vars(owner)]
        self._read = itemgetter(*self.names, *self.names[:1]) if self.names else lambda _: ()  # a tuple, even of one
        self._known = self._read(vars(owner))

    def put_back(self) -> list[str]:
        """Undo what replaced some of them, or hides one that a class inherits, and say so."""
        there = vars(self.owner)
        with contextlib.suppress(KeyError):  # one of them is gone
            if self._read(there) == self._known and (isinstance(self.owner, ModuleType) or len(there) == len(self.names)):
                return []
        replaced = [(n, f) for n, f in zip(self.names, self._known) if there.get(n) is not f]
        new = [] if isinstance(self.owner, ModuleType) else there.keys() - set(self.names)
        for name, function in replaced:
            setattr(self.owner, name, function)
        for name in new:
            delattr(self.owner, name)
        return [f"another {self.owner.__name__}.{name}" for name in (*(n for n, _ in replaced), *sorted(new))]


_watched: list[_Functions] = []


def watch(paths: Iterable[str]) -> None:
    """Let `Kept` see to these functions of torch as well, by their dotted paths; one that is not there is left out. For
    processes of parity's own: elsewhere a person may have replaced them."""
    by: dict[str, list[str]] = {}
    for owner, _, name in sorted({p.rpartition(".") for p in paths}):
        by.setdefault(owner, []).append(name)
    _watched.clear()
    for owner, names in by.items():
        with contextlib.suppress(ImportError, AttributeError):  # whoever selects the row hears of it
            _watched.append(_Functions(resolve_name(owner), names))


# ----------------------------------------------------------------------------------------------------------------- keeping


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return ", ".join(map(_word, value)) or "none"
    return str(value) if isinstance(value, (str, int, float, torch.dtype)) else type(value).__name__ if value else "none"


def unusual(pieces: Sequence[Piece]) -> list[str]:
    """Which of these are not as where torch has just been imported, in words."""
    return [f"{p.name} ({_word(now)})" for p in pieces if (now := p.read()) != p.at_first]


def put_back(before: Sequence[Any], pieces: Sequence[Piece] = MODES) -> list[str]:
    """Set what is no longer as it was before, and say in words what that is. before: the values of the pieces."""
    words = []
    for piece, value in zip(pieces, before):
        if (now := piece.read()) != value:
            if not (piece.may_grow and now > value):
                words.append(f"{piece.name} ({_word(value)} before, {_word(now)} after)")
            piece.put(value)
    return words


@contextlib.contextmanager
def many_calls() -> Iterator[None]:
    """Warnings inside are of thousands of calls, and are not counted."""
    before = warned[0]
    try:
        yield
    finally:
        warned[0] = before


class Kept:
    """At the end of the context all state is as it was at its beginning, the random numbers of the CPU included, however far
    they were drawn. left: what was not, and what threads raised that were started meanwhile, in words."""

    def __init__(self, closely: bool = True) -> None:
        """closely: whether to look at the watched functions, too."""
        self._closely = closely

    def __enter__(self) -> Kept:
        self.left: list[str] = []
        self._before, self._drawn = whole(), torch.default_generator.get_state()
        self._nesting = _autocast_nesting()
        self._hook = threading.excepthook
        threading.excepthook = self._failed
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._hook
        if self._closely:
            self.left += [w for f in _watched for w in f.put_back()]
        if bytes_ := processes.strayed():
            self.left.append(f"{bytes_:,} bytes in file descriptors that it does not own")
        if whole() != self._before:
            self.left += put_back(self._before, WHOLE)
        while _autocast_nesting() > self._nesting:  # a region that was entered and never left keeps its copies of weights
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        torch.default_generator.set_state(self._drawn)

    def _failed(self, args: threading.ExceptHookArgs) -> None:
        self.left.append(f"a thread that raised {args.exc_type.__name__}: {args.exc_value}")
        self._hook(args)
