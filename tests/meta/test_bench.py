"""The programs under tests/bench run, at the least size, and their figures say what their documentation says."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from parity.core.errors import UsageError

BENCH = Path(__file__).parents[1] / "bench"
PRECISIONS = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"))  # which flags of TF32 set


def loaded(name: str) -> ModuleType:
    """A program as a module."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs find each other by their folder, and set the number of threads and the precision of their process."""
    monkeypatch.syspath_prepend(str(BENCH))
    flags: Any = torch._C
    before = torch.get_num_threads()
    precisions = {of: flags._get_fp32_precision_getter(*of) for of in PRECISIONS}
    yield
    torch.set_num_threads(before)
    for of, precision in precisions.items():
        flags._set_fp32_precision_setter(*of, precision)


def test_controls_know_which_results_have_one_answer() -> None:
    bench = loaded("controls")
    truths = {"out": torch.tensor([0.5, 3.0, float("inf")], dtype=torch.float64), "third": torch.tensor([1 / 3]).double() / 7}
    known = SimpleNamespace(oracle=SimpleNamespace(truth=truths.get))
    assert bench._has_one_answer(known, "base[out]", torch.tensor([0.5, 3.0, float("inf")]))
    assert bench._has_one_answer(known, "third", torch.empty(0))
    assert bench._has_one_answer(known, "third", torch.ones(3, dtype=torch.int64))
    assert not bench._has_one_answer(known, "third", torch.ones(1))
    assert not bench._has_one_answer(known, "unknown", torch.ones(1))


def speed(*argv: str) -> str:
    """What the program prints."""
    command = [sys.executable, str(BENCH / "speed.py"), *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


@pytest.mark.cold  # its two processes are spawned by multiprocessing
@pytest.mark.slow
def test_speed_counts_comparisons_of_both_sides_and_says_where_the_time_goes() -> None:
    printed = speed("--ops", "neg,bernoulli", "--rounds", "1")
    loop, parity = (next(line for line in printed.splitlines() if line.startswith(name)) for name in ("OpInfo loop", "parity "))
    assert " 68 cases" in parity  # two rows of the quick profile: 2 pinned and 32 explored ones each
    assert " 68 cases" in loop
    assert "oracle and comparison: " in printed
    assert "backward" in loop
    assert "double backward" in parity
    assert "times the checks/s" in printed


@pytest.mark.cold  # its processes are spawned by multiprocessing
@pytest.mark.slow
def test_speed_leaves_out_of_all_rounds_a_row_that_ends_its_process_or_never_does(tmp_path: Path) -> None:
    faults = tmp_path / "ends.py"
    kinds = "[Fault('dies', ('expm1',), abort), Fault('hangs', ('sinh',), hang)]"
    imports = "from parity.devices import Fault", "from parity.devices.sim.faults import abort, hang"
    faults.write_text("\n".join([*imports, f"FAULTS = {kinds}"]))
    printed = speed("--ops", "expm1,neg,sinh", "--rounds", "3", "--device", "sim", "--setup", str(faults), "--limit", "12")
    left = [line.partition(", because of ") for line in printed.splitlines() if line.startswith("left out: ")]
    assert [row for row, _, _ in left] == ["left out: expm1", "left out: sinh"]
    assert [why[:17] for _, _, why in left] == ["BrokenProcessPool", "it took more than"]
    assert printed.count("times the checks/s") == 3
    assert "sim: " in printed.splitlines()[-1]


def test_known_plants_the_same_bugs_each_time_and_runs_the_ops_that_reach_them() -> None:
    bench = loaded("known")
    ids, rows = bench.chosen([], 5, "0")
    assert (ids, rows) == bench.chosen([], 5, "0")
    assert len(ids) == 5
    assert rows[-2:] == list(bench.CHANCE_ROWS)
    assert bench.chosen([], 5, "1")[0] != ids


@pytest.mark.slow
def test_a_known_fault_hides_itself_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """A sample of the matrix: an error of 3 % at negative values behind, and in front of, one everywhere."""
    bench = loaded("known")
    assert bench.matrix(["negative"], ["3 %", "negative"], examples=8) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["negative   + .", "2 pairs: 0 wrong"]
    contained = [(a, b) for a in bench.KINDS for b in bench.KINDS if a != b and bench.KINDS[a].contains(bench.KINDS[b])]
    assert len(bench.KINDS) == 12
    assert ("3 %", "negative") in contained
    assert ("3 %", "doubled") not in contained


@pytest.mark.slow
def test_acquitted_has_ways_of_ten_kinds_and_tells_green_from_red() -> None:
    bench = loaded("acquitted")
    kinds = bench.ways()
    assert len(kinds) == 10
    assert all(len({w.name for w in ways}) == len(ways) >= 6 for ways in kinds.values())
    assert all((w.files, w.commands) != (w.healthy, w.healthy_commands) for ways in kinds.values() for w in ways)
    way = next(w for w in kinds["nothing_compared"] if w.name == "a test that takes the fixture and calls something else")
    bad, good = bench.tried(way, False), bench.tried(way, True)
    assert (bad.code, good.code, bench.problem(way, bad, good)) == (1, 0, "")
    assert bench.problem(way, good, good) == "ended with 0, expected 1"
    assert bench.problem(way, bad, bad) == "the healthy twin ended with 1, expected 0"


@pytest.mark.slow
def test_stable_counts_the_diffs_of_an_unchanged_device_that_tell_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded("stable").main(["exp", "--runs", "1", "--same-seed", "-n", "1", "--more", "--dtype", "float32"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("1 diffs, ")
    assert told.endswith(" tests of drift; 0 with an alarm\n")


def test_real_models_finds_the_planted_fault_and_names_what_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = loaded("real_models")

    def small() -> Any:
        return bench.Made(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.randn(3, 4),))

    monkeypatch.setattr(bench, "_torchvision", lambda: None)
    monkeypatch.setattr(bench, "MODELS", {"small": small, "absent": lambda: importlib.import_module("no_such_library")})
    assert bench.one("small", "", locate=True, device="sim") == 0
    told = capsys.readouterr().out
    assert told.count("as it should be") == 12
    assert "locate: Sequential float32 on sim diverges from the CPU first in 1 (GELU), backward: aten::gelu_backward" in told
    assert bench.one("absent", "", locate=False, device="sim") == 0
    assert "skipped: no_such_library is not installed" in capsys.readouterr().out


@pytest.mark.slow
def test_models_tells_the_cost_beside_plain_passes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = loaded("models")

    def small() -> Any:
        return bench.Made(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.randn(3, 4),))

    monkeypatch.setattr(bench, "_torchvision", lambda: None)
    monkeypatch.setattr(bench, "MODELS", {"small": small})
    assert bench.main(["small", "--locate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines] == ["healthy", "honest"]
    assert all(f"  {word} " in line for line in lines for word in ("plain", "default", "full", "locate"))
    assert bench.main(["small", "--effort", "default", "--most", "1e-9"]) == 1


@pytest.mark.slow
def test_generation_names_the_struck_step(capsys: pytest.CaptureFixture[str]) -> None:
    """The model that needs torch alone."""
    assert loaded("generation").main(["lstm", "--dtype", "float32"]) == 0
    assert " (100%), operator in " in capsys.readouterr().out


def test_hostile_tells_what_breaks_from_what_is_refused() -> None:
    bench = loaded("hostile")
    held = torch.ones(1 << 28)  # of what this process did before: 1 GiB
    told = [*bench.answers("tables", 4, random.Random(1)), *bench.answers("notations", 20, random.Random(1))]
    assert ([column for _, column, _ in told], bench.RAN) == ([""] * 24, [])
    assert bench.asked(lambda: torch.cat((held, held[: 1 << 24])))[0] == "over 1 GB"
    for error, column in ((ZeroDivisionError(), "tracebacks"), (UsageError("two\nlines"), "other"), (UsageError("no"), "")):
        assert bench.asked(partial(_raises, error))[0] == column


def _raises(error: Exception) -> None:
    raise error


# ---------------------------------------------------------------------------------------------------- mutation of the tests


def test_mutated_makes_a_sign_a_limit_and_a_lost_branch() -> None:
    bench = loaded("mutated")
    source = "def f(a, b):\n    if TYPE_CHECKING:\n        pass\n    if (a + b) <= len('ü'):\n        return a - 1\n".encode()
    made = [c.made(source).decode().splitlines() for c in bench.changes("parity/judging/judge.py", source)]
    assert sorted((line[3], line[4]) for line in made) == sorted(
        [
            ("    if (a - b) <= len('ü'):", "        return a - 1"),
            ("    if (a + b) < len('ü'):", "        return a - 1"),
            ("    if (False and ((a + b) <= len('ü'))):", "        return a - 1"),
            ("    if (a + b) <= len('ü'):", "        return a + 1"),
        ]
    )


def test_mutated_draws_each_kind_alike_and_more_of_them_begin_alike(capsys: pytest.CaptureFixture[str]) -> None:
    bench = loaded("mutated")
    assert bench.main(["--list", "--count", "6"]) == 0
    few = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in few] == ["sign", "limit", "branch"] * 2
    assert bench.main(["--list", "--count", "12"]) == 0
    assert capsys.readouterr().out.splitlines()[:6] == few
    assert all((bench.REPO / test).exists() for c in bench.drawn(60, 1) for test in c.mirrored)


def test_mutated_counts_what_is_seen_by_either_stage_and_as_unseen_only_what_all_tests_leave() -> None:
    bench = loaded("mutated")
    answers = [(0, "mirrored", "seen"), (1, "mirrored", "not seen"), (1, "others", "not seen"), (2, "mirrored", "not seen")]
    rows = [{"index": i, "stage": stage, "answer": answer} for i, stage, answer in [*answers, (3, "others", "seen")]]
    last = bench.summary([{"tests": [], "answer": "seen", "by": ["a"]}, *rows], 5, "others").splitlines()[-1]
    assert last == "seen 2 of 5; not seen [1]; not finished [2, 4]"
    assert bench.summary(rows, 5, "mirrored").splitlines()[-1] == "seen 2 of 5; not seen [1, 2]; not finished [4]"


def test_mutated_asks_the_other_tests_that_compute_the_expression() -> None:
    """Whole files where a fixture computes it, and all where it is computed while modules are imported."""
    bench = loaded("mutated")
    change = next(bench.changes("parity/judging/budget.py", (bench.REPO / "parity/judging/budget.py").read_bytes()))
    assert change.mirrored == ["tests/unit/judging/test_budget.py"]
    own, one, two = (
        f"tests/unit/{name}.py::test_it[a b]" for name in ("judging/test_budget", "store/test_rows", "core/test_case")
    )
    calls = [f"{own}\tcall", f"{one}\tcall", f"{two}\tcall"]
    assert change.others(calls) == [one, two]
    assert change.others([*calls, f"{one}\tsetup"]) == [two, one.partition("::")[0]]
    assert change.others([*calls, ""]) == bench.TESTPATHS
    assert change.others([]) == []


def test_mutated_notes_each_expression_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed stays as it was; what is not reached is not noted."""
    bench, noted = loaded("mutated"), list[int]()
    monkeypatch.setattr("builtins._noted", lambda n: bool(noted.__iadd__([n])), raising=False)
    source = b"def f(a, b):\n    if (a + b) <= 3 and a < 2:\n        return a - 1\n    return -a\n"
    some = dict(enumerate(bench.changes("parity/judging/judge.py", source)))
    kinds = {i: source[c.start : c.stop].decode() for i, c in some.items()}
    space: dict[str, Any] = {}
    exec(bench.watched(source, some), space)
    assert (space["f"](1, 1), [kinds[i] for i in noted]) == (
        0,
        ["(a + b) <= 3 and a < 2", "(a + b) <= 3", "a + b", "a < 2", "a - 1"],
    )
    noted.clear()
    assert (space["f"](5, 1), [kinds[i] for i in noted]) == (-5, ["(a + b) <= 3 and a < 2", "(a + b) <= 3", "a + b"])


def test_mutated_believes_a_test_that_fails_again_and_not_on_unchanged_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails now and then, or on any code, is left out, and the stage is asked again."""
    bench = loaded("mutated")
    change, asked = bench.drawn(1, 1)[0], []

    def failures(tests: list[str], of: Any, workers: int, limit: float, left_out: Any) -> dict[str, Any]:
        whole = tests == change.mirrored
        asked.append((whole, of is change, tuple(left_out)))
        by = [t for t in ("any", "flaky", "real") if t not in left_out][:1] if whole else [t for t in tests if (t, of) in fail]
        return {"answer": "seen" if by else "not seen", "by": by, "code": 1}

    fail = {("any", change), ("any", None), ("real", change)}
    monkeypatch.setattr(bench, "failures", failures)
    assert bench.answer(change, change.mirrored, bench.Cores(1, 60), ())["by"] == ["real"]
    assert [left for whole, _, left in asked if whole] == [(), ("any",), ("any", "flaky")]
    fail.clear()
    monkeypatch.setattr(bench, "failures", lambda *_: {"answer": "not seen", "by": [], "code": 0})
    assert bench.answer(change, change.mirrored, bench.Cores(1, 60), ())["answer"] == "not seen"


def test_mutated_counts_a_change_with_which_no_test_can_start_as_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On unchanged code that is no answer, nor is a limit of time."""
    bench = loaded("mutated")
    ends = [(0, False), (1, True), (2, False), (3, False), (4, False), (5, False), (None, False)]
    assert [bench.said(*end, True) for end in ends] == ["not seen", *["seen"] * 4, "not seen", "no answer"]
    assert [bench.said(*end, False) for end in ends[2:6]] == ["no answer"] * 4
    monkeypatch.setattr(bench, "failures", lambda *_: {"answer": "seen", "by": [], "code": 2})  # asked once
    assert bench.answer(bench.drawn(1, 1)[0], [], bench.Cores(1, 60), ())["answer"] == "seen"


@pytest.mark.slow
@pytest.mark.cold
def test_mutated_asks_the_tests_of_the_changed_module_in_a_copy() -> None:
    bench = loaded("mutated")
    file = "parity/judging/budget.py"
    source = (bench.REPO / file).read_bytes()
    broken = next(c for c in bench.changes(file, source) if c.kind == "sign")
    answers = [bench.failures(broken.mirrored, change, 0, 300, ())["answer"] for change in (broken, None)]
    assert answers == ["seen", "not seen"]
    assert (bench.REPO / file).read_bytes() == source


# --------------------------------------------------------------------------------------------------------------- the list


def test_ten_programs_are_listed_with_their_parts_questions_and_figures() -> None:
    bench = loaded("__main__")
    parts = [part for _, some in bench.PROGRAMS.values() for part in some]
    assert len(bench.PROGRAMS) == 10
    assert sorted(parts) == sorted({p.stem for p in BENCH.glob("*.py")} - {"__main__", "front"})
    assert all(bench.question(part).endswith(("?", ".")) or len(bench.question(part)) > 10 for part in parts)
    assert bench.question("audit_models") == "Are the answers of `parity audit --model` right?"
    figures = tomllib.loads((BENCH / "figures.toml").read_text())
    assert set(figures) <= set(parts)
    assert all(set(f) == {"figures", "commit"} and re.fullmatch(r"[0-9a-f]{7,40}", f["commit"]) for f in figures.values())
    lines = bench.listed().splitlines()
    assert len(lines) == len(bench.PROGRAMS) + len(parts) + len(figures)
    assert all(any(f["figures"] in line and f["commit"] in line for line in lines) for f in figures.values())


def test_a_part_is_run_with_its_options_and_an_unknown_one_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    bench = loaded("__main__")
    assert bench.main(["mutated", "--list", "--count", "3"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 3
    assert (bench.main(["honest"]), bench.main(["honest", "silence"]), bench.main(["detection"])) == (0, 2, 2)
    told = capfd.readouterr().out.splitlines()
    assert told[-2:] == [
        "honest has no part 'silence'; it has controls, silent, stable",
        f"there is no program 'detection'; there are {', '.join(bench.PROGRAMS)}",
    ]


def test_the_last_line_of_a_part_is_kept_with_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = loaded("__main__")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
    figures = tmp_path / "figures.toml"
    figures.write_text('[mutated]\nfigures = "3 of 4"\ncommit = "1234567"\n')
    for asked in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *asked], check=True)
    monkeypatch.setattr(bench, "REPO", tmp_path)
    monkeypatch.setattr(bench, "FIGURES", figures)
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    line = 'one "word" and a \\'
    (tmp_path / "known.py").write_text(f"print('first')\nprint({line!r})\n")
    monkeypatch.setattr(bench, "HERE", tmp_path)
    assert bench.main(["--save", "green", "known"]) == 0
    kept = tomllib.loads(figures.read_text())
    assert kept["mutated"] == {"figures": "3 of 4", "commit": "1234567"}
    assert kept["known"] == {"figures": line, "commit": commit}
    subprocess.run([*git, "add", "."], check=True)
    with pytest.raises(SystemExit, match="commit these changes first"):
        bench.main(["--save", "green", "known"])
