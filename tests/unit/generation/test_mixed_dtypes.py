"""One argument in another dtype than the rest: what is drawn, how it is judged, and that faults which show there are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import CPU, checked

from parity import catalog, tolerance
from parity.catalog.draw import Sizes
from parity.core.case import Case, TensorSpec
from parity.core.notation import case_text, parse
from parity.core.results import Status
from parity.devices import Call, Device, Fault, resolve
from parity.devices.sim import honest
from parity.engine.cases import drawn
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import Item, profile
from parity.execution import execute
from parity.execution.inputs import build
from parity.generation import generate, mixed_dtypes
from parity.generation.generate import nth

SIZES = Sizes()


@pytest.fixture(autouse=True)
def layouts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixing changes dtypes only, and no case is aimed at a feature."""
    monkeypatch.setattr(generate, "ALIKE", 1 << 30)
    monkeypatch.setattr(generate, "planned", lambda *_: (0, 0))


def pairs(name: str, dtype: str, count: int) -> list[tuple[Case, Case]]:
    """(without, with mixing) of the first cases of a row."""
    row = catalog.row(name)
    plain, some = ([nth(row, dtype, SIZES, "0", k, mixes=m).case for k in range(count)] for m in (False, True))
    return list(zip(plain, some))


def mixed(name: str, dtype: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that mixing changes if it is drawn every time."""
    monkeypatch.setattr(mixed_dtypes, "ODDS", 1)
    return [after for before, after in pairs(name, dtype, count) if case_text(before) != case_text(after)]


@pytest.mark.parametrize(
    "item", ["index_select float16", "scatter_add int64", "batch_norm float32", "lerp float32", "pow int32"]
)
def test_a_few_of_a_rows_cases_mix_and_all_others_stay(item: str) -> None:
    name, dtype = item.split()
    cases = pairs(name, dtype, 600)
    changed = [after for before, after in cases if case_text(before) != case_text(after)]
    assert 0.03 < len(changed) / len(cases) < 0.09
    assert all(parse(case_text(c)) == c for c in changed)
    assert cases[0][0] == cases[0][1]


def test_pinned_cases_do_not_mix() -> None:
    plan = RunPlan(resolve("sim"), CPU, tolerance.load("sim"), profile("full"), RunOptions())
    item = Item(catalog.row("index_select"), "float32")
    pinned = [one.case for _, is_pinned, one in drawn(item, plan) if is_pinned]
    assert pinned == [nth(item.row, "float32", plan.profile.sizes, "pinned", k, mixes=False).case for k in range(len(pinned))]
    assert len(pinned) == plan.profile.pinned > 4


def _weights_in_float32(case: Case) -> bool:
    first, *rest = case.operands()
    return first.dtype == "float16" and bool(rest) and all(s.dtype == "float32" for s in rest)


def _index(dtype: str) -> Callable[[Case], bool]:
    return lambda case: any(s.dtype == dtype and s.values.family in ("index", "unique") for s in case.operands())


def _number(on_cpu: bool, shape: tuple[int, ...] = ()) -> Callable[[Case], bool]:
    def is_there(case: Case) -> bool:
        return any(s.values.literal is not None and s.on_cpu == on_cpu and s.shape == shape for s in case.operands())

    return is_there


@pytest.mark.parametrize(
    ("item", "is_there"),
    [
        ("layer_norm float16", _weights_in_float32),
        ("batch_norm float32", _weights_in_float32),  # the operand is half, the statistics stay
        ("scatter_add float32", _index("int32")),
        ("embedding float32", _index("int64")),
        ("getitem_advanced float32", lambda case: any(s.dtype == "uint8" for s in case.operands())),
        ("lerp float16", _number(False)),
        ("lerp float16", _number(True)),
        ("lerp float16", _number(False, (1,))),
        ("masked_fill int32", _number(True)),
        ("repeat_interleave float32", _number(False)),
    ],
)
def test_what_is_drawn(item: str, is_there: Callable[[Case], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    name, dtype = item.split()
    assert any(map(is_there, mixed(name, dtype, 100, monkeypatch)))


@pytest.mark.parametrize("name", ["bmm", "mm", "exp", "sort"])
def test_what_the_cpu_refuses_or_what_has_one_operand_is_not_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not mixed(name, "float16", 40, monkeypatch)


def test_sizes_that_torch_reads_on_the_cpu_are_not_put_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = mixed("tensor_split", "float32", 60, monkeypatch)
    assert not [c for c in cases if any(s.values.literal is not None and not s.on_cpu for s in c.operands())]


@pytest.mark.parametrize("name", ["linear", "rms_norm", "index_put", "where_scalar", "binary_cross_entropy"])
def test_the_cpu_computes_what_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = mixed(name, "float16", 40, monkeypatch)
    assert cases
    for case in cases:
        inputs = build(case)
        execute.forward(execute.program(catalog.row(name)), case, inputs, execute.place(inputs, CPU), bool(case.cotangent))


def test_kernels_that_check_nothing_and_calls_that_must_be_refused_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [r for r in catalog.ROWS.values() if r.refuses.unchecked and len(r.dtypes) > 1]
    assert rows
    assert not any(mixed(r.name, r.dtypes[0], 12, monkeypatch) for r in rows[::8])
    assert not any(c.refused for c in mixed("index_select", "float32", 80, monkeypatch))


# ------------------------------------------------------------------------------------------------------------- findings


def halved(call: Call) -> Any:
    """Half of what is right, in the first result."""
    result = call.run()
    first = result[0] if isinstance(result, tuple) else result
    first.mul_(0.5)
    return result


def differ(a: str, b: str) -> Callable[[Call], bool]:
    """Whether two arguments have different dtypes."""

    def when(call: Call) -> bool:
        return None not in (x := call.argument(a), y := call.argument(b)) and x.dtype != y.dtype

    return when


def no_number(call: Call) -> bool:
    return all(isinstance(a, torch.Tensor) for a in call.args)


def in_int32(call: Call) -> bool:
    return bool(call.argument("index").dtype == torch.int32)


FAULTS = {
    "where_scalar float32 float16": Fault("f", ("where",), halved, when=no_number, level="function"),
    "scatter_add int32 float16": Fault("f", ("scatter_add",), halved, when=in_int32),
    "batch_norm float32": Fault("f", ("native_batch_norm",), halved, when=differ("input", "running_mean")),
    "gather float32": Fault("f", ("gather",), halved, when=in_int32),
}


def findings(items: str, device: Device) -> int:
    """How many findings a quick run of a row has in these dtypes."""
    name, *dtypes = items.split()
    plan = RunPlan(device, CPU, tolerance.load("sim"), profile("quick"), RunOptions(skip=("shrink",), seed="1"))
    return sum(len(examine(Item(catalog.row(name), dtype), plan, NoJournal()).findings) for dtype in dtypes)


@pytest.mark.parametrize("item", FAULTS)
def test_a_fault_that_only_another_dtype_shows_is_found_by_a_quick_run(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = resolve("sim", (FAULTS[item],))
    assert findings(item, device) > 0
    monkeypatch.setattr(mixed_dtypes, "ODDS", 1 << 31)
    assert findings(item, device) == 0


@pytest.mark.parametrize("faults", [(), honest.FAULTS], ids=["healthy", "honest"])
@pytest.mark.parametrize(
    "item", ["layer_norm bfloat16", "batch_norm float32", "index_put float32", "lerp float16", "where float16"]
)
def test_devices_that_are_right_are_not_accused(item: str, faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_dtypes, "ODDS", 1)
    assert findings(item, resolve("sim", faults)) == 0


def test_a_mask_in_uint8_is_none_of_indices_to_the_honest_device() -> None:
    results = checked(resolve("sim", honest.FAULTS), "getitem_advanced(float32[4], (uint8[4].of(1, 0, 1, 1),))")
    assert {r.verdict.status for r in results.values()} == {Status.AGREE}


# ------------------------------------------------------------------------------------------------------------- refusals


def says(text: str) -> Callable[[Call], Any]:
    def effect(call: Call) -> Any:
        raise RuntimeError(text)

    return effect


@pytest.mark.parametrize(
    ("case", "text", "status"),
    [
        ("index_select(float32[3, 2], 0, int64[2].index(0, 3))", "expected scalar type Int but found Long", Status.ERROR),
        ("index_select(float32[3, 2], 0, int32[2].index(0, 3))", "expected scalar type Long but found Int", Status.UNSUPPORTED),
        ("index_select(float32[3, 2], 0, int32[2].index(0, 3))", "CUDA error: misaligned address", Status.ERROR),
        ("layer_norm(float16[2, 3], (3,), weight=float32[3])", "input and weight must have the same dtype", Status.UNSUPPORTED),
        ("layer_norm(float16[2, 3], (3,), weight=float16[3])", "input and weight must have the same dtype", Status.ERROR),
        ("add(float16[2], float32[2])", "operands must have the same dtype", Status.ERROR),  # torch promises to promote
    ],
)
def test_an_error_about_dtypes_is_a_refusal_where_they_differ(case: str, text: str, status: Status) -> None:
    device = resolve("sim", (Fault("f", ("index_select", "native_layer_norm", "add"), says(text)),))
    assert checked(device, case)["forward"].verdict.status is status


def test_numbers_are_taken_exactly() -> None:
    """Only dtypes that hold a number get it: 0.1 stays a Python number, in float16 it would be another one."""
    row, dtype = catalog.row("lerp"), "float16"
    for k in range(1, 200):
        case = nth(row, dtype, SIZES, "0", k, mixes=False).case
        for change in mixed_dtypes._as_tensors(row, case, case.operands()):
            s = change.case.operands()[-1]
            assert isinstance(s, TensorSpec)
            assert s.values.literal is not None
            assert torch.tensor(s.values.literal[0], dtype=getattr(torch, s.dtype)).item() == s.values.literal[0]
