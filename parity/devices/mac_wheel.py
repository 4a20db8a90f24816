"""A macOS wheel of torch, read as data: its operator table, and whether all stands in it that `parity.core.backends.mps`
assumes.

Nothing of it is installed, imported or run, so that any machine can look at any version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from parity.core.backends import mps
from parity.core.devices import Text
from parity.core.errors import WheelError
from parity.core.untrusted import Archive, printable
from parity.devices.operator_table import Table, parsed

TABLE = "torchgen/packaged/ATen/native/native_functions.yaml"
LIBRARIES = (mps.LIBRARY, "torch/lib/libc10.dylib")
SMALL, LARGE = 8 << 20, 768 << 20  # bytes of a text file, and of a library
_KERNEL = re.compile(rb"_GLOBAL__N_1L?(\d+)(wrapper_" + mps.KEY.encode() + rb"_\w*)")
_VERSION = re.compile(r"\d+\.\d+[\w.+]*")
# Words by which a message of MPS may be a refusal.
_OF_MPS, _REFUSING = re.compile(rb"MPS|_mps"), re.compile(r"support|implemented|only (defined|available)|larger than")
LONGEST = 600  # bytes of a message


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
        version = re.search(r"^Version: (\S+)$", self._text(metadata), re.MULTILINE)
        if version is None or not _VERSION.fullmatch(version[1]):
            raise self._broken("its METADATA names no version")
        self.torch = version[1]

    def _broken(self, why: str) -> WheelError:
        return WheelError(f"{self.path} is not a sound wheel of torch: {printable(why)}; download it again")

    def _content(self, name: str, limit: int) -> bytes:
        try:
            return self._archive.content(name, limit)
        except (OSError, ValueError) as e:
            raise self._broken(str(e)) from None

    def _text(self, name: str) -> str:
        return self._content(name, SMALL).decode("utf-8", "replace")

    @cached_property
    def table(self) -> Table:
        """Its operator table. Raises WheelError where it has none that can be read."""
        try:
            return Table(self.torch, parsed(self._text(TABLE)))
        except ValueError as e:
            raise self._broken(f"its {TABLE} is no operator table: {e}") from None

    @cached_property
    def library(self) -> bytes:
        """The bytes of the libraries that hold the texts, some 400 MB. Raises WheelError: another system's wheel has none."""
        return b"".join(self._content(name, LARGE) for name in LIBRARIES)

    def holds(self, literal: str) -> bool:
        """Whether the libraries hold this text as it is."""
        return literal.encode() in self.library

    def missing(self) -> tuple[str, ...]:
        """What of `parity.core.backends.mps` does not hold in this torch, a sentence each; none where all does."""
        return (*self._texts(), *self._names(), *self._kernels())

    def _texts(self) -> Iterator[str]:
        for text in mps.all_texts():
            missing = [x for x in text.literals if not self.holds(x)]
            if text.is_in(self.torch) and missing:
                yield f"text '{text.text[:60]}': the library does not hold {missing[0]!r}"
            elif not text.is_in(self.torch) and not missing:
                yield f"text '{text.text[:60]}': the library holds it; it is said to be there {_span(text)}"
        for name in (*mps.UNITS, *mps.VARIABLES):
            if not self.holds(name):
                yield f"'{name.strip()}': the library does not hold it"

    def _names(self) -> Iterator[str]:
        for file, functions in mps.FUNCTIONS.items():
            code = self._text(file)
            for name in functions:
                if not re.search(rf"^def {name}\(", code, re.MULTILINE):
                    yield f"{file} does not define {name}"

    def _kernels(self) -> Iterator[str]:
        """Where the table and the kernels that the library registers for MPS disagree, either way."""
        registered, expected = self.registered(), set()
        for name in sorted(n for n, keys in self.table.keys.items() if mps.KEY in keys):
            if not (symbols := registered.intersection(_symbols(name))):
                yield f"operator {name}: has a kernel by the table, and the library registers none"
            expected |= symbols
        yield from (f"{name}: registered by the library, and not in the table" for name in sorted(registered - expected))

    def registered(self) -> set[str]:
        """The functions by which the library registers its kernels for MPS, from its symbols; a name's length stands before
        it."""
        return {m[2][: int(m[1])].decode() for m in _KERNEL.finditer(self.library)}

    def unread(self) -> tuple[str, ...]:
        """Messages that name MPS and may refuse something, but that no rule of parity takes for a refusal."""
        library, messages = self.library, set()
        for match in _OF_MPS.finditer(library):
            start, end = library.rfind(b"\0", 0, match.start()) + 1, library.find(b"\0", match.end())
            if 0 < end - start < LONGEST and (text := library[start:end]).isascii():
                messages.add(text.decode())
        known = [w.pattern for w in (*mps.REFUSALS, *mps.OUT_OF_MEMORY, *mps.ERRORS)]
        literals = [x for t in mps.all_texts() for x in t.literals]
        return tuple(
            m
            for m in sorted(messages)
            if m.isprintable() and " " in m and _REFUSING.search(m)
            if not any(p.search(m) for p in known) and not any(m in x or (len(x) > 20 and x in m) for x in literals)
        )


def _symbols(operator: str) -> Iterator[str]:
    """How torchgen may call the function that registers an overload ("add.out")."""
    base, _, overload = operator.partition(".")
    for name in (base, f"{base}_out"):
        yield f"wrapper_{mps.KEY}_{overload}_{name}"
        yield f"wrapper_{mps.KEY}_{name}_{overload}" if overload else f"wrapper_{mps.KEY}_{name}"


def _span(text: Text) -> str:
    return " ".join(f"{word} {v}" for word, v in (("from", text.since), ("until", text.until)) if v)
