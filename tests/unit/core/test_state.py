"""torch's global state: whatever a call leaves is named and put back; what a call may do leaves nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from parity.core import state

held: list[Any] = []  # modes whose guards must outlive the call


def entered(mode: Any) -> Callable[[], object]:
    def enter() -> None:
        held.append(mode())
        held[-1].__enter__()

    return enter


def in_a_thread(act: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()

    return call


class Seeing(TorchFunctionMode):
    """A function mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def failing() -> None:
    raise ValueError("lost")


LEFT: dict[str, Callable[[], object]] = {
    "inference mode": entered(torch.inference_mode),
    "grad mode": lambda: torch._C._set_grad_enabled(False),
    "autocast": entered(lambda: torch.autocast("cpu")),
    "the function modes": entered(Seeing),
    "the default device": lambda: torch.set_default_device("meta"),
    "the dispatch modes": entered(Dispatching),
    "the threads of backward": lambda: torch.autograd.set_multithreading_enabled(not torch._C._is_multithreading_enabled()),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn_benchmark": lambda: torch._C._set_cudnn_benchmark(True),
    "flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic algorithms": lambda: torch._C._set_deterministic_algorithms(True, warn_only=True),
    "flushing of subnormals": lambda: torch.set_flush_denormal(True),
    "hooks on saved tensors": entered(torch.autograd.graph.save_on_cpu),
    "forward gradients": lambda: torch._C._set_fwd_grad_enabled(False),
    "the level of dual numbers": torch.autograd.forward_ad.enter_dual_level,
    "detection of anomalies in backward": lambda: torch.autograd.set_detect_anomaly(True),
    "the seed of random numbers": lambda: torch.manual_seed(torch.initial_seed() ^ 1),
    "hooks on modules": lambda: modules.register_module_forward_hook(lambda *_: None),
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 10),
    "the current folder": lambda: os.chdir("/"),
    "the handler of SIGTERM": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "another torch.sinh": lambda: setattr(torch, "sinh", torch.cosh),
    "another Tensor.sinh_": lambda: setattr(torch.Tensor, "sinh_", torch.Tensor.cosh_),
    "a thread that raised ValueError: lost": in_a_thread(failing),
}


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test of this file changes the others, even where it fails."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    watched = [*state._watched]
    state.watch(("torch.sinh", "torch.Tensor.sinh_", "torch.linalg.det"))
    yield
    state._watched[:] = watched


@pytest.mark.parametrize("what", LEFT)
def test_what_is_left_is_named_and_put_back(what: str) -> None:
    before = [p.read() for p in state.WHOLE]
    with state.Kept() as kept:
        LEFT[what]()
    assert len(kept.left) == 1 + (what == "the default device")  # which is a function mode besides
    assert kept.left[-1].startswith(what)
    assert [p.read() for p in state.WHOLE] == before
    assert torch.zeros(1).device.type == "cpu"
    assert (torch.ones(1, requires_grad=True) * 1).requires_grad
    with state.Kept() as kept:
        torch.sinh(torch.ones(1).sinh_())
    assert kept.left == []


def test_an_operator_of_a_library_is_watched_and_what_is_not_there_is_left_out() -> None:
    """torch makes an operator of a library an attribute only when somebody asks for it."""
    library: Any = torch.library.Library("parity_watched", "DEF")  # type: ignore[no-untyped-call]
    library.define("twice(Tensor x) -> Tensor")
    state.watch(("torch.ops.parity_watched.twice", "torch.sinn", "torch.no_such.sin", "no_such.sin"))
    with state.Kept() as kept:
        vars(torch.ops.parity_watched)["twice"] = torch.sin
    assert kept.left == ["another torch.ops.parity_watched.twice"]
    assert torch.ops.parity_watched.twice is not torch.sin
    with state.Kept() as kept:
        torch.sin(torch.ones(1))
    assert kept.left == []


def test_a_higher_recursion_limit_is_put_back_without_a_word() -> None:
    """torch's code generator raises it at each compilation."""
    before = sys.getrecursionlimit()
    with state.Kept() as kept:
        sys.setrecursionlimit(before + 1000)
    assert (kept.left, sys.getrecursionlimit()) == ([], before)


def test_all_at_once_is_put_back() -> None:
    before = [p.read() for p in state.WHOLE]
    with state.Kept() as kept:
        for leave in LEFT.values():
            leave()
    assert [p.read() for p in state.WHOLE] == before
    assert len(kept.left) > len(LEFT) - 4  # some are one piece, or undo one another


def test_what_calls_may_do_leaves_nothing() -> None:
    """Modes that end, random numbers that are drawn, gradients, threads."""
    drawn = torch.get_rng_state()
    with state.Kept() as kept:
        with torch.inference_mode(), torch.autocast("cpu"), torch.device("meta"):
            torch.ones(2)
        torch.rand(3)
        in_a_thread(lambda: torch.ones(2) + 1)()
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad(x.exp().sum(), x)
    assert kept.left == []
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_mode_that_was_in_force_stays() -> None:
    with Seeing() as outer, torch.inference_mode():
        with state.Kept() as kept:
            torch._C._pop_torch_function_stack()
            LEFT["autocast"]()
        assert state.FUNCTIONS.read() == (outer,)
        assert torch.is_inference_mode_enabled()
        assert len(kept.left) == 2


def test_a_mode_that_refuses_everything_is_left_first() -> None:
    """It would also refuse to put back the others."""
    with state.Kept() as kept:
        torch._C._set_grad_enabled(False)
        entered(TorchFunctionMode)()
    assert len(kept.left) == 2
    assert torch.is_grad_enabled()


def test_a_type_that_torch_does_not_know_yet_has_no_autocast() -> None:
    """That of a backend in a package which nobody has imported: its table must not end every process."""
    assert not state._has_autocast("npu")
    assert state._has_autocast("cpu")
    assert {"cpu", "cuda", "mps", "xpu"} <= {*state.AUTOCAST}


def test_a_flag_that_torch_does_not_give_stays() -> None:
    """torch refuses to say whether cuDNN may use TF32 where its convolutions and its recurrent cells differ."""
    setter: Any = torch._C._set_fp32_precision_setter
    setter("cuda", "conv", "ieee")
    try:
        with pytest.raises(RuntimeError, match="allow_tf32"):
            torch._C._get_cudnn_allow_tf32()
        with state.Kept() as kept:
            torch.backends.cuda.enable_math_sdp(False)
        assert kept.left == ["math_sdp (on before, off after)"]
        assert torch._C._get_fp32_precision_getter("cuda", "conv") == "ieee"
    finally:
        torch._C._set_cudnn_allow_tf32(True)
    assert torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32"
