"""torch's optimizers as rows, from the option sets of its own optimizer tests (`optim_db`).

A row is an optimizer in an implementation: "optimizers:Adam" is the plain loop, "optimizers:Adam:foreach", ":fused",
":capturable" and ":differentiable" are the others that it has. A sample is an option set; its operands are two or three
parameters and their gradients at each step, and a learning rate or betas that are tensors. `optimizer_names.json` lists the
rows; `python tests/meta/torch_lists.py` regenerates it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.catalog.draw import Arguments, Draw, Shape
from parity.catalog.row import COMPOSITE, ROUNDED, Counts, Draws, Forms, Row
from parity.catalog.samples import (
    Sample,
    draw_sample,
    generators,
    not_imported,
    rebuilt,
    sample_of,
    stored,
    tensors_of,
    torch_version,
)
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import CaseError, near

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "optimizers:"
GLUE = "parity.catalog.glue.entries"
NAMES = Path(__file__).with_name("optimizer_names.json")
DTYPES = tuple(d for d in DEFAULT if FACTS[d].is_inexact)
STEPS = 3
# RAdam rectifies from its sixth step on. With `capturable` it computes the factor in float32, where a cancellation leaves two
# of its digits, so that only the steps before that are compared.
LATE = {"RAdam": 7, "RAdam:foreach": 7, "RAdam:differentiable": 7}
# Iterations of a step that calls its closure; once it has converged, the next ones are made of roundings.
ITERATIONS = 2
# Besides torch's option sets: each option that they leave out, all that go together, and numbers that are tensors. The values
# are exact in half types, and so far from the defaults that a kernel which ignores them shows.
OPTIONS: dict[str, Any] = (
    {"lr": 0.0625, "weight_decay": 0.25, "momentum": 0.5, "dampening": 0.25, "nesterov": True, "maximize": True}
    | {"betas": (0.5, 0.75), "eps": 2.0**-6, "amsgrad": True, "decoupled_weight_decay": True, "momentum_decay": 0.125}
    | {"lr_decay": 0.125, "initial_accumulator_value": 0.5, "rho": 0.5, "alpha": 0.5, "lambd": 0.125, "t0": 1.0}
    | {"centered": True, "etas": (0.25, 1.5), "step_sizes": (0.0625, 2.0), "beta2_decay": -0.5, "d": 1.5}
    | {"ns_steps": 3, "adjust_lr_fn": "match_rms_adamw", "line_search_fn": "strong_wolfe", "history_size": 1}
)
# Options that exclude each other, by the one that gives way when all others are set.
EXCLUDED = {"dampening": "nesterov"}
# Numbers that are tensors where the optimizer's signature says so, and their shapes.
TENSORS: tuple[tuple[str, tuple[Shape, ...]], ...] = (("lr", ((), (1,))), ("weight_decay", ((),)), ("betas", ((), (1, 1))))
SCALED = ("scaled", "skipped")  # a fused step with the scale of a gradient scaler, and one that it says to skip
# Shapes of the parameters of a sample, in turn; the last parameter of the second has no gradient.
SHAPES: tuple[tuple[Shape, ...], ...] = (((2, 3), (4,)), ((3, 4), (2,), (2, 2)), ((2, 3, 2, 2), ()))
MATRICES: tuple[tuple[Shape, ...], ...] = (((2, 3), (3, 3)), ((4, 2), (3, 5), (2, 2)))
WITHOUT_GRADIENT = 1
MATRICES_ONLY = ("Muon", "SparseAdam")
# Muon orthogonalizes its update in bfloat16 whatever its parameters are, for which float64 is no truth.
IN_BFLOAT16 = ("Muon",)


@dataclass(frozen=True, slots=True)
class OptimizerEntry:
    """Facts about an optimizer in an implementation, without importing it: the dtypes of parameters that the CPU takes, and
    those with gradients through the steps."""

    dtypes: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


ENTRIES: dict[str, OptimizerEntry] = {
    key: OptimizerEntry(tuple(tree.get("dtypes", "").split()), tuple(tree.get("backward", "").split()))
    for key, tree in stored(NAMES)["entries"].items()
}


def optimizer_of(key: str) -> str:
    """The optimizer of an entry: "Adam" of "Adam:foreach"."""
    return key.partition(":")[0]


def implementation_of(key: str) -> str:
    """The implementation of an entry, or "" for the plain loop."""
    return key.partition(":")[2]


@functools.cache
def rows() -> tuple[Row, ...]:
    """A row per optimizer and implementation."""
    return tuple(_as_row(key, entry) for key, entry in ENTRIES.items())


def _as_row(key: str, entry: OptimizerEntry) -> Row:
    return Row(
        PREFIX + key,
        functools.partial(_draw, key),
        family="optimizers",
        rule=COMPOSITE,
        call=f"{GLUE}.run_optimizer",
        dtypes=entry.dtypes,
        grad=entry.backward,
        forms=Forms(updates=True),
        draws=Draws(finite=True, places=True),  # a gradient of NaN or Inf stays in the state, and hides the later steps
        judged=ROUNDED,
        counts=Counts((key,)),
    )


def _draw(key: str, draw: Draw) -> Arguments:
    return draw_sample(samples(key, draw.dtype), draw)


# ------------------------------------------------------------------------------------------------------------- with torch


@functools.cache
def database() -> dict[str, Any]:
    """All OptimizerInfos by the name of their class. Raises CaseError if they cannot be imported."""
    try:
        from torch.testing._internal.common_optimizers import optim_db
    except Exception as e:
        raise not_imported("torch's optimizer tests", e) from e
    database: list[Any] = optim_db
    return {info.optim_cls.__name__: info for info in database}


def _info(key: str) -> Any:
    name = optimizer_of(key)
    if name not in database():
        raise CaseError(
            f"torch {torch_version()} has no test data for '{name}'; {near(name, database()) or 'see parity run --list'}"
        )
    return database()[name]


def _options(key: str, dtype: str) -> Iterator[tuple[dict[str, Any], str]]:
    """(option set, how its steps are made): torch's sets of an implementation without those of the others, then parity's.
    Those for CUDA are those with `capturable`."""
    import torch

    info, how = _info(key), implementation_of(key)
    theirs = [given.kwargs for given in info.optim_inputs_func("cuda")]
    for given in theirs:
        if bool(given.get("capturable")) == (how == "capturable"):
            yield from _implemented(given, info, how, dtype)
    known = {name for given in theirs for name in given}
    for given in _more(info, known):
        yield from _implemented({**given, "capturable": True} if how == "capturable" else given, info, how, dtype)
    for kind in SCALED if how == "fused" else ():
        for given in ({}, {"lr": torch.tensor(OPTIONS["lr"]), "weight_decay": 0.25, "maximize": True}):
            yield from ((options, kind) for options, _ in _implemented(given, info, how, dtype))


def _implemented(given: dict[str, Any], info: Any, how: str, dtype: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The set with the flags of an implementation; with `capturable` also those of foreach."""
    import torch

    limited = {"max_iter": ITERATIONS} if info.step_requires_closure else {}
    options = {**given, **limited, **{flag: flag == how for flag in info.supported_impls}}
    if info.optim_cls.__name__ == "Adafactor":  # else eps is that of the dtype, which is another one for the truth
        options.setdefault("eps", (torch.finfo(getattr(torch, dtype)).eps, 1e-3))
    yield options, ""
    if how == "capturable" and "foreach" in info.supported_impls:
        yield {**options, "foreach": True}, ""


def _more(info: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """Option sets that torch's tests leave out. known: options that these have."""
    import torch

    takes = inspect.signature(info.optim_cls).parameters
    mine = {name: value for name, value in OPTIONS.items() if name in takes and not isinstance(takes[name].default, str)}
    if info.optim_cls.__name__ == "Adafactor":
        mine.pop("eps", None)
    yield from ({name: value} for name, value in mine.items() if name not in known)
    yield {name: value for name, value in mine.items() if EXCLUDED.get(name) not in mine}
    for name, shapes in TENSORS:
        for shape in shapes if name in mine and "Tensor" in str(takes[name].annotation) else ():
            value = mine[name]
            made = [torch.full(shape, v) for v in (value if isinstance(value, tuple) else (value,))]
            given = tuple(made) if isinstance(value, tuple) else made[0]
            yield {name: given}
            yield {**{n: v for n, v in mine.items() if EXCLUDED.get(n) not in mine}, name: given}


@functools.lru_cache(maxsize=4)
def samples(key: str, dtype: str) -> dict[int, Sample]:
    """The samples of an entry in a dtype, by their index in torch's own order of the option sets. Raises CaseError."""
    with generators(seeded=True):
        made = {k: _sample(key, dtype, k, *how) for k, how in enumerate(_options(key, dtype))}
        kept = {k: s for k, s in made.items() if runs(s)}
    if not kept:
        raise CaseError(f"{key} has no sample in {dtype} that the CPU takes; choose another dtype or optimizer")
    return kept


def errors(key: str) -> dict[int, Sample]:
    """No calls that must be refused: torch's are wrong options, which Python refuses before any device."""
    return {}


def _sample(key: str, dtype: str, index: int, options: dict[str, Any], how: str) -> Sample:
    """Parameters within 2, gradients between 1/8 and 2 of both signs: no step decides on the sign of a rounding."""
    import torch

    name = optimizer_of(key)
    listed = MATRICES if name in MATRICES_ONLY else SHAPES
    shapes = listed[index % len(listed)]
    spared = len(shapes) - 1 if index % len(listed) == WITHOUT_GRADIENT else None

    def drawn(shape: Shape, low: float) -> Tensor:
        size = torch.rand(shape, dtype=torch.float64) * (2 - low) + low
        sign = torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)
        turn = torch.polar(torch.ones(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64))
        return (size * sign * turn if dtype.startswith("complex") else size * sign).to(getattr(torch, dtype))

    params = tuple(drawn(s, 0) for s in shapes)
    grads = tuple(
        tuple(None if k == spared else drawn(s, 0.125) for k, s in enumerate(shapes)) for _ in range(LATE.get(key, STEPS))
    )
    through = implementation_of(key) == "differentiable"
    kind = "sparse" if _info(key).only_supports_sparse_grads else "closure" if _info(key).step_requires_closure else how
    graded = {id(t) for t in tensors_of((params, grads))} if through else set()
    kind = "differentiable" if through else kind
    return sample_of((name, params, grads, _copied(options), kind), {}, lambda t: id(t) in graded)


def _copied(options: dict[str, Any]) -> dict[str, Any]:
    import torch

    copied: dict[str, Any] = rebuilt(options, lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x)
    return copied


def runs(sample: Sample, through: bool = False) -> bool:
    """Whether the CPU takes a sample. through: and gives gradients through the steps."""
    import torch

    flags = iter(sample.grads)

    def leaf(x: Any) -> Any:
        return x.clone().requires_grad_(next(flags) and through) if isinstance(x, torch.Tensor) else x

    args = rebuilt(sample.args, leaf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outs = [t for t in tensors_of(importlib.import_module(GLUE).run_optimizer(*args)) if t.requires_grad]
            if through:
                leaves = [t for t in tensors_of(args) if t.requires_grad]
                torch.autograd.grad([t.abs().sum() for t in outs], leaves, allow_unused=True)
        except Exception:  # a dtype that the CPU does not have, or an option that torch has for other devices
            return False
    return not through or bool(outs)
