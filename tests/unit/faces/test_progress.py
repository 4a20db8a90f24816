"""A run as it goes: what stands on a terminal fits there, and what is said is not lost."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, cast

import pytest

from parity.core.errors import OutputError
from parity.core.results import Cause, Fingerprint, Record
from parity.engine.inquest import How
from parity.engine.run_state import RunState, Unexplained
from parity.faces.interruption import Interruptions
from parity.faces.progress import Reporter
from parity.report import output
from parity.report.output import Outlet
from parity.store import run_file
from parity.store.code import Code
from parity.store.features import pack
from parity.store.rows import Death, End, Header, ItemRow, Row


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def reporter(path: Path, stream: TextIO) -> Reporter:
    run = RunState(Header(Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)), path)
    run.expected, run.done, run.checks, run.findings = 4315, 1721, 171_127, 12
    return Reporter(run, stream)


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_the_bar_never_breaks_into_a_second_line(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that breaks could not be wiped out again."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((columns, 30)))
    screen = Screen()
    made = reporter(tmp_path / "run.jsonl", screen)
    made.run.started -= 1000.0
    made._progress()
    line = screen.getvalue().removeprefix("\r\033[K")
    assert len(line) < columns
    assert ("[" in line) == (columns > 40)
    assert "40%  1721/4315 items" in line


def test_the_end_is_folded_to_the_screen_and_not_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((60, 30)))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    screen, log = Screen(), io.StringIO()
    for stream in (screen, log):
        reporter(Path("run.jsonl"), cast(TextIO, Outlet(stream))).finish(0)
    told, plain = (s.getvalue().split("\n") for s in (screen, log))
    assert max(map(len, told)) <= 60 < max(map(len, plain))


def test_ctrl_c_is_answered_and_what_is_done_is_kept(tmp_path: Path) -> None:
    """At once: ending the workers may take a while."""
    log, path = io.StringIO(), tmp_path / "run.jsonl"
    made = reporter(path, log)
    made.pytest_keyboard_interrupt()
    assert log.getvalue() == f"interrupted: keeping the 1,721 items that are done in {path}\n"
    made.finish(130)
    end = run_file.read(path).end
    assert end is not None
    assert end.stopped == "interrupted"


def test_an_item_that_fails_in_parity_itself_is_no_function_of_the_users(tmp_path: Path) -> None:
    """The suite's tests stand in a file of Python, as a user's do."""
    log, path = io.StringIO(), tmp_path / "run.jsonl"
    made = reporter(path, log)
    node = "test_operators.py::test_operator[to-float32]"
    made.pytest_runtest_logreport(pytest.TestReport(node, ("", 0, ""), {}, "failed", "NotImplementedError: ???", "call"))
    made.finish(1)
    end = run_file.read(path).end
    assert end is not None
    assert [b.partition(":")[0] for b in end.broken] == ["to-float32"]
    assert "failed in parity itself: please report" in log.getvalue()
    assert "your own functions" not in log.getvalue()


def test_ctrl_c_after_the_last_item_leaves_a_whole_run(tmp_path: Path) -> None:
    """The workers are sent home while it is pressed: nothing is missing, and an item that died thrice is no item to come."""
    path = tmp_path / "run.jsonl"
    made = reporter(path, io.StringIO())
    made.run.expected = made.run.done = 3
    for node, phases in (("a", ("setup", "call", "teardown")), ("b", ("setup",))):
        for when in phases:
            outcome = "failed" if node == "b" else "passed"
            made.pytest_runtest_logreport(pytest.TestReport(node, ("", 0, ""), {}, outcome, "it", when))  # type: ignore[arg-type]
    for k in range(3):
        row = DEATH | {"case": f"sin({k})", "last": k == 2}
        told = [("parity", json.dumps({"death": row}))]
        assert len(made.run.ended) == 2
        made.pytest_runtest_logreport(pytest.TestReport("c", ("", 0, ""), {}, "failed", "it", "???", user_properties=told))  # type: ignore[arg-type]
    made.pytest_keyboard_interrupt()
    made.pytest_keyboard_interrupt()
    made.finish(130)
    end = run_file.read(path).end
    assert end is not None
    assert end == End(end.seconds, expected=3, lost=("sin-int8",), broken=end.broken)


DEATH = {
    "item": "sin-int8", "case": "sin(int8[2])", "how": "crash", "signal": "SIGABRT", "stage": "device", "last": False,
    "blame": "device", "why": "",
}  # fmt: skip


def part(*rows: Row, findings: tuple[str, ...] = ()) -> list[tuple[str, object]]:
    """What a worker says of an item."""
    return [("parity", json.dumps({"rows": [run_file.encode(r) for r in rows], "findings": findings, "features": pack(())}))]


def test_a_run_file_without_room_costs_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is reported and counted, whatever becomes of the file; nothing is called agreement."""
    log = io.StringIO()
    made = reporter(tmp_path / "run.jsonl", log)
    monkeypatch.setattr(made.run.writer, "write_line", _no_room)
    bad = Record("exp(float32[2])", "exp", "float32", "forward", "wrong", shrunk="exp(float32[1])")
    told = part(bad, ItemRow("exp", "float32", 2, {"forward": {"wrong": 2}}), findings=("exp float32: wrong",))
    made.pytest_runtest_logreport(pytest.TestReport("a", ("", 0, ""), {}, "failed", "it", "call", user_properties=told))
    told = [("parity", json.dumps({"death": DEATH | {"last": True}}))]
    made.pytest_runtest_logreport(pytest.TestReport("b", ("", 0, ""), {}, "failed", "it", "???", user_properties=told))  # type: ignore[arg-type]
    assert "gives wrong values, with no cause looked for: exp(float32[1])" in log.getvalue()
    assert "sin int8 on sim: crash" in log.getvalue()
    assert made.run.result().exit_code == 1
    with pytest.raises(OutputError):
        made.finish(made.run.result().exit_code)
    assert "1 finding in 2 of 2 checks and 1 case that ended or hung the process" in log.getvalue()
    assert "agrees" not in log.getvalue()
    assert "items: the run file cannot be written" in log.getvalue().splitlines()[-1]


def test_a_cause_is_told_once_and_each_finding_with_verbose(tmp_path: Path) -> None:
    """One line at its first finding; deaths with equal words, too."""
    for verbose in (False, True):
        log = io.StringIO()
        made = reporter(tmp_path / f"run-{verbose}.jsonl", log)
        made.verbose = verbose
        for k in (1, 2):
            bad = Record(
                "exp(float32[2])",
                f"exp{k}",
                "float32",
                "forward",
                "wrong",
                shrunk="exp(float32[1])",
                cause=Cause("aten::exp", "values"),
            )
            row = ItemRow("exp", f"float{16 * k}", 2, {"forward": {"wrong": 2}})
            seen = part(bad, row, findings=(f"the text of finding {k}",))
            made.pytest_runtest_logreport(
                pytest.TestReport(f"a{k}", ("", 0, ""), {}, "failed", "it", "call", user_properties=seen)
            )
            dead = [("parity", json.dumps({"death": DEATH}))]
            made.pytest_runtest_logreport(
                pytest.TestReport(f"b{k}", ("", 0, ""), {}, "failed", "it", "???", user_properties=dead)  # type: ignore[arg-type]
            )
        assert log.getvalue().count("aten::exp gives wrong values: exp(float32[1])") == (0 if verbose else 1)
        assert log.getvalue().count("the text of finding") == (2 if verbose else 0)
        assert log.getvalue().count("the process died (SIGABRT)") == (2 if verbose else 1)


def test_the_first_finding_is_on_the_screen_before_its_item_ends(tmp_path: Path) -> None:
    """Once, of whichever worker; no item counts as done by it."""
    for verbose in (False, True):
        log = io.StringIO()
        made = reporter(tmp_path / f"first-{verbose}.jsonl", log)
        made.verbose, done = verbose, made.run.done
        for op in ("exp", "sin"):
            first = Record(f"{op}(float32[2])", op, "float32", "forward", "wrong", reason="far off")
            told = [("parity", json.dumps({"first": run_file.encode(first)}))]
            made.pytest_runtest_logreport(pytest.TestReport(op, ("", 0, ""), {}, "passed", None, "setup", user_properties=told))
        said = "first finding, its cause comes later: exp float32 forward: wrong, far off: exp(float32[2])"
        assert log.getvalue().count("first finding") == log.getvalue().count(said) == (0 if verbose else 1)
        assert (made.run.done, made.run.ended) == (done, set())
        made.pytest_keyboard_interrupt()
        kept = "done in " + str(made.run.output)
        assert log.getvalue().endswith(f"{kept}\n" if verbose else f"{kept}; the first finding is of one that is not\n")


def _no_room(line: str) -> None:
    raise OutputError("cannot write the run file run.jsonl: No space left on device")


@pytest.mark.parametrize(("how", "signal", "words"), [
    ("hang", "ended by parity after 21.0 s", "hang, ended by parity after 21.0 s at stage device"),
    ("crash", "SIGABRT", "crash, the process died (SIGABRT) at stage device"),
])  # fmt: skip
def test_a_death_says_who_ended_the_process_and_how_to_see_it_again(how: str, signal: str, words: str, tmp_path: Path) -> None:
    """With the run's faults."""
    log = io.StringIO()
    made = reporter(tmp_path / "run.jsonl", log)
    made.run.header = replace(made.run.header, faults=Code("my faults.py"), setup=Code("flags.py", "1a2b3c4d"))
    made._death(DEATH | {"how": how, "signal": signal})
    assert words in log.getvalue()
    line = "  reproduce: parity replay 'sin(int8[2])' --device sim --setup 'my faults.py' --setup flags.py\n"
    assert line in log.getvalue()


class Full(io.StringIO):
    """A disk without room."""

    def write(self, text: str) -> int:
        """Never."""
        raise OSError(28, "No space left on device")


def test_an_output_that_is_full_costs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run file and the exit code are still wanted."""
    path = tmp_path / "run.jsonl"
    made = reporter(path, Full())
    made.say("x")
    made.finish(3)
    assert run_file.read(path).end is not None
    assert capsys.readouterr().err == "parity: cannot write to the standard output (No space left on device); the run goes on\n"


def test_idle_workers_let_findings_be_tried_again_and_deaths_be_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is memory for; those without a cause wait for it, and known ones are not tried."""
    made = reporter(tmp_path / "run.jsonl", io.StringIO())
    offered: list[tuple[list[str], int, list[str]]] = []
    dead = Death("cos", "float32", "cos(float32[3])", signal="SIGSEGV")

    def offer(found: Sequence[Record], free: int, deaths: Sequence[Death]) -> None:
        offered.append(([r.op for r in found], free, [d.op for d in deaths]))

    early: Any = SimpleNamespace(offer=offer, stop=lambda: None)
    made.run.early, made.run.explains_later = early, True
    exp, neg = (
        Record(f"{op}(float32[3])", op, "float32", "forward", "wrong", shrunk=f"{op}(float32[3])") for op in ("exp", "neg")
    )
    told = replace(exp, cause=Cause("aten::exp", "values"))
    parts: list[list[Row]] = [[ItemRow("neg", "float32"), neg], [ItemRow("exp", "float32"), told], [replace(told, known="k")]]
    for rows in parts:
        made._examined({"rows": [run_file.encode(r) for r in rows], "findings": ["x"], "features": pack([])})
    monkeypatch.setattr("parity.core.machine.ceiling", lambda: 10 << 30)
    made.run.idle(8, 5)
    made.run.deaths += [dead, replace(dead, op="sin", known="k")]
    made.run.idle(8, 1)
    made.run.idle(8, 0)  # while all are busy
    made.run.idle(4, 0)  # too few to spare one
    made.run.stopped = "interrupted"
    made.run.idle(8, 1)
    assert offered == [(["exp"], 2, []), (["exp"], 1, ["cos"]), ([], 1, ["cos"]), ([], 0, ["cos"])]


@pytest.mark.parametrize("after", ["end_of", "take"])
def test_an_interruption_never_parts_counts_from_rows(after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes while a part is counted and not stored yet: else the end row counts more, and the file is unreadable; or
    while its item counts as over and not as done: the last one would be missing from a run that counts as whole."""
    made = reporter(path := tmp_path / "run.jsonl", io.StringIO())
    made.run.expected, step = 1, getattr(made.run, after)

    def interrupted(*told: Any) -> Any:
        done = step(*told)
        signal.raise_signal(signal.SIGTERM)
        return done

    monkeypatch.setattr(made.run, after, interrupted)
    rows = [run_file.encode(ItemRow("exp", "float32", cases=1, counts={"forward": {"agree": 1}}))]
    told = [("parity", json.dumps({"rows": rows, "findings": [], "features": pack([])}))]
    with Interruptions() as asked, pytest.raises(KeyboardInterrupt):
        made.pytest_runtest_logreport(
            pytest.TestReport("t[exp-float32]", ("", 0, ""), {}, "passed", None, "call", user_properties=told)
        )
    asked.hold()
    made.pytest_keyboard_interrupt()
    made.finish(130)
    assert [(i.op, i.cases) for i in run_file.read(path).items] == [("exp", 1)]


def test_the_bar_of_the_causes_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last item is done, it says what comes and how long it may take; not that nothing is left to do."""
    now = [1000.0]
    for module in ("faces.progress", "report.output", "engine.run_state"):
        monkeypatch.setattr(f"parity.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    screen = Screen()
    made = reporter(tmp_path / "run.jsonl", screen)
    made.run.explains_later, made.run.expected, made.run.done = True, 4, 0
    for k, op in enumerate(("exp", "neg", "sin", "cos")):
        one = Record(f"{op}(float32[3])", op, "float32", "forward", "wrong", shrunk=f"{op}(float32[3])")
        rows = [run_file.encode(ItemRow(op, "float32")), *([run_file.encode(one)] if k else [])]
        now[0] += 50.0
        assert "looking" not in screen.getvalue()
        made.run.end_of(f"test[{op}-float32]")
        made._examined({"rows": rows, "findings": ["x"] * bool(k), "features": pack([])})
    assert "100%  4/4 items" in screen.getvalue()
    assert "looking for the causes of what 3 items found, for about 3:20 at most\n" in screen.getvalue()
    now[0] += 9.0
    made.run.is_explained("neg-float32")
    made._progress()
    assert "33%  causes of 1/3 items" in screen.getvalue()
    assert screen.getvalue().endswith("  18.0 s left")
    now[0] += 81.0
    made._progress()
    assert screen.getvalue().endswith("  1:50 left"), "of the time that they may take"


def test_what_is_done_of_the_causes_before_the_bar_begins_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of how long the rest takes."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 30)))
    text = io.StringIO()
    bar = output.Screen(text)
    bar.begin_anew(0.5)
    bar.show(0.5, "causes of 5/10 items", 0.1, 200.0)
    bar.show(0.6, "causes of 6/10 items", 10.0, 200.0)
    assert text.getvalue() == " 50%  causes of 5/10 items\n 60%  causes of 6/10 items  40.0 s left\n"


def test_a_screen_is_told_that_findings_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That can take minutes without a word; what comes of it overwrites the line, and a log has that alone."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 30)))
    monkeypatch.setattr("parity.engine.again.again", lambda *asked: ())
    one = Record("exp(float32[3])", "exp", "float32", "forward", "wrong", shrunk="exp(float32[3])")
    for stream in (Screen(), io.StringIO()):
        made = reporter(tmp_path / f"{type(stream).__name__}.jsonl", stream)
        made.run.records = [one]
        made.try_again(How("sim"), 1, 500.0)
        told = stream.getvalue()
        assert ("\r\x1b[Ktrying 1 finding again in fresh processes, for at most 3:00\r\x1b[K" in told) == stream.isatty()
        assert told.endswith("0 of 1 finding reproduced in fresh processes (0.0 s); 1 could not be tried, and count\n")


def test_what_goes_on_with_a_run_names_its_code(tmp_path: Path) -> None:
    """And says that findings without a cause count as new, whether they are known or not."""
    code: dict[str, Any] = {name: Code(f"{name}.py", "0") for name in ("faults", "setup", "known")}
    header = replace(reporter(tmp_path / "a", io.StringIO()).run.header, **code)
    made = Reporter(RunState(header, tmp_path / "run.jsonl"), io.StringIO())
    one = Record("exp(float32[3])", "exp", "float32", "forward", "wrong", shrunk="exp(float32[3])")
    made.run.held["exp-float32"] = Unexplained([one], ["x"])
    made.run.scripts = Path("there")
    made.print_unexplained()
    named = "--setup faults.py --setup setup.py --known known.py --findings there"
    assert f"--resume {tmp_path / 'run.jsonl'} {named}" in made.unexplained
    assert "so they count as new" in made.unexplained
