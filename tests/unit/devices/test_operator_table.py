"""Reading torch's operator table."""

from __future__ import annotations

import os
import runpy
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.core import untrusted
from parity.core.backends import mps
from parity.core.errors import DeviceError, WheelError
from parity.devices import operator_table
from parity.devices.operator_table import MacWheel

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


PINNED = ("2.12.1", "2.13.0", "2.14.1")
BENCH: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "mac_wheel.py"))
AssumedWheel, all_texts = BENCH["AssumedWheel"], BENCH["all_texts"]
MAC_WHEEL_TABLE = """\
- func: add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)
  dispatch:
    CPU, MPS: add_out
- func: acos_(Tensor(a!) self) -> Tensor(a!)
  dispatch:
    MPS: acos_
"""
SYMBOLS = b"__ZN2at12_GLOBAL__N_123wrapper_MPS_add_out_outERKNS\0__ZN2at12_GLOBAL__N_118wrapper_MPS__acos_ERNS\0"


def library(torch: str) -> bytes:
    """What a library holds in which all that is assumed of this torch holds."""
    texts = [x for t in all_texts() if t.is_in(torch) for x in t.literals]
    return SYMBOLS + b"\0".join(x.encode() for x in (*texts, *mps.UNITS, *mps.VARIABLES))


def wheel(folder: Path, torch: str = "2.13.0", /, **other: bytes) -> Path:
    """A wheel with only what is read. other: contents that replace its own, by the last word of the file's name."""
    contents = {
        f"torch-{torch}.dist-info/METADATA": f"Name: torch\nVersion: {torch}\n".encode(),
        operator_table.TABLE: MAC_WHEEL_TABLE.encode(),
    }
    contents |= {mps.LIBRARY: library(torch), "torch/lib/libc10.dylib": b""}
    contents |= {f: "".join(f"def {n}(x):\n" for n in names).encode() for f, names in BENCH["FUNCTIONS"].items()}
    path = folder / f"torch-{torch}-cp312-cp312-macosx_14_0_arm64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, other.get(Path(name).stem, content))
    return path


@pytest.mark.parametrize("torch", PINNED)
def test_a_wheel_in_which_all_holds(tmp_path: Path, torch: str) -> None:
    """Its version, its operators with their keys, and nothing that is missing."""
    read = AssumedWheel(wheel(tmp_path, torch))
    assert read.torch == read.table.torch == torch
    assert read.table.keys == {"add.out": {"CPU", "MPS"}, "acos_": {"MPS"}}
    assert read.missing() == ()
    assert read.unread() == ()


def test_what_does_not_hold_is_told(tmp_path: Path) -> None:
    """A text that is gone, one that came too early, a function, a variable, and kernels on one side alone."""
    early = next(t for t in all_texts() if t.since == "2.14")
    raw = library("2.13.0").replace(b"bincount is not supported for Bool", b"-").replace(b"PYTORCH_MPS_FAST_MATH", b"-")
    raw = raw.replace(b"wrapper_MPS__acos_", b"wrapper_MPS__asin_") + b"\0".join(x.encode() for x in early.literals)
    raw += b"\0wavelets are not supported on MPS\0"
    changed = {"libtorch_cpu": raw, "__init__": b"def is_built():\n"}
    read = AssumedWheel(wheel(tmp_path, **changed))
    lacking = read.missing()
    for part in (
        "text 'bincount is not supported for Bool': the library does not hold",
        "the library holds it; it is said to be there from 2.14",
        "'PYTORCH_MPS_FAST_MATH': the library does not hold it",
        "torch/mps/__init__.py does not define synchronize",
        "operator acos_: has a kernel by the table, and the library registers none",
        "wrapper_MPS__asin_: registered by the library, and not in the table",
    ):
        assert any(part in line for line in lacking), part
    assert read.unread() == ("wavelets are not supported on MPS",)


def not_a_zip(folder: Path) -> Path:
    path = folder / "torch.whl"
    path.write_bytes(b"PK\3\4 no more")
    return path


def damaged(folder: Path) -> Path:
    path = wheel(folder)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"METADATA") + len("METADATA")
    raw[at : at + 8] = b"\xff" * 8
    path.write_bytes(bytes(raw))
    return path


def without(name: str) -> Callable[[Path], Path]:
    """A wheel of something else."""

    def make(folder: Path) -> Path:
        path = folder / "torch.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "Version: 2.13.0")
        return path

    return make


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda f: f / "none.whl", "cannot read .*none.whl: No such file"),
        (lambda f: f, "not an ordinary file"),
        (not_a_zip, "not a sound zip archive"),
        (damaged, "not a sound zip archive"),
        (without("numpy-2.0.dist-info/METADATA"), "no METADATA of torch"),
        (without("torch-2.13.0.dist-info/METADATA"), "holds no torchgen/packaged"),
        (lambda f: wheel(f, METADATA=b"Version: \x1b[31m"), "names no version"),
        (lambda f: wheel(f, native_functions=b"- func: \x1b[31m(x)"), "is no operator table"),
        (lambda f: wheel(f, native_functions=b""), "is no operator table"),
        (lambda f: wheel(f, native_functions=bytes(operator_table.SMALL + 1)), "is larger than 8 MiB"),
    ],
)
def test_a_broken_wheel_is_one_clear_error(tmp_path: Path, make: Callable[[Path], Path], why: str) -> None:
    """The file, what is wrong with it, what to do; nothing of it reaches the terminal as it is."""
    with pytest.raises(WheelError, match=why) as error:
        print(MacWheel(make(tmp_path)).table)
    assert str(error.value).isprintable()


def test_an_archive_with_too_much_in_it_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, and too large a file."""
    path = wheel(tmp_path)
    with pytest.raises(ValueError, match="larger than 0 MiB"):
        untrusted.Archive(path, limit=100)
    monkeypatch.setattr(untrusted, "MEMBERS", 3)
    with pytest.raises(ValueError, match="more than 3 files"):
        untrusted.Archive(path)


@pytest.mark.skipif("PARITY_WHEELS" not in os.environ, reason="needs macOS wheels of torch: set PARITY_WHEELS to a folder")
@pytest.mark.parametrize("torch", PINNED)
def test_every_assumption_stands_in_the_wheel(torch: str) -> None:
    """Each text in the versions that it is said to be in, each name, and the operator table kernel by kernel."""
    try:
        path = BENCH["download"](torch, Path(os.environ["PARITY_WHEELS"]))
    except WheelError as e:
        pytest.skip(str(e))
    read = AssumedWheel(path)
    assert read.torch == torch
    assert read.missing() == ()
    assert {"2.12.1": 878, "2.13.0": 890, "2.14.1": 912}[torch] == len(read.registered())
