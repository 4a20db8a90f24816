""""""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.comparing.comparison import EFFORTS
from parity.comparing.models import functions
from parity.core import extensions, project
from parity.core.errors import ParityError, UsageError
from parity.core.project import KEYS, Project
from parity.devices import load_faults
from parity.engine import suite
from parity.faces import commandline


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test stands, as a command of somebody who begins does."""
    monkeypatch.delenv(project.FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(folder: Path, *lines: str) -> Path:
    """Write the section."""
    path = folder / "pyproject.toml"
    path.write_text("\n".join(("[tool.parity]", *lines)) + "\n")
    return path


def test_the_nearest_file_with_the_section_counts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upward from the current folder; files of other tools are passed over, even broken ones."""
    inner = here / "a" / "b"
    inner.mkdir(parents=True)
    above = said(here, 'device = "sim"')
    (here / "a" / "pyproject.toml").write_text("[tool.ruff]\n")
    (inner / "pyproject.toml").write_text("[tool.ruff\n")
    monkeypatch.chdir(inner)
    assert project.found() == Project(above, device="sim")
    nearer = said(here / "a", 'profile = "full"')
    assert project.found() == Project(nearer, profile="full")


def test_a_process_of_a_command_takes_the_file_that_the_command_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "other").mkdir()
    other = said(here / "other", 'device = "cpu"')
    said(here, 'device = "sim"')
    monkeypatch.setenv(project.FILE, str(other))
    assert project.found().device == "cpu"
    monkeypatch.setenv(project.FILE, "")
    assert project.found() == Project()
    monkeypatch.setenv(project.FILE, str(here / "elsewhere.toml"))
    with pytest.raises(UsageError, match="is not on this machine; name them by an installed package"):
        project.found()


def test_paths_are_relative_to_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rows.py", "m.py", "t.toml"):
        (here / name).touch()
    said(here, 'rows = ["rows.py", "mine.rows"]', 'models = ["m.py:net"]', 'tolerances = ["t.toml"]', 'known = "known.toml"')
    (here / "inner").mkdir()
    monkeypatch.chdir(here / "inner")
    found = project.found()
    assert found.rows == (str(here / "rows.py"), "mine.rows")
    assert found.models == (f"{here}/m.py:net",)
    assert (found.tolerances, found.known) == ((str(here / "t.toml"),), str(here / "known.toml"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('devcie = "sim"', "{file}: [tool.parity] has no key 'devcie'; did you mean 'device'?"),
        ("device = 3", '{file}: [tool.parity] device = 3: it takes a text, such as device = "mps"'),
        ('device = ""', '{file}: [tool.parity] device = "": it takes a text, such as device = "mps"'),
        ('fail-on = "a"', '{file}: [tool.parity] fail-on = "a": it takes a list of texts, such as fail-on = ["unsupported"]'),
        ('profile = "turbo"', '{file}: [tool.parity] profile = "turbo": allowed are mac, quick, full, deep'),
        ('rows = ["a b"]', "{file}: [tool.parity] rows = [\"a b\"]: 'a b' is neither a Python file nor a module, such as "
                           'rows = ["rows.py", "mine.rows"]'),
        ('models = ["timm"]', "{file}: [tool.parity] models = [\"timm\"]: 'timm' names no model; FILE.py, FILE.py:FUNCTION, "
                              "timm:NAME or package.module:NAME do"),
        ('setup = "no.py"', '{file}: [tool.parity] setup = "no.py": there is no file {folder}/no.py; paths are relative to '
                            "{folder}"),
        ("device = ", "{file} is no TOML: Invalid value (at line 2, column 10); mend the line"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(line: str, message: str, here: Path) -> None:
    """File, key, value, and what is allowed."""
    file = said(here, line)
    with pytest.raises(UsageError) as e:
        project.found()
    assert str(e.value) == message.format(file=file, folder=here)


def test_the_words_are_those_of_the_options() -> None:
    assert KEYS["profile"].words == tuple(suite.PROFILES)
    assert KEYS["effort"].words == EFFORTS


SETTINGS = ('device = "sim"', 'profile = "full"', 'fail-on = ["void"]', 'setup = "flags.py"', 'faults = "faults.py"',
            'models = ["models.py"]', 'known = "known.toml"')  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run", {"device": "sim", "profile": "full", "fail_on": ["void"], "setup": "flags.py", "faults": "faults.py",
                 "known": "known.toml", "op": ["*", "models.py"]}),
        ("run exp", {"op": ["exp"], "device": "sim"}),
        ("run --device auto --profile quick --fail-on known", {"device": "auto", "profile": "quick", "fail_on": ["known"]}),
        ("run --device cpu", {"device": "cpu", "faults": None, "setup": "flags.py"}),
        ("run --known other.toml --setup other.py", {"known": "other.toml", "setup": "other.py"}),
        ("run --resume run.jsonl", {"device": None, "profile": None, "fail_on": [], "setup": None, "op": []}),
        ("locate m.py", {"device": "sim", "setup": "flags.py", "effort": None}),
        ("locate m.py --against c.bin", {"device": None, "setup": "flags.py"}),
        ("doctor", {"device": "sim", "faults": "faults.py"}),
        ("diff a.jsonl b.jsonl", {"fail_on": []}),
    ],
)  # fmt: skip
def test_a_command_takes_what_no_option_gives(words: str, expected: dict[str, object], here: Path) -> None:
    """Options win; a resumed run is what its file says."""
    for name in ("flags.py", "faults.py", "models.py", "known.toml", "other.py"):
        (here / name).touch()
    said(here, *SETTINGS)
    o = commandline.asked(words.split())
    assert {name: getattr(o, name, None) for name in expected} == expected


def test_a_setup_that_plants_faults_does_so_in_every_process(here: Path) -> None:
    """As with --setup: as one without faults, it would plant them in those processes alone that read it as pytest's option."""
    (here / "flags.py").write_text("FAULTS = []\n")
    said(here, 'setup = "flags.py"')
    o = commandline.asked(["run"])
    assert (o.setup, o.faults) == (None, "flags.py")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('known = "none.toml"', "known of [tool.parity] in {file}: there is no file {folder}/none.toml; parity known add "),
        ('fail-on = ["tired"]', "fail-on of [tool.parity] in {file}"),
    ],
)
def test_settings_that_a_run_cannot_use_name_their_file(line: str, message: str, here: Path) -> None:
    file = said(here, line)
    with pytest.raises(UsageError) as e:
        commandline.asked(["run"])
    assert message.format(file=file, folder=here) in str(e.value)


@pytest.mark.parametrize("loads", [load_faults, functions])
def test_what_cannot_be_loaded_names_the_file_of_settings(loads: Callable[[str], object], here: Path) -> None:
    """A module that is not there, and a file that was made short for the command; not what somebody typed."""
    (here / "mine.py").write_text("")
    file = said(here, 'faults = "no.such:mine"', 'models = ["no.such:mine", "mine.py"]')
    for place in ("no.such:mine",) if loads is load_faults else ("no.such:mine", "mine.py"):
        with pytest.raises(ParityError) as e:
            loads(place)
        assert str(e.value).endswith(f" ({'faults' if loads is load_faults else 'models'} of [tool.parity] in {file})")
    with pytest.raises(ParityError) as e:
        loads("no.other:mine")
    assert "[tool.parity]" not in str(e.value)


def test_rows_of_a_file_are_imported_once_under_its_name(here: Path) -> None:
    """So that a row can name a function of it."""
    (here / "counted_rows.py").write_text("import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\n")
    said(here, 'rows = ["counted_rows.py"]')
    try:
        extensions.load()
        extensions.load()
        assert vars(sys)["counted"] == 1
        assert sys.modules["counted_rows"].__file__ == str(here / "counted_rows.py")
        assert [name for name, _ in project.found().facts()] == ["[tool.parity] rows"]
    finally:
        sys.modules.pop("counted_rows", None)
        vars(sys).pop("counted", None)
        sys.path.remove(str(here))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("json.py", "", "ImportError: a module is called json already, or none can be; rename the file;"),
        ("broken_rows.py", "1 / 0", "ZeroDivisionError: division by zero ({file}:1);"),
        ("ends_rows.py", "raise SystemExit(0)", "SystemExit: 0 ({file}:1);"),
        (
            "needs_rows.py",
            "import no_such",
            "ModuleNotFoundError: No module named 'no_such' ({file}:1); pip install no_such, or",
        ),
    ],
)
def test_rows_that_cannot_be_imported_are_named(name: str, text: str, why: str, here: Path) -> None:
    (here / name).write_text(text)
    file = said(here, f'rows = ["{name}"]')
    with pytest.raises(UsageError) as e:
        extensions.load()
    why = why.format(file=here / name)
    assert str(e.value) == f"rows of [tool.parity] in {file}: {here / name} raises {why} mend it"
    assert not str(getattr(sys.modules.get(Path(name).stem), "__file__", "")).startswith(str(here))


def test_a_checkout_has_both_folders_beside_the_package(tmp_path: Path) -> None:
    for name in ("parity", "tolerances", "tests/conformance"):
        (tmp_path / name).mkdir(parents=True)
    assert project.resource_folder("tolerances", tmp_path / "parity") == tmp_path / "tolerances"
    assert project.resource_folder("conformance", tmp_path / "parity") == tmp_path / "tests" / "conformance"


def test_a_wheel_has_them_inside_and_prefers_them_to_strangers_beside_it(tmp_path: Path) -> None:
    for name in ("parity/_data/tolerances", "tolerances"):
        (tmp_path / name).mkdir(parents=True)
    assert project.resource_folder("tolerances", tmp_path / "parity") == tmp_path / "parity" / "_data" / "tolerances"


def test_this_installation_has_its_tables() -> None:
    assert (project.resource_folder("tolerances") / "default.toml").is_file()


def test_an_installation_without_them_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ParityError) as e:
        project.resource_folder("conformance", tmp_path / "parity")
    assert str(e.value) == (
        "this installation of parity has no folder 'conformance' (looked for parity/_data/conformance and "
        "tests/conformance next to the package); reinstall it: pip install --force-reinstall torch-parity"
    )
