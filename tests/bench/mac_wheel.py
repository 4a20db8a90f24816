"""Does all that parity assumes of MPS stand in the macOS wheel of a torch, and what new refusals does it hold?

    python -m tests.bench mps mac_wheel 2.13.0        # downloads 111 MB by pip, into a folder that is removed again
    python -m tests.bench mps mac_wheel torch-2.13.0-cp312-cp312-macosx_14_0_arm64.whl

Ends with 1 where an assumption does not hold, 2 where there is no wheel to read.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from parity.core.backends import mps
from parity.core.devices import Text
from parity.core.errors import ParityError, WheelError
from parity.devices.operator_table import MacWheel

PYTHON, PLATFORM = "3.12", "macosx_14_0_arm64"
SECONDS = 600
LIBRARIES = (mps.LIBRARY, "torch/lib/libc10.dylib")
LARGE, LONGEST = 768 << 20, 600  # bytes of a library, and of a message
_KERNEL = re.compile(rb"_GLOBAL__N_1L?(\d+)(wrapper_" + mps.KEY.encode() + rb"_\w*)")
# Words by which a message of MPS may be a refusal.
_OF_MPS, _REFUSING = re.compile(rb"MPS|_mps"), re.compile(r"support|implemented|only (defined|available)|larger than")
FUNCTIONS: dict[str, tuple[str, ...]] = {  # file of torch -> functions in it that parity calls
    "torch/mps/__init__.py": ("is_available", "device_count", "synchronize", "manual_seed", *mps.MEMORY_FUNCTIONS.values()),
    "torch/backends/mps/__init__.py": ("is_built", "is_available", *mps.FACTS.values()),
}


def all_texts() -> tuple[Text, ...]:
    """Every text that parity has of MPS, each once."""
    wordings = (*mps.REFUSALS, *mps.OUT_OF_MEMORY, *mps.ERRORS)
    return tuple(dict.fromkeys((*(t for w in wordings for t in w.texts), mps.FALLBACK)))


class AssumedWheel(MacWheel):
    """A wheel in which everything is looked up that parity assumes of MPS."""

    @cached_property
    def library(self) -> bytes:
        """The bytes of the libraries that hold the texts, some 400 MB. Raises WheelError: another system's wheel has none."""
        return b"".join(self.content(name, LARGE) for name in LIBRARIES)

    def holds(self, literal: str) -> bool:
        """Whether the libraries hold this text as it is."""
        return literal.encode() in self.library

    def missing(self) -> tuple[str, ...]:
        """What of `parity.core.backends.mps` does not hold in this torch, a sentence each; none where all does."""
        return (*self._texts(), *self._names(), *self._kernels())

    def _texts(self) -> Iterator[str]:
        for text in all_texts():
            missing = [x for x in text.literals if not self.holds(x)]
            if text.is_in(self.torch) and missing:
                yield f"text '{text.text[:60]}': the library does not hold {missing[0]!r}"
            elif not text.is_in(self.torch) and not missing:
                yield f"text '{text.text[:60]}': the library holds it; it is said to be there {_span(text)}"
        for name in (*mps.UNITS, *mps.VARIABLES):
            if not self.holds(name):
                yield f"'{name.strip()}': the library does not hold it"

    def _names(self) -> Iterator[str]:
        for file, functions in FUNCTIONS.items():
            code = self.text(file)
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
        literals = [x for t in all_texts() for x in t.literals]
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


def download(version: str, folder: Path) -> Path:
    """The wheel of a version in a folder, downloaded where it is not there. Raises WheelError where pip finds none."""
    pattern = f"torch-{version}-*macosx*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--platform", PLATFORM]
        command += ["--python-version", PYTHON, f"torch=={version}", "-d", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise WheelError(f"the wheel of torch {version} did not come within {SECONDS} s; name a file") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
            raise WheelError(f"pip finds no wheel of torch {version} for macOS: {last}; name a file")
    return next(folder.glob(pattern))


def report(path: Path) -> int:
    """Print what does not hold in this wheel; the exit code."""
    wheel = AssumedWheel(path)
    lacking, unread = wheel.missing(), wheel.unread()
    print("\n".join((f"{len(unread)} messages may be refusals that parity does not know", *(f"  {line}" for line in unread))))
    print("".join(f"  {line}\n" for line in lacking), end="")
    print(f"torch {wheel.torch}: {len(wheel.registered())} kernels for MPS, {len(lacking)} assumptions do not hold")
    return 1 if lacking else 0


def main() -> int:
    """One version, or one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", help="a version of torch, or a file")
    asked = parser.parse_args().wheel
    try:
        if asked.endswith(".whl"):
            return report(Path(asked))
        with tempfile.TemporaryDirectory(prefix="parity-wheel-") as folder:
            return report(download(asked, Path(folder)))
    except ParityError as e:
        print(f"mac_wheel: {e}", file=sys.stderr)
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
