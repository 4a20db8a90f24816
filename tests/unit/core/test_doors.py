"""The doors: what others made is read within limits or refused in a sentence, and what parity writes is whole or not there."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.core import outputs, processes, untrusted
from parity.core.errors import LONGEST, OutputError, ParityError, UsageError, brief

posix = pytest.mark.skipif(os.name == "nt", reason="pipes, devices and signals of POSIX")


def odd(folder: Path, kind: str) -> Path:
    """Something with a name that is no file."""
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.relpath(path))  # a socket's name is short
    else:
        return Path("/dev/zero")
    return path


@posix
@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_what_is_no_file_is_neither_read_nor_written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: nobody waits for a writer, and nothing of a device is read."""
    monkeypatch.chdir(tmp_path)
    path = odd(tmp_path, kind)
    with pytest.raises(ValueError, match=f"it is not an ordinary file but a {kind}"):
        untrusted.content(path, 10)
    with pytest.raises(ValueError, match="not an ordinary file"):
        untrusted.Archive(path)
    with pytest.raises(OutputError, match="a folder" if kind == "folder" else f"not an ordinary file but a {kind}"):
        outputs.refuse(path, "--output")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    assert untrusted.content(path, 10) == b"x" * 10
    with pytest.raises(ValueError, match="larger than"):
        untrusted.content(path, 9)


@pytest.mark.skipif(sys.platform != "linux", reason="a file whose size the system does not say")
def test_a_file_that_says_it_is_empty_has_the_limit_too() -> None:
    with pytest.raises(ValueError, match="larger than"):
        untrusted.content(Path("/proc/self/status"), 100)


@pytest.mark.parametrize("text", [f"{'a.' * 3000}a = 1", f"a = {'[' * 60}{']' * 60}", f"a = {'[' * 90_000}"])
def test_tables_within_tables_have_a_limit(text: str) -> None:
    with pytest.raises(ValueError, match="too deep"):
        untrusted.toml(text)
    assert untrusted.toml("a.b.c = [[1]]") == {"a": {"b": {"c": [[1]]}}}


@posix
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("printf '\\377'", "its answer is not text"),
        ("head -c 2000000 /dev/zero", "more than 1 MiB"),
        ("sleep 60 & sleep 60", "no answer within 1 s"),
    ],
)
def test_a_program_that_answers_oddly_is_refused(program: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        untrusted.answer(["sh", "-c", program], 1.0)
    assert untrusted.answer(["sh", "-c", "echo yes; exit 3"], 10.0) == (3, "yes\n")


# -------------------------------------------------------------------------------------------------------------------- outputs


def half_written(path: Path, error: Exception) -> None:
    with outputs.replacing(path) as draft:
        draft.write_text("half")
        raise error


def test_a_file_is_replaced_when_it_is_whole(tmp_path: Path) -> None:
    """A link stays one, the permissions stay, and nothing is left of what failed."""
    path, link = tmp_path / "new" / "f", tmp_path / "link"
    outputs.write(path, "one")
    path.chmod(0o640)
    link.symlink_to(path)
    outputs.write(link, "two é")
    assert (link.is_symlink(), path.read_text(encoding="utf-8"), stat.S_IMODE(path.stat().st_mode)) == (True, "two é", 0o640)
    for error, kind in ((RuntimeError(), RuntimeError), (OSError(28, "No space left on device"), OutputError)):
        with pytest.raises(
            kind, match="" if kind is RuntimeError else "cannot write .*f: No space left on device; name another"
        ):
            half_written(path, error)
    assert path.read_text(encoding="utf-8") == "two é"
    assert os.listdir(path.parent) == ["f"]
    outputs.write(Path(os.devnull), "nothing")


@posix
@pytest.mark.parametrize("name", [os.fsdecode(b"a\xff.json"), "\ud800", "a" * 300, "b" * 3000, "f/below"])
def test_a_name_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(OutputError) as e:
        outputs.refuse(tmp_path / name, "--output")
    assert str(e.value).endswith("with --output")
    assert str(e.value).isprintable()
    assert len(str(e.value)) <= LONGEST
    outputs.refuse(tmp_path / "g", "--output")


# ------------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    "text",
    [
        f"the value '{'x' * 5000}' has more than 40 characters; give a shorter one",
        f"there is no {'/long' * 900}/name, of 4 MiB at most; name another file",
        f"{'many words ' * 300}and a limit of 7; do the next thing",
        f"'{'a' * 400}' and '{'b' * 400}' are the same; name one of them",
        "the value '" + "\x1b[2J" * 900 + "' is no name; give one",
    ],
)
def test_a_message_keeps_its_limit_and_its_next_step(text: str) -> None:
    """Its value is cut in the middle."""
    made = str(UsageError(text))
    assert (len(made) <= LONGEST, " ... " in made, made[:4]) == (True, True, text[:4])
    assert made.isprintable()
    assert made.endswith(text.rpartition("; ")[2])
    assert "many words" in text or text.rpartition("; ")[0][-12:] in made
    assert brief(made) == made == str(ParityError(made))


# --------------------------------------------------------------------------------------------------------- stopped, not hanging


@posix
def test_a_process_that_is_stopped_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of one that was stopped begins anew, and that of one that was not does not."""
    monkeypatch.setattr(processes, "STOP_LOOK", 0.0)
    both = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    stops, (still, runs) = processes.Stops(), both
    stops._awake = float("inf")
    try:
        still.send_signal(signal.SIGSTOP)
        for _ in range(100):
            if processes.is_stopped(still.pid):
                break
            time.sleep(0.02)
        assert stops.last(still.pid) > 0.0
        stops._awake = float("inf")
        assert stops.last(runs.pid) == 0.0
        still.send_signal(signal.SIGCONT)
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert not processes.is_stopped(still.pid)


def test_the_time_in_which_this_process_was_stopped_counts_for_nobody() -> None:
    stops = processes.Stops()
    stops._awake -= 30.0
    assert stops.last(os.getpid()) == pytest.approx(time.monotonic(), abs=5.0)
