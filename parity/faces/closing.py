"""The end-of-run summary and the exit status, on the controller of the suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity.engine.options import RunOptions
from parity.faces.recording import ROWS
from parity.findings import known_file
from parity.findings.verdict import RunResult
from parity.report.known import lines
from parity.store.rows import Sighting
from parity.store.run_file import decode


class Compared:
    """Tracks whether any item of the suite compared something. If none did, all tests were skipped, and the run must not
    succeed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._items = self._compared = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in the result of an item."""
        if report.when == "call" and any(name == "parity" and '"cut"' not in str(v)[:8] for name, v in report.user_properties):
            self._items += 1
            self._compared += not report.skipped or hasattr(report, "wasxfail")  # known findings were compared

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Change the exit code if nothing was compared."""
        if self._items and not self._compared and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say that nothing was compared."""
        if self._items and not self._compared:
            terminalreporter.write_line(f"parity: nothing was compared in {self._items} items: this is no success", red=True)


class KnownFindings:
    """In the controller of a run with known findings: says at the end what became of them, and fails a strict run for what is
    fixed. Of people's own tests, where one that uses the fixture has compared something."""

    def __init__(self, config: pytest.Config, suite: bool) -> None:
        self._options = RunOptions.of_pytest(config.option)
        self._sightings: list[Any] = []
        self._compared = suite

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what an item saw of them."""
        if report.when == "teardown":
            return
        for part in (json.loads(str(value)) for name, value in report.user_properties if name == "parity"):
            self._compared = True  # an item of the suite, wherever its file lies
            lines = [line for line in part.get("rows", ()) if json.loads(line)["kind"] == "known"]
            deaths = [part["death"]] if "death" in part else part.get("deaths", [])
            lines += [death["sighting"] for death in deaths if death.get("sighting")]
            self._sightings += map(decode, lines)
        for rows in (json.loads(str(value))["rows"] for name, value in report.user_properties if name == ROWS):
            self._compared = True
            self._sightings += [row for row in map(decode, rows) if isinstance(row, Sighting)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a strict run for what is fixed."""
        if not self._compared:
            return
        held = known_file.read(Path(str(self._options.known)))
        result = RunResult(known=held, sightings=self._sightings, strict=self._options.strict_known)
        if result.fixed and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what became of them."""
        if not self._compared:
            return
        held = known_file.read(Path(str(self._options.known)))
        terminalreporter.section("known findings")
        for text in lines(held, self._sightings, 1000):
            terminalreporter.write_line(text)
