"""Times of two runs: what is slower beyond the noise, and what all series have in common."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from parity.core.results import Fingerprint, Status
from parity.history.pace import Paces, paces
from parity.store.figures import Collected, Figures
from parity.store.rows import End, Header, Run

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2")


def figures(op: str, seconds: list[float]) -> Figures:
    made = Collected()
    for k, s in enumerate(seconds):
        made.add(f"{op} {k}", "00", [("forward", Status.AGREE, ())], {"forward": s})
    return made.packed(op, "float32", True)


def run(*rows: Figures, machine: Fingerprint = PRINT) -> Run:
    return Run(Header(machine), end=End(), figures=rows)


def noisy(seed: int, typical: float = 1e-4, n: int = 30) -> list[float]:
    """Times with the noise of a busy machine: a fifth, and now and then ten times as much."""
    r = random.Random(seed)
    return [typical * 2 ** (k % 5) * r.lognormvariate(0, 0.2) * (10 if r.random() < 0.1 else 1) for k in range(n)]


def test_a_constant_delay_is_told_with_its_factor() -> None:
    before = run(*(figures(f"op{k}", noisy(k)) for k in range(12)))
    slow = [figures(f"op{k}", noisy(100 + k)) for k in range(11)]
    made = paces(before, run(*slow, figures("op11", [t + 0.02 for t in noisy(111)])))
    (p,) = made.slower
    assert (p.cell, p.pairs, made.faster) == (("op11", "float32", "forward"), 30, ())
    assert p.factor > 20
    assert p.after == pytest.approx(0.02, rel=0.2)
    back = paces(run(*slow, figures("op11", [t + 0.02 for t in noisy(111)])), before)
    assert [p.cell[0] for p in back.faster] == ["op11"]
    assert back.slower == ()


def test_noise_is_not_told() -> None:
    for seed in range(20):
        before, after = (run(*(figures(f"op{k}", noisy(s + k)) for k in range(20))) for s in (1000 * seed, 1000 * seed + 500))
        made = paces(before, after)
        assert (made.slower, made.faster) == ((), ())


def test_a_machine_that_is_busy_slows_everything_and_is_told_once() -> None:
    before = run(*(figures(f"op{k}", noisy(k)) for k in range(12)))
    made = paces(before, run(*(figures(f"op{k}", [2.5 * t for t in noisy(k)]) for k in range(12))))
    assert (made.slower, round(made.general, 1)) == ((), 2.5)


def test_of_few_series_each_is_told() -> None:
    made = paces(run(figures("mm", noisy(1))), run(figures("mm", [2.5 * t for t in noisy(1)])))
    assert len(made.slower) == 1


def test_what_three_quarters_of_the_cases_do_not_show_is_not_told() -> None:
    one = noisy(1)
    some = [3 * t if k % 3 == 0 else t for k, t in enumerate(one)]
    assert paces(run(figures("mm", one)), run(figures("mm", some))).slower == ()


@pytest.mark.parametrize("what", [{"device_name": "Apple M3"}, {"machine": "x86_64"}, {"device": "cuda:0"}])
def test_other_machines_are_not_compared(what: dict[str, str]) -> None:
    other = replace(PRINT, **what)  # type: ignore[arg-type]
    assert paces(run(figures("mm", noisy(1))), run(figures("mm", noisy(1)), machine=other)) == Paces(why="the machines differ")


def test_another_torch_is_compared() -> None:
    """That is what an upgrade is about."""
    other = replace(PRINT, torch="2.14.0", os="macOS 26")
    assert paces(run(figures("mm", noisy(1))), run(figures("mm", noisy(1)), machine=other)).series == 1


def test_runs_without_common_cases_say_so() -> None:
    assert paces(run(figures("mm", noisy(1))), run(figures("bmm", noisy(1)))).why == "no case with a time is in both runs"


def test_a_simulated_device_is_told_by_the_millisecond_only() -> None:
    simulated = replace(PRINT, simulated=True)
    before = run(figures("mm", noisy(1)), machine=simulated)
    for more, told in ((4e-4, 0), (5e-3, 1)):
        assert len(paces(before, run(figures("mm", [t + more for t in noisy(1)]), machine=simulated)).slower) == told
