"""The `parity` fixture, for people's own tests. A test that asks for it and never calls it fails: it has compared nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any

import pytest

TOLD = "parity_agreement"  # name of the property of a report that holds what an agreement excludes


class Caller:
    """What the fixture gives: `parity.assert_parity` with the options of this run. used: whether the test called it; failed:
    the error of a call that compared nothing; told: with -v, what each agreement excludes."""

    def __init__(self, **options: Any) -> None:
        self.used = False
        self.failed = ""
        self.told: list[str] = []
        self._options = options

    def __call__(self, fn: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Any:
        """As `parity.assert_parity`; arguments given here win over the options."""
        __tracebackhide__ = True
        from parity.assertion import ParityFailure, assert_parity

        self.used = True
        options = {**self._options, **kwargs}
        try:
            comparison = assert_parity(fn, *inputs, **options)
        except ParityFailure as e:  # a difference is something compared, and a test may expect just that
            found = [v.status for _, v in e.comparison.verdicts]
            self.failed = "" if any(s.is_comparison for s in found) else f"{type(e).__name__} ({', '.join(found)})"
            raise
        except BaseException as e:
            self.failed = type(e).__name__
            raise
        self.told += [str(comparison)] if options.get("detail") else []
        return comparison


_CALLER = pytest.StashKey[Caller]()


@functools.lru_cache(maxsize=4)
def _own(device: str, faults: str | None, setup: str | None) -> Any:
    """The device for people's own tests; "auto" stays a name, so that `assert_parity` can warn of what it found."""
    from parity.devices import load_faults, resolve
    from parity.devices.setup import run_setup

    if setup:
        run_setup(setup)
    found = resolve(device, load_faults(faults) if faults else ())
    return device if device == "auto" and not faults else found


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Any:
    """`parity(fn, *inputs)`: assert that a function or module computes the same on the device of this run as on the CPU.

    The device is that of --parity-device, with --parity-faults and after --parity-setup; --parity-fail-on holds too. See
    `parity.assert_parity` for all arguments. A test that never calls it fails.
    """
    from parity.errors import ParityError

    o = request.config.option
    try:
        device = _own(o.parity_device, o.parity_faults, o.parity_setup)
    except ParityError as e:
        device = e
    if isinstance(device, ParityError):  # outside of the handler, or pytest tells both
        pytest.fail(f"parity: {device}", pytrace=False)
    made = request.node.stash[_CALLER] = Caller(
        device=device, fail_on=tuple(o.parity_fail_on), detail=request.config.get_verbosity() > 0
    )
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that asked for the fixture and passes without a call of it has tested nothing."""
    result = yield  # what skips or fails the test passes through here
    caller = item.stash.get(_CALLER, None)
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
    if caller is not None and caller.told:
        item.user_properties.append((TOLD, "\n".join(caller.told)))
    return result


class Verbose:
    """With -v: prints below each test that passes what its agreement excludes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has run."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or report.when != "call":
            return
        for text in (str(value) for name, value in report.user_properties if name == TOLD):
            terminal.ensure_newline()
            terminal.write_line(text)
