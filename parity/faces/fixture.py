"""The `parity` fixture, for users' own tests. A test that requests it and never calls it fails, because it has compared
nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any

import pytest

from parity.faces.recording import recorded

AGREEMENT = "parity_agreement"  # the report's property that holds what each agreement excludes


class Caller:
    """The value of the fixture: `parity.assert_parity` with the options of this run. used: whether the test called it; failed:
    the error of a call that compared nothing; agreements: with -v, the size of error that each agreement excludes."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.begin()

    def begin(self) -> None:
        """Forget the test before."""
        self.used = False
        self.failed = ""
        self.agreements: list[str] = []

    def __call__(self, fn: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Any:
        """As `parity.assert_parity`; arguments given here override the options."""
        __tracebackhide__ = True
        from parity.assertion import ParityFailure, assert_parity

        self.used = True
        options = {**self._options, **kwargs}
        try:
            comparison = assert_parity(fn, *inputs, **options)
        except ParityFailure as e:  # a difference counts as a comparison, and a test may expect it
            statuses = [v.status for _, v in e.comparison.verdicts]
            self.failed = "" if any(s.is_comparison for s in statuses) else f"{type(e).__name__} ({', '.join(statuses)})"
            raise
        except BaseException as e:
            self.failed = type(e).__name__
            raise
        self.agreements += [str(comparison)] if options.get("detail") else []
        return comparison


_CALLER = pytest.StashKey[Caller]()


@functools.lru_cache(maxsize=4)
def _own(device: str, faults: str | None, setup: str | None) -> Any:
    """The device for users' tests; "auto" stays a name, so that `assert_parity` can warn about what it resolved to."""
    from parity.devices import load_faults, resolve
    from parity.devices.setup import run_setup

    if setup:
        run_setup(setup)
    resolved = resolve(device, load_faults(faults) if faults else ())
    return device if device == "auto" and not faults else resolved


@pytest.fixture(scope="session")  # hypothesis refuses fixtures of a function, which do not begin anew for each example
def parity(request: pytest.FixtureRequest) -> Any:
    """`parity(fn, *inputs)`: assert that a function or module computes the same on the device of this run as on the CPU.

    The device is that of --parity-device, with --parity-faults and after --parity-setup; --parity-fail-on and --parity-effort
    apply too. See
    `parity.assert_parity` for all arguments. A test that takes it and never calls it fails.
    """
    from parity.core.errors import ParityError

    o = request.config.option
    try:
        device = _own(o.parity_device, o.parity_faults, o.parity_setup)
    except ParityError as e:
        device = e
    if isinstance(device, ParityError):  # outside of the handler, or pytest shows both errors
        pytest.fail(f"parity: {device}", pytrace=False)
    caller = request.config.stash[_CALLER] = Caller(
        device=device, fail_on=tuple(o.parity_fail_on), detail=request.config.get_verbosity() > 0, effort=o.parity_effort
    )
    return caller


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that requests the fixture and passes without calling it. With --parity-output, keep what tests compare."""
    caller = item.config.stash.get(_CALLER, None) if "parity" in getattr(item, "fixturenames", ()) else None
    if caller is not None:
        caller.begin()
    with recorded(item):
        result = yield  # exceptions that skip or fail the test propagate from here
    if caller is not None and not caller.used:
        pytest.fail(
            "parity: the test takes the `parity` fixture and never called it, so nothing was compared; call parity(fn, "
            "*inputs) or do without it",
            pytrace=False,
        )
    if caller is not None and caller.failed:
        pytest.fail(
            f"parity: a call of the `parity` fixture ended in {caller.failed}, and the test went on: that call compared "
            "nothing; let the error pass, or leave the call out",
            pytrace=False,
        )
    if caller is not None and caller.agreements:
        item.user_properties.append((AGREEMENT, "\n".join(caller.agreements)))
    return result


class Verbose:
    """With -v: prints below each passing test what its agreement excludes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the agreements of a test that passed."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or report.when != "call":
            return
        for text in (str(value) for name, value in report.user_properties if name == AGREEMENT):
            terminal.ensure_newline()
            terminal.write_line(text)
