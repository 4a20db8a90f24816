"""What a worker is about to do, as the controller reads it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.engine import journal


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Item, case, ordinal, stage and time."""
    j = journal.Journal(tmp_path / "j")
    j.begin(7, "add-float32", "add(float32[2], float32[2])", 5.0)
    j.stage("device")
    entry = journal.read(tmp_path / "j")
    assert entry is not None
    assert (entry.running, entry.stage, entry.ordinal) == (True, "device", 7)
    assert (entry.item, entry.case) == ("add-float32", "add(float32[2], float32[2])")
    assert not entry.is_overdue()
    j.end()
    after = journal.read(tmp_path / "j")
    assert after is not None
    assert not after.running
    j.close()


def test_a_folder_that_somebody_has_removed_is_made_again(tmp_path: Path) -> None:
    """A worker that starts then finds none."""
    journal.Journal(tmp_path / "gone" / "too" / "journal").begin(1, "exp-float32", "exp(float32[2])", 1.0)
    entry = journal.read(tmp_path / "gone" / "too" / "journal")
    assert entry is not None
    assert entry.ordinal == 1


def test_a_case_is_overdue_when_its_time_is_over(tmp_path: Path) -> None:
    """And only while it runs."""
    j = journal.Journal(tmp_path / "j")
    j.begin(0, "i", "c", 0.01)
    time.sleep(0.02)
    entry = journal.read(tmp_path / "j")
    assert entry is not None
    assert entry.is_overdue()
    j.end()
    entry = journal.read(tmp_path / "j")
    assert entry is not None
    assert not entry.is_overdue()


def test_each_stage_has_the_time_of_a_whole_case(tmp_path: Path) -> None:
    """Many calls on a slow device are no hang, and one that never returns is."""
    j = journal.Journal(tmp_path / "j")
    j.begin(0, "i", "c", 0.05)
    for _ in range(4):
        time.sleep(0.03)
        j.stage("device")
        entry = journal.read(tmp_path / "j")
        assert entry is not None
        assert not entry.is_overdue()
    time.sleep(0.06)
    entry = journal.read(tmp_path / "j")
    assert entry is not None
    assert (entry.is_overdue(), entry.case, entry.stage) == (True, "c", "device")
    j.close()


def test_a_judge_that_takes_long_is_no_hang_of_the_device(tmp_path: Path) -> None:
    """Judging a large result takes seconds on the CPU; it has more time than a call, and not for ever."""
    j = journal.Journal(tmp_path / "j")
    j.begin(0, "i", "c", 0.1)
    overdue = []
    for stage, slept in (("device", 0.15), ("compare", 0.15), ("compare", 0.1 * journal.COMPARING + 0.05)):
        j.stage(stage)
        time.sleep(slept)
        entry = journal.read(tmp_path / "j")
        assert entry is not None
        overdue.append(entry.is_overdue())
    assert overdue == [True, False, True]
    j.close()


def test_it_survives_the_death_of_its_writer(tmp_path: Path) -> None:
    """Written through a mapping, read after an abort."""
    program = (
        "import os, sys; from pathlib import Path; from parity.engine.journal import Journal\n"
        "j = Journal(Path(sys.argv[1])); j.begin(3, 'exp-float32', 'exp(float32[1])', 9.0); j.stage('device'); os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "j")], capture_output=True, check=False)
    assert done.returncode < 0
    entry = journal.read(tmp_path / "j")
    assert entry is not None
    assert (entry.running, entry.stage, entry.case) == (True, "device", "exp(float32[1])")


def test_a_lost_device_ends_the_process_and_says_why(tmp_path: Path) -> None:
    """With an exit code of its own, and the case still running in the journal."""
    program = (
        "import sys; from pathlib import Path; from parity.engine.journal import Journal\n"
        "j = Journal(Path(sys.argv[1])); j.begin(3, 'i', 'c', 9.0); j.lost('misaligned address')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "j")], capture_output=True, check=False)
    assert done.returncode == journal.LOST
    assert (tmp_path / "j.lost").read_text() == "misaligned address"


def test_it_knows_the_cases_that_have_begun(tmp_path: Path) -> None:
    """As many as a history may have and the one at hand; one that begins twice is one."""
    notes = journal.Journal(tmp_path / "journal")
    for text in (f"exp(float32[{k // 2}])" for k in range(200)):
        notes.begin(0, "exp-float32", text, 1.0)
    notes.close()
    assert list(notes.calls) == [f"exp(float32[{k}])" for k in range(99 - journal.CALLS, 100)]


def test_no_journal_yet_is_none(tmp_path: Path) -> None:
    """Neither a missing nor a cut file is an error: the worker may just be starting."""
    assert journal.read(tmp_path / "none") is None
    (tmp_path / "cut").write_bytes(b"\1\2")
    assert journal.read(tmp_path / "cut") is None
    fresh = journal.Journal(tmp_path / "fresh")
    assert journal.read(tmp_path / "fresh") is None, "its pid is 0, which would mean a process group"
    fresh.close()


@pytest.mark.parametrize("worker", [False, True])
def test_a_copy_of_the_process_writes_nothing_into_its_journal(
    worker: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code may fork without Python's hooks: that copy ends. One of `multiprocessing` goes on, and nobody reads it."""
    j = journal.Journal(tmp_path / "journal")
    j.begin(1, "exp-float32", "exp(float32[2])", 20.0)
    j.stage("device")
    before = journal.read(tmp_path / "journal")
    assert before is not None
    ended: list[int] = []

    def end(code: int) -> None:
        ended.append(code)
        raise SystemExit

    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object() if worker else None)
    with contextlib.nullcontext() if worker else pytest.raises(SystemExit):
        j.begin(2, "exp-float32", "exp(float32[3])", 20.0)
        j.stage("compare")
        j.end()
    assert ended == ([] if worker else [journal.LOST])
    assert journal.read(tmp_path / "journal") == before


WRITER = """
import sys, time
from pathlib import Path
from parity.engine.journal import STAGES, Journal
j = Journal(Path(sys.argv[1]))
print(flush=True)
until = time.monotonic() + 60
for i in range(10**9):
    j.begin(i, "i", "x" * (i % 300), 10.0)
    for stage in STAGES:
        j.stage(stage)
    j.end()
    if time.monotonic() > until:
        break
"""


def test_no_reader_sees_half_of_a_change(tmp_path: Path) -> None:
    """A time that is not written yet would be a hang since the machine was started."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "j")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            entries = [(e, e.is_overdue()) for _ in range(20_000) if (e := journal.read(tmp_path / "j")) is not None]
        finally:
            writer.kill()
    assert len({e.ordinal for e, _ in entries}) > 100
    assert not any(overdue for _, overdue in entries)
    assert all(e.case == "x" * (e.ordinal % 300) for e, _ in entries)


def test_each_change_is_counted_at_its_begin_and_its_end(tmp_path: Path) -> None:
    notes, path = journal.Journal(tmp_path / "j"), tmp_path / "j"
    notes.begin(0, "exp-float32", "exp(float32[2])", 1.0)
    notes.stage("device")
    assert journal.CHANGES.unpack_from(path.read_bytes(), journal.CHANGES_AT) == (4,)
