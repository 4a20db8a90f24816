"""A macOS wheel of torch, read as data: its operator table.

Nothing of it is installed, imported or run, so that any machine can look at any version. Whether all stands in it that
`parity.core.backends.mps` assumes, `tests/bench/mac_wheel.py` looks up.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from parity.core.errors import WheelError
from parity.core.untrusted import Archive, printable
from parity.devices.operator_table import Table, parsed

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
