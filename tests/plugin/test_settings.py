"""What pytest takes from `[tool.parity]`, and from its ini file as the version before did."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from parity.core import project

SETTINGS = '[tool.parity]\ndevice = "sim"\nprofile = "full"\neffort = "full"\nknown = "known.toml"\nfail-on = ["void"]\n'


@pytest.fixture
def configured(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with settings."""
    monkeypatch.delenv(project.FILE, raising=False)
    pytester.makepyprojecttoml(SETTINGS)
    (pytester.path / "known.toml").write_text("format = 1\n")
    return pytester


def options(pytester: pytest.Pytester, *given: str) -> dict[str, object]:
    """What the options are when pytest is configured."""
    o = pytester.parseconfigure("-p", "no:cacheprovider", *given).option
    return {name: getattr(o, f"parity_{name}") for name in ("device", "profile", "effort", "known", "fail_on")}


def test_settings_are_taken_where_no_option_is_given(configured: pytest.Pytester) -> None:
    known = str(configured.path / "known.toml")
    assert options(configured) == {"device": "sim", "profile": "full", "effort": "full", "known": known, "fail_on": ["void"]}
    assert os.environ[project.FILE] == str(configured.path / "pyproject.toml")  # for workers and other processes


def test_options_win_over_settings(configured: pytest.Pytester) -> None:
    """Also one that says what is the default without settings."""
    given = ("--parity-device=auto", "--parity-profile=quick", "--parity-effort=default", "--parity-fail-on=unsupported,known")
    found = options(configured, *given, "--parity-known=other.toml")
    assert found == {"device": "auto", "profile": "quick", "effort": "default", "known": "other.toml",
                     "fail_on": ["unsupported", "known"]}  # fmt: skip


def test_the_root_folder_counts_and_for_the_suite_where_it_is_called(configured: pytest.Pytester) -> None:
    """Wherever the suite lies: in a checkout, in a wheel, or in a copy."""
    inner = configured.mkdir("inner")
    (inner / "pyproject.toml").write_text('[tool.parity]\ndevice = "cpu"\n')
    assert options(configured, "--rootdir", str(inner))["device"] == "cpu"
    assert options(configured, str(project.resource_folder("conformance")))["device"] == "sim"


@pytest.mark.parametrize("place", ["", "/test_operators.py", "/test_operators.py::test_operator"])
def test_the_suite_of_another_checkout_has_the_settings_of_where_it_is_called(
    place: str, configured: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Or it ends green on the wrong device. A folder of the same name with tests of somebody's own is none."""
    checkout = tmp_path_factory.mktemp("checkout")
    suite = shutil.copytree(project.resource_folder("conformance"), checkout / "tests" / "conformance")
    (checkout / "pyproject.toml").write_text('[tool.parity]\ndevice = "cpu"\n')
    assert options(configured, f"{suite}{place}")["device"] == "sim"
    (suite / "test_operators.py").write_text("def test_operator() -> None: ...\n")
    assert options(configured, f"{suite}{place}")["device"] is not None
    assert options(configured, f"{suite}{place}")["device"] != "sim"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("profile = 3", '[tool.parity] profile = 3: it takes a text, such as profile = "full"'),
        ('known = "none.toml"', "known of [tool.parity] in {file}: there is no file {folder}/none.toml"),
        ('fail-on = ["tired"]', "fail-on of [tool.parity] in {file}"),
    ],
)
def test_a_mistake_ends_pytest_with_one_sentence(line: str, words: str, configured: pytest.Pytester) -> None:
    file: Path = configured.path / "pyproject.toml"
    file.write_text(f"[tool.parity]\n{line}\n")
    with pytest.raises(pytest.exit.Exception) as e:
        configured.parseconfigure()
    assert e.value.returncode == 2
    assert words.format(file=file, folder=configured.path) in str(e.value)


def test_settings_are_not_lost_to_a_moved_root_folder(configured: pytest.Pytester) -> None:
    """pytest takes the value of an option that it does not know yet for a test, whose folder becomes its root."""
    project_folder, elsewhere = configured.mkdir("project"), configured.mkdir("elsewhere")
    (configured.path / "pyproject.toml").rename(project_folder / "pyproject.toml")
    (configured.path / "known.toml").rename(project_folder / "known.toml")
    (elsewhere / "faults.py").touch()
    os.chdir(project_folder)
    with pytest.raises(pytest.exit.Exception, match=r"write --parity-faults=\.\./elsewhere/faults\.py"):
        configured.parseconfigure("--parity-faults", "../elsewhere/faults.py")
    assert options(configured, "--parity-faults=../elsewhere/faults.py")["device"] == "sim"
