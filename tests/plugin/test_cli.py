"""The command line as a person meets it: one clear sentence and the right exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from parity.core.results import Fingerprint, Record
from parity.engine import reading
from parity.faces import commandline
from parity.faces.commands.groups import as_run
from parity.store import run_file
from parity.store.rows import Death, End, Header

once = pytest.mark.usefixtures("examined_once")


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = commandline.main(argv)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("run", "sofmax"), 2, "no op matches 'sofmax'; did you mean 'softmax'"),
        (("run", "--family", "poling"), 2, "unknown family 'poling'; did you mean 'pooling'"),
        (("run", "--dtype", "float31"), 2, "unknown dtype 'float31'; did you mean 'float32'"),
        (("run", "--profile", "quik"), 2, "unknown profile 'quik'; allowed: mac, quick, full, deep"),
        (("run", "--source", "opinf"), 2, "unknown source 'opinf'; allowed: native, opinfo, modules, optimizers, ops, all"),
        (("run", "--fail-on", "unsuported"), 2, "unknown status 'unsuported' for --fail-on"),
        (("run", "add", "--device", "mpz"), 2, "mpz"),
        (("run", "add", "--device", "xpu"), 4, "xpu"),
        (("run", "add", "--device", "sim", "--setup", "nowhere.py"), 2, "nowhere.py: no such file"),
        (("run", "add", "--device", "sim", "--output", "/proc/none/run.jsonl"), 2, "cannot write to the folder /proc"),
        (("run", "add", "--device", "sim", "--findings", "/proc/none"), 2, "cannot write to the folder /proc/none"),
        (("replay", "add(float32[2]"), 2, "this is not a case id"),
        (("replay", "ad(float32[2], float32[2])", "--device", "sim"), 2, "unknown op 'ad'"),
        (("replay", "nothing.jsonl"), 2, "neither a case id nor a run file"),
        (("explain", "sofmax", "float16"), 2, "did you mean 'softmax'"),
        (("explain", "softmax", "float17"), 2, "unknown dtype 'float17'; did you mean 'float16'"),
        (("explain", "softmax"), 2, "needs the dtype as well: parity explain softmax DTYPE, one of float32"),
        (("explain", "soft*", "float32"), 2, "explain takes one: name it"),
        (("explain", "softmax", "int32"), 2, "parity does not run softmax in int32; allowed: float32"),
        (("explain", "softmax", "float16", "--device", "sim:mpz"), 2, "no device 'sim:mpz'; did you mean 'sim:mps'"),
        (("run", "add", "--device", "sim", "--junit-xml", "."), 2, "it is a folder; name a file with --junit-xml"),
        (("run", "add", "--fail-on", "agree"), 2, "'agree' for --fail-on: agreement is no failure"),
        (("run", "exp", "--family", "losses"), 2, "is of family losses; leave --family out, or name another: unary"),
        (("run", "nn.functional.rellu"), 2, "no op matches 'nn.functional.rellu'; did you mean 'relu'"),
        (("explain", "nothere.jsonl", "exp"), 2, "there is no run file nothere.jsonl"),
        (("explain", "no/where", "exp"), 2, "there is no run file no/where"),
        (("explain", ".", "exp"), 2, "cannot read the run file .: it is not an ordinary file"),
        (("explain", "/dev/null"), 2, "cannot read the run file /dev/null: it is not an ordinary file"),
        (("diff", "a.jsonl", "b.jsonl"), 2, "there is no run file a.jsonl"),
    ],
)
def test_bad_input_gets_one_sentence(
    argv: tuple[str, ...],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The value, what is allowed and what to do next, on one line."""
    monkeypatch.chdir(tmp_path)
    got, _, err = told(capsys, *argv)
    assert got == code
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--setup", "--source", "--output", "--findings", "--junit-xml"])
def test_an_option_with_an_empty_value_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is not set must not turn a test of faults into one of a healthy device."""
    with pytest.raises(SystemExit) as ended:
        commandline.main(["run", "add", "--device", "sim", option, ""])
    assert ended.value.code == 2
    named = {"--output": "-o/--output"}.get(option, option)
    assert capsys.readouterr().err == (
        f"parity: argument {named}: it is empty; name something, or leave the option out; see parity run --help\n"
    )


@pytest.mark.parametrize("command", [("run", "exp"), ("prove", "zoo"), ("prove", "reach")])
def test_more_workers_than_a_machine_can_feed_are_refused(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the finger must not bring it down."""
    with pytest.raises(SystemExit) as ended:
        commandline.main([*command, "-n", "100000"])
    assert ended.value.code == 2
    most = max(reading.MOST_WORKERS, 4 * (os.cpu_count() or 1))
    assert f"100000 processes are more than this machine can use; give at most {most}" in capsys.readouterr().err
    o = commandline.parser(command[0]).parse_args([*command, "-n", str(most)])
    assert (as_run(o.asked) if "reach" in command else o).workers == most


def test_explain_of_a_run_begins_with_findings_and_takes_any_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Op, dtype, aspect, status, in any order; a death is one, too."""
    path = tmp_path / "run.jsonl"
    f = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "")
    with run_file.Writer(path) as writer:
        writer.write(Header(f))
        writer.write(Record("exp(float32[1])", "exp", "float32", "forward", "agree"))
        writer.write(Record("exp(float32[2])", "exp", "float32", "out=", "wrong"))
        writer.write(Death("exp", "float32", "exp(float32[3])", "", "crash", "SIGABRT", "device"))
        writer.write(End())

    def told_of(part: str) -> list[str]:
        code, out, _ = told(capsys, "explain", str(path), part)
        assert code == 0
        return [line for line in out.splitlines() if not line.startswith(" ")]

    assert told_of("exp float32") == ["exp(float32[2])", "exp(float32[3])", "exp(float32[1])"]
    assert told_of("wrong") == told_of("out= exp") == ["exp(float32[2])"]
    assert told_of("crash") == ["exp(float32[3])"]
    assert told_of("agree exp") == told_of("float32[1]") == ["exp(float32[1])"]
    assert told_of("") == ["exp(float32[2])", "exp(float32[3])"]
    assert "holds no record with 'purple'" in told(capsys, "explain", str(path), "purple")[2]


@once
def test_fail_on_says_what_made_the_run_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Which status, how many checks, and one of them."""
    asked = ("heaviside", "exp", "--device", "sim:mps", "--dtype", "float32", "--examples", "3", "-n", "1")
    files = ("--output", str(tmp_path / "run.jsonl"), "--findings", str(tmp_path))
    code, out, _ = told(capfd, "run", *asked, *files, "--fail-on", "unsupported")
    assert code == 1
    n = run_file.read(tmp_path / "run.jsonl").end.totals["unsupported"]  # type: ignore[union-attr]
    assert f"failed by --fail-on\n  unsupported: {n} checks; one of them: heaviside(float32" in out
    assert f"agrees, but --fail-on fails the run for {n} checks unsupported: see above" in out
    _, out, _ = told(capfd, "report", str(tmp_path / "run.jsonl"))
    assert f"The run was asked to fail: --fail-on fails the run for {n} checks unsupported." in out
    assert out.endswith("FAIL  no finding, but the run was asked to fail: see above\n")


@pytest.mark.slow
@once
def test_a_run_tells_what_was_judged_and_what_would_be_seen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And fails where less was judged than is asked for."""
    files = ("--output", str(tmp_path / "run.jsonl"), "--findings", str(tmp_path), "-n", "1", "--device", "sim")
    code, out, _ = told(capfd, "run", "exp", "--dtype", "float32", "--power", "1000000", "--examples", "5", "-v", *files)
    assert code == 0
    assert "; 100.00% of " in out
    assert "power: errors put into results that agree, and seen by the judge" in out
    run = run_file.read(tmp_path / "run.jsonl")
    assert {p.op for p in run.power} == {"exp"}
    assert run.items[0].judged > 0
    asked = ("solve", "--dtype", "float32", "--examples", "60", "--power", "0", "--min-judged", "1.0", "--skip", "screens")
    code, out, _ = told(capfd, "run", *asked, *files)
    assert code == 1
    assert "failed by --min-judged\n  solve float32: " in out
    assert "agrees, but --min-judged fails 1 op x dtype pair: see above" in out
    assert not run_file.read(tmp_path / "run.jsonl").power


def test_an_output_that_is_full_or_closed_is_one_sentence_or_none(tmp_path: Path) -> None:
    """Never a traceback."""
    for where, code, words in ((">/dev/full", 2, "cannot read or write the standard output: No space left"), (">&-", 0, "")):
        shell = f"{sys.executable} -m parity run --list add {where}"
        done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


@pytest.mark.slow
@once
def test_a_xml_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary is printed and the run file is whole."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("_pytest.junitxml.LogXML.pytest_sessionfinish", full)
    path, xml = tmp_path / "run.jsonl", tmp_path / "junit.xml"
    asked = ("add", "--device", "sim", "--dtype", "float32", "--examples", "3", "-n", "1", "--junit-xml", str(xml))
    code, out, err = told(capfd, "run", *asked, "--output", str(path), "--findings", str(tmp_path))
    assert code == 2
    assert f"cannot write {xml}: No space left on device; name another file with --junit-xml" in err
    assert "everything that was compared agrees" in out
    assert run_file.read(path).end is not None


@pytest.mark.slow
@once
def test_the_xml_has_one_short_test_case_for_each_op_and_dtype(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two numbers, and the findings' text where there are any."""
    path = tmp_path / "junit.xml"
    asked = ("add", "exp", "--device", "sim", "--dtype", "float32,int64", "--examples", "3", "-n", "1", "--power", "0")
    code, _, _ = told(
        capfd, "run", *asked, "--junit-xml", str(path), "--output", str(tmp_path / "r"), "--findings", str(tmp_path)
    )
    assert code == 0
    cases = ElementTree.parse(path).findall(".//testcase")
    assert len(cases) == 4
    for case in cases:
        assert {p.get("name"): p.get("value") for p in case.iter("property")} == {"cases": "5", "findings": "0"}
    assert path.stat().st_size < 4000


@pytest.mark.slow
@once
def test_refusals_alone_are_no_comparison(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A device without the op refuses what must be refused, too: that says nothing of it."""
    asked = ("svdvals", "--device", "sim:mps", "-n", "1", "--output", str(tmp_path / "run.jsonl"), "--findings", str(tmp_path))
    code, out, _ = told(capfd, "run", *asked)
    assert code == 3
    assert "nothing was compared: this is no success" in out


def test_a_truncated_run_file_says_what_could_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And --accept partial reads it."""
    path = tmp_path / "run.jsonl"
    path.write_text("{}\n")
    code, _, err = told(capsys, "diff", str(path), str(path))
    assert code == 2
    assert "is no run file of parity" in err


def two_runs(folder: Path, after: str) -> tuple[str, str]:
    """Two run files of one check, which agrees in the first."""
    paths = []
    for name, status in (("before", "agree"), ("after", after)):
        with run_file.Writer(folder / f"{name}.jsonl") as writer:
            writer.write(Header(Fingerprint("0.1", "2.13.0", "abc", "3.11", "Linux", "x86_64", "sim", "simulated")))
            writer.write(Record("exp(float32[2])", "exp", "float32", "forward", status))
            writer.write(End())
        paths.append(str(folder / f"{name}.jsonl"))
    return paths[0], paths[1]


@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "junit", "html"])
def test_diff_writes_every_format_and_fails_alike(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str) -> None:
    paths, out = two_runs(tmp_path, "wrong"), tmp_path / "diff.out"
    code, said, err = told(capsys, "diff", *paths, "--format", form, "-o", str(out))
    assert (code, err) == (1, "")
    assert "regressed" in out.read_text()
    assert said.startswith(
        f"FAIL  regressed 1; fails for regressed (1 checks before, 1 after); stored in {out}; next: parity replay"
    )
    if form != "html":
        code, said, _ = told(capsys, "diff", *paths, "--format", form)
        assert (code, said) == (1, out.read_text())


def test_diff_fails_on_the_groups_that_are_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    after, before = two_runs(tmp_path, "unsupported")
    assert told(capsys, "diff", before, after)[0] == 0
    assert told(capsys, "diff", before, after, "--fail-on", "slower,newly-supported")[0] == 1
    code, _, err = told(capsys, "diff", before, after, "--fail-on", "slowr")
    assert (code, err) == (2, "parity: unknown group 'slowr' for --fail-on; did you mean 'slower'?\n")


def test_a_page_of_a_diff_needs_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = told(capsys, "diff", *two_runs(tmp_path, "agree"), "--format", "html")
    assert code == 2
    assert "-o diff.html" in err


def test_explain_prints_the_row_that_applies_and_those_it_beat(capsys: pytest.CaptureFixture[str]) -> None:
    """With the place of each in the tables."""
    code, out, _ = told(capsys, "explain", "softmax", "float16", "--device", "mps")
    assert code == 0
    rows = {"forward": "any class float16/bfloat16 forward", "backward": "any class float16/bfloat16 backward"}
    paragraphs = [
        f"""{name}
  applies   tolerances/default.toml:N: {row}
            gives scale 16, output_ulp 1.5
  beaten    tolerances/default.toml:N: any class any dtype any pass
            by tolerances/default.toml:N: names the dtype"""
        for name, row in rows.items()
    ]
    assert re.sub(r"toml:\d+", "toml:N", out).rstrip() == "\n\n".join(["softmax (composite) float16 on mps", *paragraphs])


def test_replay_of_a_healthy_case(capfd: pytest.CaptureFixture[str]) -> None:
    """Every aspect is reported, and the exit code is 0; the case runs in a process of its own."""
    code, out, _ = told(capfd, "replay", "add(float32[2], float32[2].transpose(0, -1), alpha=2)", "--device", "sim")
    assert code == 0
    case, *lines, verdict = out.splitlines()
    assert verdict == "PASS  the case agrees"
    assert case == "add(float32[2], float32[2].transpose(0, -1), alpha=2)"
    assert all(line.startswith("  add float32 on sim: agree in ") for line in lines)
    aspects = [re.split(", |: agree in ", line)[2] for line in lines]
    assert aspects == ["forward", "backward", "double backward", "forward-mode", "out=", "in-place", "transfer"]


def test_replay_of_a_case_without_elements_compares_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Shapes and dtypes that agree are no success; a sum of nothing has an element."""
    code, out, _ = told(capfd, "replay", "exp(float32[0])", "--device", "sim")
    assert (code, out.splitlines()[-1].partition(" but ")[0]) == (3, "INCONCLUSIVE  nothing was compared")
    assert told(capfd, "replay", "sum(float32[0])", "--device", "sim")[0] == 0


def test_list_names_ops_families_and_dtypes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without running anything."""
    code, out, _ = told(capsys, "run", "--list", "soft*")
    assert code == 0
    *rows, empty, last = out.splitlines()
    assert not empty
    assert "softmax normalization float32 float16 bfloat16" in [" ".join(row.split()) for row in rows]
    assert all(row.startswith("soft") for row in rows)
    pairs = sum(len(row.split()) - 2 for row in rows)
    assert last.startswith(f"{len(rows)} ops, {pairs} op x dtype pairs, families: ")
