"""Reading torch's operator table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parity.core.errors import DeviceError
from parity.devices import operator_table

TABLE = """\
- func: add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
  device_check: NoCheck   # TensorIterator
  structured_delegate: add.out
  variants: function, method
  dispatch:
    SparseCPU: add_sparse
    ZeroTensor: add_zerotensor

# a comment
- func: add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)
  dispatch:
    SparseCPU: add_out_sparse_cpu
    MPS, MTIA: add_out_mps # after its name
  tags: [core]

- func: linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor
  python_module: nn
  dispatch:
    CompositeImplicitAutograd: linear
    MPS: _mps_linear

- func: matmul(Tensor self, Tensor other) -> Tensor
  variants: function, method
"""


def test_keys_are_an_overloads_own_and_its_delegates(tmp_path: Path) -> None:
    """The dispatch section, with several keys in a line, and that of the structured delegate."""
    path = tmp_path / "native_functions.yaml"
    path.write_text(TABLE)
    assert operator_table.dispatch_keys(path) == {
        "add.Tensor": {"SparseCPU", "ZeroTensor", "MPS", "MTIA"},
        "add.out": {"SparseCPU", "MPS", "MTIA"},
        "linear": {"CompositeImplicitAutograd", "MPS"},
        "matmul": set(),
    }


def test_a_function_is_the_keys_that_share_it() -> None:
    """Line by line, with those of the structured delegate."""
    table = operator_table.functions(TABLE)
    assert [set(keys) for keys in table["add.Tensor"]] == [{"SparseCPU"}, {"ZeroTensor"}, {"SparseCPU"}, {"MPS", "MTIA"}]
    assert table["matmul"] == ()


def test_a_torch_without_the_table_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its path, what reads it, what to do."""
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    with pytest.raises(DeviceError, match=r"operator table is not there: .*native_functions\.yaml; .*parity audit.*reinstall"):
        operator_table.with_kernel("MPS")
