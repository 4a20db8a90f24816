"""torch's operator table: which aten overloads have a kernel of their own for which kind of device, in the installed torch.

A CPU build of torch registers no kernel for MPS, but every wheel carries `native_functions.yaml`, from which torch generates
its registrations. On macOS the two agree: the kernels that the library registers for MPS are those of the table.

A macOS wheel of torch, read as data: its operator table.

Nothing of it is installed, imported or run, so that any machine can look at any version. Whether all stands in it that
`parity.core.backends.mps` assumes, `tests/bench/mac_wheel.py` looks up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch

from parity.core import untrusted
from parity.core.backends.mps import KEY
from parity.core.errors import DeviceError, WheelError
from parity.core.untrusted import Archive, printable

LARGEST = 8 << 20  # bytes of a table; torch's has 0.7 MB
OPERATOR = re.compile(r"\w+(\.\w+)?")
QUOTED = 60  # most characters of a line in a message
# Operators of torchvision with a kernel for MPS since 0.23 or before (pytorch/vision, torchvision/csrc/ops/mps); the oldest
# torch that parity takes goes with 0.25.
TORCHVISION_ON_MPS = frozenset(
    f"torchvision::{name}"
    for name in (
        *("nms", "roi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward", "deform_conv2d"),
        *("ps_roi_align", "_ps_roi_align_backward", "ps_roi_pool", "_ps_roi_pool_backward"),
    )
)


def table_path() -> Path:
    """Where the installed torch has its table. Raises DeviceError where it has none."""
    path = Path(torch.__file__).parent.parent / "torchgen/packaged/ATen/native/native_functions.yaml"
    if not path.is_file():
        raise DeviceError(
            f"torch's operator table is not there: {path}; sim:mps and parity audit read from it which operators have a "
            "kernel; reinstall torch from its wheel, or use 'sim'"
        )
    return path


@dataclass(frozen=True, slots=True)
class Table:
    """torch: its version. keys: each overload -> the dispatch keys under which it has a kernel."""

    torch: str
    keys: Mapping[str, frozenset[str]]


def installed() -> Table:
    """The table of the installed torch. Raises DeviceError where it has none."""
    return Table(str(torch.__version__), dispatch_keys(table_path()))


@cache
def dispatch_keys(path: Path) -> Mapping[str, frozenset[str]]:
    """What `parsed` reads in this file. Raises OSError, and ValueError for what is no operator table."""
    return parsed(untrusted.text(path, LARGEST))


def parsed(text: str) -> Mapping[str, frozenset[str]]:
    """Every overload ("add.out", "linear") -> the dispatch keys under which it has a kernel, its own or by
    `structured_delegate`; empty where torch composes it of others and says so nowhere. Raises ValueError, with the line, for a
    text without operators, or with something that is no operator's name.

    Reads the three lines that matter itself: a YAML parser takes seconds for this file. A test compares the result with
    torchgen's own reading.
    """
    return {name: frozenset(k for line in lines for k in line) for name, lines in functions(text).items()}


def functions(text: str) -> Mapping[str, tuple[frozenset[str], ...]]:
    """Every overload -> the functions that compute it, each as the dispatch keys that share it. Raises ValueError as `parsed`
    does."""
    found: dict[str, list[frozenset[str]]] = {}
    delegates: dict[str, str] = {}
    name, in_dispatch = "", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("- func: "):
            name, in_dispatch = line[8:].partition("(")[0], False
            if not OPERATOR.fullmatch(name):
                raise ValueError(f"line {number}: no operator is called '{untrusted.printable(name)[:QUOTED]}'")
            found[name] = []
        elif not name and line.startswith("  "):
            raise ValueError(f"line {number}: '{untrusted.printable(line.strip())[:QUOTED]}' comes before any '- func:'")
        elif line.startswith("  structured_delegate: "):
            delegates[name] = line.partition(": ")[2].split("#")[0].strip()
        elif line.startswith("  dispatch:"):
            in_dispatch = True
        elif in_dispatch and line.startswith("    "):
            keys = (k.strip() for k in line.split("#")[0].rpartition(":")[0].split(","))
            found[name].append(frozenset(k for k in keys if k))
        elif line.strip() and not line.lstrip().startswith("#"):
            in_dispatch = False
    if not found:
        raise ValueError("it holds no operator")
    return {n: (*keys, *found.get(delegates.get(n, ""), ())) for n, keys in found.items()}


def with_kernel(key: str) -> frozenset[str]:
    """The overloads with a kernel under this dispatch key ("MPS"). Raises DeviceError where torch has no table."""
    return frozenset(n for n, keys in dispatch_keys(table_path()).items() if key in keys)


@dataclass(frozen=True, slots=True)
class Kernels:
    """How the operators with an MPS kernel differ between two tables. gained: those that have one now, with whether the
    operator itself is new; lost: those that have none any more, with whether the operator is gone."""

    before: str
    after: str
    gained: Mapping[str, bool]
    lost: Mapping[str, bool]
    kept: int


def between(old: Table, new: Table) -> Kernels:
    """Which operators gained or lost an MPS kernel from one table to another."""
    had, has = ({n for n, keys in t.keys.items() if KEY in keys} for t in (old, new))
    gained = {n: n not in old.keys for n in sorted(has - had)}
    lost = {n: n not in new.keys for n in sorted(had - has)}
    return Kernels(old.torch, new.torch, gained, lost, len(had & has))


TABLE = "torchgen/packaged/ATen/native/native_functions.yaml"
SMALL = 8 << 20  # bytes of a text file
_VERSION = re.compile(r"\d+\.\d+[\w.+]*")


class MacWheel:
    """One wheel file. torch: its version, as its METADATA says."""

    def __init__(self, path: Path) -> None:
        """Raises WheelError for a file that is missing, broken, or no wheel of torch."""
        self.path = path
        try:
            self._archive = Archive(path)
        except OSError as e:
            raise WheelError(f"cannot read {path}: {e.strerror or e}; give a wheel of torch") from None
        except ValueError as e:
            raise self._broken(str(e)) from None
        metadata = next((n for n in self._archive.names if re.fullmatch(r"torch-[^/]+\.dist-info/METADATA", n)), "")
        if not metadata:
            raise self._broken("it holds no METADATA of torch")
        version = re.search(r"^Version: (\S+)$", self.text(metadata), re.MULTILINE)
        if version is None or not _VERSION.fullmatch(version[1]):
            raise self._broken("its METADATA names no version")
        self.torch = version[1]

    def _broken(self, why: str) -> WheelError:
        return WheelError(f"{self.path} is not a sound wheel of torch: {printable(why)}; download it again")

    def content(self, name: str, limit: int) -> bytes:
        """The content of a file in it, of at most so many bytes. Raises WheelError."""
        try:
            return self._archive.content(name, limit)
        except (OSError, ValueError) as e:
            raise self._broken(str(e)) from None

    def text(self, name: str) -> str:
        """The content of a text file. Raises WheelError."""
        return self.content(name, SMALL).decode("utf-8", "replace")

    @cached_property
    def table(self) -> Table:
        """Its operator table. Raises WheelError where it has none that can be read."""
        try:
            return Table(self.torch, parsed(self.text(TABLE)))
        except ValueError as e:
            raise self._broken(f"its {TABLE} is no operator table: {e}") from None
