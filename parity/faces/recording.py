"""`pytest --parity-output FILE`: what a project's own tests compare, as a run file, so that `parity diff` shows what an upgrade
changes in them. An item is a test, whether it uses the `parity` fixture or calls `assert_parity` itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity.findings.known import Entry
    from parity.store.rows import Row

ROWS = "parity_rows"  # the report's property that holds the rows of a test
PROFILE = "tests"  # instead of a profile, in the header


@contextmanager
def recorded(item: pytest.Item, entries: Sequence[Entry] = ()) -> Iterator[None]:
    """Keep what `assert_parity` compares inside, whether it agrees or not, in the report of the test. entries: known
    findings."""
    if not (item.config.option.parity_output or entries):
        yield
        return
    from parity.comparing.own_figures import rows
    from parity.engine import own
    from parity.locating import asserting
    from parity.store.run_file import encode

    heard: list[Any] = []
    asserting.hearers.append(heard.append)
    began = time.monotonic()
    try:
        yield
    finally:
        asserting.hearers.remove(heard.append)
        if heard:
            row, records = rows(item.nodeid, heard, time.monotonic() - began)
            seen = [*own.sightings(entries, row, records, date.today())]
            devices = sorted({c.device for c in heard})
            stored: list[Row] = [*own.accepted(records, seen), *seen, row]
            report = {"devices": devices, "rows": [*map(encode, stored)]}
            item.user_properties.append((ROWS, json.dumps(report)))


class Recording:
    """In the controller: writes the run file at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._started = config, datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.monotonic()
        self._lines: dict[str, list[str]] = {}
        self._devices: set[str] = set()
        self._silent: dict[str, str] = {}  # tests that failed before they compared anything
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in the rows of a test."""
        for value in (str(v) for name, v in report.user_properties if name == ROWS):
            stored = json.loads(value)
            self._lines[report.nodeid] = stored["rows"]
            self._devices.update(stored["devices"])
        if report.failed and report.nodeid not in self._lines:
            self._silent[report.nodeid] = (str(report.longrepr).strip().splitlines() or [""])[-1][:200]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the run file, if anything was compared."""
        from parity.core.errors import ParityError, UsageError
        from parity.core.untrusted import printable
        from parity.engine.doctor import examined, fingerprint_of
        from parity.findings import known_file
        from parity.store import run_file
        from parity.store.code import Code, code_of
        from parity.store.rows import End, Header, ItemRow, totals

        o = self._config.option
        path = Path(o.parity_output)
        if not self._lines:
            self._said = f"nothing was compared, so {path} was not written: this is no success"
            session.exitstatus = exitstatus or pytest.ExitCode.NO_TESTS_COLLECTED
            return
        try:
            if len(self._devices) > 1:
                raise UsageError(f"the tests compare {', '.join(sorted(self._devices))}, and a run file is of one device")
            device = next(iter(self._devices), o.parity_device)
            fingerprint = fingerprint_of(examined(device, o.parity_faults, o.parity_setup))
            code = code_of(o.parity_faults), code_of(o.parity_setup)
            held = known_file.read(Path(o.parity_known)).code if o.parity_known else Code()
            rows = [run_file.decode(line) for lines in self._lines.values() for line in lines]
            items = [r for r in rows if isinstance(r, ItemRow)]
            with run_file.Writer(path) as writer:
                writer.write(Header(fingerprint, "", PROFILE, "tests", self._started, False, *code, known=held))
                for row in rows:
                    writer.write(row)
                stopped = "interrupted" if exitstatus == pytest.ExitCode.INTERRUPTED else ""
                silent = tuple(
                    printable(f"{test} failed before it compared anything: {why}") for test, why in self._silent.items()
                )
                seconds, expected = time.monotonic() - self._began, len(items) + len(silent)
                writer.write(End(seconds, dict(totals(items)), stopped, expected, broken=silent))
        except ParityError as e:
            self._said = f"{path} was not written: {e}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
            return
        tests = f"{len(items)} test{'' if len(items) == 1 else 's'}"
        self._said = f"the comparisons of {tests} are stored in {path}; compare with another run: parity diff {path}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where it is."""
        if self._said:
            terminalreporter.write_line(f"parity: {self._said}")
