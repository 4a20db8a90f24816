"""Ctrl-C, SIGTERM and SIGHUP are one request to stop."""

from __future__ import annotations

import signal
import threading

import pytest

from parity.faces.interruption import SIGNALS, Interruptions


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_heard_and_the_next_within_a_second_is_not(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one is, in case the first was lost. (What whoever started the tests ignores would stay so.)"""
    before = signal.default_int_handler
    was = signal.signal(number, before)
    try:
        with Interruptions():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            signal.raise_signal(number)
            monkeypatch.setattr("parity.faces.interruption.time.monotonic", lambda: 1e9)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, was)


def test_none_is_heard_while_the_end_is_written() -> None:
    """After `hold`."""
    with Interruptions() as asked:
        asked.hold()
        signal.raise_signal(signal.SIGTERM)


def test_what_was_ignored_stays_ignored() -> None:
    """As in the background of a shell's script."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interruptions():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_than_the_main_one_asks_for_nothing() -> None:
    """It may not."""
    told: list[BaseException] = []

    def enter() -> None:
        try:
            with Interruptions():
                pass
        except BaseException as e:
            told.append(e)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not told


def test_one_that_comes_while_it_must_wait_is_heard_at_the_end() -> None:
    """Of `later`, once; where none came, nothing is."""
    done = []

    @Interruptions.later()
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        done.append("counted and stored")

    with Interruptions():
        with pytest.raises(KeyboardInterrupt):
            work()
        with Interruptions.later():
            done.append("quiet")
    assert done == ["counted and stored", "quiet"]


def test_the_second_one_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a screen that takes no more text, or a disk that hangs. One within the same second is the same request."""
    done = []

    @Interruptions.later()
    def hang() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        done.append("once")
        monkeypatch.setattr("parity.faces.interruption.time.monotonic", lambda: 1e9)
        signal.raise_signal(signal.SIGTERM)
        done.append("never")

    with Interruptions():
        with pytest.raises(KeyboardInterrupt):
            hang()
        with Interruptions.later():
            done.append("the next one")
    assert done == ["once", "the next one"]
