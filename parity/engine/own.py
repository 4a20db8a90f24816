"""Users' own models and functions as items of a run: `parity run FILE.py`, and tests that use `assert_parity`.

An item is called as its function, "models.py:bert", as the model, "timm:resnet18", or as its test,
"tests/test_net.py::test_bert". Its case has the same name.
A job (`parity.comparing.models`) compares each function, because a function may end the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from parity.core import project, untrusted
from parity.core.child import BEGIN
from parity.core.errors import UsageError, near
from parity.core.results import Record, Status
from parity.engine.child import Child, Watch
from parity.engine.inquest import STARTING, How
from parity.findings.known import Entry, Found
from parity.store import run_file
from parity.store.rows import AGREES, DEVICE, LIBRARIES, SEEN, Death, ItemRow, Row, Sighting, is_named, is_own

MODELS = "parity.comparing.models.job"
PATIENCE = 600.0  # seconds that one function may take
HOW = (
    "a Python file, models.py, a function in it, models.py:bert, or a model by its name, timm:resnet18, package.module:factory"
)
LAST_WORDS = 300  # most characters of what a process said last


def compared(
    places: Sequence[str], how: How, fail_on: Sequence[str] = (), inputs: Sequence[str] = (), say: Callable[[str], None] = print
) -> Iterator[Row | str]:
    """Compare the functions of some files, and models by name: an item and its records for each of them, a Death where one ends
    or hangs its process, and a text for a function that says nothing (it fails on the CPU, or nothing of it is compared) and
    for a process that ends before it has said that all is done.

    Raises UsageError if a file holds no such function.
    """
    done: list[str] = []
    given = {"places": [*places], "device": how.device, "faults": how.faults, "setup": how.setup, "fail_on": [*fail_on]}
    given["inputs"] = [*inputs]
    while True:
        with Child(MODELS, given | {"done": done}, Watch(STARTING + PATIENCE, PATIENCE)) as process:
            for event in process:
                if made := event.get(BEGIN, {}).get("made"):
                    say(f"{event[BEGIN]['name']}: {made}")
                elif BEGIN not in event:
                    yield from map(run_file.decode, event["rows"]) if "rows" in event else [event["why"]]
                    done.append(event["name"])
            end = process.ending()
        if process.at is None:
            if end.refused is not None:
                raise end.refused
            if end.died:
                last = untrusted.printable(" ".join(end.said.split())[-LAST_WORDS:])
                early = "" if end.whole else " before it was done"
                ended = f"the process that compares them ended{early} ({end.died})"
                yield f"{', '.join(places)}: {ended}{f': {last}' if last else ''}"
            return
        name, dtype = process.at["name"], process.at["dtype"]
        if dtype:
            yield Death(name, dtype, name, "", "hang" if end.hung else "crash", end.died, "device", blame=DEVICE)
        else:
            yield f"{name} ends its process while it is being made ({end.died})"
        done.append(name)


def names(places: Sequence[str], here: bool = True) -> tuple[str, ...]:
    """The places that name models. here: whether they run on this machine. Raises UsageError for a file that is not there, for
    a package that is not (the models come last, and may be waited for), and for what is no such name."""
    for place in places:
        file, _, function = place.partition(".py")
        if is_named(place):
            package = place.partition(":")[0].partition(".")[0]
            if here and package not in LIBRARIES and not _is_there(package):
                hint = near(package, LIBRARIES)
                said = f"{place}: there is no module {package}" + (f"; {hint}" if hint.startswith("did") else "")
                raise UsageError(said + project.origin("models", place))
            continue
        if not place.partition(":")[0].endswith(".py") or (function and not function.startswith(":")):
            raise UsageError(f"{place}: give {HOW}")
        if not Path(f"{file}.py").is_file():
            raise UsageError(f"{place}: there is no file {file}.py")
    return tuple(places)


def _is_there(package: str) -> bool:
    """Whether a package can be imported, or lies in the current folder."""
    return find_spec(package) is not None or Path(package).is_dir() or Path(f"{package}.py").is_file()


def are_models(pattern: str) -> bool:
    """Whether a pattern of `parity run` names models and no op."""
    return pattern.endswith(".py") or is_own(pattern)


def accepted(records: Sequence[Record], seen: Sequence[Sighting]) -> list[Record]:
    """The records of an own function, those that are known with their entries. seen: the `sightings` of all."""
    ids = {(s.op, s.aspect): s.id for s in seen if s.state == SEEN}
    return [replace(r, known=ids.get((r.op, r.aspect), "")) if r.shrunk else r for r in records]


def sightings(entries: Sequence[Entry], item: ItemRow, records: Sequence[Record], today: date) -> Iterator[Sighting]:
    """What the results of an own function are to the known findings: an entry that names it, with its status, accepts it."""
    for e in (e for e in entries if item.op in e.ops):
        found = [replace(Found.of(r), case=r.case) for r in records if r.status != Status.AGREE]
        yield from (e.sighting(x, today, e.excess(x)) for x in found)
        if not found:
            yield Sighting(e.id, item.op, item.dtype, AGREES, "", item.op)
