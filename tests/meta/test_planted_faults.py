"""Ten planted faults of ten kinds are each found, named and shrunk by an ordinary quick run, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parity.core import notation
from parity.core.case import Case, TensorSpec
from parity.core.results import Record, Status
from parity.store import run_file
from parity.store.rows import Run

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).with_name("planted.py")
OPS = {  # with faults, and one healthy bystander
    "float32": ("tanh", "sigmoid", "mul", "neg", "maximum", "cumsum", "erfinv", "cumprod", "cosh", "exp", "mm", "sin"),
    "float16": ("cumprod", "exp", "mm"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A quick run in each dtype, as one."""
    folder = tmp_path_factory.mktemp("planted")
    runs = []
    for dtype, ops in OPS.items():
        command = [sys.executable, "-m", "parity", "run", *ops, "--device", "sim", "--setup", str(FAULTS), "-n", "2"]
        # Of this fault in mul_ some seeds draw no case, one in six: strided, in place, and in float32 alone.
        command += ["--seed", "1", "--dtype", dtype, "--skip", "again"]
        command += ["--output", str(folder / dtype), "--findings", str(folder / "findings")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
        runs.append(run_file.read(folder / dtype))
    first, second = runs
    return replace(
        first, records=first.records + second.records, items=first.items + second.items, deaths=first.deaths + second.deaths
    )


def findings(run: Run, op: str, dtype: str, aspect: str) -> list[Record]:
    """The findings of one op, dtype and aspect."""
    return [r for r in run.records if (r.op, r.dtype, r.aspect) == (op, dtype, aspect) and Status(r.status).is_finding]


def least(run: Run, op: str, dtype: str, aspect: str, *statuses: Status) -> Case:
    """The shrunk case of the one finding that must be there."""
    found = [r for r in findings(run, op, dtype, aspect) if r.status in statuses and r.shrunk]
    assert found, f"no {statuses} for {op} {dtype} {aspect}"
    return min((notation.parse(r.shrunk) for r in found), key=elements)


def specs(case: Case) -> Iterator[TensorSpec]:
    """The operands of a case."""
    return (a for a in case.args if isinstance(a, TensorSpec))


def elements(case: Case) -> int:
    """Elements in all operands together."""
    return sum(s.numel for s in specs(case))


def test_wrong_forward_value(run: Run) -> None:
    """Shrunk to one plain element."""
    case = least(run, "tanh", "float32", "forward", Status.WRONG, Status.DRIFT)
    assert elements(case) == 1
    assert not any(s.layout or s.values.specials for s in specs(case))


def test_wrong_gradient_only(run: Run) -> None:
    """The gradient is named, the forward agrees."""
    assert elements(least(run, "sigmoid", "float32", "backward", Status.WRONG, Status.DRIFT)) == 1
    assert not findings(run, "sigmoid", "float32", "forward")


def test_silent_no_op_in_place_on_a_strided_view(run: Run) -> None:
    """The in-place form is named, and the layout is what remains."""
    case = least(run, "mul", "float32", "in-place", Status.WRONG)
    first = next(specs(case))
    assert first.layout
    assert elements(case) <= 6
    assert not findings(run, "mul", "float32", "forward")


def test_read_at_offset_zero(run: Run) -> None:
    """One step of layout, which has an offset, remains."""
    case = least(run, "neg", "float32", "forward", Status.WRONG)
    assert len(next(specs(case)).layout) == 1
    assert elements(case) <= 2


def test_nan_dropped(run: Run) -> None:
    """A planted NaN is all that is left."""
    case = least(run, "maximum", "float32", "forward", Status.WRONG)
    assert [w for s in specs(case) for _, w in s.values.specials] == ["nan"]
    assert elements(case) <= 2


def test_wrong_shape(run: Run) -> None:
    """malformed, with the least shape of two dimensions."""
    case = least(run, "cumsum", "float32", "forward", Status.MALFORMED)
    assert next(specs(case)).shape == (1, 1)


def test_refused_op_and_dtype(run: Run) -> None:
    """Unsupported is named, counted and no finding."""
    items = {(i.op, i.dtype): i for i in run.items}
    assert items["erfinv", "float32"].counts["forward"].keys() == {Status.UNSUPPORTED}
    assert items["cumprod", "float16"].counts["forward"].keys() == {Status.UNSUPPORTED}
    assert Status.UNSUPPORTED not in items["cumprod", "float32"].counts["forward"]
    assert not findings(run, "erfinv", "float32", "forward")


def test_abort_is_found_and_the_run_goes_on(run: Run) -> None:
    """The case that killed the worker is recorded, at the stage where it did; other cases of the op were compared."""
    deaths = [d for d in run.deaths if d.op == "cosh"]
    assert {d.how for d in deaths} == {"crash"}
    assert {d.signal for d in deaths} == {"SIGABRT"}
    killed = [notation.parse(d.case) for d in deaths]
    assert any(len(next(specs(c)).shape) == 3 for c in killed)
    assert all(len(next(specs(c)).shape) == 3 or c.after for c in killed)  # a call before the case may be of another rank
    assert any(i.op == "sin" for i in run.items)


@pytest.mark.parametrize(("op", "limit"), [("exp", 1), ("mm", 512)])
def test_one_element_off_by_40_ulp_in_float16(run: Run, op: str, limit: int) -> None:
    """Drift of one element is seen in an elementwise function and in a product over K = 256."""
    case = least(run, op, "float16", "forward", Status.DRIFT, Status.WRONG)
    assert elements(case) <= limit
    assert not findings(run, op, "float32", "forward")


def test_bystanders_are_silent(run: Run) -> None:
    """An op without a fault has no finding."""
    assert not [r for r in run.records if r.op == "sin" and Status(r.status).is_finding]
