"""What is kept of an interrupted run, and with which options the rest is run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.core import project
from parity.core.errors import RunFileError, UsageError
from parity.core.results import Fingerprint, Record
from parity.engine import resuming
from parity.engine.options import RunOptions
from parity.store import run_file
from parity.store.code import Code, code_of
from parity.store.features import DrawnFeatures, pack, unpack
from parity.store.rows import Death, End, Header, ItemRow, Row, with_least
from parity.store.run_file import Writer

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True)
HEADER = Header(
    PRINT, "7", "quick", "exp sin* family=unary,binary dtype=float32 source=native", options="--examples=20 --skip=shrink"
)
FEATURES = DrawnFeatures.of("exp", "float32", 0, pack([{"into rows", "count 1"}, {"count 1"}]))
RECORD = Record("exp(float32[2])", "exp", "float32", "forward", "agree", "d", True)
ITEM = ItemRow("exp", "float32", 2, {"forward": {"agree": 2}})
DEATH = Death("exp", "float32", "exp(float32[3, 4])", "", "crash", "SIGABRT", "device", blame="device")
GIVEN = RunOptions(resume="run.jsonl")


def write(path: Path, *rows: Row | Header) -> Path:
    with Writer(path) as writer:
        for row in rows:
            writer.write(row)
    return path


def test_whole_items_are_kept_and_nothing_else(tmp_path: Path) -> None:
    """Neither the records of an item that has no row, nor a line that is cut, nor what the end made of the items."""
    other = replace(RECORD, op="sin", case="sin(float32[2])")
    least = replace(DEATH, shrunk="exp(float32[1, 1])")
    path = write(tmp_path / "run.jsonl", HEADER, DEATH, FEATURES, RECORD, ITEM, other, least)
    with path.open("a") as f:
        f.write('{"kind":"item","op":"sin"')
    kept = resuming.kept(path)
    assert kept.ids == ("exp-float32",)
    assert kept.parts == {("exp", "float32"): (DEATH, FEATURES, RECORD, ITEM)}
    part = resuming.as_part(kept.parts["exp", "float32"])
    assert [run_file.decode(line) for line in part["rows"]] == [RECORD, ITEM]
    assert [sorted(case) for case in unpack(part["features"])] == [["count 1", "into rows"], ["count 1"]]


def test_a_file_that_cannot_be_finished_says_why(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", HEADER, FEATURES, RECORD, ITEM, End(1.0, {"agree": 2}, "", 1))
    with pytest.raises(UsageError, match="holds a whole run: nothing is left to run"):
        resuming.kept(whole)
    older = write(tmp_path / "older.jsonl", HEADER, RECORD, ITEM)
    with pytest.raises(RunFileError, match="was written by a parity that could not resume: run it again"):
        resuming.kept(older)
    with pytest.raises(RunFileError, match="there is no run file"):
        resuming.kept(tmp_path / "none.jsonl")


def test_the_options_are_those_of_the_file() -> None:
    o = resuming.options(HEADER, replace(GIVEN, workers=3, verbose=True))
    assert (o.op, o.family, o.dtype, o.source) == (("exp", "sin*"), ("unary,binary",), ("float32",), "native")
    assert (o.device, o.seed, o.profile, o.shard) == ("sim", "7", "quick", None)
    assert (o.examples, o.no_shrink, o.workers, o.verbose) == (20, True, 3, True)
    assert o.for_header() == HEADER.options
    assert resuming.options(replace(HEADER, shard="2/3"), GIVEN).shard == "2/3"


def test_what_decides_the_exit_code_is_kept() -> None:
    """All of it, and each value of an option that is given several times."""
    gate = RunOptions(
        fail_on=("unsupported", "void", "metadata,known"), min_judged=0.5, skip=("again",), hang_after=3.0, power=9,
    )  # fmt: skip
    o = resuming.options(replace(HEADER, options=gate.for_header()), GIVEN)
    assert o.for_header() == gate.for_header()
    for name in ("fail_on", "fail_on_metadata", "strict_known", "min_judged", "no_again", "hang_after", "power"):
        assert getattr(o, name) == getattr(gate, name)


def test_a_model_in_a_folder_with_a_space_is_one_model() -> None:
    """And patterns stand in the file as they were typed."""
    words = ("sin*", "linalg.*", "model=my dir/it's.py:net", "model=net.py", "family=unary,binary", "source=native")
    said = resuming.selection(words)
    assert said.startswith("sin* linalg.* 'model=my dir/")
    assert said.endswith(" model=net.py family=unary,binary source=native")
    o = resuming.options(replace(HEADER, selection=said), GIVEN)
    assert (o.op, o.model) == (("sin*", "linalg.*"), ("my dir/it's.py:net", "net.py"))
    assert (o.family, o.source) == (("unary,binary",), "native")
    with pytest.raises(UsageError, match=re.escape("cannot be read (No closing quotation): it's; run it again")):
        resuming.options(replace(HEADER, selection="it's"), GIVEN)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"seed": "8"}, "--resume takes the options of run.jsonl and runs the rest alike; leave --seed out"),
        ({"op": ("exp",)}, "leave op out"),
        ({"output": "other.jsonl"}, "--resume takes the options of run.jsonl and writes into it; leave --output out"),
        ({"junit_xml": "j.xml"}, "leave --junit-xml out"),
        ({"fail_on": ("void",)}, "leave --fail-on out"),
        ({"skip": ("again",)}, "leave --skip out"),
    ],
)
def test_what_would_make_it_another_run_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        resuming.options(HEADER, replace(GIVEN, **more))


def test_code_is_named_again_and_must_be_the_same(tmp_path: Path) -> None:
    faults = tmp_path / "faults.py"
    faults.write_text("FAULTS = []\n")
    header = replace(HEADER, faults=code_of(str(faults)))
    with pytest.raises(UsageError, match=r"was run with --setup .+ then type: parity run --resume run.jsonl --setup "):
        resuming.options(header, GIVEN)
    assert resuming.options(header, replace(GIVEN, faults=str(faults))).faults == str(faults)
    with pytest.raises(UsageError, match=r"is not what run.jsonl was run with"):
        resuming.options(replace(header, faults=Code(str(faults), "00")), replace(GIVEN, faults=str(faults)))
    with pytest.raises(UsageError, match="is a run with --time, which has no rest"):
        resuming.options(replace(HEADER, options="--time=300.0"), GIVEN)


def test_the_settings_name_the_files_of_the_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it was run with, and no others; they must be the same."""
    setup = tmp_path / "flags.py"
    setup.write_text("FLAGS = 1")
    (tmp_path / "pyproject.toml").write_text('[tool.parity]\nsetup = "flags.py"\ndevice = "cpu"\nknown = "known.toml"\n')
    monkeypatch.setenv(project.FILE, str(tmp_path / "pyproject.toml"))
    o = resuming.options(replace(HEADER, setup=code_of(str(setup))), GIVEN)
    assert (o.setup, o.device, o.known) == (str(setup), HEADER.fingerprint.device, None)
    assert resuming.options(HEADER, GIVEN).setup is None
    with pytest.raises(UsageError, match=r"is not what run\.jsonl was run with"):
        resuming.options(replace(HEADER, setup=Code("flags.py", "00")), GIVEN)


def test_another_device_torch_or_machine_is_refused() -> None:
    resuming.check_same(Path("run.jsonl"), PRINT, PRINT)
    with pytest.raises(UsageError, match=r"cannot be finished here, it was begun elsewhere: torch '2.13.0' and '2.14.0'"):
        resuming.check_same(Path("run.jsonl"), PRINT, replace(PRINT, torch="2.14.0"))


def test_a_death_that_was_shrunk_is_one_death() -> None:
    """Its row stands a second time with the least case; equal deaths stay as many as there were."""
    least = replace(DEATH, shrunk="exp(float32[1, 1])", script="findings/exp.py")
    other = replace(DEATH, op="sin")
    assert with_least([DEATH, other, DEATH, least]) == (least, other, DEATH)
    assert with_least([least]) == (least,)
