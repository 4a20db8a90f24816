"""Files outside of the package add a row, a table, a class of ops, a check and a format: through --setup, through the settings
of a project, and as a package that pip installed, through its entry points, which adds a command, too."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import golden
import pytest

from parity import catalog
from parity.core import extensions, project
from parity.core.errors import UsageError
from parity.devices import setup
from parity.faces import commandline
from parity.report import formats, script
from parity.report.words import script_line
from parity.store import run_file
from parity.store.rows import Run

MINE = """
from pathlib import Path

import torch

from parity import catalog, tolerance
from parity.catalog.draw import Arguments
from parity.catalog.row import FLOATS, Forms, Row
from parity.checks import further
from parity.checks.trial import Result
from parity.core.case import OpClass
from parity.core.results import Aspect, Status, Verdict
from parity.judging import rules
from parity.judging.rules import Composite

ODD = Aspect("own-odd")


def odd(trial, sides):
    x = sides.there.views[0].detach()
    same = torch.equal(torch.nan_to_num(torch.sin(-x)).cpu(), torch.nan_to_num(-torch.sin(x)).cpu())
    trial.results.append(Result(ODD, Verdict(Status.AGREE) if same else Verdict(Status.WRONG, "sin is not odd")))


def of_sine(trial):
    return trial.settings.wants(ODD) and trial.case.op == "mine.sine"


rules.add(OpClass("own-waves"), Composite())
catalog.add(
    Row(
        "mine.sine",
        lambda draw: Arguments((draw.tensor(draw.shape()),)),
        family="mine",
        rule=OpClass("own-waves"),
        call="torch.sin",
        grad=FLOATS,
        forms=Forms(out=True),
    )
)
tolerance.add(Path(__file__).with_name("mine.toml"))
further.add(further.Check(ODD, of_sine, odd))
"""
FORMAT = """
from parity.report import formats

formats.add(formats.Format("ops", lambda r: " ".join(i.op for i in r.run.items) + "\\n", suffix="list"))
"""
ADDS_TABLE = 'tolerance.add(Path(__file__).with_name("mine.toml"))\n'
TABLE = """format = 1

[[rule]]
class = "own-waves"
dtype = "*"
pass = "*"
scale = 3.0
output_ulp = 2.0
source = "measured by its author"
"""
COMMAND = """
import sys
from pathlib import Path

from parity.faces import commandline
from parity.store import run_file

HELP = "how many ops a run compared"
ABOUT = "Count the ops of a run file."


def add(to):
    to.add_argument("subject", type=Path)


def run(o):
    print(len({i.op for i in run_file.read(o.subject).items}))
    return 0


commandline.add("tally", sys.modules[__name__])
"""
ENTRY_POINTS = "[parity]\nmine = mine\nformat = mine_format\ncommand = mine_command\n"
SETTINGS = """
[tool.parity]
device = "sim"
faults = "faults.py"
rows = ["mine.py"]
tolerances = ["mine.toml"]
"""
SHIFTED = """
from parity import Fault

FAULTS = [Fault("shifted", ("sin",), lambda call: call.run() + 0.25)]
"""


class User(NamedTuple):
    """A folder of a user. given: the options that name the file, if no installed package does; path: of installed packages."""

    folder: Path
    given: tuple[str, ...] = ()
    path: str = ""

    @property
    def python_path(self) -> str:
        """Where Python looks for packages, this parity among them."""
        return os.pathsep.join(filter(None, (self.path, str(project.PACKAGE.parent))))

    def parity(self, *argv: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        command = [sys.executable, "-P", "-m", "parity", *argv, *(self.given if argv[0] != "report" else ())]
        env = {**os.environ, "PYTHONPATH": self.python_path}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    def run(self, *more: str) -> tuple[int, str]:
        """A short run of the row."""
        asked = ("--device", "sim", "-n", "1", "--dtype", "float32", "--examples", "3", "--output", "run.jsonl", *more)
        return self.parity("run", "mine.sine", *asked)

    @property
    def stored(self) -> Run:
        """What it stored, read where nothing of this was added."""
        return run_file.read(self.folder / "run.jsonl")


@pytest.fixture(scope="module")
def by_setup(tmp_path_factory: pytest.TempPathFactory) -> User:
    """The file is named by --setup."""
    folder = tmp_path_factory.mktemp("setup")
    (folder / "mine.py").write_text(MINE + FORMAT)
    (folder / "mine.toml").write_text(TABLE)
    return User(folder, ("--setup", "mine.py"))


@pytest.fixture(scope="module")
def by_settings(tmp_path_factory: pytest.TempPathFactory) -> User:
    """The files are named in pyproject.toml, as is a fault; commands are typed in a folder below it."""
    folder = tmp_path_factory.mktemp("settings")
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "mine.py").write_text(MINE.replace(ADDS_TABLE, ""))
    (folder / "mine.toml").write_text(TABLE)
    (folder / "faults.py").write_text(SHIFTED)
    (folder / "inner").mkdir()
    return User(folder / "inner")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> User:
    """Four files are a package that pip has installed from a wheel."""
    folder, site = tmp_path_factory.mktemp("user"), tmp_path_factory.mktemp("site")
    wheel = folder / "mine_parity-1.0-py3-none-any.whl"
    facts = "mine_parity-1.0.dist-info"
    files = {
        "mine.py": MINE,
        "mine.toml": TABLE,
        "mine_format.py": FORMAT,
        "mine_command.py": COMMAND,
        f"{facts}/METADATA": "Metadata-Version: 2.1\nName: mine-parity\nVersion: 1.0\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{facts}/entry_points.txt": ENTRY_POINTS,
    }
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
        packed.writestr(f"{facts}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{facts}/RECORD")))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    (folder / "faults.py").write_text(SHIFTED)
    return User(folder, path=str(site))


@pytest.mark.slow
@pytest.mark.cold  # packages are looked for when parity is imported
def test_what_a_package_adds_is_run_and_reported(installed: User) -> None:
    code, said = installed.run("-v")
    assert code == 0, said
    assert "everything that was compared agrees" in said
    assert "/mine.toml; 0 exceptions" in said
    (item,) = installed.stored.items
    assert item.op == "mine.sine"
    assert item.counts["own-odd"] == item.counts["forward"]
    assert ("packages that add to parity", "mine-parity 1.0") in installed.stored.header.fingerprint.environment


def test_a_format_of_a_file_is_found_by_the_name_of_the_file(by_setup: User, capsys: pytest.CaptureFixture[str]) -> None:
    (by_setup.folder / "run.jsonl").write_bytes((golden.GOLDEN / "healthy.jsonl").read_bytes())
    ops = " ".join(i.op for i in by_setup.stored.items) + "\n"
    for words in ("mine.py", "mine.py:ops"):
        assert by_setup.parity("report", "run.jsonl", "--format", words) == (0, ops)
    assert commandline.main(["report", str(by_setup.folder / "run.jsonl"), "--format", "none.py"]) == 2
    said = "parity: --format none.py: no such file; give a Python file that adds what is asked for\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("render", "says"),
    [
        ("lambda r: r.run.itmes", "raises AttributeError: 'Run' object has no attribute 'itmes' (BROKEN:3); mend it; what"),
        ("lambda r: __import__('no_such').x", "raises ModuleNotFoundError: No module named 'no_such' (BROKEN:3); pip install"),
        ("lambda r: 7", "makes int; its render has to return a text"),
    ],
)
def test_a_format_that_makes_no_report_is_one_line_with_its_place(
    render: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    monkeypatch.setattr(extensions, "added", [])
    monkeypatch.setattr(setup, "ran", [])
    broken = tmp_path / "broken.py"
    broken.write_text(f"from parity.report import formats\n\nformats.add(formats.Format('broken', {render}))\n")
    assert commandline.main(["report", str(golden.GOLDEN / "healthy.jsonl"), "--format", str(broken)]) == 2
    assert f"parity: the format 'broken' {says.replace('BROKEN', str(broken))}" in capsys.readouterr().err


def test_a_file_is_in_the_format_that_has_its_suffix_whoever_added_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = formats.Format("ops", lambda r: "ops", suffix="list")
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    monkeypatch.setattr(extensions, "load", lambda: formats.FORMATS.update(ops=added))
    written = []
    for name in ("a.list", "a.xml", "a.else"):
        assert commandline.main(["report", str(golden.GOLDEN / "healthy.jsonl"), "-o", str(tmp_path / name)]) == 0
        written.append((tmp_path / name).read_text())
    assert written[0] == "ops"
    assert written[1].startswith("<?xml")
    assert "PASS  no finding" in written[2]


def test_the_script_of_an_operator_of_ones_own_loads_what_registers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the line that names it says so; a row of a function of torch needs torch alone."""
    monkeypatch.setattr(catalog, "ROWS", dict(catalog.ROWS))
    monkeypatch.setattr(catalog, "ADDED", {})
    monkeypatch.setattr(extensions, "added", [])
    row = catalog.ROWS["exp"]
    wanted = {
        ("mine.swish", "torch.ops.mine.swish", "mine.rows", "/site/mine/rows.py"): ("import mine.rows", "parity and mine.rows"),
        ("mine.wave", "torch.ops.mine.wave", "rows", "/here/rows.py"): (
            "runpy.run_path('/here/rows.py')",
            "parity and rows.py",
        ),
        ("mine.exp", "torch.exp", "mine.rows", "/site/mine/rows.py"): ("", "torch only"),
    }
    for (name, call, module, file), (line, needs) in wanted.items():
        made = replace(row, name=name, call=call)
        exec("catalog.add(made)", {"catalog": catalog, "made": made, "__name__": module, "__file__": file})
        path, sources = script.function_of(SimpleNamespace(row=made, aspect="forward"))  # type: ignore[arg-type]
        assert (path, line in "".join(sources), bool(sources)) == (call, True, bool(line))
        assert f"(needs {needs})" in script_line("a.py", simulated=False, command="parity", op=name)


@pytest.mark.slow
def test_settings_hold_for_the_suite_called_by_its_path_and_for_workers(by_settings: User) -> None:
    """The device and the fault that they name, the row and its table, from a folder below; an option still wins."""
    suite = str(project.resource_folder("conformance"))
    given = [sys.executable, "-m", "pytest", suite, "-p", "no:cacheprovider", "-n", "1", "--parity-op", "mine.sine"]
    given += ["--parity-dtype", "float32", "--parity-examples", "3", "--parity-skip", "shrink"]
    env = {**os.environ, "PYTHONPATH": by_settings.python_path}
    ended = []
    for more in ((), ("--parity-device", "cpu")):
        done = subprocess.run([*given, *more], cwd=by_settings.folder, env=env, capture_output=True, text=True, timeout=300)
        ended.append((done.returncode, "own-odd" in done.stdout))
    assert ended == [(1, True), (0, False)]


@pytest.mark.slow
@pytest.mark.cold  # packages are looked for when parity is imported
def test_what_a_package_adds_is_run_and_a_fault_in_it_is_found(installed: User) -> None:
    """In its own check too, which is shrunk like parity's."""
    code, said = installed.run("--setup", "faults.py")
    assert code == 1, said
    (item,) = installed.stored.items
    assert item.counts["own-odd"]["wrong"] == item.counts["forward"]["wrong"] > 0
    shrunk = {r.aspect: r.shrunk for r in installed.stored.records if r.shrunk}
    assert shrunk["own-odd"].startswith("mine.sine(float32[")
    assert installed.parity("report", "run.jsonl", "--format", "ops") == (1, "mine.sine\n")  # as the run did
    assert installed.parity("tally", "run.jsonl") == (0, "1\n")


def test_a_command_that_a_package_adds_is_listed(installed: User) -> None:
    code, said = installed.parity("--help")
    assert code == 0
    assert "What did installed packages add?\n  tally     how many ops a run compared\n" in said
    assert "What did installed" not in User(installed.folder).parity("--help")[1]


def test_a_command_cannot_take_the_name_of_another() -> None:
    with pytest.raises(UsageError, match="there is a command 'run' already; name yours otherwise"):
        commandline.add("run", commandline.COMMANDS["run"])


@pytest.mark.parametrize("user", ["by_setup", "by_settings", "installed"])
def test_explain_names_the_table_that_was_added(user: str, request: pytest.FixtureRequest) -> None:
    added: User = request.getfixturevalue(user)
    code, said = added.parity("explain", "mine.sine", "float32")
    assert code == 0
    assert said.startswith("mine.sine (own-waves) float32 on cpu\n")
    assert "/mine.toml:3: own-waves any dtype any pass\n            gives scale 3, output_ulp 2\n" in said


def test_a_package_that_cannot_be_imported_is_named(installed: User, tmp_path: Path) -> None:
    broken = User(tmp_path, path=str(tmp_path))
    facts = tmp_path / "mine_parity-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-parity\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[parity]\nmine = mine\n")
    (tmp_path / "mine.py").write_text("import gone\n")
    code, said = broken.parity("explain", "exp", "float32")
    assert code == 2
    assert said == (
        "parity: entry point 'mine' of mine-parity (mine) raises ModuleNotFoundError: No module named 'gone' "
        f"({tmp_path / 'mine.py'}:1); pip install gone, or mend it, or remove the package\n"
    )
