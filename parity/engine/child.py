"""Jobs in processes of their own, because what they call may end its process or hang: the side that starts them and watches.

A job is a function by its dotted name, and what it is given, as JSON (`parity.core.child` is the process). It has done what it
was given only where it says so at its end and exits with 0; everything else is a death.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from parity.core import child, copies, processes
from parity.core.child import BEGIN, END, REFUSED, Event
from parity.core.errors import DeviceError, NothingCompared, ParityError, UsageError
from parity.engine import journal

STARTING = 120.0  # seconds that a process may take until it says something
TICK, PART = 0.002, 0.05  # seconds between two looks at what a child says, and that as a part of how long it has been silent
SLOWEST = 0.1  # seconds between two looks at most
LAST_WORDS = 2000  # most bytes of what a process said last
REFUSALS: dict[int, type[ParityError]] = {e.exit_code: e for e in (DeviceError, NothingCompared, UsageError)}
OUTSIDERS = (signal.SIGKILL, signal.SIGTERM) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,)
KILLS = tuple(s.name for s in OUTSIDERS)
QUIET, SHOWN = "quiet", "shown"
COPIED = "parity.engine.jobs.", "parity.faces.replaying."  # jobs that need no new process, but one that computed nothing
WORDS = "words"  # of the folder: what the process printed on standard error


@dataclass(slots=True)
class Limit:
    """When children have to end, by `time.monotonic`. over: set when nobody wants their answers any more."""

    until: float = math.inf
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def left(self) -> float:
        """Seconds until then."""
        return 0.0 if self.over.is_set() else max(0.0, self.until - time.monotonic())


@dataclass(frozen=True, slots=True)
class Watch:
    """When a child hangs. starting: seconds until its first event, or the first entry of its journal; silence: seconds between
    two events; stages: those of the journal that must take no longer than it allows; limit: for all."""

    starting: float = STARTING
    silence: float = math.inf
    stages: Collection[str] = ()
    limit: Limit = field(default_factory=Limit)


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended. died: in words, empty where it did all that it was given; whole: whether it said so, and may have died
    only then; code: its exit code, None where it was ended here: it hung, or its time was over (late); lost: why it could do
    nothing any more; refused: what it raised; entry: of its journal, None if no case was running; said: its last words on
    standard error."""

    died: str
    whole: bool
    code: int | None
    hung: bool = False
    late: bool = False
    lost: str = ""
    refused: ParityError | None = None
    entry: journal.JournalEntry | None = None
    said: str = ""


class Child:
    """A job in a process. It is started at once, in a session of its own, so that Ctrl-C reaches only this process. at: what
    the job has begun and not done, None if nothing; began: when, by `time.monotonic`; end: how it ended, None before."""

    def __init__(
        self, job: str, given: object, watch: Watch = Watch(), *, environment: Mapping[str, str] | None = None,
        python: str = sys.executable, out: str | IO[str] = QUIET, fed: bool = False,
    ) -> None:  # fmt: skip
        """job: the function's dotted name; environment: the `surroundings` if this is not the main thread; out: where what it
        prints goes, `QUIET`: nowhere but for its last words, `SHOWN`: where that of this process goes; fed: more is sent with
        `send`."""
        self.at: Any = None
        self.end: End | None = None
        self._watch = watch
        processes.keep_folder(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix="parity-child-", ignore_cleanup_errors=True)
        self._path = Path(self._folder.name)
        (self._path / child.ASKED).write_text(json.dumps(given), encoding="utf-8")
        self._events = (self._path / child.EVENTS).open("a+b")
        self._rest, self._done, self._last = b"", 0, Event()
        self.began = self._heard = self._looked = time.monotonic()
        self._started = self._closed = False
        self._stops = processes.Stops()
        self._process = self._start(job, python, surroundings() if environment is None else environment, out, fed)

    def _start(
        self, job: str, python: str, environment: Mapping[str, str], out: str | IO[str], fed: bool
    ) -> subprocess.Popen[bytes] | copies.Copy:
        streams: dict[str, Any] = {"stdin": subprocess.PIPE if fed else None if out == SHOWN else subprocess.DEVNULL}
        if out == SHOWN:
            sys.stdout.flush()  # the child writes to the same stream
        with (self._path / WORDS).open("wb") as words:
            if out == QUIET:
                streams |= {"stdout": subprocess.DEVNULL, "stderr": words}
            elif out != SHOWN:
                streams |= {"stdout": out, "stderr": subprocess.STDOUT}
            command = processes.command(job, str(self._path), python)
            alike = out == QUIET and python == sys.executable and job.startswith(COPIED)
            if alike and (copy := _copied(command[-4:], environment, words.fileno(), fed)):
                return copy
            return subprocess.Popen(command, env=environment, start_new_session=True, **streams)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        """All events, until the process ends."""
        while isinstance(event := self.hear(), dict):
            yield event

    def hear(self, seconds: float = math.inf) -> Event | End | None:
        """The next event, or how the process ended; None if neither comes in so many seconds. What it said before it died comes
        before its end."""
        until = time.monotonic() + seconds
        while self.end is None:
            code = self._process.poll()
            if (event := self._next()) is not None:
                return event
            late, now = not self._watch.limit.left, time.monotonic()
            if code is not None or late or self._hangs(now):
                self._ended(code, late)
            elif now >= until:
                return None
            else:
                time.sleep(min(until - now, max(TICK, min(SLOWEST, PART * (now - self._heard)))))
        return self.end

    def ending(self) -> End:
        """Wait until the process has ended; how it did."""
        while not isinstance(end := self.hear(), End):
            pass
        return end

    def send(self, thing: object) -> None:
        """Send the job more; that it ends just now is seen when it is heard."""
        assert self._process.stdin is not None
        self._heard = time.monotonic()
        with suppress(OSError):
            self._process.stdin.write(json.dumps(thing).encode() + b"\n")
            self._process.stdin.flush()

    def stop(self, seconds: float) -> End:
        """Ask the process to stop, as Ctrl-C does; it is ended after so many seconds, or at a second Ctrl-C. How it ended."""
        until = time.monotonic() + seconds
        with suppress(OSError, ValueError, KeyboardInterrupt):
            self._process.send_signal(signal.SIGINT)
            while self.hear(until - time.monotonic()) is not None and self.end is None:
                pass
        if self.end is None:
            self._ended(None, True)
        return self.ending()

    def close(self) -> None:
        """End the process, with all that it has started, and remove its folder."""
        if self._closed:  # its number may be another process's by now
            return
        self._closed = True
        kill(self._process)
        self._events.close()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._folder.cleanup()

    def _next(self) -> Event | None:
        self._rest += self._events.read()
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return None
        try:
            event: Event = json.loads(line)
            event.get(END)
        except (ValueError, AttributeError):  # a call has written among the events: the end record will not agree
            self._rest = rest
            return self._next()
        self._rest, self._heard, self._started = rest, time.monotonic(), True
        if END in event or REFUSED in event:
            self._last = event
            return self._next()
        self.at = event.get(BEGIN)
        if self.at is None:
            self._done += 1
        else:
            self.began = self._heard
        return event

    def _hangs(self, now: float) -> bool:
        stopped = self._stops.last(self._process.pid)
        if now - max(self._heard, stopped) > (self._watch.silence if self._started else self._watch.starting) and (
            self._started or journal.read(self._path / child.JOURNAL) is None
        ):
            return True
        if not self._watch.stages or now - self._looked < SLOWEST:
            return False
        self._looked, entry = now, journal.read(self._path / child.JOURNAL)
        return entry is not None and entry.stage in self._watch.stages and entry.is_overdue(stopped)

    def _ended(self, code: int | None, late: bool) -> None:
        """Take what it leaves behind, and end it."""
        notes, words = self._path / child.JOURNAL, self._path / WORDS
        entry, lost, last = journal.read(notes), notes.with_suffix(".lost"), self._last
        said = words.read_bytes()[-LAST_WORDS:].decode(errors="replace").strip() if words.exists() else ""
        why = lost.read_text(encoding="utf-8", errors="replace") if code is not None and lost.exists() else ""
        refused = REFUSALS.get(last["code"], ParityError)(last[REFUSED]) if REFUSED in last else None
        whole = last.get(END) == last.get("of", -1) == self._done
        took = f"no answer within {time.monotonic() - self.began:.0f} s"
        died = "" if whole and code == 0 else why or str(refused or "") or (took if code is None else word(code))
        at = entry if entry is not None and entry.running else None
        self.end = End(died, whole, code, code is None and not late, code is None and late, why, refused, at, said)
        self.close()


def _copied(command: Sequence[str], environment: Mapping[str, str], words: int, fed: bool) -> copies.Copy | None:
    """A copy that does a job and prints nothing; None where there is none. command: its `sys.argv`; words: the file of its
    last words; fed: whether it is sent more."""
    with Path(os.devnull).open("r+b") as nowhere, ExitStack() as opened:
        theirs, ours = os.pipe() if fed else (nowhere.fileno(), -1)
        stdin = opened.enter_context(os.fdopen(ours, "wb")) if fed else None
        copy = copies.start(command, environment, (theirs, nowhere.fileno(), words), stdin)
        if fed:
            os.close(theirs)
        if copy is not None:
            opened.pop_all()  # it is fed until it ends
        return copy


def surroundings() -> dict[str, str]:
    """The environment of a child. Taken in the main thread, because it changes the environment."""
    with processes.isolated():
        return dict(os.environ)


def kill(process: subprocess.Popen[Any] | copies.Copy) -> None:
    """End the process and all its children."""
    try:
        os.killpg(process.pid, OUTSIDERS[0])
    except (AttributeError, OSError):  # no killpg on this system, or the process has ended
        process.kill()
    process.wait()


def word(code: int | None) -> str:
    """How a process ended: the name of the signal, or the exit code."""
    if code is None:
        return "unknown"
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"
