"""The options in pytest and the settings of its ini file: added, taken, and checked as far as that needs no torch."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from parity.core import untrusted
from parity.engine.options import ALSO, OPTIONS
from parity.faces import old_names

INI = {"device": "the device to compare with (as --parity-device)", "profile": "quick, full or deep (as --parity-profile)"}
DEFAULT_EFFORT = "default"
# Where pytest looks for its settings -> what the file must hold.
LARGEST_INI = 1 << 20  # bytes
INI_FILES = {
    "pytest.toml": "", "pytest.ini": "", ".pytest.ini": "",
    "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --parity-device and the other options."""
    group = parser.getgroup("parity", "numerical parity between devices")
    for option in OPTIONS:
        if option.in_pytest:
            name, keywords = option.for_pytest()
            group.addoption(name, **keywords)
    for name, (now, value) in old_names.OF_PYTEST.items():
        dest = now.lstrip("-").replace("-", "_")
        group.addoption(name, dest=dest, action="append_const", const=value, help=f"now {now}={value}")
    for name, how in INI.items():
        parser.addini(f"parity_{name}", how, default="")
    parser.addini("parity_effort", "effort of the fixture (as --parity-effort)", default="")
    how = "how hard the fixture looks: quick, default or full, as effort= of parity.assert_parity"
    group.addoption("--parity-effort", dest="parity_effort", default="", metavar="EFFORT", help=how)
    parser.addini("parity_known", "a file of known findings, relative to the ini file (as --parity-known)", default="")
    how = "a run file for what the tests compare, for parity diff (relative to the current folder)"
    group.addoption("--parity-output", dest="parity_output", default=None, metavar="FILE", help=how)
    group.addoption("--parity-done", dest="parity_done", default=None, help="file of items to leave out (parity run --resume)")
    group.addoption("--parity-rundir", dest="parity_rundir", default=None, help="folder for journals (made by the controller)")


def settle(config: pytest.Config) -> None:
    """Take what the ini file says where no option does, and check both; ends a run that cannot be meant so."""
    _check_root(config)
    _say_new_names(config)
    _take_ini(config)
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
    own = next((p for p in (here, *here.parents) if any(_is_ini(p / name, words) for name, words in INI_FILES.items())), None)
    chosen = any(a.startswith(("--rootdir", "--config-file", "-c")) for a in given)
    if paths and own is not None and own != config.rootpath and not chosen and not runs_the_suite(config):
        flag, path = paths[0]
        moved = f"pytest took {path} for a test, so {config.rootpath} became its root folder and the settings in {own} are lost"
        pytest.exit(f"parity: {moved}; write {flag}={path}", returncode=2)


def _is_ini(path: Path, words: str) -> bool:
    """Whether a file holds settings of pytest."""
    try:
        return words.encode() in untrusted.content(path, LARGEST_INI)
    except (OSError, ValueError):  # there is none, or what pytest itself will not read
        return False


def _say_new_names(config: pytest.Config) -> None:
    """Say which options have other names now."""
    given = () if hasattr(config, "workerinput") else map(str, config.invocation_params.args)
    for name, (now, value) in ((w, old_names.OF_PYTEST[w]) for w in given if w in old_names.OF_PYTEST):
        print(f"parity: '{name}' is now '{now}={value}'{old_names.ONLY}", file=sys.stderr)


def _take_ini(config: pytest.Config) -> None:
    """Take device and profile from the ini file where no option names them."""
    for name in INI:
        given, dest = str(config.getini(f"parity_{name}")), f"parity_{name}"
        default = next(o.default for o in OPTIONS if o.name == name)
        if given and getattr(config.option, dest) == default:
            setattr(config.option, dest, given)
    config.option.parity_effort = config.option.parity_effort or str(config.getini("parity_effort")) or DEFAULT_EFFORT


def _check_fail_on(config: pytest.Config) -> None:
    """Check the statuses of --parity-fail-on, which may be separated by commas; ends the run if one is unknown."""
    words = [w for value in config.option.parity_fail_on for w in value.split(",")]
    if not words:
        return
    from parity.core.errors import UsageError
    from parity.core.results import statuses

    problem: UsageError | None = None
    try:
        statuses(words, "--parity-fail-on", ALSO)
        config.option.parity_fail_on = words
    except UsageError as e:
        problem = e
    if problem is not None:  # outside of the handler, or pytest shows both tracebacks
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def _check_known(config: pytest.Config) -> None:
    """Take the file of known findings of the ini file where no option names one, and read it; ends a run of the suite if it
    cannot be used."""
    named = str(config.getini("parity_known"))
    if named and not config.option.parity_known and config.inipath is not None:
        config.option.parity_known = str(config.inipath.parent / named)
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
    """Whether this run is of parity's own suite; other runs under xdist are left alone."""
    from parity.core import resources

    suite = resources.folder("conformance").resolve()
    return any(suite in (p := Path(arg.partition("::")[0]).resolve(), *p.parents) for arg in config.args)
