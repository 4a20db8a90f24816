"""Random numbers that every side of a comparison gets alike: drawn on the CPU in float32, and handed to the side that asks.

No two devices share a stream of random numbers, so that a dropout on the device drops other elements than on the CPU. Inside
`SharedRandom` every draw comes from the CPU's default generator: with the same seed before, the CPU, the device and float64 get
the same numbers, in recomputations of checkpoints too, because these restore the state of that generator. Fused kernels of
attention draw inside, where nobody can hand them anything: attention that drops out is computed by its formula, on every side.
"""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from parity.core.observer import Functions, Operators

FLOATS = (torch.float64, torch.float16, torch.bfloat16)
# Operators that drop out and return their mask.
ATEN_MASKED = ("native_dropout",)
# Operators that draw into what they are given, and those that return what they drew.
ATEN_INTO = ("bernoulli_", "uniform_", "normal_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_")
ATEN_MADE = (
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "normal"),
    *("multinomial", "poisson", "binomial"),
)
# Operators that are tagged as random and draw nothing unless they are asked to drop out.
ATEN_SOMETIMES = (
    *("scaled_dot_product", "_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_attention"),
    *("_cudnn_rnn", "miopen_rnn", "_lstm_mps", "lstm", "gru", "rnn_", "rrelu_with_noise"),
)
ATEN_CHOICE = ("_fused_sdp_choice",)  # tagged as random too, but it only says which kernel is to run
ATEN_ASKED = ("dropout_p", "dropout", "training")  # their arguments that ask for it


class SharedRandom(Operators):
    """Draws every random number inside on the CPU. draws: how many operators drew; states: where a generator of the user's own
    was at each of its draws, to be compared; left: those that drew by themselves, whose numbers no other side has; stream: the
    state of the CPU's generator when it was left first; drew: whether anything drew, Python and numpy too. on_draw: called at
    each draw. own: whether draws from generators of the user's own are handed out: from such a one on the CPU, or from a twin
    of the device's that is seeded as that is. Their states are put back at the end."""

    def __init__(self, on_draw: Callable[[], None] | None = None, own: bool = True) -> None:
        super().__init__()
        self._own = own
        self._before_run: dict[int, tuple[torch.Generator, Tensor]] = {}
        self._twins: dict[int, tuple[torch.Generator, dict[int, Tensor]]] = {}  # and its states by those of the device's
        self.draws = 0
        self.states: list[int] = []
        self.left: set[str] = set()
        self.stream: Tensor | None = None
        self.drew = False
        self._on_draw = on_draw
        self._unfused = Functions(_by_formula)

    def __enter__(self) -> SharedRandom:
        with contextlib.ExitStack() as entered:
            entered.enter_context(self._unfused)
            super().__enter__()  # type: ignore[no-untyped-call]  # as torch has it
            self._before = _positions()
            self._left = entered.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        with self._left:
            super().__exit__(*error)  # type: ignore[no-untyped-call]  # as torch has it
        for generator, state in self._before_run.values():
            generator.set_state(state)
        self._before_run.clear()
        self.drew |= bool(self.draws or self.left) or _positions() != self._before
        self.stream = torch.default_generator.get_state() if self.stream is None else self.stream

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func.name().partition("::")[2].partition(".")[0]
        if name in ATEN_CHOICE:
            return func(*args, **kwargs)
        if self._on_draw is not None:
            self._on_draw()
        if kwargs.get("generator") is None and name in ATEN_MASKED:
            self.draws += 1
            return _dropped(*args, **kwargs)
        given = kwargs.get("generator")
        if (given is None or self._own) and name in (*ATEN_INTO, *ATEN_MADE) and ".out" not in func.name():
            self.draws += 1
            handed = _into if name in ATEN_INTO else _made
            if given is None:
                return handed(func, args, kwargs)
            here, state = self._on_the_cpu(given), given.get_state()
            self.states.append(_bits(here))
            if here is not given or _place(args, kwargs).type != "cpu":
                # Devices refuse a generator of the CPU, the simulated one apart. One of their own moves on, so that it shows
                # where the user seeds it again.
                func(*args, **kwargs)
            if here is given:
                given.set_state(state)
            result = handed(func, args, {**kwargs, "generator": here})
            if here is not given:
                self._twins[id(given)][1][_bits(given)] = here.get_state()
            return result
        if not name.startswith(ATEN_SOMETIMES) or _drops(func, args, kwargs):
            self.left.add(name)
        return func(*args, **kwargs)

    def _on_the_cpu(self, given: torch.Generator) -> torch.Generator:
        """The generator on the CPU that draws in place of one of the user's own. A state of a device's that neither its seed
        nor a draw in here gave it says nothing about the CPU's, so that `states` will differ."""
        self._before_run.setdefault(id(given), (given, given.get_state()))
        if given.device.type == "cpu":
            return given
        twin, states = self._twins.setdefault(id(given), (torch.Generator(), {}))
        now, seed = given.get_state(), given.initial_seed()
        at, new = _bits(given), _bits(given.manual_seed(seed))
        given.set_state(now)
        if at in states:
            twin.set_state(states[at])
        elif at == new:
            twin.manual_seed(seed)
        return twin


def _bits(generator: torch.Generator) -> int:
    """A key that two states share only where they are equal."""
    return hash(generator.get_state().numpy().tobytes())


def _place(args: Any, kwargs: Any) -> torch.device:
    """Where a call draws."""
    tensors = (x for x in args if isinstance(x, Tensor))
    place: torch.device = kwargs.get("device") or next((x.device for x in tensors), torch.device("cpu"))
    return place


def _by_formula(func: Any, args: Any, kwargs: Any) -> Any:
    """Attention that drops out."""
    drops = func is scaled_dot_product_attention and (kwargs.get("dropout_p", 0.0) or (len(args) > 4 and args[4]))
    with sdpa_kernel(SDPBackend.MATH) if drops else contextlib.nullcontext():
        return func(*args, **kwargs)


def _near(x: Any) -> Any:
    """An argument for the draw on the CPU: tensors there, floats in float32."""
    if isinstance(x, Tensor):
        return x.detach().to("cpu", torch.float32) if x.dtype in FLOATS else x.detach().to("cpu")
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return torch.float32 if x in FLOATS else x


def _into(func: Any, args: Any, kwargs: Any) -> Any:
    there = args[0]
    with _disable_current_modes():
        drawn = _near(torch.empty(there.shape, dtype=there.dtype))
        rest, named = tree_map(_near, (tuple(args[1:]), dict(kwargs)))
        func(drawn, *rest, **named)
        there.detach().copy_(drawn)
    return there


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    given = next((x for x in args if isinstance(x, Tensor)), None)
    place = _place(args, kwargs)
    default = torch.get_default_dtype()
    dtype = kwargs.get("dtype") or (given.dtype if given is not None and given.is_floating_point() else default)
    with _disable_current_modes():
        near, named = tree_map(_near, (tuple(args), {**kwargs, "pin_memory": None} if "pin_memory" in kwargs else dict(kwargs)))
        torch.set_default_dtype(torch.float32)  # a number in float64 takes two steps of the stream: all later draws would shift
        try:
            drawn = func(*near, **named)
        finally:
            torch.set_default_dtype(default)
        return drawn.to(place, dtype) if drawn.is_floating_point() else drawn.to(place)


def _dropped(x: Tensor, p: float, train: bool | None = None) -> Any:
    with _disable_current_modes():
        mask = torch.empty(x.shape).bernoulli_(1.0 - p).to(torch.bool).to(x.device)
    if train is False:
        return x.clone(), torch.ones_like(mask)
    return x * mask * (1.0 / (1.0 - p) if p < 1.0 else 0.0), mask


def _drops(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator that may drop out is asked to."""
    names = [a.name for a in func._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    return any(isinstance(given.get(name), (float, bool)) and bool(given[name]) for name in ATEN_ASKED)


def _positions() -> bytes:
    """Where the random numbers of torch, Python and numpy are."""
    return pickle.dumps((torch.default_generator.get_state().numpy(), random.getstate(), np.random.get_state()))


@contextmanager
def streams(seed: int = 0) -> Iterator[None]:
    """Seed the random numbers of Python and of numpy inside; the caller's go on as before."""
    python, numbers = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
