"""`--setup FILE`: Python that runs before a device is touched. It sets a backend's flags, or imports a backend.

Load faults from a Python file or an installed module.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from parity.core import state
from parity.core.errors import FaultError, UsageError, described, mending
from parity.core.project import naming
from parity.devices.sim.faults import Fault

ran: list[str] = []  # the files that ran in this process
_kept: list[Any] = []  # what they define: a torch.library.Library takes its operators away when nobody holds it


def run_setup(path: str, option: str = "--setup") -> None:
    """Run the file, once per process, so that it adds once what it adds; it can import modules from its own folder. option: by
    which it was named. Raises UsageError, with the line, for any exception in it, including SystemExit."""
    if path in ran:
        return
    if not os.path.isfile(path):
        what = "sets what the device is to run with" if option == "--setup" else "adds what is asked for"
        raise UsageError(f"{option} {path}: no such file; give a Python file that {what}")
    add_folder_to_path(Path(path))
    with leaving_no_mode(f"{option} {path}"):
        try:
            _kept.append(runpy.run_path(path))
        except (Exception, SystemExit) as e:  # the file may do anything
            raise UsageError(f"{option} {path} raises {described(e, path)}; {mending(e)}, or leave it away") from None
    ran.append(path)


@contextlib.contextmanager
def leaving_no_mode(who: str) -> Iterator[None]:
    """Raise UsageError if what runs inside leaves a mode of torch in force, in which parity would compare less, or something
    else. Flags may be set for good. who: runs inside, in messages."""
    before = [p.read() for p in state.TAKING]
    yield
    _refuse(who, state.put_back(before, state.TAKING))


def refuse_modes() -> None:
    """Raise UsageError if such a mode is in force in a process of parity's own that has just imported torch."""
    _refuse("importing torch, with the backends that it loads by itself,", state.unusual(state.TAKING))


def _refuse(who: str, left: Sequence[str]) -> None:
    """Raise UsageError where something is left in force."""
    if left:
        raise UsageError(f"{who} leaves {'; '.join(left)} in force, so that not all would be compared; end that mode there")


def add_folder_to_path(file: Path) -> None:
    """Append the folder of a user's file to `sys.path`: at the end, so that it cannot hide Python's own modules."""
    folder = str(file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)


_loaded: list[tuple[str, tuple[Fault, ...]]] = []  # the files and modules of this process, with what they declare
EXPECTED = "a Python file with FAULTS = [Fault(...), ...] (from parity.devices import Fault), or the name of such a module"


def load_faults(place: str | Path) -> tuple[Fault, ...]:
    """The faults that a Python file or an importable module ("parity.zoo.bugs.convolution") declares: its list `FAULTS`, else
    the `fault` of each entry of its list `BUGS`, else every Fault among its module-level names. A file of that name takes
    precedence over a module.

    Raises FaultError if there is no such file or module, it does not run, it declares nothing, or two faults have the same id.
    """
    with naming("faults", str(place)):
        return _declared(place)


def _declared(place: str | Path) -> tuple[Fault, ...]:
    with leaving_no_mode(f"{place}"):
        module = load_module(place)
    if (declared := getattr(module, "FAULTS", None)) is not None:
        if not isinstance(declared, (list, tuple)) or not all(isinstance(f, Fault) for f in declared):
            raise FaultError(f"{place}: FAULTS must be a list of Fault, not {_spelt(declared)}; expected {EXPECTED}")
    elif (bugs := getattr(module, "BUGS", None)) is not None:
        if not isinstance(bugs, (list, tuple)) or not all(isinstance(getattr(b, "fault", None), Fault) for b in bugs):
            raise FaultError(
                f"{place}: BUGS must be a list of objects with a Fault as `fault`, not {_spelt(bugs)}; expected {EXPECTED}"
            )
        declared = [b.fault for b in bugs]
    else:
        declared = [v for v in vars(module).values() if isinstance(v, Fault)]
    if not declared:
        raise FaultError(f"{place}: declares no fault; expected {EXPECTED}")
    ids = [f.id for f in declared]
    if doubled := sorted({i for i in ids if ids.count(i) > 1}):
        raise FaultError(f"{place}: two faults are called '{doubled[0]}'; give each an id of its own")
    _loaded.append((str(place), tuple(declared)))
    return tuple(declared)


def place_of(faults: Sequence[Fault]) -> str:
    """The file or module that declares these faults, as it was named; "FILE" for those of the caller's own."""
    return next((place for place, some in reversed(_loaded) if some == tuple(faults)), "FILE")


def _spelt(declared: object) -> str:
    """A description of what was declared instead, including the entries of a list."""
    kinds = sorted({type(d).__name__ for d in declared}) if isinstance(declared, (list, tuple)) else ()
    return type(declared).__name__ + (f" of {', '.join(kinds)}" if kinds else "")


def _is_module_name(place: str) -> bool:
    return not place.endswith(".py") and all(part.isidentifier() for part in place.split("."))


def load_module(place: str | Path) -> ModuleType:
    """The Python file of this name, else the importable module. Raises FaultError if there is neither, or it does not run."""
    place = str(place)
    try:
        if not os.path.isfile(place) and _is_module_name(place):
            try:
                return importlib.import_module(place)
            except ModuleNotFoundError as e:
                # Only if the module itself or a package above it is missing, not a module that it imports.
                if e.name is None or not f"{place}.".startswith(f"{e.name}."):
                    raise
                raise FaultError(f"no such file and no such module; expected {EXPECTED}") from e
        return _from_file(Path(place))
    except FaultError as e:
        raise FaultError(f"{place}: {e}") from e
    except (Exception, SystemExit) as e:  # a user's file may raise anything
        raise FaultError(f"{place}: does not run ({type(e).__name__}: {e}); expected {EXPECTED}") from e


def _from_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):
        raise FaultError(f"no such file; expected {EXPECTED}")
    add_folder_to_path(path)
    name = f"parity_faults_{path.stem}"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FaultError(f"not a Python file; expected {EXPECTED}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up here
    spec.loader.exec_module(module)
    return module
