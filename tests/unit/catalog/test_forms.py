"""Rows of forms that no public function takes: what goes wrong in such a form alone is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity import tolerance
from parity.core.results import Status
from parity.devices import Fault, resolve
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan


def _leaves_the_first(call: Any) -> Any:
    """The first element of the first destination stays what it was."""
    out = call.outs[0]
    if not out.numel():
        return call.run()
    before = out.reshape(-1)[0].clone()
    made = call.run()
    call.outs[0].view(-1)[0] = before
    return made


def _adds_one(call: Any) -> Any:
    made = call.run()
    first, *rest = made if isinstance(made, tuple) else (made,)
    return (first + 1, *rest) if rest else first + 1


def _squares(call: Any) -> torch.Tensor:
    """Rows that still add up to 1, of another distribution."""
    squared: torch.Tensor = call.run().square()
    return squared / squared.sum(-1, keepdim=True)


def _backwards(call: Any) -> torch.Tensor:
    """The same permutation for every generator."""
    out: torch.Tensor = call.outs[0]
    return out.copy_(torch.arange(out.numel() - 1, -1, -1))


@pytest.mark.parametrize(
    ("row", "op", "effect"),
    [
        ("avg_pool2d_kernel_written", "avg_pool2d.out", _leaves_the_first),
        ("avg_pool3d_backward_written", "avg_pool3d_backward.grad_input", _leaves_the_first),
        ("adaptive_max_pool2d_written", "adaptive_max_pool2d.out", _leaves_the_first),
        ("max_unpool3d_written", "max_unpool3d.out", _leaves_the_first),
        ("histogram_written", "histogram.bin_ct_out", _leaves_the_first),
        ("histogram_edges_written", "histogram.bins_tensor_out", _leaves_the_first),
        ("nonzero_static_written", "nonzero_static.out", _leaves_the_first),
        ("triangular_solve_written", "triangular_solve.X", _leaves_the_first),
        ("lu_written", "linalg_lu.out", _leaves_the_first),
        ("lu_parts_written", "lu_unpack.out", _leaves_the_first),
        ("cholesky_inverse_written", "cholesky_inverse.out", _leaves_the_first),
        ("log_sigmoid_forward_written", "log_sigmoid_forward.output", _leaves_the_first),
        ("eye_written", "eye.out", _leaves_the_first),
        ("range_written", "range.out", _leaves_the_first),
        ("native_batch_norm_written", "native_batch_norm.out", _leaves_the_first),
        ("native_batch_norm_legit_written", "_native_batch_norm_legit.out", _leaves_the_first),
        ("batch_norm_without_statistics_written", "_native_batch_norm_legit.no_stats_out", _leaves_the_first),
        ("native_batch_norm_legit", "_native_batch_norm_legit", _adds_one),
        ("batch_norm_without_statistics", "_native_batch_norm_legit.no_stats", _adds_one),
        ("batch_norm_backward", "batch_norm_backward", _adds_one),
        ("embedding_bag_dense_backward", "_embedding_bag_dense_backward", _adds_one),
        ("weight_int4pack_mm", "_weight_int4pack_mm", _adds_one),
        ("histogramdd_edges", "_histogramdd_from_bin_tensors", _adds_one),
        ("dirichlet", "_sample_dirichlet", _squares),
        ("native_dropout", "native_dropout", _adds_one),
        ("randperm_written", "randperm.generator_out", _backwards),
    ],
)
def test_a_fault_of_the_form_alone_is_found(row: str, op: str, effect: Callable[[Any], Any]) -> None:
    """Planted in one overload, it makes the row that is about it wrong, and a healthy device is not accused."""
    item = suite.Item(suite.row(row), suite.row(row).dtypes[0])
    tables = tolerance.load("sim")
    statuses, few = [], RunOptions(examples=3, power=0, skip=("shrink",))
    for faults in ((), (Fault("planted", ops=(op,), effect=effect, level="kernel"),)):
        plan = RunPlan(resolve("sim", faults), resolve("cpu"), tables, suite.profile("quick"), few)
        statuses.append({r.result.verdict.status for r in examine(item, plan, NoJournal()).findings})
    assert not statuses[0]
    assert statuses[1] & {Status.WRONG, Status.DRIFT, Status.MALFORMED}


def test_copies_beside_and_to_the_cpu_are_told_apart() -> None:
    """The kernel of copies, called by itself."""
    item = suite.Item(suite.row("copy_from"), "float32")

    def effect(call: Any) -> Any:
        return call.args[0] + 1

    plan = RunPlan(
        resolve("sim", (Fault("planted", ops=("download",), effect=effect, level="transfer"),)),
        resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), RunOptions(examples=4, skip=("shrink",)),
    )  # fmt: skip
    assert examine(item, plan, NoJournal()).findings
