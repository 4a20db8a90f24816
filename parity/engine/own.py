"""Users' own models and functions as items of a run: `parity run FILE.py`, and tests that use `assert_parity`.

An item is called as its function, "models.py:bert", or as its test, "tests/test_net.py::test_bert". Its case has the same name.
A process of its own (`parity.comparing.models`) compares each function, because a function may end the process.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from parity.core import processes, untrusted
from parity.core.errors import UsageError
from parity.core.results import Record, Status
from parity.engine.inquest import STARTING, How, end, word
from parity.findings.known import Entry
from parity.store import run_file
from parity.store.rows import AGREES, DEVICE, EXPIRED, GROWN, SEEN, Death, ItemRow, Row, Sighting

MARK = "parity model "  # before each line of the protocol, because a model may print, too
BEGIN, ROWS, FAILED, DONE = "begin", "rows", "failed", "done"  # the last one after all functions
PATIENCE = 600.0  # seconds that one function may take
LAST_WORDS = 300  # most characters of what a process said last


def compared(places: Sequence[str], how: How, fail_on: Sequence[str] = ()) -> Iterator[Row | str]:
    """Compare the functions of some files: an item and its records for each of them, a Death where one ends or hangs its
    process, and a text for a function that says nothing (it fails on the CPU, or nothing of it is compared) and for a process
    that ends before it has said that all is done.

    Raises UsageError if a file holds no such function.
    """
    done: list[str] = []
    while True:
        at: tuple[str, str] | None = None
        whole = False
        process, said = _started(places, how, fail_on, done)
        began = time.monotonic()
        try:
            for kind, sent in _heard(process, said):
                if kind == DONE:
                    whole = True
                elif kind == BEGIN:
                    at, began = (sent["name"], sent["dtype"]), time.monotonic()
                elif kind == FAILED and at is None:
                    raise UsageError(sent["why"])
                else:
                    yield from (run_file.decode(line) for line in sent["rows"]) if kind == ROWS else [sent["why"]]
                    done.append(sent["name"])
                    at = None
            hung = process.poll() is None
        finally:
            end(process)
        if at is None:
            if process.returncode != 0 or not whole:
                last = untrusted.printable(" ".join(_rest(process).split())[-LAST_WORDS:])
                early = "" if whole else " before it was done"
                ended = f"the process that compares them ended{early} ({word(process.returncode)})"
                yield f"{', '.join(places)}: {ended}{f': {last}' if last else ''}"
            return
        if not at[1]:
            yield f"{at[0]} ends its process while it is being made ({word(process.returncode)})"
            done.append(at[0])
            continue
        took = f"no answer within {time.monotonic() - began:.0f} s" if hung else word(process.returncode)
        yield Death(at[0], at[1], at[0], "", "hang" if hung else "crash", took, "device", blame=DEVICE)
        done.append(at[0])


def _started(
    places: Sequence[str], how: How, fail_on: Sequence[str], done: Sequence[str]
) -> tuple[subprocess.Popen[str], Queue[str | None]]:
    asked = {"places": [*places], "device": how.device, "faults": how.faults, "setup": how.setup}
    asked |= {"fail_on": [*fail_on], "done": [*done]}
    with processes.isolated():
        process = subprocess.Popen(
            processes.command("parity.comparing.models", json.dumps(asked)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
    said: Queue[str | None] = Queue()

    def hear() -> None:
        for line in process.stdout or ():
            if line.startswith(MARK):
                said.put(line.removeprefix(MARK))
        said.put(None)

    Thread(target=hear, daemon=True).start()
    return process, said


def _heard(process: subprocess.Popen[str], said: Queue[str | None]) -> Iterator[tuple[str, dict[str, str]]]:
    """What the process says, (word, content), until it ends or is silent for too long."""
    patience = STARTING + PATIENCE
    while True:
        try:
            line = said.get(timeout=patience)
        except Empty:
            return
        if line is None:
            process.wait()
            return
        kind, _, text = line.partition(" ")
        with suppress(ValueError):  # a model may print what looks like it
            yield kind, json.loads(text)
        patience = PATIENCE


def _rest(process: subprocess.Popen[str]) -> str:
    try:
        return process.stderr.read() if process.stderr is not None else ""
    except (OSError, ValueError):
        return ""


def names(places: Sequence[str]) -> tuple[str, ...]:
    """The places with full paths, for a process that stands elsewhere. Raises UsageError for a file that is not there."""
    found = []
    for place in places:
        file, _, function = place.partition(".py")
        path = Path(f"{file}.py")
        if not place.partition(":")[0].endswith(".py") or (function and not function.startswith(":")):
            raise UsageError(f"{place}: give a Python file, models.py, or a function in it, models.py:bert")
        if not path.is_file():
            raise UsageError(f"{place}: there is no file {path}")
        found.append(place)
    return tuple(found)


def accepted(records: Sequence[Record], seen: Sequence[Sighting]) -> list[Record]:
    """The records of an own function, those that are known with their entries. seen: the `sightings` of all."""
    ids = {(s.op, s.aspect): s.id for s in seen if s.state == SEEN}
    return [replace(r, known=ids.get((r.op, r.aspect), "")) if r.shrunk else r for r in records]


def sightings(entries: Sequence[Entry], item: ItemRow, records: Sequence[Record], today: date) -> Iterator[Sighting]:
    """What the results of an own function are to the known findings: an entry that names it, with its status, accepts it."""
    for e in (e for e in entries if item.op in e.ops):
        found = [r for r in records if r.status != Status.AGREE]
        more = {r.aspect: e.exceeded(r.dtype, r.extent) for r in found}
        bad = [r for r in found if e.holds(r.op, r.dtype, r.aspect, r.status) and not more[r.aspect]]
        for r in bad:
            late = e.expired(today)
            why = f"accepted until {e.until}: {e.reason}" if late else e.why
            yield Sighting(e.id, r.op, r.dtype, EXPIRED if late else SEEN, r.aspect, r.case, why, late)
        for r in (r for r in found if r not in bad):
            why = e.beyond(r.op, r.dtype, r.status) or more[r.aspect] or f"now in the {r.aspect} pass"
            yield Sighting(e.id, r.op, r.dtype, GROWN, r.aspect, r.case, why, True)
        if not found:
            yield Sighting(e.id, item.op, item.dtype, AGREES, "", item.op)
