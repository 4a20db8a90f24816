"""torch's modules as rows, from the samples of its own module tests (`module_db`).

A row is a module in a mode, "modules:nn.BatchNorm1d:train" or ":eval" where torch says that the two differ, or its state,
"modules:nn.BatchNorm1d:state": the way of parameters and buffers to the device and back. Operands are the inputs of the call,
then parameters and buffers. What torch's database expects to fail on a device is not read: parity judges for itself.
`module_names.json` lists the rows; `python tests/meta/torch_lists.py` regenerates it.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.catalog import opinfo
from parity.catalog import opinfo_rules as rules
from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import ROUNDED, Counts, Draws, Forms, Quirk, Row
from parity.catalog.samples import (
    Sample,
    draw_sample,
    evenly,
    generators,
    not_imported,
    sample_of,
    stored,
    tensors_of,
    torch_version,
)
from parity.core.case import OpClass
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import CaseError, near

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "modules:"
NAMES = Path(__file__).with_name("module_names.json")
GLUE = "parity.catalog.glue.entries"
KEPT = 64  # samples per module, mode and dtype, evenly spaced
KEPT_STATES = 8  # and for its state
DTYPES = tuple(d for d in DEFAULT if FACTS[d].is_inexact)
DISTINCT = {"float16": 0x2C00, "bfloat16": 0x3C00}  # bits of 1/16 and of 1/128: numbers from there on differ


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """Facts about a module in a mode, without importing it. dtypes, backward: what the CPU computes, of parity's dtypes.
    updates: the call changes buffers. gradgrad: torch has its second derivative."""

    dtypes: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    updates: bool = False
    gradgrad: bool = False


def _entry(tree: dict[str, Any]) -> ModuleEntry:
    flags = tree.get("flags", "").split()
    return ModuleEntry(
        tuple(tree.get("dtypes", "").split()), tuple(tree.get("backward", "").split()), "updates" in flags, "gradgrad" in flags
    )


ENTRIES: dict[str, ModuleEntry] = {key: _entry(tree) for key, tree in stored(NAMES)["entries"].items()}


def module_of(key: str) -> str:
    """The module of an entry: "nn.LSTM" of "nn.LSTM:train"."""
    return key.partition(":")[0]


def mode_of(key: str) -> str:
    """ "train", "eval" or "state"; "" for a module whose modes do not differ."""
    return key.partition(":")[2]


# ---------------------------------------------------------------------------------------------------------------- the rows


@functools.cache
def rows() -> tuple[Row, ...]:
    """A row per module and mode, and one per module with parameters or buffers for its state."""
    functions = {r.name: r for r in opinfo.rows()}
    return tuple(_as_row(key, entry, functions) for key, entry in ENTRIES.items())


def _as_row(key: str, entry: ModuleEntry, functions: dict[str, Row]) -> Row:
    signature = functools.partial(_draw, key)
    own: dict[str, Any] = {
        "family": "modules",
        "signature": signature,
        "dtypes": entry.dtypes,
        "grad": entry.backward,
        "call": f"{GLUE}.{_runner(key)}",
        "forms": Forms(updates=entry.updates),
        "counts": Counts((key,)),
    }
    if mode_of(key) == "state":
        return Row(PREFIX + key, rule=OpClass.EXACT, draws=Draws(places=True), **own)
    function = functions.get(opinfo.PREFIX + rules.FUNCTION_OF.get(module_of(key), ""))
    if function is None:  # several kernels, whose values must stay where they are
        return Row(PREFIX + key, rule=OpClass.COMPOSITE, judged=ROUNDED, draws=Draws(finite=True, places=True), **own)
    draws = function.draws
    if module_of(key) in rules.PICKS:  # equal elements, which a layout would make, have several right answers
        own |= {"rule": OpClass.EXACT}
        draws = replace(draws, places=True, unexpanded=True, choices=())
    if module_of(key) in rules.UNEXPANDED:
        draws = replace(draws, places=True)
    return replace(
        function,
        name=PREFIX + key,
        draws=draws,
        judged=replace(function.judged, relation="", law=""),
        quirks=tuple(q for q in function.quirks if q is not Quirk.MEMORY),
        **own,
    )


def _runner(key: str) -> str:
    """The function that runs a row's samples."""
    return "run_state" if mode_of(key) == "state" else "run_module"


def _draw(key: str, draw: Draw) -> Arguments:
    return draw_sample(samples(key, draw.dtype), draw)


# ------------------------------------------------------------------------------------------------------------- with torch


class Make:
    """Makes the module of a sample. Every call returns the same one, on the CPU, which callers must not change.

    text: a Python expression that makes one like it, but for its numbers; "" if there is none. It identifies the sample, too.
    """

    def __init__(self, module: Any, text: str) -> None:
        self._module, self.text = module, text

    def __call__(self) -> Any:
        return self._module

    def __repr__(self) -> str:
        return f"{self.text or self._module!r}"


@functools.cache
def database() -> dict[str, Any]:
    """All ModuleInfos by name. Raises CaseError if they cannot be imported."""
    try:
        from torch.testing._internal.common_modules import module_db
    except Exception as e:
        raise not_imported("torch's module tests", e) from e
    return {info.name: info for info in module_db}


def _info(key: str) -> Any:
    name = module_of(key)
    if name not in database():
        raise CaseError(
            f"torch {torch_version()} has no test data for '{name}'; {near(name, database()) or 'see parity run --list'}"
        )
    return database()[name]


@functools.lru_cache(maxsize=4)
def samples(key: str, dtype: str) -> dict[int, Sample]:
    """The samples of an entry in a dtype by their index in torch's own order; parity's own follow. Raises CaseError."""
    try:
        with generators(seeded=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = list(_inputs(key, dtype))
            most = KEPT_STATES if mode_of(key) == "state" else KEPT
            made = {k: _sample(key, dtype, inputs[k]) for k in evenly(list(range(len(inputs))), most)}
    except CaseError:
        raise
    except Exception as e:
        raise CaseError(f"torch cannot make the samples of {key} in {dtype}: {type(e).__name__}: {e}") from e
    kept = {k: s for k, s in made.items() if s is not None and sum(t.numel() for t in s.tensors) <= opinfo.LARGEST}
    if not kept:
        raise CaseError(f"{key} has no sample in {dtype} that parity can take; choose another dtype or module")
    return kept


@functools.lru_cache(maxsize=64)
def errors(key: str) -> dict[int, Sample]:
    """torch's error inputs of the call, by index -1, -2 ..., that the CPU refuses too. Raises CaseError."""
    info, kept = _info(key), dict[int, Sample]()
    if info.module_error_inputs_func is None or mode_of(key) in ("state", "eval"):
        return kept
    with generators(seeded=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = {"device": "cpu", "dtype": _torch_dtype("float32"), "requires_grad": False, "training": True}
        for k, error in enumerate(info.module_error_inputs_func(info, **asked)):
            if error.error_on.name == "FORWARD_ERROR":
                sample = _sample(key, "float32", error.module_error_input)
                if sample is not None and _refused(key, sample):
                    kept[-1 - k] = replace(sample, grads=(False,) * len(sample.grads))
    return kept


def _refused(key: str, sample: Sample) -> bool:
    try:
        run(key, sample)
    except Exception:  # whatever a module raises for a wrong input
        return True
    return False


def run(key: str, sample: Sample) -> Any:
    """The result of the call of a sample on the CPU."""
    return getattr(importlib.import_module(GLUE), _runner(key))(*sample.args, **sample.kwargs)


def _torch_dtype(dtype: str) -> Any:
    import torch

    return getattr(torch, dtype)


def _inputs(key: str, dtype: str) -> Iterator[Any]:
    """torch's inputs for the constructor and the call."""
    info = _info(key)
    asked: dict[str, Any] = {"device": "cpu", "dtype": _torch_dtype(dtype), "requires_grad": True}
    if module_of(key) in rules.PACKED_MODULES:
        asked["with_packed_sequence"] = True
    yield from info.module_inputs_func(info, training=mode_of(key) != "eval", **asked)
    if module_of(key) in rules.PACKED_BY_PARITY:
        yield _packed(asked["dtype"])
    if module_of(key) in rules.PADDED:
        yield _padded(key, asked["dtype"])


def _packed(dtype: Any) -> Any:
    """Two packed sequences of 5 and 3 steps."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence
    from torch.testing._internal.common_modules import FunctionInput, ModuleInput

    make: Any = FunctionInput  # untyped, as torch has it
    given: Any = ModuleInput
    packed = pack_padded_sequence(torch.randn(5, 2, 3, dtype=torch.float32).to(dtype), torch.tensor([5, 3]))
    packed.data.requires_grad_()
    return given(make(3, 4, num_layers=2), make(packed))


def _padded(key: str, dtype: Any) -> Any:
    """A batch of two sequences, one of them padded: in evaluation without gradients the encoder makes a nested tensor of it."""
    import torch
    from torch.testing._internal.common_modules import FunctionInput, ModuleInput

    make: Any = FunctionInput  # untyped, as torch has it
    layer = make(4, 2, 8, 0.0, batch_first=True)
    if module_of(key) != "nn.TransformerEncoderLayer":
        layer = make(torch.nn.TransformerEncoderLayer(*layer.args, **layer.kwargs), 2)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    x = torch.randn(2, 3, 4, dtype=torch.float32).to(dtype).requires_grad_()
    given: Any = ModuleInput
    return given(layer, make(x, src_key_padding_mask=mask))


def _sample(key: str, dtype: str, given: Any) -> Sample | None:
    """The sample of one input; None for the state of a module without any."""
    import torch

    made, call = given.constructor_input, given.forward_input
    module = _info(key).module_cls(*made.args, **made.kwargs).to(_torch_dtype(dtype)).train(mode_of(key) != "eval")
    make = Make(module, _text(key, made.args, made.kwargs))
    shaped = _shaped(module, call)
    state = {name: t.detach().clone() for name, t in (*shaped.named_parameters(), *shaped.named_buffers())}
    for t in state.values():
        _enliven(t)
    trained = {id(state[name]) for name, p in shaped.named_parameters() if p.requires_grad}
    if mode_of(key) == "state":
        state = {name: state[name] for name in shaped.state_dict()}
        return sample_of((make, state), {}, lambda t: False) if state else None
    args, named = call.args, call.kwargs
    if module_of(key) in rules.PICKS:
        args, named = _distinct(args), {k: _distinct([v])[0] for k, v in named.items()}
    more: dict[str, Any] = {}
    if args and isinstance(args[0], torch.nn.utils.rnn.PackedSequence):
        more["lengths"] = tuple(args[0].batch_sizes.tolist())
        args = (args[0].data, *args[1:])
    if module_of(key) in rules.PADDED and "src_key_padding_mask" in named and named["src_key_padding_mask"] is not None:
        more["padded"] = "src_key_padding_mask"
    inputs = {id(t) for t in tensors_of((args, named)) if t.is_floating_point() or t.is_complex()}
    return sample_of(
        (make, tuple(args), named, state), more, lambda t: id(t) in trained or (id(t) in inputs and t.requires_grad)
    )


def _shaped(module: Any, call: Any) -> Any:
    """The module, or, if it is lazy, a copy of it after its first call."""
    import copy

    import torch

    if not any(torch.nn.parameter.is_lazy(p) for p in module.parameters()):
        return module
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied(*call.args, **call.kwargs)
    return copied


def _enliven(t: Tensor) -> None:
    """Give a parameter or statistic that is one number throughout (a weight of 1, a bias or mean of 0) a different one for each
    element, within half of it, so that a device that ignores it differs."""
    import torch

    if (t.is_floating_point() or t.is_complex()) and t.numel() and bool((t == t.reshape(-1)[0]).all()):
        t += torch.rand(t.shape, dtype=torch.float32).sub_(0.5).to(t.dtype)


def _distinct(args: Any) -> list[Any]:
    """The arguments with floating tensors whose elements all differ: 1/16 (1/128 in bfloat16) and the numbers after it, in any
    order."""
    import torch

    def changed(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        order = torch.randperm(t.numel())
        start = DISTINCT.get(str(t.dtype).removeprefix("torch."))
        values = order / 64 - 4 if start is None else (order + start).to(torch.int16).view(t.dtype)
        return values.to(t.dtype).reshape(t.shape).requires_grad_(t.requires_grad)

    return [changed(a) for a in args]


# ---------------------------------------------------------------------------------------------------------- as a script


def _text(key: str, args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The constructor as a Python expression; "" if an argument has none."""
    parts = [_argument(a) for a in args] + [f"{k}={_argument(v)}" if _argument(v) else "" for k, v in named.items()]
    mode = ".eval()" if mode_of(key) == "eval" else ""
    return f"torch.{module_of(key)}({', '.join(parts)}){mode}" if all(parts) else ""


def _argument(a: Any) -> str:
    import torch

    if isinstance(a, torch.Tensor):  # the state holds its elements
        return f"torch.ones({tuple(a.shape)}, dtype={a.dtype})"
    if callable(a):
        public = f"torch.nn.functional.{getattr(a, '__name__', '')}"
        return public if getattr(torch.nn.functional, getattr(a, "__name__", " "), None) is a else ""
    if isinstance(a, (tuple, list)) and all(map(_argument, a)):
        inner = ", ".join(map(_argument, a))
        return f"[{inner}]" if isinstance(a, list) else f"({inner}{',' * (len(a) == 1)})"
    return repr(a) if a is None or isinstance(a, (bool, int, float, str)) else ""
