"""A worker that ends while it starts is started again."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import execnet
import pytest

from parity.faces import running
from parity.faces.workers import STARTS, persistent


@pytest.fixture
def group() -> Iterator[Any]:
    group = execnet.Group()
    yield group
    group.terminate(timeout=2.0)


def dying_python(folder: Path, times: int) -> Path:
    """A Python that ends at once, so many times."""
    path, count = folder / "python", folder / "starts"
    lines = (f"echo x >> {count}", f"[ $(wc -l < {count}) -gt {times} ] || exit 9", f'exec {sys.executable} "$@"')
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    path.chmod(0o755)
    return path


def starter(group: Any) -> Any:
    """Starts a worker and asks it for something, as xdist does."""

    def start(spec: Any) -> Any:
        gateway = group.makegateway(spec)
        assert gateway.remote_exec("channel.send(6 * 7)").receive() == 42
        return gateway

    return persistent(start, group)


@pytest.mark.parametrize("named", [False, True], ids=["this Python", "a Python by name"])
def test_a_worker_that_is_killed_in_its_first_second_is_started_again(
    tmp_path: Path, group: Any, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Killing a worker before xdist knew it ended the whole run with an internal error."""
    python = dying_python(tmp_path, STARTS - 1)
    if not named:
        monkeypatch.setattr(sys, "executable", str(python))
    assert starter(group)(execnet.XSpec(f"popen{f'//python={python}' if named else ''}//id=gw0")).id == "gw0"


def test_one_that_never_starts_is_an_error(tmp_path: Path, group: Any) -> None:
    """It is tried so many times, and no more."""
    spec = execnet.XSpec(f"popen//python={dying_python(tmp_path, 99)}//id=gw0")
    with pytest.raises((EOFError, OSError)):
        starter(group)(spec)
    assert len((tmp_path / "starts").read_text().splitlines()) == STARTS


def test_one_that_is_gone_after_it_was_known_leaves_its_name(group: Any) -> None:
    """What starts again has the same id, which must be free."""
    tries = []

    def start(spec: Any) -> Any:
        gateway = group.makegateway(spec)
        tries.append(gateway)
        if len(tries) == 1:
            raise OSError("cannot send (already closed?)")
        return gateway

    assert persistent(start, group)(execnet.XSpec("popen//id=gw0")).id == "gw0"
    assert [g for g in group if g.id == "gw0"] == [tries[-1]]


@pytest.mark.parametrize("gone", [True, False], ids=["temporary folder gone", "another file missing"])
def test_pytest_starts_again_where_its_temporary_folder_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """It opens files there before its first hook. A file that is missing for another reason is an error at once."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    calls: list[Sequence[str]] = []

    def fails_once(args: Sequence[str], plugins: object) -> int:
        calls.append(args)
        if len(calls) == 1:
            if gone:
                folder.rmdir()
            raise FileNotFoundError(2, "No such file or directory")
        return int(not folder.is_dir())

    monkeypatch.setattr(pytest, "main", fails_once)
    if gone:
        assert running._main(["--this"], None) == 0
    else:
        with pytest.raises(FileNotFoundError):
            running._main(["--this"], None)
    assert calls == [["--this"]] * (1 + gone)
