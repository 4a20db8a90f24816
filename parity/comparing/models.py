"""Users' own models and functions, each compared as by `assert_parity`: those in a file, and models by name
(`parity.comparing.named`).

A file holds functions without parameters. Each returns what is to be compared, a model or a function and then its inputs:

    def bert():
        return make_bert().eval(), torch.randint(1000, (2, 16))

or, as `torch.export` takes them, `(model, (inputs, ...), {"name": input})`. A model without inputs gets some that are made
(`parity.comparing.model_inputs`).
`parity run FILE.py` compares them in a job (`parity.engine.own`). Before each function is called, torch's seed is set to 0, so
that two runs compare equal weights.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from parity.comparing import model_inputs
from parity.comparing.comparison import Request
from parity.comparing.function import Sides, compared, raised_at
from parity.comparing.model_inputs import FLAG, Wants, takes_some
from parity.comparing.named import factory
from parity.comparing.own_figures import rows, with_figures
from parity.comparing.subject import SEED, subject
from parity.core import processes, state
from parity.core.child import BEGIN, Given, Job
from parity.core.errors import ParityError, UsageError, mending
from parity.core.project import naming
from parity.core.results import Status
from parity.devices import load_faults, resolve
from parity.devices.setup import add_folder_to_path, refuse_modes, run_setup
from parity.store.rows import is_named
from parity.store.run_file import encode

MODEL = "a model and its inputs"
Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


# ------------------------------------------------------------------------------------------------------ what a file holds


def functions(place: str, returns: str = MODEL, given: Sequence[str] = ()) -> dict[str, Maker]:
    """What makes the models of a place, "models.py", "models.py:bert" or "timm:resnet18", by their names in run files; each
    returns (function, inputs, inputs by name). returns: what the functions of a file return, in words; given: the inputs
    instead of those that are made or returned, as texts.

    Raises UsageError if the file does not run or holds no such function, and for a model that nobody knows.
    """
    with naming("models", place):
        return _functions(place, returns, given)


def _functions(place: str, returns: str, given: Sequence[str]) -> dict[str, Maker]:
    file, _, only = place.partition(":")
    if is_named(place):
        makes = factory(place)
        if not _takes_nothing(makes):
            raise UsageError(f"{place} has parameters; give a function or class without any, which makes a model")
        return {place: Maker(place, makes, returns, tuple(given))}
    module = _module(Path(file), returns)
    public = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_")}
    found = {n: f for n, f in public.items() if f.__module__ == module.__name__ and _takes_nothing(f)}
    if only:
        if only not in public:
            raise UsageError(f"{file} has no function '{only}'; it has {', '.join(found) or 'none without parameters'}")
        if not _takes_nothing(public[only]):
            raise UsageError(f"{place} has parameters; give a function without any, which returns {returns}")
        found = {only: public[only]}
    if not found:
        raise UsageError(f"{file} has no public function without parameters; write one that returns {returns}")
    made = {(name := f"{Path(file).name}:{n}"): Maker(name, f, returns, tuple(given)) for n, f in found.items()}
    return _one_at_most(made, given)


def _one_at_most(made: dict[str, Maker], given: Sequence[str]) -> dict[str, Maker]:
    if given and len(made) > 1:
        raise UsageError(f"{FLAG} gives the inputs of one model, and these are {len(made)}; name one: {', '.join(made)}")
    return made


def _takes_nothing(f: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in kinds for p in inspect.signature(f).parameters.values())


@dataclass(slots=True)
class Maker:
    """Makes a model with its inputs. said: where those that were made come from, "" where the function returns them."""

    name: str
    of: Callable[[], Any]
    returns: str = MODEL
    given: tuple[str, ...] = ()
    said: str = ""

    def __call__(self) -> Made:
        """(function, inputs, inputs by name), of the same random numbers each time. Raises UsageError."""
        torch.manual_seed(SEED)
        try:
            got = self.of()
        except UsageError:
            raise
        except Exception as e:
            why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}{raised_at(e)}"
            raise UsageError(f"{self.name} raises {why}") from e
        parts = got if isinstance(got, tuple) else (got,)
        if not callable(parts[0]):
            wanted = "a model or a function, and its inputs after it" if self.returns == MODEL else self.returns
            raise UsageError(f"{self.name} returns {_spelt(got)}; return {wanted}")
        if _is_training(parts):
            if self.returns == MODEL:
                raise UsageError(f"{self.name} returns make and the batches, which parity train takes (parity train --help)")
            return parts[0], parts[1:], {}
        return self._with_inputs(parts)

    def _with_inputs(self, parts: tuple[Any, ...]) -> Made:
        """A model with the inputs that were given, else those that it came with, else those that can be made."""
        wants = tuple(p for p in parts[1:] if isinstance(p, Wants))
        if self.given:
            args, kwargs = model_inputs.given(self.given, parts[0])
            return parts[0], args, kwargs
        if not isinstance(parts[0], nn.Module) or len(parts) > 1 + len(wants) or not takes_some(parts[0]):
            return as_call(parts)
        try:
            found = model_inputs.made(parts[0], *wants)
        except UsageError as e:
            raise UsageError(f"{self.name}: {e}") from None
        self.said = found.said
        return parts[0], found.args, dict(found.kwargs)


def _is_training(parts: tuple[Any, ...]) -> bool:
    """Whether it is what `parity train` takes: a function of a device, and batches that are no tensor."""
    if len(parts) != 2 or not inspect.isfunction(parts[0]) or isinstance(parts[1], torch.Tensor):
        return False
    return list(inspect.signature(parts[0]).parameters) == ["device"]


def as_call(parts: tuple[Any, ...]) -> Made:
    """What a function returned, as (function, inputs, inputs by name)."""
    if len(parts) == 3 and type(parts[1]) is tuple and type(parts[2]) is dict and all(isinstance(k, str) for k in parts[2]):
        return parts[0], parts[1], parts[2]
    if len(parts) == 2 and type(parts[1]) is tuple and _required(parts[0]) == len(parts[1]):
        return parts[0], parts[1], {}
    return parts[0], parts[1:], {}


def _required(fn: Callable[..., Any]) -> int:
    """How many inputs a model or function must be given; -1 where Python cannot say."""
    try:
        of = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn).parameters.values()
    except (TypeError, ValueError):
        return -1
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in of)


def _spelt(got: object) -> str:
    if isinstance(got, tuple):
        return f"a tuple that begins with {type(got[0]).__name__}" if got else "an empty tuple"
    return "nothing" if got is None else repr(got)[:40]


def _module(path: Path, returns: str) -> Any:
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}; name a Python file with functions that return {returns}")
    add_folder_to_path(path)
    name = f"parity_models_{path.stem}"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UsageError(f"{path} is no Python file; name one, with the ending .py, with functions that return {returns}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:  # a user's file may raise anything
        raise UsageError(f"{path} does not run ({type(e).__name__}: {e}); {mending(e)}") from e
    return module


# ---------------------------------------------------------------------------------------------------------- the process


def job(given: Given) -> Job:
    """Compare the functions of some files: an event before and after each. given: places, inputs, device, faults, setup,
    fail_on, and the names that are done."""
    asked = given.asked
    processes.prepare_torch()
    refuse_modes()
    if asked["setup"]:
        run_setup(asked["setup"])
    device = resolve(asked["device"], load_faults(asked["faults"]) if asked["faults"] else ())
    fail_on = tuple(map(Status, asked["fail_on"]))
    left = {name: make for name, make in of_places(asked["places"], asked["inputs"]).items() if name not in asked["done"]}
    given.of = len(left)
    for name, make in left.items():
        yield from _compared(name, make, device, fail_on)


def of_places(places: Sequence[str], given: Sequence[str] = ()) -> dict[str, Maker]:
    """What these places name, each function once. given: the inputs of the one model. Raises UsageError for functions of one
    name in two files."""
    made: dict[str, Maker] = {}
    files: dict[str, Path] = {}
    for place in places:
        file = Path(f"{place.partition('.py')[0]}.py").resolve()
        for name, make in functions(place, given=given).items():
            if files.setdefault(name, file) != file:
                raise UsageError(
                    f"two functions are called {name}, in {files[name]} and {file}; give the files different names"
                )
            made.setdefault(name, make)
    return _one_at_most(made, given)


def _compared(name: str, make: Maker, device: Any, fail_on: tuple[Status, ...]) -> Job:
    yield {BEGIN: {"name": name, "dtype": ""}}
    try:
        fn, inputs, kwargs = make()
        if odd := state.unusual(state.RECORDING[:1]):
            raise UsageError(f"{name}: its file leaves {odd[0]} in force, where no gradient is compared; end that mode there")
        yield {BEGIN: {"name": name, "dtype": subject(fn, inputs, kwargs).dtype, "made": make.said}}
        seen: list[Sides] = []
        comparison = compared(Request(fn, inputs, kwargs, device, fail_on=fail_on), seen.append).comparison
        item, records = rows(name, (comparison,))
        item = with_figures(item, seen[0]) if seen else item
    except ParityError as e:
        yield {"name": name, "why": f"{name} {str(e).removeprefix(name).lstrip(': ')}"}
        return
    yield {"name": name, "rows": [*map(encode, records), encode(item)]}
