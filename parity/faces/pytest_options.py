"""The options in pytest and the settings of the project: added, taken, and checked as far as that needs no torch."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from parity.core import processes, project, untrusted
from parity.core.errors import UsageError
from parity.engine.options import ALSO, OPTIONS

DEFAULTS = {"device": "auto", "profile": "quick", "effort": "default"}  # of what has another value until the settings were read
OF_PROJECT = ("device", "profile", "effort", "known", "setup", "faults", "fail_on")
SETTLED = "parity_settled"  # of a worker's input: these options as the controller has them
LARGEST_INI = 1 << 20  # bytes
SUITE, OF_SUITE = Path("conformance", "test_operators.py"), "parity_item"  # the file of a suite, and a word that it holds
# Where pytest looks for its settings, and parity for its own -> what the file must hold, one of these.
INI_FILES = {
    "pytest.toml": ("",), "pytest.ini": ("",), ".pytest.ini": ("",),
    "pyproject.toml": ("[tool.pytest", project.SECTION), "tox.ini": ("[pytest]",), "setup.cfg": ("[tool:pytest]",),
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --parity-device and the other options."""
    group = parser.getgroup("parity", "numerical parity between devices")
    for option in OPTIONS:
        if option.in_pytest:
            name, keywords = option.for_pytest()
            group.addoption(name, **keywords | ({"default": None} if option.name in DEFAULTS else {}))
    how = "how hard the fixture looks: default or full, as effort= of parity.assert_parity"
    group.addoption("--parity-effort", dest="parity_effort", default=None, metavar="EFFORT", help=how)
    how = "a run file for what the tests compare, for parity diff (relative to the current folder)"
    group.addoption("--parity-output", dest="parity_output", default=None, metavar="FILE", help=how)
    group.addoption("--parity-done", dest="parity_done", default=None, help="file of items to leave out (parity run --resume)")
    group.addoption("--parity-rundir", dest="parity_rundir", default=None, help="folder for journals (made by the controller)")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of xdist what the settings said, on another machine too."""
    node.workerinput[SETTLED] = {f"parity_{n}": getattr(node.config.option, f"parity_{n}") for n in OF_PROJECT}


def settle(config: pytest.Config) -> None:
    """Take what the settings say where no option does, and check both; ends a run that cannot be meant so."""
    _check_root(config)
    if (worker := getattr(config, "workerinput", None)) is not None:  # xdist gives it the command line alone
        config.option.__dict__.update(worker.get(SETTLED, {}))
    elif not config.option.parity_rundir:  # else a command has read them
        _take_settings(config)
    for name, default in DEFAULTS.items():
        setattr(config.option, f"parity_{name}", getattr(config.option, f"parity_{name}") or default)
    _check_fail_on(config)
    _check_known(config)
    _check_output(config)


def _check_root(config: pytest.Config) -> None:
    """End a run whose root folder pytest moved: it looks for its ini file before it knows the options of plugins, and takes
    PATH of `--parity-faults PATH` for a test's."""
    given = [str(a) for a in config.invocation_params.args]
    here = config.invocation_params.dir
    flags = [o.pytest_flag for o in OPTIONS if o.in_pytest and o.metavar == "FILE"] + ["--parity-output"]
    paths = [(flag, path) for flag, path in itertools.pairwise(given) if flag in flags and (here / path).exists()]
    own = next((p for p in (here, *here.parents) if any(_holds(p / name, words) for name, words in INI_FILES.items())), None)
    chosen = any(a.startswith(("--rootdir", "--config-file", "-c")) for a in given)
    if paths and own is not None and own != config.rootpath and not chosen and not runs_the_suite(config):
        flag, path = paths[0]
        moved = f"pytest took {path} for a test, so {config.rootpath} became its root folder and the settings in {own} are lost"
        pytest.exit(f"parity: {moved}; write {flag}={path}", returncode=2)


def _holds(path: Path, words: tuple[str, ...]) -> bool:
    try:
        content = untrusted.content(path, LARGEST_INI)
    except (OSError, ValueError):  # there is none, or what pytest itself will not read
        return False
    return any(w.encode() in content for w in words)


def _take_settings(config: pytest.Config) -> None:
    """Take the settings of the project where no option says otherwise. The suite is run from where somebody is, wherever it
    lies; other tests have the settings of their root folder."""
    start = config.invocation_params.dir if runs_the_suite(config) else config.rootpath
    variables = contextlib.ExitStack()
    variables.enter_context(processes.restored(project.FILE))
    config.add_cleanup(variables.close)
    problem: UsageError | None = None
    try:
        os.environ[project.FILE] = project.search(start)
        asked = project.found()
        if not config.option.parity_known:
            asked.checked_known()
    except UsageError as e:
        problem = e
    if problem is not None:  # outside of the handler, or pytest shows both tracebacks
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)
    for name in OF_PROJECT:
        value, dest = getattr(asked, name), f"parity_{name}"
        if value and not getattr(config.option, dest) and (name != "faults" or _is_simulated(config)):
            setattr(config.option, dest, [*value] if isinstance(value, tuple) else value)


def _is_simulated(config: pytest.Config) -> bool:
    return (config.option.parity_device or "auto").startswith(("auto", "sim"))


def _check_fail_on(config: pytest.Config) -> None:
    """Check the statuses of --parity-fail-on, or of the settings, which may be separated by commas; ends the run if one is
    unknown."""
    words = [w for value in config.option.parity_fail_on for w in value.split(",")]
    if not words:
        return
    from parity.core.results import statuses

    problem: UsageError | None = None
    try:
        asked = project.found()
        statuses(words, asked.where("fail-on") if (*words,) == asked.fail_on else "--parity-fail-on", ALSO)
        config.option.parity_fail_on = words
    except UsageError as e:
        problem = e
    if problem is not None:  # outside of the handler, or pytest shows both tracebacks
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def _check_known(config: pytest.Config) -> None:
    """Read the file of known findings; ends a run of the suite if it cannot be used."""
    if not config.option.parity_known or hasattr(config, "workerinput") or not runs_the_suite(config):
        return
    config.option.parity_known = str(Path(config.option.parity_known).absolute())
    from parity.core.errors import KnownError
    from parity.findings import known_file

    problem: KnownError | None = None
    try:
        known_file.read(Path(config.option.parity_known))
    except KnownError as e:
        problem = e
    if problem is not None:
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def _check_output(config: pytest.Config) -> None:
    """End a run whose run file would take the place of JUnit's XML, or of what parity did not write."""
    if not config.option.parity_output or hasattr(config, "workerinput"):
        return
    from parity.core.errors import ParityError
    from parity.faces.files import check_output

    problem: ParityError | None = None
    try:
        junit = getattr(config.option, "xmlpath", None)
        check_output(Path(config.option.parity_output), "--parity-output", [Path(junit)] if junit else [])
    except ParityError as e:
        problem = e
    if problem is not None:  # outside of the handler, or pytest shows both tracebacks
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def runs_the_suite(config: pytest.Config) -> bool:
    """Whether this run is of parity's suite: its own, or that of another checkout or a copy; other runs under xdist are left
    alone."""
    from parity.core import project

    suite = project.resource_folder("conformance").resolve()
    paths = (Path(arg.partition("::")[0]).resolve() for arg in config.args)
    return any(folder == suite or _is_a_suite(folder) for p in paths for folder in (p, *p.parents))


def _is_a_suite(folder: Path) -> bool:
    return folder.name == SUITE.parent.name and _holds(folder / SUITE.name, (OF_SUITE,))
