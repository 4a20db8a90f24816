"""What is loaded into every pytest run, and into a command that only names things, loads neither torch nor hypothesis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = (
    "parity", "parity.faces.plugin", "parity.faces.commandline", "parity.engine.suite", "parity.catalog",
    "parity.store.run_file", "parity.faces.progress", "parity.report.diff", "parity.report.causes",  # the main process of a run
    "parity.faces.commands.replay", "parity.report.explanation",
)  # fmt: skip


@pytest.mark.cold
def test_modules_load_nothing_heavy() -> None:
    """Importing them imports neither torch nor hypothesis nor numpy."""
    heavy = "[m for m in ('torch', 'hypothesis', 'numpy') if m in sys.modules]"
    program = f"import importlib, sys\nfor m in {MODULES}:\n    importlib.import_module(m)\n    print(m, {heavy})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{m} []" for m in MODULES]


@pytest.mark.cold
def test_the_plugin_loads_no_op() -> None:
    """It stands in every pytest run of a machine with parity, and the catalog takes a tenth of a second."""
    program = "import sys, parity.faces.plugin; print('parity.catalog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


WATCH = """\
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Watch(MetaPathFinder):
    def find_spec(self, name, *_):
        if name.startswith("parity.prove"):
            with Path("loaded").open("a") as f:
                f.write(name + "\\n")

sys.meta_path.insert(0, Watch())
Path("watched").open("a").write(str([m for m in sys.modules if m.startswith("parity.prove")]) + "\\n")
"""


PROGRAM = """\
import runpy, sys
from pathlib import Path
runpy.run_path("watch.py")
from parity.faces import commandline as cli
asked = ["add", "--device", "sim", "--dtype", "float32", "--examples", "1", "-n", "1", "--setup", "watch.py", "--output"]
assert cli.main(["run", *asked, "run.jsonl"]) == 0
import torch, parity
assert parity.assert_parity(torch.exp, torch.ones(3), device="sim")
assert cli.main(["report", "run.jsonl"]) == cli.main(["diff", "run.jsonl", "run.jsonl"]) == 0
print("LOADED", Path("loaded").exists() and Path("loaded").read_text().split())
assert cli.main(["run", *asked, "again.jsonl", "--study", "counts"]) == 0
print("STUDY", sorted(set(Path("loaded").read_text().split())), set(Path("watched").read_text().splitlines()))
print("WATCHED", len(Path("watched").read_text().splitlines()))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process says that runs the suite, compares a function, and runs a study; all that it starts are watched."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "watch.py").write_text(WATCH)
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.split(" ")[0].isupper() and " " in line)


@pytest.mark.slow
@pytest.mark.cold
def test_the_main_process_of_a_run_loads_no_torch(tmp_path: Path) -> None:
    """Its workers do, at the same time; a run of a few ops would take half as long again."""
    asked = ["run", "add", "--device", "sim", "--dtype", "float32", "--examples", "1", "-n", "1"]
    program = (
        f"import sys\nfrom parity.faces import commandline as cli\nassert cli.main({asked}) == 0\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_nobody_but_the_command_prove_loads_the_proof(done: dict[str, str]) -> None:
    """Neither a run in its main process, its worker and its examination, nor a comparison of one's own function, a report or a
    diff. A run with a study does, which shows that this test would see it."""
    assert done["LOADED"] == "False"
    assert done["STUDY"] == "['parity.prove', 'parity.prove.counts'] {'[]'}"
    assert int(done["WATCHED"]) >= 5  # here, and the examination and a worker of each run


@pytest.mark.cold
def test_public_names_are_listed_before_they_are_used() -> None:
    """For a prompt that completes names, and for Python's own "did you mean"."""
    program = "import parity; print(set(parity._HOMES) ^ set(parity.__all__), set(parity.__all__) - set(dir(parity)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set() set()"
