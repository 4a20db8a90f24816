"""Where the tables and the conformance suite lie: in a checkout beside the package, in a wheel inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from parity.errors import ParityError

PACKAGE = Path(__file__).resolve().parent
# Relative to the repository in a checkout or an editable install; a wheel carries both as parity/_data/<name>.
IN_CHECKOUT = {"tolerances": "tolerances", "conformance": "tests/conformance"}


def folder(name: Literal["tolerances", "conformance"], package: Path = PACKAGE) -> Path:
    """The folder of that name. Raises ParityError where the installation has none."""
    packed = package / "_data" / name
    beside = package.parent / IN_CHECKOUT[name]
    # A folder of that name beside an installed package belongs to someone else, so the packed one is looked for first.
    for candidate in (packed, beside):
        if candidate.is_dir():
            return candidate
    raise ParityError(
        f"this installation of parity has no folder '{name}' (looked for parity/_data/{name} and "
        f"{IN_CHECKOUT[name]} beside the package); reinstall it: pip install --force-reinstall torch-parity"
    )
