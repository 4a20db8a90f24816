"""The sweep: each dimension meets each border size, then two at once, then many elements, with all others small."""

from __future__ import annotations

import math

import pytest

from parity import tolerance
from parity.catalog.draw import SweepPlan
from parity.checks.check import Settings, check, quiet
from parity.core import notation
from parity.core.case import Case
from parity.core.results import FINDINGS, Status
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.cases import SWEPT, drawn
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import BORDERS, SWEPT_LIMIT, Item
from parity.generation import sweep as sweeping
from parity.generation.room import made

SMALL = 8


def sweep(name: str, count: int, seed: str = "0", dtype: str = "float32", borders: tuple[int, ...] = BORDERS) -> list[Case]:
    """The first cases of an op's sweep."""
    plan = SweepPlan({dtype: count}, borders, SWEPT_LIMIT)
    made = (sweeping.swept(suite.row(name), dtype, plan, seed, k) for k in range(count))
    return [one.case for one in made if one is not None]


def pairs(name: str, seed: str = "0", count: int = len(sweeping.TWO), dtype: str = "float32") -> list[Case]:
    """The first cases of an op's sweep with two borders."""
    made = (sweeping.swept(suite.row(name), dtype, SweepPlan(two={"": count}), seed, k) for k in range(count))
    return [one.case for one in made if one is not None]


def plan(*faults: Fault) -> RunPlan:
    options = RunOptions(skip=("shrink",))
    return RunPlan(resolve("sim", faults), resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)


@pytest.mark.parametrize("name", ["add", "softmax", "cumsum", "index_select", "max_pool2d", "pad_replicate"])
def test_one_dimension_is_large_and_all_others_are_small(name: str) -> None:
    """Whatever the row draws its sizes by."""
    for case in sweep(name, 12):
        large = {d for x in case.operands() for d in x.shape if d > 2 * SMALL}
        assert large, notation.case_text(case)
        assert max(large) - min(large) <= 2 * SMALL  # the same dimension in several operands, a window aside
        assert sum(x.numel for x in case.operands()) <= SWEPT_LIMIT


def test_kernels_and_results_are_swept_too() -> None:
    """A convolution's kernel up to what the CPU takes in reasonable time, and the size that an image is resized to."""
    assert {max(c.operands()[1].shape[2:]) for c in sweep("conv2d", 30)} >= {300}
    assert any(max(c.operands()[0].shape) < 1024 for c in sweep("interpolate_nearest", 30))


def test_every_dimension_meets_every_border() -> None:
    """In turn, so that none is left to chance."""
    borders = (1024, 4097)
    met = set()
    for case in sweep("cosine_similarity", 60, borders=borders):
        x = case.operands()[0]
        met |= {(len(x.shape), k, d) for k, d in enumerate(x.shape) if d in borders}
    for rank in (1, 2, 3):
        assert {(k, d) for r, k, d in met if r == rank} == {(k, d) for k in range(rank) for d in borders}


@pytest.mark.parametrize("name", ["eig", "ldl_solve"])
def test_what_takes_one_matrix_after_the_other_gets_no_long_stack(name: str) -> None:
    """A GPU is at it for so long that it seems to hang; `inv`, which takes all at once, has such stacks."""
    longest = [max(c.operands()[0].shape[0] for c in sweep(op, 40)) for op in (name, "inv")]
    assert SMALL < longest[0] <= 257
    assert longest[1] > 257


def test_a_border_that_is_too_large_gives_way_to_a_smaller_one() -> None:
    """A square matrix has as many elements as its side squared."""
    sides = {max(x.shape) for case in sweep("cdist", 20) for x in case.operands()}
    assert sides & set(BORDERS)
    plan = SweepPlan({"": 1}, (1 << 19, 64), 1 << 10)
    least = sweeping.swept(suite.row("add"), "float32", plan, "1", 0)
    assert least is not None
    assert max(d for x in least.case.operands() for d in x.shape) == 64


@pytest.mark.parametrize(("name", "dtype", "seed"), [
    ("upsample_trilinear3d", "float32", "4"), ("interpolate_bilinear", "float16", "5"), ("interpolate_area", "float16", "5"),
])  # fmt: skip
def test_where_the_truth_would_make_too_much_all_other_dimensions_are_as_small_as_can_be(
    name: str, dtype: str, seed: str
) -> None:
    """The formulas of one gradient of 65,535 x 2 x 2 results of four images took a minute; the border stays."""
    row, plan = suite.row(name), suite.profile("quick").sweep
    cases = [one.case for k in range(sum(plan.counts(dtype))) if (one := sweeping.swept(row, dtype, plan, seed, k))]
    sizes = [[n for x in c.operands() for n in x.shape] + [n for a in c.args if isinstance(a, tuple) for n in a] for c in cases]
    sizes = [s + [n for _, a in c.kwargs if isinstance(a, tuple) for n in a] for s, c in zip(sizes, cases, strict=True)]
    assert max(n for s in sizes for n in s if isinstance(n, int)) >= 65535
    assert max(made(row, c, 1).elements for c in cases) <= sweeping.MADE_PER_ELEMENT * plan.limit


def test_a_border_with_which_it_would_make_too_much_even_then_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resampling a volume of 262,144 elements took two minutes and 4 GB of a worker."""
    row, plan = suite.row("interpolate_trilinear"), suite.profile("quick").sweep
    monkeypatch.setattr(sweeping, "MADE_PER_ELEMENT", 1)

    def longest() -> int:
        cases = (sweeping.swept(row, "float16", plan, "1", k) for k in range(sum(plan.counts("float16"))))
        return max(n for one in cases if one is not None for x in one.case.operands() for n in x.shape)

    few = longest()
    monkeypatch.setattr(sweeping, "MADE_PER_ELEMENT", 1 << 20)
    assert few < longest()


def test_the_seed_decides() -> None:
    """The same cases in every process, others with another seed."""
    first, again, other = (list(map(notation.case_text, sweep("add", 6, s))) for s in ("0", "0", "1"))
    assert first == again
    assert first != other


def test_values_are_whole_numbers_whose_sums_are_exact() -> None:
    """So that a long sum needs no float64 truth on a device that adds in another order."""
    assert {x.values.family for case in sweep("sum", 6) for x in case.operands()} == {"integers"}


def test_a_call_without_a_dimension_has_no_sweep() -> None:
    """And costs nothing."""
    assert sweep("item", 3) == []


def test_a_run_sweeps_after_it_explored() -> None:
    """Ordinals ascend, because processes of their own count on that; a number of cases leaves the sweep out."""
    item = Item(suite.row("softmax"), "float32")
    ordinals = [k for k, _, _ in drawn(item, plan())]
    assert ordinals == sorted(ordinals)
    assert [k - SWEPT for k in ordinals if k >= SWEPT] == list(range(suite.profile("quick").sweeps(item.row, "float32")))
    few = RunPlan(
        **{**{f: getattr(plan(), f) for f in ("device", "cpu", "tables", "profile")}, "options": RunOptions(examples=3)}
    )
    assert all(k < SWEPT for k, _, _ in drawn(item, few))


def test_a_kernel_that_counts_with_16_bits_is_found() -> None:
    """It is right for every size that exploration draws in the quick profile."""

    def forgets(call: Call) -> object:
        out = call.run()
        out.view(-1)[32767:] = 0
        return out

    fault = Fault("short", ("neg",), forgets, lambda c: c.operands[0].numel() > 32767)
    done = examine(Item(suite.row("neg"), "float32"), plan(fault), NoJournal())
    assert {f.result.verdict.status for f in done.findings} == {Status.WRONG}
    assert all(max(map(math.prod, (x.shape for x in f.first.operands()))) > 32767 for f in done.findings)


def classes(case: Case) -> set[tuple[int, int]]:
    """The sizes of the two largest dimensions of its first operand, without their neighbours."""
    a, b = sorted(case.operands()[0].shape)[-2:]
    return {(m, n) for m, n in sweeping.TWO if abs(a - m) <= 1 and abs(b - n) <= 1}


def test_two_borders_meet_in_turn() -> None:
    """Two runs with half of the table each, with seeds in a row, meet all of it; one of them does not."""
    half = len(sweeping.TWO) // 2
    first, second = ({c for case in pairs("neg", seed, half) for c in classes(case)} for seed in ("4", "5"))
    assert first | second == {(a, b) for a, b in sweeping.TWO if a <= b}
    assert first != first | second


@pytest.mark.parametrize("name", ["softmax", "matmul", "conv2d", "scaled_dot_product_attention", "embedding", "group_norm"])
def test_two_dimensions_are_large_and_all_others_are_small(name: str) -> None:
    """And their product has a limit."""
    made = pairs(name)
    assert len(made) > len(sweeping.TWO) // 2
    for case in made:
        assert sum(x.numel for x in case.operands()) <= sweeping.LIMIT_OF_TWO
        assert sum(d > 14 for x in case.operands() for d in x.shape) >= 2, notation.case_text(case)


def test_many_elements_are_many_in_one_dimension_or_in_two() -> None:
    """Up to what the profile allows; values stay whole numbers."""
    plan = SweepPlan(elements={"": 12}, most=1 << 24)
    made = [sweeping.swept(suite.row("neg"), "float32", plan, "0", k) for k in range(12)]
    sizes = [one.case.operands()[0] for one in made if one is not None]
    assert {min(x.numel, (1 << 24) + 1) for x in sizes} > {(1 << 22) + 1, (1 << 24) - 1, 1 << 24, (1 << 24) + 1}
    assert {sum(d > 1 for d in x.shape) for x in sizes} == {1, 2}
    assert {x.values.family for x in sizes} == {"integers"}
    fewer = SweepPlan(elements={"": 12}, most=1 << 22)
    few = [sweeping.swept(suite.row("neg"), "float32", fewer, "0", k) for k in range(12)]
    assert all(one is not None and one.case.numel < 1 << 23 for one in few)


def test_what_takes_long_has_no_case_of_many_elements() -> None:
    """Recurrent layers run once per step, a law draws many samples, factors take the square of the time."""
    plan = SweepPlan(elements={"": 1}, most=1 << 22)
    assert not any(sweeping.swept(suite.row(n), "float32", plan, "0", 0) for n in ("lstm", "rand_like", "svd"))


def overruns(call: Call) -> object:
    """Right, except past the 256th row and column."""
    out = call.run()
    out[..., 256:, 256:] = 0
    return out


WIDE = Fault("wide", ("neg",), overruns, lambda c: c.operands[0].ndim > 1 and min(c.operands[0].shape[-2:]) > 256)


def findings_of(cases: list[Case], *faults: Fault) -> int:
    """How many of these cases are findings in their forward on a simulated device."""
    device, cpu, tables = resolve("sim", faults), resolve("cpu"), tolerance.load("sim")
    with device.active():
        checked = [check(suite.row(c.op), c, device, cpu, tables, Settings(), quiet, [])[0] for c in cases]
    return sum(any(r.verdict.status in FINDINGS for r in results) for results in checked)


def test_a_kernel_that_is_wrong_where_two_dimensions_are_large_is_found() -> None:
    """No case of the sweep with one border shows it, and none of a healthy device's is a finding."""
    both = [c for c in pairs("neg") if len(c.operands()[0].shape) == 2]
    assert findings_of(both, WIDE)
    assert not findings_of(both)
    assert not findings_of(sweep("neg", 12), WIDE)


# Rows without a dimension that may be large: numbers, shapes that are fixed or cut, results that grow with a power of a side.
NOT_SWEPT = {
    *("cumprod", "cumprod_wider", "cumprod_into_itself", "kron", "bilinear", "int_mm", "tensorsolve", "tensorinv", "ctc_loss"),
    *("amp_update_scale", "weight_int8pack_mm", "weight_int4pack_mm", "set_part", "reshape_alias", "block_diag", "item"),
    "scaled_mm",
    "masked.cumprod",
    *(
        "diagflat",
        "bmm_of_neighbours",
        "unbind",
        "as_strided",
        "as_strided_scatter",
        "trunc_normal_",
        "xavier_uniform_",
        "kaiming_normal_",
    ),
}


def test_the_rows_that_are_not_swept_are_listed() -> None:
    """All others meet a border in one of their first cases."""
    left = set()
    for row in suite.rows("native"):
        dtype = "float32" if "float32" in row.dtypes else row.dtypes[0]
        if not any(sweeping.with_one_border(row, dtype, BORDERS, SWEPT_LIMIT, "0", k) for k in range(4)):
            left.add(row.name)
    assert left == NOT_SWEPT
