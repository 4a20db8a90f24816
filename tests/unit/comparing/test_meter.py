"""How long a comparison will take is said where it is known."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import parity
from parity.comparing import meter
from parity.comparing.meter import IMPORTED, Meter


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands."""
    seconds = [100.0]
    monkeypatch.setattr("parity.comparing.meter.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


@pytest.mark.parametrize("imported", [0, IMPORTED - 1, IMPORTED])
def test_a_run_that_imports_says_nothing_about_the_next(
    imported: int, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch imports its compiler for its first decomposition of a kernel: a second that is spent once."""
    world: Any = SimpleNamespace(modules={}, stderr=io.StringIO())
    monkeypatch.setattr("parity.comparing.meter.sys", world)
    net = Meter("net")
    with net.run("a run in float64", 20):
        now[0] += 1.0
        world.modules |= dict.fromkeys(map(str, range(imported)))
    told = "parity: net: 1 s so far, with a run in float64; about 20 s more\n"
    assert world.stderr.getvalue() == (told if imported < IMPORTED else "")


def test_one_of_hundreds_has_no_name_and_says_nothing(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("").run("a run in float64", 20):
        now[0] += 1.0
    assert capsys.readouterr().err == ""
    with Meter("net").run("a run in float64", 20):
        now[0] += 1.0
    assert capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream with a person before it."""

    def isatty(self) -> bool:
        """It says so."""
        return True


def test_a_bar_comes_from_the_third_second_on_with_what_is_left(now: list[float]) -> None:
    stream = Terminal()
    with meter.shown(stream):
        meter.at(1, 8, "step 2 of 8")
        assert not stream.getvalue()
        now[0] += 6.0
        meter.at(2, 8, "step 3 of 8")
    bar, wiped = stream.getvalue().removeprefix(meter.WIPE).split(meter.WIPE)
    assert bar == f"[{'#' * 7}{'.' * 23}]  25%  step 3 of 8, about 18 s left"
    assert not wiped
    meter.at(3, 8, "nobody shows it")
    assert stream.getvalue().endswith(meter.WIPE)


def test_nothing_of_a_bar_is_written_to_a_file(now: list[float]) -> None:
    stream = io.StringIO()
    with meter.shown(stream):
        now[0] += 60.0
        meter.at(2, 8, "step 3 of 8")
        assert not meter.watched()
    assert not stream.getvalue()


def test_locate_and_train_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of about as many operators as there are, and of all steps."""
    monkeypatch.setattr(meter, "QUIET", -1.0)
    monkeypatch.setattr(meter, "DRAWN", 0.0)

    def make() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda x: stepped(model, x)

    def stepped(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        torch.autograd.backward(loss)
        return loss

    stream = Terminal()
    with meter.shown(stream):
        parity.locate(make()[0], torch.randn(2, 4), device="sim")
    drawn = stream.getvalue().split(meter.WIPE)[1:-1]
    assert "calls of operators, now aten::" in drawn[0]
    shares = [int(text.partition("]")[2].split("%")[0]) for text in drawn]
    assert shares == sorted(shares)
    assert shares[0] < 40
    assert shares[-1] > 60
    stream = Terminal()
    with meter.shown(stream):
        parity.compare_training(make, [torch.randn(2, 4)], steps=4, device="sim")
    assert [text.partition("  ")[2].split(",")[0].strip() for text in stream.getvalue().split(meter.WIPE)[1:-1]] == [
        f"{25 * k}%  step {k + 1} of 4" for k in range(4)
    ]
