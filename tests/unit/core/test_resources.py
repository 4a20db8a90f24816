from __future__ import annotations

from pathlib import Path

import pytest

from parity.core import resources
from parity.core.errors import ParityError


def test_a_checkout_has_both_folders_beside_the_package(tmp_path: Path) -> None:
    for name in ("parity", "tolerances", "tests/conformance"):
        (tmp_path / name).mkdir(parents=True)
    assert resources.folder("tolerances", tmp_path / "parity") == tmp_path / "tolerances"
    assert resources.folder("conformance", tmp_path / "parity") == tmp_path / "tests" / "conformance"


def test_a_wheel_has_them_inside_and_prefers_them_to_strangers_beside_it(tmp_path: Path) -> None:
    for name in ("parity/_data/tolerances", "tolerances"):
        (tmp_path / name).mkdir(parents=True)
    assert resources.folder("tolerances", tmp_path / "parity") == tmp_path / "parity" / "_data" / "tolerances"


def test_this_installation_has_its_tables() -> None:
    assert (resources.folder("tolerances") / "default.toml").is_file()


def test_an_installation_without_them_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ParityError) as e:
        resources.folder("conformance", tmp_path / "parity")
    assert str(e.value) == (
        "this installation of parity has no folder 'conformance' (looked for parity/_data/conformance and "
        "tests/conformance next to the package); reinstall it: pip install --force-reinstall torch-parity"
    )
