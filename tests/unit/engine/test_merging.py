"""Shards: which items they hold, and the run that their files make together."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.core import project
from parity.core.errors import RunFileError, UsageError
from parity.core.results import Fingerprint, Measure, Record
from parity.engine import merging, suite
from parity.engine.options import RunOptions
from parity.faces import commandline
from parity.findings.known import Entry, Known
from parity.findings.verdict import FIXED, KNOWN, NOT_SEEN, standings
from parity.store import run_file
from parity.store.code import Code, code_of
from parity.store.features import Coverage, DrawnFeatures, pack, unpack
from parity.store.rows import AGREES, SEEN, Death, End, Header, ItemRow, Row, Run, Sighting, totals, with_least
from parity.store.run_file import Writer

TIMES = ("seconds", "started", "device_seconds", "device_spread")
PRINT = Fingerprint("0.1.0", "2.13.0", "cf30153", "3.11.7", "Linux", "x86_64", "sim", "simulated", simulated=True)
FAULTS = """
from parity.devices import Fault

FAULTS = [Fault("halved", ops=("exp",), effect=lambda call: call.run() * 0.5, level="kernel")]
"""


def part(number: int, count: int, *ops: str, **header: object) -> merging.Part:
    """A shard with one item and one record of each op."""
    items = tuple(ItemRow(op, "float32", 2, {"forward": {"agree": 2}}) for op in ops)
    records = tuple(Record(f"{op}(float32[3])", op, "float32", "forward", "agree") for op in ops)
    fields: dict[str, object] = {"shard": f"{number}/{count}", "started": f"2026-01-0{number}"}
    made = Header(PRINT, "0", "quick", "all", options="--examples=3")
    coverage = (Coverage("unary", 2 * len(ops), {"1-d": 2 * len(ops), "stepped": len(ops)}, {"1-d": {"stepped": 1}}),)
    end = End(float(number), dict(totals(items)), expected=len(items))
    return Path(f"{number}.jsonl"), Run(replace(made, **(fields | header)), records, items, (), end, coverage)  # type: ignore[arg-type]


def test_every_item_is_in_one_shard() -> None:
    """Together the shards are the selection, none is much larger than the others, and the place of an item is its own."""
    items = suite.select()
    shards = [suite.shard(items, f"{k}/7") for k in range(1, 8)]
    assert Counter(i.id for s in shards for i in s) == Counter(i.id for i in items)
    assert max(map(len, shards)) < 1.3 * len(items) / 7
    some = suite.select(["exp", "add"])
    assert all(i in shards[k] for k in range(7) for i in suite.shard(some, f"{k + 1}/7"))
    assert suite.shard(some, None) == some
    assert [i.id for i in suite.shard(suite.select(["exp"], dtypes=["float32"]), "2/7")] == ["exp-float32"], "the hash changed"


@pytest.mark.parametrize("which", ["0/7", "8/7", "3", "/", "a/b", "1/1000", "-1/7", "1/7/9", "²/7"])
def test_what_is_no_shard_is_refused(which: str) -> None:
    with pytest.raises(UsageError, match="is not a shard; name one of at most 999, such as 3/7"):
        suite.shard((), which)


def test_shards_add_up() -> None:
    """In the order of the catalog, whatever the order of the files; counts of families and of the end are sums."""
    parts = [part(2, 3, "exp"), part(3, 3), part(1, 3, "add", "log")]
    run = merging.merged(parts)
    assert [i.op for i in run.items] == [r.op for r in run.records] == ["exp", "log", "add"]
    assert run.header == replace(parts[2][1].header, shard="", started="2026-01-01")
    assert run.end == End(3.0, {"agree": 6}, expected=3)
    assert run.coverage == (Coverage("unary", 6, {"1-d": 6, "stepped": 3}, {"1-d": {"stepped": 3}}),)
    mixed_up = random.Random(0).sample(parts, 3)
    assert merging.merged(mixed_up) == run


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((part(1, 2, "exp"), part(1, 2, "log")), "1.jsonl and 1.jsonl are both shard 1/2; leave one of them out"),
        ((part(1, 3, "exp"), part(3, 3)), "shard 2 of 3 missing; name the run files of all shards"),
        ((part(2, 4), part(3, 4)), "shards 1, 4 of 4 missing"),
        ((part(1, 2), part(2, 3)), "1.jsonl is shard 1/2 and 2.jsonl is shard 2/3: they divide the run into other numbers"),
        ((part(1, 2), part(2, 2, shard="")), "2.jsonl is not a shard: it holds a whole run"),
        ((part(1, 2), part(2, 2, seed="1")), "1.jsonl and 2.jsonl differ in --seed: '0' and '1'"),
        ((part(1, 2), part(2, 2, profile="full")), "differ in --profile: 'quick' and 'full'"),
        ((part(1, 2), part(2, 2, selection="exp")), "differ in the selection: 'all' and 'exp'"),
        ((part(1, 2), part(2, 2, options="")), "differ in the options: '--examples=3' and ''"),
        ((part(1, 2), part(2, 2, setup=Code("s.py", "ab"))), "differ in --setup: "),
        (
            (part(1, 2), part(2, 2, fingerprint=replace(PRINT, os="Linux 7", environment=(("MTL_X", "1"),)))),
            "of different machines: os 'Linux' and 'Linux 7', MTL_X 'not set' and '1'; run all shards on equal ones",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(parts: tuple[merging.Part, ...], words: str) -> None:
    """One sentence, with the files and what to do."""
    with pytest.raises(UsageError) as told:
        merging.merged(parts)
    assert words in str(told.value)


def test_what_was_asked_for_is_taken_and_noted() -> None:
    """Other machines stand in the header, a missing shard in the end row."""
    run = merging.merged([part(1, 3, "exp"), part(2, 3, "log", fingerprint=replace(PRINT, os="Linux 7"))], True, True)
    assert run.header.machines == ("shard 2/3: os 'Linux' and 'Linux 7'",)
    assert run.end is not None
    assert run.end.stopped == "merged without all of its shards: without shard 3 of 3"


def test_a_shard_that_was_interrupted_leaves_the_run_so() -> None:
    path, run = part(2, 2, "exp")
    assert run.end is not None
    cut = replace(run, end=replace(run.end, stopped="interrupted", lost=("log-float32",)))
    end = merging.merged([part(1, 2), (path, cut)]).end
    assert end is not None
    assert (end.stopped, end.lost) == ("interrupted", ("log-float32",))


def test_shards_fail_together_for_what_each_was_asked_to_fail_on() -> None:
    """And for what is marginal in the whole run, which is drift to a shard."""
    (path, run), other = part(1, 2, "exp"), part(2, 2, "log")
    assert run.end is not None
    failed = replace(run, end=replace(run.end, failed=("--min-judged fails 1 op x dtype pair",)))
    merged = merging.merged([(path, failed), other]).end
    assert merged is not None
    assert merged.failed == ("--min-judged fails 1 op x dtype pair",)
    little = Measure("out", 1.3, mismatched=1, total=2000, problem="value")
    near = Record("exp(float32[3])", "exp", "float32", "forward", "drift", measures=(little,), shrunk="exp(float32[3])")
    near = replace(near, count=1, near=("exp(float32[3])",))
    drifts = ItemRow("exp", "float32", 2, {"forward": {"agree": 1, "drift": 1}}, judged=4000)
    for options, words in (("--fail-on=marginal", ("--fail-on fails the run for 1 check marginal",)), ("", ())):
        parts = [part(1, 2, "exp", options=options), part(2, 2, "log", options=options)]
        parts[0] = (path, replace(parts[0][1], items=(drifts,), records=(near,)))
        made = merging.merged(parts).end
        assert made is not None
        assert made.failed == words


def test_shards_fail_together_for_a_known_finding_that_only_all_of_them_show_to_be_fixed() -> None:
    """Its cases are of two shards. Without the file, or where the run was not asked to fail, nobody says so."""
    cases = ("forward: exp(float32[3])", "forward: log(float32[3])")
    entry = Entry("exp-1", "reported", ("exp", "log"), "wrong", cases=cases)
    seen = [Sighting("exp-1", op, "float32", AGREES, "", c) for op, c in zip(entry.ops, cases)]
    for asked, held, words in (
        ("--fail-on=known", (entry,), ("--fail-on fails the run for 1 known finding that is fixed",)),
        ("--fail-on=known", (replace(entry, cases=(*cases, "forward: exp(float32[4])")),), ()),
        ("--fail-on=known", None, ()),
        ("", (entry,), ()),
    ):
        parts = [part(k, 2, s.op, options=asked) for k, s in enumerate(seen, 1)]
        parts = [(path, replace(run, known=(s,))) for (path, run), s in zip(parts, seen)]
        known = None if held is None else Known(Code("known.toml"), entries=held)
        made = merging.merged(parts, given=lambda made, known=known: known).end  # type: ignore[misc]
        assert made is not None
        assert made.failed == words


def test_an_item_in_two_shards_is_a_contradiction(tmp_path: Path) -> None:
    """Only an edited file has one."""
    with pytest.raises(RunFileError, match="the runs contradict one another: the item exp float32 stands in it twice"):
        run_file.write(tmp_path / "out.jsonl", merging.merged([part(1, 2, "exp"), part(2, 2, "exp")]))


def rows(path: Path) -> list[str]:
    """Every row of a run file as parity reads it, but for its times, in an order of their own. A finding that was explained
    later stands twice in the file of a run, and once in what is read. Ways around are tried once for a cause in a run, so that
    more findings of shards have them."""
    read = path.with_suffix(".read")
    run_file.write(read, run_file.read(path))
    trees = [json.loads(line) for line in read.read_text().splitlines()]
    return sorted(json.dumps({k: v for k, v in t.items() if k not in (*TIMES, "ways")}, sort_keys=True) for t in trees)


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
def test_seven_shards_merged_are_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Record for record, with findings and their causes, with the errors that were put in, and with an empty shard."""
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(FAULTS)
    asked: tuple[str, ...] = ("run", "exp", "log", "--device", "sim", "--examples", "4", "--power", "20", "-n", "1")
    asked += ("--setup", "faults.py")
    asked += ("--dtype", "float32,float16", "--skip", "again")
    ends = [commandline.main([*asked, "--shard", f"{k}/7", "--output", f"{k}.jsonl"]) for k in range(1, 8)]
    assert commandline.main([*asked, "--output", "whole.jsonl"]) == 1
    assert set(ends) == {0, 1, 3}, "the test needs shards that find something, that do not, and that are empty"
    assert commandline.main(["merge", *(f"{k}.jsonl" for k in (4, 1, 7, 2, 6, 3, 5)), "-o", "merged.jsonl"]) == 0
    assert rows(Path("merged.jsonl")) == rows(Path("whole.jsonl"))
    whole = run_file.read(Path("whole.jsonl"))
    assert any(r.cause for r in whole.records)
    assert whole.power
    capsys.readouterr()
    assert commandline.main(["merge", "3.jsonl", "5.jsonl", "-o", "two.jsonl"]) == 2
    assert "parity: shards 1, 2, 4, 6, 7 of 7 missing" in capsys.readouterr().err


def test_what_shards_saw_of_known_findings_is_that_of_the_whole(tmp_path: Path) -> None:
    """An entry is fixed only if its cases agree in all shards, and none of them still shows it."""
    code = Code("known.toml", "00")
    cases = "forward: exp(float32[1])", "forward: log(float32[1])"
    entry = Entry("exp-1", "planted", ("exp", "log"), "wrong", cases=cases)
    agrees = [Sighting("exp-1", op, "float32", AGREES, "", case) for op, case in zip(("exp", "log"), cases)]
    there = Sighting("exp-1", "log", "float32", SEEN, "forward", "log(float32[9])", "planted")

    def standing(*seen: tuple[Sighting, ...]) -> str:
        shards = [(path, replace(run, known=some)) for (path, run), some in zip(parts, seen)]
        run_file.write(tmp_path / "whole.jsonl", merging.merged(shards))
        run = run_file.read(tmp_path / "whole.jsonl")
        assert (run.header.known, len(run.known)) == (code, sum(map(len, seen)))
        return standings([entry], run.known)[0].state

    parts = [part(1, 2, "exp", known=code), part(2, 2, "log", known=code)]
    assert standing((agrees[0],), ()) == NOT_SEEN
    assert standing((agrees[0],), (agrees[1],)) == FIXED
    assert standing((agrees[0],), (agrees[1], there)) == KNOWN
    with pytest.raises(UsageError, match=r"differ in --known"):
        merging.merged([parts[0], part(2, 2, "log", known=Code("known.toml", "11"))])


RESUMING_PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True)
HEADER = Header(
    RESUMING_PRINT,
    "7",
    "quick",
    "exp sin* family=unary,binary dtype=float32 source=native",
    options="--examples=20 --skip=shrink",
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
    kept = merging.kept(path)
    assert kept.ids == ("exp-float32",)
    assert kept.parts == {("exp", "float32"): (DEATH, FEATURES, RECORD, ITEM)}
    part = merging.as_part(kept.parts["exp", "float32"])
    assert [run_file.decode(line) for line in part["rows"]] == [RECORD, ITEM]
    assert [sorted(case) for case in unpack(part["features"])] == [["count 1", "into rows"], ["count 1"]]


def test_a_file_that_cannot_be_finished_says_why(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", HEADER, FEATURES, RECORD, ITEM, End(1.0, {"agree": 2}, "", 1))
    with pytest.raises(UsageError, match="holds a whole run: nothing is left to run"):
        merging.kept(whole)
    older = write(tmp_path / "older.jsonl", HEADER, RECORD, ITEM)
    with pytest.raises(RunFileError, match="was written by a parity that could not resume: run it again"):
        merging.kept(older)
    with pytest.raises(RunFileError, match="there is no run file"):
        merging.kept(tmp_path / "none.jsonl")


def test_the_options_are_those_of_the_file() -> None:
    o = merging.resumed_options(HEADER, replace(GIVEN, workers=3, verbose=True))
    assert (o.op, o.family, o.dtype, o.source) == (("exp", "sin*"), ("unary,binary",), ("float32",), "native")
    assert (o.device, o.seed, o.profile, o.shard) == ("sim", "7", "quick", None)
    assert (o.examples, o.no_shrink, o.workers, o.verbose) == (20, True, 3, True)
    assert o.for_header() == HEADER.options
    assert merging.resumed_options(replace(HEADER, shard="2/3"), GIVEN).shard == "2/3"


def test_what_decides_the_exit_code_is_kept() -> None:
    """All of it, and each value of an option that is given several times."""
    gate = RunOptions(
        fail_on=("unsupported", "void", "metadata,known"), min_judged=0.5, skip=("again",), hang_after=3.0, power=9,
    )  # fmt: skip
    o = merging.resumed_options(replace(HEADER, options=gate.for_header()), GIVEN)
    assert o.for_header() == gate.for_header()
    for name in ("fail_on", "fail_on_metadata", "strict_known", "min_judged", "no_again", "hang_after", "power"):
        assert getattr(o, name) == getattr(gate, name)


def test_a_model_in_a_folder_with_a_space_is_one_model() -> None:
    """And patterns stand in the file as they were typed."""
    words = ("sin*", "linalg.*", "model=my dir/it's.py:net", "model=net.py", "family=unary,binary", "source=native")
    said = merging.resumed_selection(words)
    assert said.startswith("sin* linalg.* 'model=my dir/")
    assert said.endswith(" model=net.py family=unary,binary source=native")
    o = merging.resumed_options(replace(HEADER, selection=said), GIVEN)
    assert (o.op, o.model) == (("sin*", "linalg.*"), ("my dir/it's.py:net", "net.py"))
    assert (o.family, o.source) == (("unary,binary",), "native")
    with pytest.raises(UsageError, match=re.escape("cannot be read (No closing quotation): it's; run it again")):
        merging.resumed_options(replace(HEADER, selection="it's"), GIVEN)


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
        merging.resumed_options(HEADER, replace(GIVEN, **more))


def test_code_is_named_again_and_must_be_the_same(tmp_path: Path) -> None:
    faults = tmp_path / "faults.py"
    faults.write_text("FAULTS = []\n")
    header = replace(HEADER, faults=code_of(str(faults)))
    with pytest.raises(UsageError, match=r"was run with --setup .+ then type: parity run --resume run.jsonl --setup "):
        merging.resumed_options(header, GIVEN)
    assert merging.resumed_options(header, replace(GIVEN, faults=str(faults))).faults == str(faults)
    with pytest.raises(UsageError, match=r"is not what run.jsonl was run with"):
        merging.resumed_options(replace(header, faults=Code(str(faults), "00")), replace(GIVEN, faults=str(faults)))
    with pytest.raises(UsageError, match="is a run with --time, which has no rest"):
        merging.resumed_options(replace(HEADER, options="--time=300.0"), GIVEN)


def test_the_settings_name_the_files_of_the_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it was run with, and no others; they must be the same."""
    setup = tmp_path / "flags.py"
    setup.write_text("FLAGS = 1")
    (tmp_path / "pyproject.toml").write_text('[tool.parity]\nsetup = "flags.py"\ndevice = "cpu"\nknown = "known.toml"\n')
    monkeypatch.setenv(project.FILE, str(tmp_path / "pyproject.toml"))
    o = merging.resumed_options(replace(HEADER, setup=code_of(str(setup))), GIVEN)
    assert (o.setup, o.device, o.known) == (str(setup), HEADER.fingerprint.device, None)
    assert merging.resumed_options(HEADER, GIVEN).setup is None
    with pytest.raises(UsageError, match=r"is not what run\.jsonl was run with"):
        merging.resumed_options(replace(HEADER, setup=Code("flags.py", "00")), GIVEN)


def test_another_device_torch_or_machine_is_refused() -> None:
    merging.check_same(Path("run.jsonl"), RESUMING_PRINT, RESUMING_PRINT)
    with pytest.raises(UsageError, match=r"cannot be finished here, it was begun elsewhere: torch '2.13.0' and '2.14.0'"):
        merging.check_same(Path("run.jsonl"), RESUMING_PRINT, replace(RESUMING_PRINT, torch="2.14.0"))


def test_a_death_that_was_shrunk_is_one_death() -> None:
    """Its row stands a second time with the least case; equal deaths stay as many as there were."""
    least = replace(DEATH, shrunk="exp(float32[1, 1])", script="findings/exp.py")
    other = replace(DEATH, op="sin")
    assert with_least([DEATH, other, DEATH, least]) == (least, other, DEATH)
    assert with_least([least]) == (least,)
