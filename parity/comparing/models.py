"""Users' own models and functions in a file, each compared as by `assert_parity`.

A file holds functions without parameters. Each returns what is to be compared, a model or a function and then its inputs:

    def bert():
        return make_bert().eval(), torch.randint(1000, (2, 16))

or, as `torch.export` takes them, `(model, (inputs, ...), {"name": input})`.
`parity run FILE.py` compares them in a job (`parity.engine.own`). Before each function is called, torch's seed is set to 0, so
that two runs compare equal weights.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from parity.comparing.function import Sides, compared, raised_at
from parity.comparing.own_figures import with_figures
from parity.comparing.request import Request
from parity.comparing.rows import rows
from parity.comparing.subject import SEED, subject
from parity.core import processes, state
from parity.core.child import BEGIN, Given, Job
from parity.core.errors import ParityError, UsageError
from parity.core.results import Status
from parity.devices import load_faults, resolve
from parity.devices.setup import add_folder_to_path, refuse_modes, run_setup
from parity.store.run_file import encode

MODEL = "a model and its inputs"
Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


# ------------------------------------------------------------------------------------------------------ what a file holds


def functions(place: str, returns: str = MODEL) -> dict[str, Callable[[], Made]]:
    """The functions of a place, "models.py" or "models.py:bert", by their names in run files; each returns (function, inputs,
    inputs by name). returns: what they return, in words.

    Raises UsageError if the file does not run or holds no such function.
    """
    file, _, only = place.partition(":")
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
    return {f"{Path(file).name}:{n}": _maker(f"{Path(file).name}:{n}", f, returns) for n, f in found.items()}


def _takes_nothing(f: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in kinds for p in inspect.signature(f).parameters.values())


def _maker(name: str, f: Callable[[], Any], returns: str) -> Callable[[], Made]:
    def made() -> Made:
        torch.manual_seed(SEED)
        try:
            got = f()
        except Exception as e:
            raise UsageError(f"{name} raises {type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}{raised_at(e)}") from e
        parts = got if isinstance(got, tuple) else (got,)
        if not callable(parts[0]):
            wanted = "a model or a function, and its inputs after it" if returns == MODEL else returns
            raise UsageError(f"{name} returns {_spelt(got)}; return {wanted}")
        if returns == MODEL and _is_training(parts):
            raise UsageError(f"{name} returns make and the batches, which parity train takes (parity train --help)")
        return as_call(parts) if returns == MODEL else (parts[0], parts[1:], {})

    return made


def _is_training(parts: tuple[Any, ...]) -> bool:
    """Whether it is what `parity train` takes: a function of a device, and batches that are no tensor."""
    if len(parts) != 2 or not inspect.isfunction(parts[0]) or isinstance(parts[1], torch.Tensor):
        return False
    return list(inspect.signature(parts[0]).parameters) == ["device"]


def as_call(parts: tuple[Any, ...]) -> Made:
    """What a function returned, as (function, inputs, inputs by name)."""
    if len(parts) == 3 and type(parts[1]) is tuple and type(parts[2]) is dict and all(isinstance(k, str) for k in parts[2]):
        return parts[0], parts[1], parts[2]
    return parts[0], parts[1:], {}


def _spelt(got: object) -> str:
    if isinstance(got, tuple):
        return f"a tuple that begins with {type(got[0]).__name__}" if got else "an empty tuple"
    return "nothing" if got is None else repr(got)[:40]


def _module(path: Path, returns: str) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}; name a Python file with functions that return {returns}")
    add_folder_to_path(path)
    name = f"parity_models_{path.stem}"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:  # a user's file may raise anything
        raise UsageError(f"{path} does not run ({type(e).__name__}: {e}); mend it") from e
    return module


# ---------------------------------------------------------------------------------------------------------- the process


def job(given: Given) -> Job:
    """Compare the functions of some files: an event before and after each. given: places, device, faults, setup, fail_on,
    and the names that are done."""
    asked = given.asked
    processes.prepare_torch()
    refuse_modes()
    if asked["setup"]:
        run_setup(asked["setup"])
    device = resolve(asked["device"], load_faults(asked["faults"]) if asked["faults"] else ())
    fail_on = tuple(map(Status, asked["fail_on"]))
    left = {name: make for name, make in of_places(asked["places"]).items() if name not in asked["done"]}
    given.of = len(left)
    for name, make in left.items():
        yield from _compared(name, make, device, fail_on)


def of_places(places: Sequence[str]) -> dict[str, Callable[[], Made]]:
    """What these places name, each function once. Raises UsageError for functions of one name in two files."""
    made: dict[str, Callable[[], Made]] = {}
    files: dict[str, Path] = {}
    for place in places:
        file = Path(f"{place.partition('.py')[0]}.py").resolve()
        for name, make in functions(place).items():
            if files.setdefault(name, file) != file:
                raise UsageError(
                    f"two functions are called {name}, in {files[name]} and {file}; give the files different names"
                )
            made.setdefault(name, make)
    return made


def _compared(name: str, make: Callable[[], Made], device: Any, fail_on: tuple[Status, ...]) -> Job:
    yield {BEGIN: {"name": name, "dtype": ""}}
    try:
        fn, inputs, kwargs = make()
        if odd := state.unusual(state.RECORDING[:1]):
            raise UsageError(f"{name}: its file leaves {odd[0]} in force, where no gradient is compared; end that mode there")
        yield {BEGIN: {"name": name, "dtype": subject(fn, inputs, kwargs).dtype}}
        seen: list[Sides] = []
        comparison = compared(Request(fn, inputs, kwargs, device, fail_on=fail_on), seen.append).comparison
        item, records = rows(name, (comparison,))
        item = with_figures(item, seen[0]) if seen else item
    except ParityError as e:
        yield {"name": name, "why": f"{name} {str(e).removeprefix(name).lstrip(': ')}"}
        return
    yield {"name": name, "rows": [*map(encode, records), encode(item)]}
