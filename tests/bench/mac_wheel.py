"""Whether all that parity assumes of MPS stands in the macOS wheel of a torch, and what new refusals it holds.

python tests/bench/mac_wheel.py 2.13.0              # downloads 111 MB by pip, into a folder that is removed again
python tests/bench/mac_wheel.py torch-2.13.0-cp312-cp312-macosx_14_0_arm64.whl

Ends with 1 where an assumption does not hold, 2 where there is no wheel to read.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from parity.core.errors import ParityError, WheelError
from parity.devices.mac_wheel import MacWheel

PYTHON, PLATFORM = "3.12", "macosx_14_0_arm64"
SECONDS = 600


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
    wheel = MacWheel(path)
    lacking, unread = wheel.missing(), wheel.unread()
    kernels = len(wheel.registered())
    print(f"torch {wheel.torch}: {kernels} kernels for MPS, {len(lacking)} assumptions do not hold")
    for line in lacking:
        print(f"  {line}")
    print(f"{len(unread)} messages may be refusals that parity does not know")
    for line in unread:
        print(f"  {line}")
    return 1 if lacking else 0


def main(argv: list[str]) -> int:
    """One version, or one file."""
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if argv[0].endswith(".whl"):
            return report(Path(argv[0]))
        with tempfile.TemporaryDirectory(prefix="parity-wheel-") as folder:
            return report(download(argv[0], Path(folder)))
    except ParityError as e:
        print(f"mac_wheel: {e}", file=sys.stderr)
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
