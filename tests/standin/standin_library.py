"""Builds the library of the stand-in, loads it, and sets which operators have a kernel on MPS."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import standin_kernels
import torch
import yaml

SOURCE = Path(__file__).with_name("standin.cpp")
ROOT = Path(torch.__file__).parent
MINOR = "2.13"  # of torch: the hooks, and what torch does for MPS alone, are those of this one
NAME, CORES = "Apple M2 Pro (stand-in)", 19
BUILD_SECONDS = 600

# Only metadata changes; the CPU's kernels do that on these tensors themselves.
VIEWS = (
    *("_reshape_alias", "as_strided", "is_set_to", "permute", "set_.source_Storage", "set_.source_Storage_storage_offset"),
    *("set_.source_Tensor", "unfold", "view", "view_as_complex", "view_as_real"),
)
# Operators that take tensors of the CPU beside those of the device.
MIXING = ("_index_put_impl_", "_unsafe_index", "index", "index.Tensor_out", "index_put_", "is_set_to")
# Without a kernel, and on the CPU whatever the environment says (MPSFallback.mm).
FALLING = ("embedding_renorm_", "linalg_svd", "linalg_svd.U")
OWN = ("_copy_from", "_copy_from_and_resize", "_efficientzerotensor", "copy_", "empty.memory_format", "empty_strided", "set_")
PYTHON = ("linalg_lu_solve.out",)  # torch's own kernel for MPS is Python (torch/_refs/linalg)

_kept: list[Any] = []  # a Library unregisters when it is collected


@cache
def missing() -> str:
    """Why this machine has no stand-in; empty where it can have one."""
    if torch._C._has_mps:
        return "torch has MPS itself"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the stand-in is for Linux on x86-64; this is {sys.platform} on {platform.machine()}"
    if not torch.__version__.startswith(MINOR + "."):
        return f"the stand-in is made for torch {MINOR}; this is {torch.__version__}"
    if torch.version.cuda or torch.version.hip:
        return "the stand-in needs a torch for the CPU; this one is built for another accelerator"
    return "" if shutil.which(_compiler()) else f"there is no compiler '{_compiler()}' to build the stand-in with"


def library(key: str) -> Any:
    """A library for kernels of aten under a dispatch key, kept as long as the process."""
    new: Any = torch.library.Library  # untyped in torch
    _kept.append(new("aten", "IMPL", key))
    return _kept[-1]


def install() -> None:
    """Make torch take this machine for one with MPS; nothing where it has MPS already. Raises RuntimeError with the reason
    where that cannot be."""
    if torch._C._has_mps:
        return
    if why := missing():
        raise RuntimeError(why)
    ops: Any = torch.ops  # untyped in torch
    ops.load_library(built())
    names = [n for n in with_kernel() if n not in {*OWN, *VIEWS, *PYTHON, *standin_kernels.WHOLE}]
    falls_back = int(os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") or 0) != 0
    falling = [n for n in FALLING if n not in names]
    ops.standin.install(names, VIEWS, MIXING, falling, falls_back, torch.version.git_version)
    standin_kernels.register(library("MPS"), library("AutogradMPS"))
    c: Any = torch._C
    c._has_mps = True
    c._mps_get_name, c._mps_get_core_count = lambda: NAME, lambda: CORES
    torch.backends.mps.is_available.cache_clear()
    _patch_storage()
    # Some kernels are Python's. autograd's thread for a device, which would call them, ends the process at exit now and then.
    torch.autograd.set_multithreading_enabled(False)


def built() -> Path:
    """The library for this torch and this source, built where it is not there yet. Raises CalledProcessError."""
    options = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(options).encode()).hexdigest()[:16]
    path = folder() / f"standin-{torch.__version__}-{digest}.so"
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together build it once
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            headers = [f"-I{ROOT}/include", f"-I{ROOT}/include/torch/csrc/api/include"]
            libraries = [f"-L{ROOT}/lib", "-ltorch_cpu", "-lc10"]
            command = [_compiler(), *options, *headers, str(SOURCE), *libraries, "-o", str(unfinished)]
            subprocess.run(command, check=True, timeout=BUILD_SECONDS)
            unfinished.replace(path)
    return path


def folder() -> Path:
    """Where libraries are kept: $STANDIN_BUILD, or a folder of the user's own. It is no temporary one, because each run of
    parity has its own for those, in which the library would be built again. Raises PermissionError where it is somebody
    else's."""
    home = os.path.expanduser("~")
    cache = Path(home, ".cache") if os.access(home, os.W_OK) else Path(tempfile.gettempdir())
    path = Path(os.environ.get("STANDIN_BUILD") or cache / f"parity-standin-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True, parents=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else; name a folder of your own with STANDIN_BUILD")
    return path


def with_kernel() -> list[str]:
    """The overloads with a kernel for MPS in torch's table, their own or by structured_delegate; kept next to the library."""
    kept = folder() / f"operators-{torch.__version__}"
    if not kept.exists():
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text("\n".join(_read_table()))
        unfinished.replace(kept)
    return kept.read_text().split()


def _read_table() -> list[str]:
    table = ROOT.parent / "torchgen/packaged/ATen/native/native_functions.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: dict[str, Any] = {e["func"].partition("(")[0]: e for e in yaml.load(table.read_text(), loader)}

    def there(entry: dict[str, Any]) -> bool:
        return any("MPS" in (k.strip() for k in keys.split(",")) for keys in entry.get("dispatch", {}))

    return [n for n, e in entries.items() if there(e) or there(entries.get(e.get("structured_delegate"), {}))]


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


def _patch_storage() -> None:
    """torch.UntypedStorage(n, device="mps"), by which torch.load goes, asks a table that is compiled for macOS alone."""
    untyped: Any = torch.UntypedStorage

    def mps(self: Any) -> Any:
        if self.device.type == "mps":
            return self
        return torch.empty(0, dtype=torch.uint8).set_(self).to("mps").untyped_storage()

    untyped.mps = mps
