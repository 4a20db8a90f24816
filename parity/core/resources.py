"""Locates the tolerance tables and the conformance suite: next to the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from parity.core.errors import ParityError

PACKAGE = Path(__file__).resolve().parents[1]
# Relative to the repository in a checkout or an editable install; a wheel carries both as parity/_data/<name>.
IN_CHECKOUT = {"tolerances": "tolerances", "conformance": "tests/conformance"}


def folder(name: Literal["tolerances", "conformance"], package: Path = PACKAGE) -> Path:
    """The folder of that name. Raises ParityError where the installation has none."""
    packed = package / "_data" / name
    in_checkout = package.parent / IN_CHECKOUT[name]
    # A folder of that name next to an installed package belongs to someone else, so the packed one comes first.
    for candidate in (packed, in_checkout):
        if candidate.is_dir():
            return candidate
    raise ParityError(
        f"this installation of parity has no folder '{name}' (looked for parity/_data/{name} and "
        f"{IN_CHECKOUT[name]} next to the package); reinstall it: pip install --force-reinstall torch-parity"
    )
