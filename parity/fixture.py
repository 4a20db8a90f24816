"""The `parity` fixture, for people's own tests. A test that asks for it and never calls it fails: it has compared nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any

import pytest


class Caller:
    """What the fixture gives: `parity.assert_parity` with the options of this run. used: whether the test called it."""

    def __init__(self, **options: Any) -> None:
        self.used = False
        self._options = options

    def __call__(self, fn: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Any:
        """As `parity.assert_parity`; arguments given here win over the options."""
        __tracebackhide__ = True
        from parity.assertion import assert_parity

        self.used = True
        return assert_parity(fn, *inputs, **{**self._options, **kwargs})


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
    made = request.node.stash[_CALLER] = Caller(device=device, fail_on=tuple(o.parity_fail_on))
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
    return result
