"""The programs under tests/bench run, at the least size, and their figures say what their documentation says."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parents[1] / "bench"


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
    """The programs find each other by their folder, and set the number of threads of their process."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_detection_tells_a_device_that_cuts_its_operands_from_honest_ones(tmp_path: Path) -> None:
    out = tmp_path / "detection.json"
    loaded("detection").main(["matmul", "--dtype", "float32", "--k", "16", "--repeats", "1", "--output", str(out)])
    told = json.loads(out.read_text())
    assert told["figures"]["alarms"] == 0
    assert told["figures"]["honest"] == 2 * 5 * 5  # passes, families, honest devices
    tf32 = [c for c in told["counts"] if c["what"] == "TF32 inputs"]
    assert [c.get("caught") for c in tf32] == [5, 5]
    nudged = [c for c in told["counts"] if c["what"] == "8 ULP in one element"]
    assert all(sum(c.get(w, 0) for w in ("caught", "missed", "within", "inside", "equal")) == 5 for c in nudged)


def test_detection_leaves_out_what_lies_within_its_bound_and_tells_so() -> None:
    """16 of 20 caught; one as far off as honest devices, two lone ones within the bound, one that is missed."""
    bench = loaded("detection")
    n = Counter({"caught": 16, "inside": 1, "within": 2, "missed": 1})
    key = ("matmul", "forward", "float32")
    lone = bench.rates({(*key, "8 ULP in one element"): n})["8 ULP in one element"]
    every = bench.rates({(*key, "half accumulation"): n})["half accumulation"]
    assert lone == pytest.approx([80, 100 * 16 / 19, 100 * 16 / 17, 100 * 16 / 17, 0, 1, 2, 1])
    assert every == pytest.approx([80, 100 * 16 / 19, 100 * 16 / 19, 100 * 16 / 17, 0, 1, 2, 1])


def test_controls_know_which_results_have_one_answer() -> None:
    bench = loaded("controls")
    truths = {"out": torch.tensor([0.5, 3.0, float("inf")], dtype=torch.float64), "third": torch.tensor([1 / 3]).double() / 7}
    known = SimpleNamespace(oracle=SimpleNamespace(truth=truths.get))
    assert bench._has_one_answer(known, "base[out]", torch.tensor([0.5, 3.0, float("inf")]))
    assert bench._has_one_answer(known, "third", torch.empty(0))
    assert bench._has_one_answer(known, "third", torch.ones(3, dtype=torch.int64))
    assert not bench._has_one_answer(known, "third", torch.ones(1))
    assert not bench._has_one_answer(known, "unknown", torch.ones(1))


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocks of 8", "permuted"])
def test_an_honest_order_adds_everything_and_a_faulty_one_loses_the_last(order: str) -> None:
    bench = loaded("detection")
    terms = torch.arange(1.0, 38.0).expand(3, 37)
    assert bench.Arithmetic(order).total(terms, 1).tolist() == [703.0] * 3
    assert bench.Arithmetic("pairwise", drops=True).total(terms, 1).tolist() == [666.0] * 3


def test_sensitivity_finds_the_border_of_an_exponential(tmp_path: Path) -> None:
    out = tmp_path / "sensitivity.json"
    argv = ["exp", "--dtype", "float32", "--cases", "12", "--profile", "quick", "--output", str(out)]
    assert loaded("sensitivity").main(argv) == 0
    forward, *_ = [r for r in json.loads(out.read_text())["table"] if r["pass"] == "forward"]
    assert forward["class"] == "elementwise, in the table"
    assert -0.5 <= forward["run"] <= 1.5  # the table's ULP, give or take the CPU's own rounding


def test_bisection_finds_the_least_size_and_says_never() -> None:
    bench = loaded("sensitivity")
    assert bench.least(lambda size: size if size >= 10 else 0.0) == pytest.approx(10, rel=1e-3)
    assert bench.least(lambda size: 0.0) == math.inf
    assert bench.caught_by_run([1.0, 2.0, math.inf, 4.0], 1) == math.inf
    assert bench.caught_by_run([1.0, 2.0, math.inf, 4.0], 1000) == 1.0


def test_compare_takes_the_cheap_ways_out_and_tells_their_ratio(tmp_path: Path) -> None:
    out = tmp_path / "compare.json"
    loaded("compare").main(["--rounds", "1", "--number", "2", "--size", "12", "--output", str(out)])
    told = json.loads(out.read_text())
    assert {p["dtype"] for p in told["pairs"]} == {"float32", "float16", "complex64", "int64"}
    assert all(p["equal ratio"] > 0 for p in told["pairs"])
    assert all(("truth ratio" in p) is (p["dtype"] != "int64") for p in told["pairs"])


def test_speed_counts_comparisons_of_both_sides_and_says_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded("speed").main(["--ops", "neg,bernoulli"]) == 0
    told = capsys.readouterr().out
    loop, parity = (next(line for line in told.splitlines() if line.startswith(name)) for name in ("OpInfo loop", "parity "))
    assert " 68 cases" in parity  # two rows of the quick profile: 32 and 2 pinned ones each
    assert "backward" in loop
    assert "double backward" in parity
    assert "times the checks/s" in told
