"""`parity prove`: each action answers its question, and a mistake is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import said as told

from parity.core.results import Fingerprint
from parity.devices import load_faults
from parity.faces import commandline
from parity.prove import scoreboard
from parity.store import run_file
from parity.store.rows import End, Header

pytestmark = pytest.mark.usefixtures("examined_once")
FEW = Path(__file__).with_name("few.py")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("zoo", "--profile", "quik"), "unknown profile 'quik'; allowed: mac, quick, full, deep"),
        (("zoo", "--faults", "nowhere.py"), "nowhere.py: no such file"),
        (("zoo", "wrnog", "--faults", str(FEW)), "no fault matches 'wrnog'; did you mean 'wrong'"),
        (("zoo", "--output", "/proc/none/zoo.json"), "cannot write to the folder /proc/none"),
        (("coverage", "a.jsonl"), "there is no run file a.jsonl"),
        (("counts", "ad"), "no op matches 'ad'"),
        (("counts", "--time", "5m"), "prove counts draws until all is counted, --time ends earlier; leave --time out"),
        (("power", "a.jsonl", "exp"), "no op matches 'a.jsonl'"),
        (("power", "a.jsonl"), "there is no run file a.jsonl"),
    ],
)
def test_bad_input_gets_one_sentence(
    argv: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value, what is allowed and what to do next, on one line."""
    monkeypatch.chdir(tmp_path)
    code, _, err = told(capfd, "prove", *argv)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_zoo_lists_its_faults(capfd: pytest.CaptureFixture[str]) -> None:
    """Ids, kinds and ops, and scores nothing."""
    code, out, _ = told(capfd, "prove", "zoo", "--list", "--faults", str(FEW))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:-2]] == [f.id for f in load_faults(str(FEW))]


def test_zoo_prints_the_score_and_writes_all_of_it(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults from a file, unclassified; the exit code speaks of the run, not of what was missed."""
    monkeypatch.setattr(scoreboard, "recorded", lambda: ("tanh", "sin", "exp", "mul"))
    path = tmp_path / "zoo.json"
    code, out, _ = told(capfd, "prove", "zoo", "wrong", "never", "--faults", str(FEW), "-n", "1", "--output", str(path))
    assert code == 0
    assert "SIMULATED" in out
    assert "1 of   2   50 %" in out
    assert "never fired in" in out
    assert {f["id"]: f["runs"][0]["found"] for f in json.loads(path.read_text())["faults"]} == {"wrong": True, "never": False}


@pytest.mark.slow
def test_counts_tell_the_pairs_that_were_compared(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One line per aspect, of both sources, and why a pair was not; coverage says the same of the run file."""
    path = tmp_path / "run.jsonl"
    asked = ("softmax", "pca_lowrank", "--dtype", "float32,int64", "-n", "1", "-v", "--output", str(path))
    code, out, _ = told(capfd, "prove", "counts", *asked, "--findings", str(tmp_path))
    assert code == 0
    line = next(x for x in out.splitlines() if x.split()[:1] == ["backward"])
    assert line.split()[1:6] == ["3", "3", "of", "4", "2"]  # softmax, with a dtype, masked; not the one of pca_lowrank
    assert "gradients of several right answers (pca_lowrank) are not compared" in out
    assert "pca_lowrank (float32)" in out
    code, again, _ = told(capfd, "prove", "coverage", str(path))
    assert code == 0
    assert line in again.splitlines()
    assert [x.split()[0] for x in again.splitlines()[1:4]] == ["normalization", "opinfo", "all"]
    code, one, _ = told(capfd, "prove", "coverage", str(path), "normalization")
    assert "aspect backward" in one
    assert told(capfd, "prove", "coverage", str(path), "poling")[0] == 2


def test_power_puts_errors_into_every_comparison_and_tells_which_were_seen(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of ops that it runs, and of a run file, which must hold such errors."""
    path = tmp_path / "run.jsonl"
    asked = ("--dtype", "float32", "--examples", "5", "-n", "1", "--output", str(path), "--findings", str(tmp_path))
    code, out, _ = told(capfd, "prove", "power", "exp", *asked)
    assert code == 0
    rows = {line.rsplit(maxsplit=4)[0].strip(): line.split()[-4:] for line in out.partition("by error\n")[2].splitlines()[:4]}
    seen, _, blind, share = rows["every element by half"]
    assert int(seen) >= 10
    assert (blind, share) == ("0", "0.00%")
    assert told(capfd, "prove", "power", str(path))[1] in out
    with run_file.Writer(path) as writer:
        writer.write(Header(Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "")))
        writer.write(End())
    assert told(capfd, "prove", "power", str(path)) == (
        3, "", "parity: no error was put into a comparison of these runs; parity prove power OP puts in all\n",
    )  # fmt: skip


def test_trace_shows_the_calls_as_a_fault_sees_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert commandline.main(["prove", "trace", "addmm(float32[3], float32[4, 3].step(-1, 2, 0), float32[3, 3], alpha=2)"]) == 0
    out = capfd.readouterr().out
    assert "transfer  upload(float32[4, 6]) -> float32[4, 6]" in out
    named = "self=float32[3], mat1=float32[4, 3] strides [6, 2] of [24], mat2=float32[3, 3], alpha=2"
    assert f"  function  torch.addmm({named})" in out
    assert f"  kernel    addmm.out({named}, out=float32[4, 3]) -> fresh float32[4, 3]" in out
    assert "mm.out" in out.partition("backward\n")[2]
    assert commandline.main(["prove", "trace", "cholesky(float32[2, 2].constant())", "--device", "sim:mps"]) in (0, 1)
    capfd.readouterr()
    for argv, words in (
        (["prove", "trace", "exp"], "'exp' is not a case; one looks like max_pool2d("),
        (["prove", "trace", "exp(float32[2])", "--device", "cpu"], "faults can only be planted on a simulated device"),
    ):
        assert commandline.main(argv) == 2
        assert words in capfd.readouterr().err
