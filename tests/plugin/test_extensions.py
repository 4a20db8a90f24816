"""A file outside of the package adds a row, a table, a class of ops, a check and a format: through --setup, and as an installed
package through an entry point, which adds a command, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from parity.core.errors import UsageError
from parity.faces import commandline
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
from parity.report import formats

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
formats.add(formats.Format("ops", lambda r: " ".join(i.op for i in r.run.items) + "\\n"))
"""
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
SHIFTED = """
from parity import Fault

FAULTS = [Fault("shifted", ("sin",), lambda call: call.run() + 0.25)]
"""


class User(NamedTuple):
    """A folder of a user. given: the options that name the file, if no installed package does; path: of installed packages."""

    folder: Path
    given: tuple[str, ...] = ()
    path: str = ""

    def parity(self, *argv: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        command = [sys.executable, "-P", "-m", "parity", *argv, *(self.given if argv[0] != "report" else ())]
        env = {**os.environ, "PYTHONPATH": self.path}
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
    (folder / "mine.py").write_text(MINE)
    (folder / "mine.toml").write_text(TABLE)
    return User(folder, ("--setup", "mine.py"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> User:
    """The file is a module of an installed package."""
    folder, site = tmp_path_factory.mktemp("user"), tmp_path_factory.mktemp("site")
    (site / "mine.py").write_text(MINE)
    (site / "mine.toml").write_text(TABLE)
    facts = site / "mine_parity-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-parity\nVersion: 1.0\n")
    (site / "mine_command.py").write_text(COMMAND)
    (facts / "entry_points.txt").write_text("[parity]\nmine = mine\ncommand = mine_command\n")
    (folder / "faults.py").write_text(SHIFTED)
    return User(folder, path=str(site))


@pytest.mark.slow
def test_what_a_setup_file_adds_is_run_and_reported(by_setup: User) -> None:
    code, said = by_setup.run("-v")
    assert code == 0, said
    assert "everything that was compared agrees" in said
    assert "/mine.toml; 0 exceptions" in said
    (item,) = by_setup.stored.items
    assert item.op == "mine.sine"
    assert item.counts["own-odd"] == item.counts["forward"]
    for words in ("mine.py", "mine.py:ops"):
        assert by_setup.parity("report", "run.jsonl", "--format", words) == (0, "mine.sine\n")
    assert by_setup.parity("report", "run.jsonl", "--format", "none.py") == (
        2,
        "parity: --format none.py: no such file; give a Python file that adds what is asked for\n",
    )


@pytest.mark.slow
def test_what_a_package_adds_is_run_and_a_fault_in_it_is_found(installed: User) -> None:
    """In its own check too, which is shrunk like parity's."""
    code, said = installed.run("--setup", "faults.py")
    assert code == 1, said
    (item,) = installed.stored.items
    assert item.counts["own-odd"]["wrong"] == item.counts["forward"]["wrong"] > 0
    shrunk = {r.aspect: r.shrunk for r in installed.stored.records if r.shrunk}
    assert shrunk["own-odd"].startswith("mine.sine(float32[")
    assert installed.parity("report", "run.jsonl", "--format", "ops") == (0, "mine.sine\n")
    assert installed.parity("tally", "run.jsonl") == (0, "1\n")


def test_a_command_that_a_package_adds_is_listed(installed: User) -> None:
    code, said = installed.parity("--help")
    assert code == 0
    assert "What did installed packages add?\n  tally     how many ops a run compared\n" in said
    assert "What did installed" not in User(installed.folder).parity("--help")[1]


def test_a_command_cannot_take_the_name_of_another() -> None:
    with pytest.raises(UsageError, match="there is a command 'run' already; name yours otherwise"):
        commandline.add("run", commandline.COMMANDS["run"])


@pytest.mark.parametrize("user", ["by_setup", "installed"])
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
        "parity: entry point 'mine' of mine-parity (mine) raises ModuleNotFoundError: No module named 'gone'; "
        "mend it, or remove the package\n"
    )
