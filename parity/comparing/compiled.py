"""A function compiled by `torch.compile` as the third side of a comparison, next to the CPU and eager code on the device.

The CPU runs eager code, and so does the float64 truth. Both sides on the device are judged against that, so that it shows
whose error it is: the device's, whose operators eager code calls, or the compiler's.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from parity.comparing.comparison import DEFAULT, Comparison, Request
from parity.comparing.function import Compared, compared
from parity.comparing.subject import Wrap, is_compiled
from parity.comparing.verdicts import Verdicts
from parity.core.errors import UsageError, near
from parity.core.results import Status, Verdict
from parity.devices import Device

Backend = str | Callable[..., Any]
SHOWN = 3  # results of compiled code that are shown
PATIENCE = 60.0  # seconds for the search of the module that the compiler gets wrong
NO_GRAPH = "torch.compile makes no graph of it, so that it runs as it is"
SIDES = ("", "eager", "compiled", "both")


@dataclass(frozen=True, slots=True)
class CompiledSide:
    """What became of a function that torch.compile compiled on the device. backend: its name; graphs: how many graphs it made;
    verdicts: of the results, against the CPU's eager ones and the float64 truth; module: the innermost module that is wrong
    where it alone is compiled, "layers.1 (Linear)", or ""; eager_wrong: whether eager code on the device differs, too; refused:
    why it could not be compiled, empty if it was."""

    backend: str
    graphs: int
    verdicts: Verdicts
    module: str = ""
    eager_wrong: bool = False
    refused: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the compiled code differs, or could not be compiled."""
        return any(v.status is not Status.AGREE for _, v in self.verdicts)

    @property
    def wrong_side(self) -> str:
        """Which code is wrong on the device, one of `SIDES`."""
        return SIDES[self.eager_wrong + 2 * (self.wrong and not self.refused)]

    @property
    def lines(self) -> Iterator[str]:
        """The text, and the first results of compiled code that differ."""
        yield self.text
        off = [(n, v) for n, v in self.verdicts if v.status is not Status.AGREE] if not self.refused else []
        for name, v in off[:SHOWN]:
            m = v.measure
            share = m.share if m is not None else None
            how = f", {share:.3g} times the budget" if share and math.isfinite(share) else f": {v.reason}" if v.reason else ""
            yield f"{name or 'the call'} {v.status}{how}"
        if len(off) > SHOWN:
            yield f"... and {len(off) - SHOWN} more"

    @property
    def text(self) -> str:
        """Which side is wrong, in words that follow the subject's name."""
        eager = "differs from the CPU in eager mode" if self.eager_wrong else "is right in eager mode"
        if self.refused:
            return f"{eager}, and {self.backend} does not compile it: {self.refused}"
        if self.wrong_side == "both":
            return f"{eager}, and so does what {self.backend} compiled"
        if self.wrong:
            return f"{eager}, and only what {self.backend} compiled is wrong" + (f", in {self.module}" if self.module else "")
        graphs = "1 graph" if self.graphs == 1 else f"{self.graphs} graphs"
        return f"{eager}{'; ' if self.eager_wrong else ', and '}what {self.backend} compiled agrees with the CPU ({graphs})"


class Compiler:
    """Compiles with one backend of torch.compile, given by its name or as a function (graph, example inputs) -> function.
    name: how it is called; graphs: how many graphs it was given so far.

    Raises UsageError for a backend that is not there or cannot work on the device, and for a function that is compiled already.
    """

    def __init__(self, backend: Backend, fn: Callable[..., Any], device: Device) -> None:
        self.name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
        self.graphs = 0
        if not isinstance(backend, str) and not callable(backend):
            raise UsageError(f"compile is {backend!r}; give the name of a backend, like 'aot_eager', or a function")
        if is_compiled(fn):
            raise UsageError(
                f"compile='{self.name}' is for eager code, and {type(fn).__name__} is compiled already; give the original"
            )
        self._compile = _known(backend, device) if isinstance(backend, str) else backend
        self._device = device

    def _counted(self, graph: Any, examples: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._compile(graph, examples, **options)

    def _compiled(self, function: Any) -> Any:
        torch._dynamo.reset()  # what was compiled before must not be taken for this
        return torch.compile(function, backend=self._counted)

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled anew. Resets what torch._dynamo compiled before."""
        return self._called(self._compiled(function))

    def _called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._device.compiling():
                return function(*args, **kwargs)

        return call

    def part(self, path: str) -> Wrap:
        """What compiles one submodule alone, of a module or of the module whose method it gets."""

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            owner: Any = function if isinstance(function, nn.Module) else function.__self__  # type: ignore[attr-defined]
            parent, _, name = path.rpartition(".")
            setattr(owner.get_submodule(parent), name, self._compiled(owner.get_submodule(path)))
            return self._called(function)

        return wrap


class Tried(NamedTuple):
    """What became of compiled code, and what it raised, if it raised."""

    side: CompiledSide
    cause: BaseException | None


def compiled_side(compiler: Compiler, q: Request, eager_wrong: bool) -> Tried:
    """Compile a function, run it on the device and judge it as `assert_parity` judges eager code. Where only the compiled code
    is wrong, look for the module. Raises UsageError for a function that draws random numbers, and what `compared` raises."""
    q = q if eager_wrong else replace(q, proof=None)

    def judged(wrap: Wrap) -> Compared:
        with torch._dynamo.config.patch(suppress_errors=False):
            return compared(replace(q, wrap=wrap, alone=False, detail=False, effort=DEFAULT))

    def is_wrong(path: str) -> bool:
        """Whether the results are, with one submodule compiled; one that cannot be compiled alone says nothing."""
        return any(v.status.differs for _, v in judged(compiler.part(path)).comparison.findings)

    try:
        whole = judged(compiler.whole)
        cause = whole.cause
        side = CompiledSide(compiler.name, compiler.graphs, whole.comparison.verdicts, eager_wrong=eager_wrong)
        why = _compile_failure(cause) or ("" if compiler.graphs or side.wrong else NO_GRAPH)
        if why:
            return Tried(replace(side, verdicts=(("", Verdict(Status.UNSUPPORTED, why)),), refused=why), cause)
        owner = q.fn if isinstance(q.fn, nn.Module) else getattr(q.fn, "__self__", None)
        differs = any(v.status.differs for _, v in side.verdicts)
        if side.wrong_side == "compiled" and differs and isinstance(owner, nn.Module):
            side = replace(side, module=_culprit(owner, is_wrong))
        return Tried(side, cause)
    finally:
        torch._dynamo.reset()  # it holds the copies that were compiled


def with_compiled(comparison: Comparison, side: CompiledSide) -> Comparison:
    """The comparison of eager code on the device with the verdicts of compiled code, and which of the two is wrong."""
    named = tuple((f"compiled {n}".rstrip(), v) for n, v in side.verdicts)
    clean = not side.wrong and not side.eager_wrong
    return replace(
        comparison,
        verdicts=(*comparison.verdicts, *named),
        notes=(*comparison.notes, *((f"the function {side.text}",) if clean else ())),
        where="" if clean else side.text,
        wrong_side=side.wrong_side,
    )


# ----------------------------------------------------------------------------------------------------------- compiling


def _known(backend: str, device: Device) -> Callable[..., Any]:
    """The function behind a backend's name. Raises UsageError for one that is not there or cannot work."""
    names = torch._dynamo.list_backends(None)  # None: those for debugging as well
    if backend not in names:
        usual = ["aot_eager", *torch._dynamo.list_backends()]
        hint = near(backend, names)
        raise UsageError(f"no backend '{backend}'; this torch has {', '.join(usual)}" + (f"; {hint}" if hint else ""))
    if backend == "inductor" and device.simulated:
        raise UsageError(f"inductor has no code for {device.name}, a simulated device; take aot_eager, or device='cpu'")
    if backend == "inductor" and device.name == "cpu":
        cxx = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(cxx) is None:
            raise UsageError(
                f"inductor needs a C++ compiler, and '{cxx}' is not here; install it, name one in CXX, or take aot_eager"
            )
    found: Callable[..., Any] = torch._dynamo.lookup_backend(backend)
    return found


def _compile_failure(e: BaseException | None) -> str:
    """What torch.compile says where it fails to compile, in one line; empty for any other exception."""
    if not isinstance(e, torch._dynamo.exc.TorchDynamoException):
        return ""
    inner = getattr(e, "inner_exception", None) or e
    line = next((x.strip() for x in str(inner).splitlines() if x.strip()), "")
    return f"{type(inner).__name__}: {line}" if line else type(inner).__name__


def _culprit(module: nn.Module, is_wrong: Callable[[str], bool]) -> str:
    """The innermost submodule that is wrong when it alone is compiled, the first of several, with its type; "" if it is the
    module's own code, or more than one of them together."""
    until, found = time.monotonic() + PATIENCE, ""
    while time.monotonic() < until:
        inner = next((n for n in _called(module, found) if time.monotonic() < until and is_wrong(n)), "")
        if not inner:
            break
        found = inner
    return f"{found} ({type(module.get_submodule(found)).__name__})" if found else ""


def _called(module: nn.Module, path: str) -> Iterator[str]:
    """Paths of the modules in one that may be called: those in lists, too, which are never called themselves."""
    for name, child in module.get_submodule(path).named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _called(module, inner)
        else:
            yield inner
