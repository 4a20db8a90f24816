"""Records where in a user's program an operator was called: the module, the public function, and the line, forward and
backward.

Hooks of torch show which module runs, a function mode which public function is called from which line. Each node that autograd
makes for a call gets the call's place, so that the operators of the backward pass have it, too.

Records where the operators of a call ran: on the device, on the CPU, or on the CPU after a copy from the device.

torch modes watch one more run of the function. They see every dispatched operator, so they detect a function that computes on
the CPU and uploads its result. The run that is judged is not watched, because `torch.compile` does not run its code under a
mode.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from parity import catalog
from parity.comparing.comparison import PACKAGE
from parity.core import processes
from parity.core.observer import Functions, Operators, in_backward, lies_on, name_of, no_results
from parity.devices import Device, setup
from parity.devices.setup import place_of
from parity.oracle.step_dtypes import Recorded

TORCH = str(Path(torch.__file__).parent) + os.sep
START = str(Path(__file__).parents[1] / "__main__.py")  # of the command
LABEL = "parity place"  # key of a node's metadata


@dataclass(frozen=True, slots=True)
class Place:
    """module: its dotted path in the model, "" for the model itself; kind: its class; function: "torch.nn.functional.gelu";
    line: "model.py:31, in forward"; order: the number of the call. All are empty where nothing is known."""

    module: str = ""
    kind: str = ""
    function: str = ""
    line: str = ""
    order: int = 0

    def __str__(self) -> str:
        return f"{self.module} ({self.kind})" if self.module else self.kind or self.function or "the function"


class Places:
    """Which module and function is being run. called: called with every public function on the device's tensors, with its
    arguments and its result."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pausing = False
        self._names: dict[int, str] = {}
        self._running: list[tuple[str, str]] = []
        self._calls = 0
        self._now = Place()
        self._roots: list[nn.Module] = []  # kept alive, so that no other module gets the id of one of theirs

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep track of what runs inside; calls are numbered from 1."""
        self._calls = 0
        hooks = [
            register_module_forward_pre_hook(lambda m, args: self._enter(m)),
            register_module_forward_hook(lambda m, args, out: self._leave(), always_call=True),
        ]
        try:
            with Functions(self._call):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not the user's program."""
        before, self.pausing = self.pausing, True
        try:
            yield
        finally:
            self.pausing = before

    @property
    def now(self) -> Place:
        """The place of an operator that is dispatched now; in a backward pass, that of the call whose gradient it computes."""
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            place = node.metadata.get(LABEL)
            return place if isinstance(place, Place) else Place()
        if self._now.order == self._calls and self._now.function:
            return self._now
        module, kind = self._running[-1] if self._running else ("", "")
        return Place(module, kind, "", line(), self._calls)

    @property
    def following(self) -> int:
        """The number that the next call gets."""
        return self._calls + 1

    def know(self, m: nn.Module, title: str = "") -> None:
        """Name a model's modules by their paths, also where one of them is called by itself. title: the model's own name."""
        self._roots.append(m)
        self._names |= {id(part): f"{title}.{n}" if title and n else n or title for n, part in m.named_modules()}

    def _enter(self, m: nn.Module) -> None:
        if not self._running and id(m) not in self._names:
            self.know(m)
        self._running.append((self._names.get(id(m), ""), type(m).__name__))

    def _leave(self) -> None:
        self._running.pop()

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        attribute = getattr(func, "__name__", "") == "__get__"  # which computes nothing
        if self.pausing or attribute:
            return func(*args, **kwargs)
        counts = lies_on(self.kind, (args, kwargs))
        self._calls += counts
        module, kind = self._running[-1] if self._running else ("", "")
        before, place = self._now, Place(module, kind, name_of(func) or getattr(func, "__name__", ""), line(), self._calls)
        self._now = place
        result = func(*args, **kwargs)
        if counts:
            _put(place, result)
        else:  # it may make a tensor on the device, which is no doing of the call before
            self._now = before
        return result


def _put(place: Place, result: Any) -> None:
    """Give the nodes of a result the place of its call."""
    left: list[Any] = [t.grad_fn for t in tree_leaves(result) if isinstance(t, Tensor) and t.grad_fn is not None]
    while left:  # a recurrent layer makes some for each step
        node = left.pop()
        if node is None or LABEL in node.metadata:
            continue
        node.metadata[LABEL] = place
        left += [following for following, _ in node.next_functions if following is not None]


def line() -> str:
    """The innermost line outside of torch and of parity that is running; "" if there is none but the command's own."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == START:
            break
        if not name.startswith((PACKAGE, TORCH, "<")) and f"{os.sep}torch{os.sep}" not in name:
            return f"{_shown(name)}:{frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


@functools.cache
def _shown(file: str) -> str:
    """A path as a person here would type it."""
    near = os.path.relpath(file)
    return file if near.startswith("..") else near


# Copies if the devices differ; otherwise computation (a cast, a write).
ATEN_COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")
ATEN_READS = ("aten::_local_scalar_dense",)
ATEN_IDLE = ("aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift")
MANY = 12  # most op names in the suggested command
IDLE = ("__get__", "__set__", "device")  # attributes of tensors, and torch.device, which compute nothing
ATEN_DECIDING = ("item", "equal", "allclose", "is_nonzero")  # what reads a value, among public functions
READS = (*ATEN_DECIDING, "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__")
WINDOW = 200  # calls behind the first difference that are aligned
Step = tuple[str, str]  # a call: the public function, and its line


class PlacementWatch:
    """there, here: operators that computed on the device and on the CPU, in the order of their first call. after: operators of
    `here` that took floating tensors after a copy from the device. calls: public torch functions that took a tensor on the
    device; last: the last of them, "" if no catalog row tests it. steps: all calls, in order. made: the last call that made a
    tensor on the CPU out of none, and its line. cast: the dtypes of the operators that ran under autocast, as `Recorded` gives
    them. error: the first exception in a backward. whole: whether the run finished; seeded: whether it drew
    random numbers on the device from a generator of the user's own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.there: dict[str, None] = {}
        self.here: dict[str, None] = {}
        self.after: dict[str, None] = {}
        self.calls: dict[str, None] = {}
        self.steps: list[Step] = []
        self.last = self.made = ""
        self.cast: dict[str, list[str]] = {}
        self.error: Exception | None = None
        self.whole = self.seeded = False
        self._copied = False
        self._inside = False  # whether an operator runs: what a simulated device's kernel calls is not the user's code
        self._autocast = False  # whether the public function that runs now does so under autocast

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the operators that are dispatched inside."""
        with Functions(self._function), Recorded(lambda: self._autocast) as ran, Operators(self._operator):
            yield
        self.cast = {n: d for n, d in ran.dtypes.items() if any(d)}
        if self.error is not None:
            raise self.error

    @property
    def idle(self) -> bool:
        """Whether operators computed on the CPU only."""
        return not self.there and bool(self.here)

    def _function(self, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, torch._ops.OpOverload) and in_backward():  # a mode of parity's own calls it
            return func(*args, **kwargs)
        self._autocast = torch.is_autocast_enabled(self.kind)  # operators cannot see it: it is off inside the kernels that cast
        # Recorded before the call, so that a call that raises is recorded, too.
        if (own := getattr(func, "__name__", "")) not in IDLE and not self._inside:
            self.steps.append((name_of(func) or own, line()))
        if lies_on(self.kind, (args, kwargs)):
            self.last = row_of(getattr(func, "__name__", ""))
            if self.last:
                self.calls.setdefault(self.last)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_cpu and result.ndim and not _tensors((args, kwargs)):
            self.made = f"{name_of(func) or func.__name__} at {line()}"
        return result

    def _operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        before, self._inside = self._inside, True
        try:
            result = func(*args, **kwargs)
        except Exception as e:
            if not in_backward():
                raise
            self.error = self.error or e
            return no_results(func)
        finally:
            self._inside = before
        self.seeded |= kwargs.get("generator") is not None and any(not t.is_cpu for t in _tensors(result))
        name = func.name().partition(".")[0]
        if not func.is_view and name not in ATEN_IDLE:
            self._saw(name, _tensors((args, kwargs)), result)
        return result

    def _saw(self, name: str, given: Sequence[Tensor], result: Any) -> None:
        """Record that an operator ran on these tensors."""
        before, after = ({t.device.type for t in side} for side in (given, _tensors(result)))
        kinds = before | after
        if name in ATEN_READS or (name in ATEN_COPIES and len(kinds) > 1):
            self._copied = self._copied or (self.kind in before and self.kind not in after)
        elif self.kind in kinds:
            self.there.setdefault(name)
        elif "cpu" in kinds:
            self.here.setdefault(name)
            if self._copied and any(t.is_floating_point() or t.is_complex() for t in given):
                self.after.setdefault(name)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def other_way(here: Sequence[Step], there: Sequence[Step], device: str, whole: bool = True) -> str:
    """Where the CPU and the device call other functions first, in words that follow the subject's name; empty if they call the
    same. whole: whether the device's run finished: where it stopped, the CPU's goes on."""
    at = next((k for k, (a, b) in enumerate(zip(here, there)) if a != b), min(len(here), len(there)))
    ours, theirs = here[at : at + WINDOW], there[at : at + WINDOW]
    if not theirs and not whole:
        return ""
    for tag, i, j, k, n in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        a, b = (" at ".join(filter(None, s[0])) if s else "" for s in (ours[i:j], theirs[k:n]))
        what = f"the CPU calls {a} where {device} calls {b}" if a and b else f"only {device if b else 'the CPU'} calls {a or b}"
        return f"takes another way than on the CPU: {what}"
    return ""


def read_before(here: Sequence[Step], there: Sequence[Step]) -> bool:
    """Whether the function read a value, on which it may have decided, before the first call that only one side made."""
    at = next((k for k, (a, b) in enumerate(zip(here, there)) if a != b), min(len(here), len(there)))
    return any(name.rpartition(".")[2] in READS for name, _ in here[:at])


@functools.cache
def row_of(function: str) -> str:
    """The catalog row that tests a public function, for `parity run`; empty if there is none."""
    plain = function.strip("_")
    if plain not in catalog.ROWS and function.startswith("__r"):  # __rsub__
        plain = plain[1:]
    return plain if plain in catalog.ROWS else _by_call().get(plain, "")


@functools.cache
def _by_call() -> dict[str, str]:
    rows: dict[str, str] = {}
    for row in catalog.ROWS.values():
        if row.call.startswith("torch."):
            rows.setdefault(row.call.rpartition(".")[2], row.name)
    return rows


def command(names: list[str], dtype: str, device: Device) -> str:
    """The command that tests these ops one by one, with the same faults and setup; empty if there are none."""
    if not names:
        return ""
    planted = getattr(device, "planted", ())
    more = f" --setup {shlex.quote(place_of(planted))}" if planted else ""
    more += "".join(f" --setup {shlex.quote(path)}" for path in setup.ran[-1:])
    return f"{processes.called()} run {' '.join(names[:MANY])} --dtype {dtype} --device {device.name}{more}"
