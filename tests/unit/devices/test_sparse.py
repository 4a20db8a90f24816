"""Sparse tensors on the simulated device, the rows of the catalog that make them, and faults in their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import checked
from torch import Tensor

from parity import catalog, tolerance
from parity.catalog.draw import Sizes
from parity.catalog.glue import sparse
from parity.checks.check import Settings, check, failing, quiet
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.sim import honest
from parity.generation.generate import search

ROWS = [r for r in catalog.ROWS.values() if r.family == "sparse"]
ROW, COLUMN = torch.tensor([1, 0, 1, 1]), torch.tensor([2, 0, 2, 1])
VALUES, DENSE = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.arange(6.0).view(3, 2)


def first_of_duplicates(call: Call) -> Any:
    """Of places that come twice the first value is kept, and not the sum of all."""
    x = call.args[0]
    flat = (x._indices()[0] * x.shape[1] + x._indices()[1]).tolist()
    kept = [k for k, place in enumerate(flat) if place not in flat[:k]]
    return torch.sparse_coo_tensor(x._indices()[:, kept], x._values()[kept], x.shape).coalesce()


@pytest.fixture(params=["healthy", "with a fault elsewhere"])
def sim(request: pytest.FixtureRequest) -> Device:
    """A device that nobody watches, and one at an index of its own whose operators all pass the faults."""
    faults = () if request.param == "healthy" else (Fault("elsewhere", ("erfinv",), lambda call: call.run()),)
    return resolve("sim", faults)


@pytest.mark.parametrize(
    "function",
    [
        lambda v, r, c, d: sparse.coo(v, r, c, (2, 3)).to_dense(),
        lambda v, r, c, d: sparse.coo(v, r, c, (2, 3)).coalesce().values(),
        lambda v, r, c, d: torch.sparse.mm(sparse.coo(v, r, c, (2, 3)), d),
        lambda v, r, c, d: (sparse.coo(v, r, c, (2, 3)) + sparse.coo(v, r, c, (2, 3))).to_dense(),
        lambda v, r, c, d: torch.sparse.sum(sparse.coo(v, r, c, (2, 3)), 1).to_dense(),
        lambda v, r, c, d: (sparse.coo(v, r, c, (2, 3)).coalesce() * d.T).to_dense(),
        lambda v, r, c, d: torch.sparse.mm(sparse.coo(v, r, c, (2, 3)), sparse.coo(v, c, r, (3, 2))).to_dense(),
        lambda v, r, c, d: sparse.csr(v, 2, 3) @ d,
        lambda v, r, c, d: sparse.csr(v, 2, 3).to_dense().T,
        lambda v, r, c, d: (d * v[0]).to_sparse().to_dense() + (d * v[0]).to_sparse_csr().to_dense(),
        lambda v, r, c, d: (d * v[0]).to_sparse_csc().to_dense(),
        lambda v, r, c, d: (
            torch.nested.as_nested_tensor([d[:2] * v[0], d * v[1]]).transpose(1, 2).contiguous().to_padded_tensor(7.0)
        ),
    ],
)
def test_it_computes_as_on_the_cpu_with_gradients(sim: Device, function: Callable[..., Tensor]) -> None:
    results = []
    for device in ("cpu", sim.torch_device):
        with sim.active():
            values = VALUES.to(device).requires_grad_()
            out = function(values, ROW.to(device), COLUMN.to(device), DENSE.to(device))
            (gradient,) = torch.autograd.grad((out * out).sum(), values)
            assert (out.device, gradient.device) == (values.device, values.device)
            results.append((out.detach().cpu(), gradient.cpu()))
    assert all(map(torch.equal, *results))


def test_a_sparse_tensor_lies_where_its_values_do(sim: Device) -> None:
    with sim.active():
        made = sparse.coo(VALUES.to(sim.torch_device), ROW.to(sim.torch_device), COLUMN.to(sim.torch_device), (2, 3))
        assert made.device == made._values().device == made.coalesce().device == sim.torch_device
        assert made._nnz() == 4
        assert made.coalesce().indices().cpu().tolist() == [[0, 1, 1], [0, 1, 2]]
        with pytest.raises(NotImplementedError, match=r"'aten::mul_.Tensor'.*writes into no sparse tensor"):
            made.coalesce().mul_(2.0)


def test_what_it_does_not_hold_is_refused_by_its_name(sim: Device) -> None:
    with sim.active(), pytest.raises(NotImplementedError, match=r"torch\.sparse_bsr.*take torch\.sparse_csr"):
        torch.eye(4).to(sim.torch_device).to_sparse_bsr((2, 2))


def test_mps_multiplies_no_compressed_rows() -> None:
    """Its tables of sparse operators say so."""
    device = resolve("sim:mps")
    assert str(checked(device, "csr_mm(float32[4], 2, 3, float32[3, 2])")["forward"].verdict.status) == "unsupported"
    coordinates = "coo_mm(float32[2], int64[2].index(0, 2), int64[2].index(0, 3), (2, 3), float32[3, 2])"
    assert str(checked(device, coordinates)["forward"].verdict.status) == "agree"


def found(device: Device, n: int) -> set[str]:
    """The rows with findings among n cases each. Raises AssertionError if a row compared nothing."""
    wrong, cpu, tables = set(), resolve("cpu"), tolerance.load("sim")
    for row in ROWS:
        compared = 0
        for one in search(row, "float32", Sizes(), "sparse", n):
            with device.active():
                results, _ = check(row, one.case, device, cpu, tables, Settings(always_use_oracle=True), quiet, [])
            compared += sum(r.verdict.status.is_comparison for r in results)
            wrong |= {row.name} if failing(results) else set()
        assert compared
    return wrong


def test_healthy_and_honest_devices_are_right_in_every_row() -> None:
    assert found(resolve("sim"), 8) == set()
    assert found(resolve("sim", honest.FAULTS), 8) == set()


def test_a_fault_in_an_operator_of_sparse_tensors_is_found() -> None:
    fault = Fault("keeps-one", ("_coalesce",), first_of_duplicates, when=lambda c: not c.args[0].dense_dim())
    assert {"coo_coalesce", "coo_mul"} <= found(resolve("sim", (fault,)), 8) <= {"coo_coalesce", "coo_mul", "coo_sum"}
