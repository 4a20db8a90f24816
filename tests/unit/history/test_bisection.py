"""Since when a case gives another result: as few environments as possible are asked, and the first that differs is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import commands
import pytest

from parity.core.errors import UsageError
from parity.history.environments import bisected, bisected_versions
from parity.report.finding import said

NAMES = [f"v{k}" for k in range(16)]


@pytest.mark.parametrize("first", range(1, 16))
def test_the_first_that_differs_is_found_with_few_questions(first: int) -> None:
    found = bisected(NAMES, lambda place: "wrong" if int(place[1:]) >= first else "agree")
    assert (found.last, found.first, found.differs) == (f"v{first - 1}", f"v{first}", True)
    assert len(found.answers) <= 6


def test_equal_ends_differ_in_nothing() -> None:
    found = bisected(NAMES, lambda place: "agree")
    assert (found.differs, set(found.answers), found.last) == (False, {"v0", "v15"}, "v15")


def test_what_cannot_be_asked_is_left_out() -> None:
    """At both ends and between them; the names on both sides of the change are of those that were asked."""

    def answer(place: str) -> str:
        if place in ("v0", "v7", "v8", "v15"):
            raise UsageError("no wheel")
        return "wrong" if int(place[1:]) >= 8 else "agree"

    found = bisected(NAMES, answer)
    assert (found.last, found.first) == ("v6", "v9")
    assert set(found.skipped) == {"v0", "v7", "v8", "v15"}
    with pytest.raises(UsageError, match=r"only 1 can be asked; v7: no wheel"):
        bisected(["v6", "v7"], answer)


def test_versions_of_a_requirement_come_from_pip_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "torch (2.14.1)\nAvailable versions: 2.14.1, 2.14.0, 2.9.1, 2.13.0, 2.15.0.dev1"
    commands_: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands_.append(command)
        return subprocess.CompletedProcess(command, 0 if "torch" in command else 1, listed, "")

    monkeypatch.setattr("parity.history.environments.subprocess.run", run)
    assert bisected_versions("torch>=2.9,<=2.14") == ["torch==2.9.1", "torch==2.13.0", "torch==2.14.0"]
    assert bisected_versions("torch>2.14 --pre --index-url URL")[-1] == "torch==2.15.0.dev1 --pre --index-url URL"
    assert commands_[-1][-4:] == ["torch", "--pre", "--index-url", "URL"]
    for asked, why in {"torch>=2.15": "has 0 versions", "torch=2": "is not a requirement of torch"}.items():
        with pytest.raises(UsageError, match=why):
            bisected_versions(asked)


def test_what_replay_prints_is_read_back() -> None:
    printed = (
        "exp(float32[3])\n"
        "  exp float32 on sim: agree in out, forward, 0.3 times the budget (default.toml: a, b)\n"
        "  exp float32 on sim: wrong in grad[0], double backward: NaN where the truth is 1\n"
        "    worst at [0]: device nan\n"
        "  exp float32 on cuda:0: malformed in base[out], out=: strides\n"
        "  exp float32 on sim: void, in-place: neither\n"
    )
    assert said(printed) == "forward agree, double backward wrong, out= malformed, in-place void"
    assert said("exp(float32[3])\n  crash: the process died (SIGABRT) at stage device\n") == "crash"
    assert said("parity: no device") == ""


TORCH = """#!/bin/sh
case "$*" in
*lending.py*) echo '{{"python": [3, 12, 1], "torch": "{torch}"}}' ;;
*core.child*)
  echo "prod(float32[3])"; echo "  prod float32 on sim: {status} in out, forward"
  for folder; do :; done
  printf '{{"code": 0}}\\n{{"end": 1, "of": 1}}\\n' > "$folder/events" ;;
esac
"""
LOST = TORCH.replace('{{"code": 0}}', '{{"code": 4}}').replace(
    'echo "prod(float32[3])"; echo "  prod float32 on sim: {status} in out, forward"', "echo 'parity: no device {status}'"
)


def test_three_environments_with_a_change_in_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Environments that answer what those of tests/bench/upgrade.py --bisect do."""
    monkeypatch.chdir(tmp_path)
    for torch, status in {"2.10": "agree", "2.12": "drift", "2.14": "drift"}.items():
        Path(f"v{torch}").write_text(TORCH.format(torch=torch, status=status))
        Path(f"v{torch}").chmod(0o755)
    places = [f"./v{torch}" for torch in ("2.10", "2.12", "2.14")]
    code, told = commands.told(capfd, "upgrade", "prod(float32[3])", "--bisect", *places, "--device", "sim")
    assert code == 1
    assert "torch 2.14 (./v2.14): forward drift\n" in told
    assert "prod(float32[3]): ./v2.12 is the first that differs: forward drift; ./v2.10: forward agree; next: " in told
    assert told.endswith("next: parity upgrade --before ./v2.10 --after ./v2.12 prod --device sim\n")
    code, told = commands.told(capfd, "upgrade", "prod(float32[3])", "--bisect", *places[1:])
    assert (code, "nothing differs from ./v2.12 to ./v2.14: forward drift" in told) == (0, True)
    Path("v2.10").write_text(LOST.format(torch="2.10", status="sim"))
    code, told = commands.told(capfd, "upgrade", "prod(float32[3])", "--bisect", *places)
    assert (code, "not asked: ./v2.10: torch 2.10: parity: no device sim" in told) == (0, True)
    for place in places:
        Path(place).write_text(LOST.format(torch=place[2:], status="sim"))
    code, told = commands.told(capfd, "upgrade", "prod(float32[3])", "--bisect", *places)
    assert (code, "only 0 can be asked" in told) == (2, True)
    code, told = commands.told(capfd, "upgrade", "--bisect", *places)
    assert (code, "or looks for a version: parity upgrade CASE --bisect PLACE ..." in told) == (2, True)
