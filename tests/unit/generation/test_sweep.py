"""The sweep: each dimension meets each border size, with all others small."""

from __future__ import annotations

import math

import pytest

from parity import tolerance
from parity.core import notation
from parity.core.case import Case
from parity.core.results import Status
from parity.devices import Call, Fault, resolve
from parity.generation import generate
from parity.runs import suite
from parity.runs.examine import SWEPT, NoJournal, RunPlan, drawn, examine
from parity.runs.options import RunOptions
from parity.runs.suite import BORDERS, SWEPT_LIMIT, Item

SMALL = 8


def sweep(name: str, count: int, seed: str = "0", dtype: str = "float32", borders: tuple[int, ...] = BORDERS) -> list[Case]:
    """The first cases of an op's sweep."""
    made = (generate.swept(suite.row(name), dtype, borders, SWEPT_LIMIT, seed, k) for k in range(count))
    return [one.case for one in made if one is not None]


def plan(*faults: Fault) -> RunPlan:
    options = RunOptions(no_shrink=True)
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
    borders = (1024, 65537)
    met = set()
    for case in sweep("cosine_similarity", 60, borders=borders):
        x = case.operands()[0]
        met |= {(len(x.shape), k, d) for k, d in enumerate(x.shape) if d in borders}
    for rank in (1, 2, 3):
        assert {(k, d) for r, k, d in met if r == rank} == {(k, d) for k in range(rank) for d in borders}


def test_a_border_that_is_too_large_gives_way_to_a_smaller_one() -> None:
    """A square matrix has as many elements as its side squared."""
    sides = {max(x.shape) for case in sweep("cdist", 20) for x in case.operands()}
    assert sides & set(BORDERS)
    least = generate.swept(suite.row("add"), "float32", (1 << 19, 64), 1 << 10, "0", 0)
    assert least is not None
    assert max(d for x in least.case.operands() for d in x.shape) == 64


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


# Rows without a dimension that may be large: numbers, shapes that are fixed or cut, results that grow with a power of a side.
NOT_SWEPT = {
    *("cumprod", "cumprod_wider", "cumprod_into_itself", "kron", "bilinear", "int_mm", "tensorsolve", "tensorinv", "ctc_loss"),
    *("amp_update_scale", "weight_int8pack_mm", "weight_int4pack_mm", "set_part", "reshape_alias", "block_diag", "item"),
    *("bmm_of_neighbours", "unbind", "as_strided", "trunc_normal_", "xavier_uniform_", "kaiming_normal_"),
}


def test_the_rows_that_are_not_swept_are_listed() -> None:
    """All others meet a border in one of their first cases."""
    left = set()
    for row in suite.rows("native"):
        dtype = "float32" if "float32" in row.dtypes else row.dtypes[0]
        if not any(generate.swept(row, dtype, BORDERS, SWEPT_LIMIT, "0", k) for k in range(4)):
            left.add(row.name)
    assert left == NOT_SWEPT
