"""The `parity` fixture, for users' own tests. A test that requests it and never calls it fails, because it has compared
nothing."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.engine.options import ALSO
from parity.faces.recording import recorded

if TYPE_CHECKING:
    from parity.comparing.comparison import Comparison
    from parity.findings.known import Entry
    from parity.locating.asserting import assert_parity as _as_asserted

AGREEMENT = "parity_agreement"  # the report's property that holds what each agreement excludes
NEVER = "the test takes the `parity` fixture and never called it, so nothing was compared; call it, or do without it"
RUNNING = "a call of the `parity` fixture was still running in another thread when the test ended; wait for it"


class Calls:
    """The calls of one test. made: whether there was any; failed: of the first call that fails the test whatever it does then:
    one that compared nothing, or found something in another thread, where nobody may hear of it; running: calls that have not
    come back; known: the known findings that were met; agreements: with -v, the size of error that each agreement excludes."""

    def __init__(self, test: str) -> None:
        self.test, self.thread = test, threading.get_ident()
        self.made, self.failed = False, ""
        self.running: list[object] = []
        self.known: dict[str, Entry] = {}
        self.agreements: list[str] = []

    def accept(self, comparison: Comparison, entries: Sequence[Entry]) -> bool:
        """Whether everything that was found is known; what is, is kept."""
        from parity.comparing.own_figures import rows
        from parity.core.results import Status
        from parity.engine import own
        from parity.store.rows import SEEN

        item, records = rows(self.test, (comparison,))
        seen = [*own.sightings(entries, item, records, date.today())]
        held = {s.aspect for s in seen if s.state == SEEN}
        if any(s.fails for s in seen) or not {r.aspect for r in records if r.status != Status.AGREE} <= held:
            return False
        self.known |= {e.id: e for e in entries if any(s.id == e.id and s.state == SEEN for s in seen)}
        return True

    def fail(self, e: BaseException, compared: bool = False) -> None:
        """Take in what a call raised. compared: whether it is a difference, which a test may expect of a call of its own."""
        elsewhere = threading.get_ident() != self.thread
        if elsewhere or not compared:
            said = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
            why = "in another thread, where no test hears of it" if elsewhere else "and the test went on: it compared nothing"
            self.failed = self.failed or f"a call of the `parity` fixture ended {why} ({said}); let the error pass"

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Fail the test for a call inside that went wrong, unless it fails anyway."""
        try:
            yield
        except (pytest.skip.Exception, pytest.xfail.Exception):
            self._conclude()
            raise
        except BaseException:
            self.failed = ""
            raise
        self._conclude()

    def _conclude(self) -> None:
        problem, self.failed = self.failed, ""
        if problem:
            pytest.fail(f"parity: {problem}", pytrace=False)


class Fixture:
    """The value of the fixture: `parity.assert_parity` with the options of this run. entries: known findings.

    def test_block(parity: parity.Fixture) -> None: ...
    """

    def __init__(self, config: pytest.Config, entries: Sequence[Entry], **options: Any) -> None:
        self._config, self.entries, self._options = config, entries, options

    def _call(self, fn: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Comparison:
        """As `parity.assert_parity`; arguments given here override the options. Known findings do not raise."""
        __tracebackhide__ = True
        from parity.comparing.comparison import ParityFailure
        from parity.locating.asserting import assert_parity

        calls, options, token = self._config.stash[_CALLS], {**self._options, **kwargs}, object()
        calls.made = True
        calls.running.append(token)
        try:
            comparison = assert_parity(fn, *inputs, **options)
        except ParityFailure as e:
            comparison = e.comparison
            if not calls.accept(comparison, self.entries):
                calls.fail(e, any(v.status.is_comparison for _, v in comparison.verdicts))
                raise
        except BaseException as e:
            calls.fail(e)
            raise
        finally:
            calls.running.remove(token)
        calls.agreements += [str(comparison)] if options.get("detail") else []
        return comparison

    if TYPE_CHECKING:  # the same words, written once: a wrong one is an error before anything runs
        __call__ = staticmethod(_as_asserted)
    else:
        __call__ = _call


_CALLER, _CALLS = pytest.StashKey[Fixture](), pytest.StashKey[Calls]()


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
def parity(request: pytest.FixtureRequest) -> Fixture:
    """`parity(fn, *inputs)`: assert that a function or module computes the same on the device of this run as on the CPU.

    The device is that of --parity-device, with --parity-faults and after --parity-setup; --parity-fail-on, --parity-effort and
    --parity-known apply too. See `parity.assert_parity` for all arguments. A test that takes it and never calls it fails.
    """
    return _caller(request.config)


def _caller(config: pytest.Config) -> Fixture:
    """The value of the fixture. Fails the test for what the options name and cannot be had."""
    from parity.core.errors import ParityError
    from parity.findings import known_file

    o = config.option
    entries: Sequence[Entry] = ()
    try:
        device = _own(o.parity_device, o.parity_faults, o.parity_setup)
        entries = known_file.read(Path(o.parity_known)).entries if o.parity_known else ()
    except ParityError as e:
        device = e
    if isinstance(device, ParityError):  # outside of the handler, or pytest shows both errors
        pytest.fail(f"parity: {device}", pytrace=False)
    detail = config.get_verbosity() > 0
    fail_on = tuple(word for word in o.parity_fail_on if word not in ALSO)
    options = {"device": device, "fail_on": fail_on, "detail": detail, "effort": o.parity_effort}
    caller = config.stash[_CALLER] = Fixture(config, entries, **options)
    return caller


class ModelItem(pytest.Item):
    """The test of a model that --parity-model names: no file has it. Its id is the model's name, as in `parity run`."""

    def runtest(self) -> None:
        """Compare the model on the device of this run, as a test with the fixture would."""
        from parity.comparing.models import functions
        from parity.core.errors import UsageError

        caller, problem = _caller(self.config), ""
        try:
            (make,) = functions(self.name, given=self.config.option.parity_input).values()
            fn, inputs, kwargs = make()
        except (UsageError, ValueError) as e:
            problem = str(e) if isinstance(e, UsageError) else f"{self.name} has several models; name one with :NAME"
        if problem:  # outside of the handler, or pytest shows both errors
            pytest.fail(f"parity: {problem.replace('--input', '--parity-input')}", pytrace=False)
        self.add_report_section("call", "parity", make.said)
        caller(fn, *inputs, **kwargs)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is, in the words of pytest: nowhere but by its name."""
        return self.config.rootpath, None, self.name


def add_models(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add a test for each model of --parity-model."""
    models = dict.fromkeys(session.config.option.parity_model)
    items += [ModelItem.from_parent(session, name=name, nodeid=name) for name in models]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Begin anew: fixtures may call `parity` as well."""
    calls = item.config.stash[_CALLS] = Calls(item.nodeid)
    with calls.heard():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that requests the fixture and passes without calling it, or of which a call went wrong unheard; one that met
    known findings alone is an expected failure. With --parity-output, keep what tests compare."""
    calls, caller = item.config.stash[_CALLS], item.config.stash.get(_CALLER, None)
    with recorded(item, caller.entries if caller is not None else ()), calls.heard():
        result = yield  # exceptions that skip or fail the test propagate from here
    if not calls.made and _takes_it(item):
        pytest.fail(f"parity: {NEVER}", pytrace=False)
    if calls.agreements:
        item.user_properties.append((AGREEMENT, "\n".join(calls.agreements)))
    if calls.known:
        from parity.report.known import accepted

        pytest.xfail(accepted(calls.known.values()))
    return result


def _takes_it(item: pytest.Item) -> bool:
    """Whether a test takes this fixture, and not another one of its own that has the name."""
    info = getattr(item, "_fixtureinfo", None)
    found = info.name2fixturedefs.get("parity", ()) if info is not None else ()
    return any(f.func.__module__ == __name__ or "parity" in f.argnames for f in found[-1:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test of which a call went wrong unheard while its fixtures were torn down, or has not come back."""
    calls = item.config.stash[_CALLS]
    with calls.heard():
        result = yield
    if calls.running:
        pytest.fail(f"parity: {RUNNING}", pytrace=False)
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
