"""What an interpreter does not have is found by importing, and lent with all that belongs to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parity.history.lending import Lender

NAMES = ("lent_alpha", "lent_beta", "lent_gamma", "lent_delta")


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Path]:
    """A module that needs a package, which needs a module of a distribution with another one next to it."""
    library = tmp_path / "library"
    (library / "lent_beta").mkdir(parents=True)
    (library / "lent_alpha.py").write_text("import lent_beta")
    (library / "lent_beta" / "__init__.py").write_text("from lent_gamma import G")
    (library / "lent_gamma.py").write_text("G = 1")
    (library / "lent_delta.py").write_text("D = 1")
    about = library / "Gamma_Things-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: Gamma_Things\nVersion: 1.0\n")
    (about / "RECORD").write_text("lent_gamma.py,,\nlent_delta.py,,\n../../bin/gamma,,\n")
    yield library
    for name in NAMES:
        sys.modules.pop(name, None)


def test_what_is_missing_is_lent_with_its_whole_distribution(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other module of the distribution may be imported by a function later; what nobody needs is not lent."""
    (library / "lent_other.py").touch()
    lent = tmp_path / "lent"
    lent.mkdir()
    monkeypatch.syspath_prepend(str(lent))
    Lender(lent, [str(library)]).imports("lent_alpha")
    assert sys.modules["lent_gamma"].__file__ == str(lent / "lent_gamma.py")
    assert {p.name for p in lent.iterdir()} - {"__pycache__"} == {
        *("lent_alpha.py", "lent_beta", "lent_gamma.py", "lent_delta.py")
    }


def test_what_is_nowhere_and_torch_are_not_lent(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library / "lent_beta" / "__init__.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    lender = Lender(tmp_path, [str(library)])
    with pytest.raises(ModuleNotFoundError) as e:
        lender.imports("lent_alpha")
    assert lender.problem(e.value) == {"why": "ModuleNotFoundError: No module named 'no_such_module'", "missing": ""}
    assert lender.problem(ModuleNotFoundError(name="torch")) == {"why": "it has none", "missing": "torch"}


def test_what_is_compiled_for_another_python_is_named(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library / "lent_gamma.py").write_text("raise ImportError('no module named lent_gamma._core')")
    with (library / "Gamma_Things-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("lent_gamma_core.cpython-399-x86_64-linux-gnu.so,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lender = Lender(tmp_path, [str(library)])
    with pytest.raises(ImportError) as e:
        lender.imports("lent_alpha")
    assert lender.problem(e.value) == {
        "why": "it has none, and that of this Python is compiled for 3.99",
        "missing": "gamma-things",
    }


@pytest.mark.parametrize("compiled_for", ["{}{}".format(*sys.version_info), "399"])
def test_what_is_required_is_lent_unless_it_is_compiled_for_another_python(
    tmp_path: Path, library: Path, compiled_for: str
) -> None:
    """There it would hide the one that the other interpreter has."""
    about = library / "torch_parity-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-parity\nVersion: 1.0\nRequires-Dist: gamma-things\n")
    (about / "RECORD").touch()
    with (library / "Gamma_Things-1.0.dist-info" / "RECORD").open("a") as record:
        record.write(f"lent_gamma_core.cpython-{compiled_for}-x86_64-linux-gnu.so,,\n")
    lent = tmp_path / "lent"
    lent.mkdir()
    Lender(lent, [str(library)]).lend_required()
    assert (lent / "lent_gamma.py").exists() is (compiled_for != "399")
