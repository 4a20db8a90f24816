"""Error parity: what the CPU refuses, the device must refuse."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from parity import catalog, tolerance
from parity.catalog import entries, opinfo
from parity.catalog.draw import Sizes
from parity.checks.check import Settings, check, quiet
from parity.checks.trial import Result
from parity.core.case import ERROR_KINDS, Case
from parity.core.dtypes import DEFAULT
from parity.core.notation import case_text, parse
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.refusals import listening
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import Item, profile
from parity.engine.suite import row as suite_row
from parity.generation.error_inputs import error_case
from parity.generation.generate import nth, search

CPU = resolve("cpu")
TABLES = tolerance.load("sim")
SIZES = Sizes()


def refused(device: Device, case: Case) -> tuple[Result, ...]:
    with device.active():
        return check(catalog.row(case.op), case, device, CPU, TABLES, Settings(), quiet, [])[0]


def clamped(call: Call) -> Any:
    """An index past the end is the last one."""
    x, dim, index = call.args
    call.args[2] = index.clamp(0, x.shape[dim] - 1 if x.dim() else 0)
    return call.run()


def cropped(call: Call) -> Any:
    """The longer operand is cut."""
    n = min(x.shape[-1] for x in call.args[:2])
    return torch.add(*(x[..., :n] for x in call.args[:2]))


def rounded(call: Call) -> Any:
    """A floating index is taken for an integer."""
    call.args[2] = call.args[2].long()
    return call.run()


def positive(call: Call) -> Any:
    """A negative size is taken for its magnitude."""
    call.args[1] = tuple(map(abs, call.args[1]))
    return call.run()


def wrapped(call: Call) -> Any:
    """A dim out of range is counted on from the first."""
    call.kwargs["dim"] %= call.args[0].dim()
    return call.run()


@pytest.mark.parametrize(
    "op, effect, text",
    [
        ("index_select", clamped, 'index_select(float32[4], 0, int64[2].index(0, 4).at(0, "4")).refused("index")'),
        ("index_select", rounded, 'index_select(float32[4], 0, float32[2]).refused("dtype")'),
        ("add", cropped, 'add(float32[2, 3], float32[4]).refused("shape")'),
        ("softmax", wrapped, 'softmax(float32[2, 3], dim=9).refused("dim")'),
        ("broadcast_to", positive, 'broadcast_to(float32[1, 3], (-5, 3)).refused("size")'),
    ],
)
def test_a_device_that_computes_what_the_cpu_refuses_is_malformed(op: str, effect: Any, text: str) -> None:
    (result,) = refused(resolve("sim", (Fault("lenient", (op,), effect, level="function"),)), parse(text))
    assert (str(result.aspect), str(result.verdict.status)) == ("refusal", "malformed")
    assert "computed what the CPU refuses" in result.verdict.reason
    (healthy,) = refused(resolve("sim"), parse(text))
    assert str(healthy.verdict.status) == "agree"


def zeros(call: Call) -> Any:
    """Any result."""
    return torch.zeros_like(call.args[0])


def test_a_device_may_have_a_kernel_that_the_cpu_alone_lacks() -> None:
    """nansum says of complex numbers that it is its CPU kernel which does not take them; erfinv has no meaning for them."""
    lenient = resolve("sim", (Fault("lenient", ("nansum", "erfinv"), zeros, level="function"),))
    said = {
        op: str(refused(lenient, parse(f'{op}(complex64[3]).as_dtype("float32").refused("dtype")'))[0].verdict.status)
        for op in ("nansum", "erfinv")
    }
    assert said == {"nansum": "void", "erfinv": "malformed"}


def test_only_the_cpu_can_raise_at_a_division_by_zero() -> None:
    """Of whole numbers; a kernel that runs behind the program's back has nobody to report to."""
    case = parse('remainder(int32[3].inside(1, 4), int32[3].at(0, "0")).as_dtype("int32").refused("dtype")')
    (result,) = refused(resolve("sim", (Fault("silent", ("remainder",), zeros, level="function"),)), case)
    assert str(result.verdict.status) == "void"


def test_what_the_cpu_computes_after_all_says_nothing() -> None:
    (result,) = refused(resolve("sim"), parse('add(float32[2], float32[2]).refused("shape")'))
    assert str(result.verdict.status) == "void"


def test_an_index_past_the_end_is_not_tried_where_it_ends_the_device() -> None:
    class Asserting(Device):
        name = "cuda:0"
        torch_device = torch.device("cuda", 0)

        def upload(self, t: torch.Tensor) -> torch.Tensor:
            raise AssertionError("nothing may reach this device")

        def synchronize(self) -> None:
            """Nothing to wait for."""

        def seed(self, n: int) -> None:
            """No generator."""

    assert not refused(Asserting(), parse('index_select(float32[4], 0, int64[2].index(0, 4).at(0, "4")).refused("index")'))


@pytest.mark.parametrize("flaw", [f for f in ERROR_KINDS if f != "inputs"])
def test_every_flaw_is_drawn_and_read_back(flaw: str) -> None:
    names = {"dtype": "erfinv", "shape": "mm", "dim": "softmax", "index": "index_select", "size": "broadcast_to"}
    name = {**names, "argument": "avg_pool2d", "value": "solve", "chance": "bernoulli", "device": "mm"}[flaw]
    found = [d.case for d in search(catalog.row(name), "float32", SIZES, "1", 400) if d.case.refused]
    assert 5 <= len(found) <= 40
    assert flaw in {c.refused for c in found}
    assert all(parse(case_text(c)) == c for c in found)


def test_the_cpu_refuses_nearly_all_that_is_drawn_to_be_refused() -> None:
    said = {"agree": 0, "void": 0}
    for row in list(catalog.ROWS.values())[::5]:
        for dtype in [d for d in DEFAULT if d in row.dtypes][:2]:
            for k in range(1, 7):
                case = error_case(row, nth(row, dtype, SIZES, "flaws", k).case, lambda n, k=k: k % n)  # type: ignore[misc]  # k is bound early
                if case.refused:
                    for r in check(row, case, CPU, CPU, TABLES, Settings(), quiet, [])[0]:
                        said[str(r.verdict.status)] += 1
    assert said["agree"] > 200
    assert said["void"] < 0.04 * said["agree"]


def flaws_of(name: str, dtype: str = "float32", n: int = 2000) -> list[Case]:
    return [d.case for d in search(catalog.row(name), dtype, SIZES, "1", n) if d.case.refused]


def test_indices_lie_just_past_the_end_and_far() -> None:
    specs = [c.args[-1] for c in flaws_of("index_select") if c.refused == "index"]
    far = {int(v) - int(s.values.params[1]) for s in specs for _, v in s.values.specials[:1]}  # type: ignore[union-attr]
    assert {0, 1, 5} <= far


@pytest.mark.parametrize("name", ["mm", "linear", "conv2d"])
def test_operands_of_two_dtypes_are_refused_where_nothing_promotes(name: str) -> None:
    found = [c for c in flaws_of(name) if c.refused == "dtype"]
    dtypes = {c.args[1].dtype for c in found}  # type: ignore[union-attr]
    assert {"int64", "int8", "float16"} <= dtypes
    assert {str(r.verdict.status) for c in found[:20] for r in refused(resolve("sim"), c)} == {"agree"}


@pytest.mark.parametrize(
    ("name", "word", "value"), [("conv2d", "stride", 0), ("conv2d", "groups", 0), ("max_pool2d", "padding", -1)]
)
def test_counts_of_zero_and_below_are_refused(name: str, word: str, value: int) -> None:
    given = [dict(c.kwargs).get(word) for c in flaws_of(name) if c.refused == "argument"]
    assert any(value in (v if isinstance(v, tuple) else (v,)) for v in given)


def test_a_lenient_device_is_found_by_a_run_and_shrunk() -> None:
    faulty = resolve("sim", (Fault("lenient", ("index_select",), clamped, level="function"),))
    plan = RunPlan(faulty, CPU, TABLES, profile("quick"), RunOptions(examples=200))
    done = examine(Item(catalog.row("index_select"), "float32"), plan, NoJournal())
    (finding,) = done.findings
    assert (str(finding.result.aspect), finding.case.refused) == ("refusal", "index")
    assert "under" not in case_text(finding.case)


@pytest.mark.parametrize(("name", "flaws"), [("opinfo:gather", {"inputs", "index"}), ("opinfo:linalg.cross", {"inputs"})])
def test_entries_of_opinfo_take_the_calls_that_it_says_must_be_refused(name: str, flaws: set[str]) -> None:
    """All of them, the same ones every time; each is read back, and refused by a healthy device as by the CPU."""
    row = suite_row(name)
    calls = [c for c, _ in entries.refusals(name)]
    opinfo.errors.cache_clear()
    assert [c for c, _ in entries.refusals(name)] == calls
    cases = [error_case(row, Case(name, "float32", ()), lambda n, k=k: k) for k in range(len(calls))]  # type: ignore[misc]  # k is bound early
    assert {c.refused for c in cases} == flaws
    device = resolve("sim")
    for case in cases:
        assert parse(case_text(case)) == case
        with device.active():
            (result,) = check(row, case, device, CPU, TABLES, Settings(), quiet, [])[0]
        assert str(result.verdict.status) == "agree"


def test_wrong_inputs_of_opinfo_are_drawn() -> None:
    """Now and then, and only where the entry has some."""
    found = [d.case for d in search(suite_row("opinfo:gather"), "float32", SIZES, "1", 400) if d.case.refused]
    assert 5 <= len(found) <= 40
    assert not [d for d in search(suite_row("opinfo:exp"), "float32", SIZES, "1", 100) if d.case.refused]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('solve(float32[2, 2].inside(1, 1), float32[2, 1]).refused("value")', "agree"),
        ('avg_pool2d(float32[1, 1, 3, 3], 2, padding=99).refused("argument")', "agree"),
        ('scaled_dot_product_attention(float32[1, 2, 4], float32[1, 2, 4], float32[1, 2, 4], attn_mask=bool[2, 2],'
         ' is_causal=True).refused("argument")', "agree"),
        ('linear(float32[3, 4], float32[2, 3]).refused("shape")', "agree"),
        ('mm(float32[2, 2], float32[2, 2].on_cpu()).refused("device")', "agree"),
    ],
)  # fmt: skip
def test_what_an_op_refuses_for_a_reason_of_its_own(text: str, status: str) -> None:
    (result,) = refused(resolve("sim"), parse(text))
    assert str(result.verdict.status) == status


def test_operands_on_two_devices_are_told_where_a_device_takes_them() -> None:
    faulty = resolve("sim", (Fault("mixed", ("solve_triangular",), lambda call: call.args[0].clone(), level="function"),))
    case = parse('solve_triangular(float32[2, 2].upper(), float32[2, 2].on_cpu(), upper=True).refused("device")')
    (result,) = refused(faulty, case)
    assert str(result.verdict.status) == "malformed"
    assert not refused(CPU, case)


def on_the_cpu(call: Call) -> Any:
    """torch's fallback: it says so, and takes operands of any device."""
    text = "The operator 'aten::mode' is not currently supported on the MPS backend and will fall back to run on the CPU."
    warnings.warn(text, UserWarning, stacklevel=2)
    return call.args[0].clone()


def test_operands_on_two_devices_are_no_finding_where_torch_falls_back() -> None:
    """Its fallback takes all operands to the CPU, of whatever device they are; the other flaws stay findings there."""
    falling = resolve("sim", (Fault("falls back", ("solve_triangular", "softmax"), on_the_cpu, level="function"),))
    apart = 'solve_triangular(float32[2, 2].upper(), float32[2, 2].on_cpu(), upper=True).refused("device")'
    verdicts = []
    for case in map(parse, (apart, 'softmax(float32[2, 3], dim=9).refused("dim")')):
        notes: list[str] = []
        with falling.active(), listening(notes):
            (result,) = check(catalog.row(case.op), case, falling, CPU, TABLES, Settings(), quiet, notes)[0]
        verdicts.append((str(result.verdict.status), result.verdict.reason.partition(":")[0]))
    assert verdicts == [
        ("void", "torch's fallback takes operands of any device to the CPU"),
        ("malformed", "computed what the CPU refuses"),
    ]


@pytest.mark.parametrize("name", ["dot", "mv", "conv2d", "batch_norm", "scatter", "cross_entropy", "max_pool2d"])
def test_operands_that_do_not_fit_together_are_refused(name: str) -> None:
    """A dimension too many, or an element: on a healthy device too."""
    found = [c for c in flaws_of(name, n=600) if c.refused == "shape"]
    assert len(found) > 1
    assert {str(r.verdict.status) for c in found for r in refused(resolve("sim"), c)} == {"agree"}


def test_a_device_that_multiplies_what_is_no_vector_is_found() -> None:
    lenient = Fault("lenient", ("dot",), lambda call: (call.args[0] * call.args[1]).sum(), level="function")
    found = [c for c in flaws_of("dot", n=600) if c.refused == "shape"]
    said = [str(r.verdict.status) for c in found for r in refused(resolve("sim", (lenient,)), c)]
    assert "malformed" in said


@pytest.mark.parametrize("name", ["rms_norm", "copy_within"])
def test_shapes_that_devices_check_differently_stay_as_they_are(name: str) -> None:
    assert not [c for c in flaws_of(name, n=400) if c.refused == "shape"]
