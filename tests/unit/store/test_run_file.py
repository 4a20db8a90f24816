from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from parity.core.errors import OutputError, RunFileError
from parity.core.results import DEATHS, Aspect, Cause, Fingerprint, Measure, MetadataNote, Record, Status, Workaround
from parity.store import rows, run_file, upgrades
from parity.store.code import Code, code_of
from parity.store.features import Coverage, DrawnFeatures
from parity.store.figures import Figures
from parity.store.rows import KINDS, Again, Death, End, Header, ItemRow, Row, Run
from parity.store.run_file import Writer, read

PRINT = Fingerprint(
    "0.1", "2.13.0", "abc", "3.11", "Linux", "x86_64", "sim", "simulated",
    environment=(("PYTORCH_ENABLE_MPS_FALLBACK", "1"),), facts=(("subnormals", "kept"),),
)  # fmt: skip
HEADER = Header(PRINT, "7", "default", "add*", "2026-11-02T09:30:00+01:00", complete=False)
RECORD = Record("add(float32[2], float32[2])", "add", "float32", "forward", "agree")
FULL = Record(
    "softmax(float16[1, 3].flat(1, 0), dim=-1)", "softmax", "float16", "backward", "drift", "0a1b2c", True, "37 times",
    "tolerances/mps.toml: composite float16 backward",
    (
        Measure("grad[input]", 37.5, 0.4, True, "", 5e-4, 12.0, (2, 7), "0.1253", "0.1248", "0.12481", 3, 21, "value",
                shape=(1, 3), errors="a-x", bins=(1, *[0] * 22, 1)),
        Measure("output", math.inf, math.nan, max_abs=-math.inf, device="nan", screen="bit-equal"),
    ),
    "softmax(float16[1], dim=-1)", "findings/softmax.py",
)  # fmt: skip
SHARES = {"forward": 0.25, "backward": math.inf}
ITEM = ItemRow("add", "float32", 200, {"forward": {"agree": 198, "void": 2}}, SHARES, {"empty": 2}, 1.5)
NOTE = MetadataNote("forward", "out", (2, 3), (1, 2), (3, 1), "mm(float32[2, 2], float32[2, 3])", 4)
NOTED = ItemRow("mm", "float32", 4, metadata=(NOTE,))
DEATH = Death("sort", "int8", "sort(int8[0])", "forward", "crash", "SIGSEGV", "run", ("frame 1", "frame 2"))
DRAWN = Coverage("binary", 9, {"into rows": 2, "special nan": 3}, {"into rows": {"special nan": 2}})
END = End(12.5)
FULL_END = End(12.5, {"agree": 198, "void": 2}, "stopped", 1, ("sort-int8",), ("it broke",))
WHOLE_END = replace(FULL_END, stopped="", lost=(), broken=())
PINNED, FEATURES = replace(RECORD, pinned=True), DrawnFeatures("add", "float32", ("count 1",), "0")
AGAIN = Again(RECORD.case, "forward", "add", 3, True)
FIGURES = Figures("add", "float32", "AAAA", {"forward": ""}, {"forward out": "AQE"}, {"forward": "Ag"})


def write(path: Path, *rows: Row | Header) -> Path:
    with Writer(path) as writer:
        for row in rows:
            writer.write(row)
    return path


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    item = replace(ITEM, cases=1)
    run = read(write(tmp_path / "new" / "run.jsonl", HEADER, RECORD, FULL, FIGURES, item, DEATH, DRAWN, FULL_END))
    assert run.header == HEADER
    assert (run.records[0], run.items, run.deaths, run.end) == (RECORD, (item,), (DEATH,), FULL_END)
    assert run.figures == (FIGURES,)
    assert run.coverage == (DRAWN,)
    # NaN is not equal to itself, so the texts are compared.
    assert repr(run.records[1]) == repr(FULL)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_does_not_have_make_the_round_trip(tmp_path: Path, number: float) -> None:
    """In every field for a number, and in no field for a count."""
    terms = (("output", number),)
    measure = Measure("out", number, number, spread=number, reference_spread=number, budget=terms)
    record = replace(RECORD, measures=(measure,), extent=terms)
    by_name = {"forward": number}
    item = replace(NOTED, worst=by_name, errors=by_name, seconds=number, device_seconds=by_name, device_spread=by_name)
    run = read(write(tmp_path / "run.jsonl", HEADER, record, item, End(number)))
    assert repr((run.records, run.items, run.end)) == repr(((record,), (item,), End(number)))
    with pytest.raises(RunFileError, match="'count' holds 'nan', expected 'int', got 'str'"):
        run_file.decode(row("record", count="nan"))


def test_statuses_are_written_as_plain_words(tmp_path: Path) -> None:
    row = Record("c", "add", "float32", "forward", Status.WRONG)
    back = read(write(tmp_path / "run.jsonl", HEADER, row, END)).records[0]
    assert (back, type(back.status)) == (row, str)


def test_lines_are_strict_json_without_default_fields() -> None:
    assert json.loads(run_file.encode(RECORD)) == {
        "kind": "record", "case": RECORD.case, "op": "add", "dtype": "float32", "aspect": "forward", "status": "agree",
    }  # fmt: skip
    measure = json.loads(run_file.encode(FULL))["measures"][1]
    assert measure == {
        "tensor": "output", "share": "inf", "reference_share": "nan", "max_abs": "-inf", "device": "nan",
        "screen": "bit-equal",
    }  # fmt: skip


def test_the_first_line_is_a_header_with_its_format() -> None:
    head = json.loads(run_file.encode(HEADER))
    assert (head["parity_run"], head["format"], head["complete"], head["seed"]) == (1, upgrades.FORMAT, False, "7")
    assert json.loads(run_file.encode(Header(PRINT)))["complete"] is True


def test_a_setup_is_known_by_path_and_contents(tmp_path: Path) -> None:
    one, other = tmp_path / "low.py", tmp_path / "other.py"
    one.write_text("import torch\n")
    other.write_text("import torch\n")
    first = code_of(str(one))
    assert code_of(None) == code_of("") == Code()
    assert (first.name, len(first.digest)) == (str(one), 16)
    assert code_of(str(other)) == replace(first, name=str(other))
    assert code_of(str(other)).same(first)
    one.write_text("import torch  # another\n")
    assert not code_of(str(one)).same(first)
    header = replace(HEADER, setup=first, faults=code_of("parity.zoo.bugs"))
    assert header.faults.digest
    assert read(write(tmp_path / "run.jsonl", header, END)).header == header


def test_rows_are_on_disk_before_the_run_ends(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run.jsonl")
    writer.write(HEADER)
    writer.write(RECORD)
    assert read(tmp_path / "run.jsonl", partial=True).records == (RECORD,)
    writer.close()


def test_awkward_text_survives(tmp_path: Path) -> None:
    """What a terminal would take for a command comes back as text."""
    row = Record("c", "add", "float32", "forward", "error", reason='line\nbreak \u2028 "quoted" é \ud800 \x1b[2J \u202e')
    (back,) = read(write(tmp_path / "run.jsonl", HEADER, row, END)).records
    assert back.reason == r'line\nbreak \u2028 "quoted" é \ud800 \x1b[2J \u202e'


def test_a_last_line_without_its_line_end_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, RECORD, END)
    path.write_text(path.read_text().rstrip("\n"))
    assert read(path).end == END


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run.jsonl"
    with pytest.raises(OutputError) as e:
        Writer(path)
    assert str(e.value) == f"cannot write the run file {path}: File exists; name another with --output, or free the disk"


# ----------------------------------------------------------------------------------------------- files that cannot be read


STATUSES, ASPECTS = ", ".join(Status), ", ".join(Aspect)
MEASURED = ", ".join(sorted(f.name for f in fields(Measure)))
SHARE, TWO = "'measures[1].share'", """'counts' holds "{'forward': {'agree': 'two'}}\""""


def row(kind: str, **fields: object) -> str:
    """A line of a run file, with these fields in place of good ones."""
    made: dict[str, Row] = {"record": RECORD, "item": ITEM, "death": DEATH, "figures": FIGURES}
    good = made[kind]
    return json.dumps({**json.loads(run_file.encode(good)), **fields})


def failure(path: Path) -> str:
    with pytest.raises(RunFileError) as e:
        read(path)
    return str(e.value)


def test_what_was_tried_around_a_finding_comes_back_or_is_refused() -> None:
    """With its counts, of which no more can agree than were tried."""
    tried = replace(RECORD, ways=(Workaround("copy", 1, 2), Workaround("CPU", 2, 2)))
    assert run_file.decode(run_file.encode(tried)) == tried
    with pytest.raises(RunFileError, match="3 of 2 cases agree with 'CPU'"):
        run_file.decode(row("record", ways=[{"way": "CPU", "agreed": 3, "cases": 2}]))


@pytest.mark.skipif(run_file.fcntl is None, reason="the system has no locks of this kind")
def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    """The second one is reported, and what the first one wrote stays."""
    path = tmp_path / "run.jsonl"
    path.write_text("what an earlier run left\n")
    with Writer(path) as first:
        first.write_line("one")
        with pytest.raises(OutputError, match=r"another run is writing .*run\.jsonl now; wait for its end, or name another"):
            Writer(path)
        first.write_line("two")
    assert path.read_text() == "one\ntwo\n"
    Writer(path).close()
    assert path.read_text() == ""


def test_a_run_without_its_end_is_truncated_and_can_be_read_in_part(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, RECORD, ITEM)
    assert failure(path) == (
        f"the run file {path} is truncated: it has no end row, 1 records and 1 items could be read; "
        "run it again, or read what is there with --accept partial"
    )
    assert read(path, partial=True) == Run(HEADER, (RECORD,), (ITEM,))


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_cut_last_line_is_told_and_can_be_left_out(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, RECORD, RECORD)
    path.write_text(path.read_text()[: -1 - cut])
    assert failure(path) == (
        f"the run file {path} is truncated: its last line is cut, 1 records and 0 items could be read; "
        "run it again, or read what is there with --accept partial"
    )
    assert read(path, partial=True).records == (RECORD,)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert failure(path) == f"there is no run file {path}; parity run --output {path} would write one"


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("\n")
    assert failure(path) == f"the run file {path} is empty: the run ended before it began; run it again"


@pytest.mark.parametrize("text", ["hello\n", "[1]\n", '{"a": 1}\n', '{"parity_run": 1}\n', '{"parity_run": 1, "form', "3"])
def test_a_foreign_file_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    reason = "its first line is no header; name a file that parity run wrote"
    assert failure(path) == f"{path} is no run file of parity: {reason}"


def test_a_binary_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\xff\x00\xfe")
    assert failure(path) == f"{path} is no run file of parity: it is not text"


def test_a_folder_is_told(tmp_path: Path) -> None:
    told = f"cannot read the run file {tmp_path}: it is not an ordinary file but a folder; name a file that parity run wrote"
    assert failure(tmp_path) == told


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    """Only what came later is missing."""
    path = write(tmp_path / "run.jsonl", HEADER, RECORD, ITEM, FULL_END)
    path.write_text(path.read_text().replace(f'"format":{upgrades.FORMAT}', '"format":1'))
    assert (read(path).records, read(path).items, read(path).coverage) == ((RECORD,), (ITEM,), ())


def test_what_the_fourth_format_expected_of_a_family_is_left_out(tmp_path: Path) -> None:
    """It is decoded where it is asked for."""
    path = write(tmp_path / "run.jsonl", HEADER, DRAWN, END)
    text = path.read_text().replace(f'"format":{upgrades.FORMAT}', '"format":4')
    path.write_text(text.replace('"kind":"coverage"', '"kind":"coverage","missing":{"into rows":{"special inf":0.75}}'))
    assert read(path).coverage == (DRAWN,)


def test_a_header_of_the_third_format_names_its_code(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, END)
    old = '"format":3,"faults":"/some/my faults.py","setup":"/some/low flags.py 1a2b3c4d"'
    path.write_text(path.read_text().replace(f'"format":{upgrades.FORMAT}', old))
    header = read(path).header
    assert (header.faults, header.setup) == (Code("/some/my faults.py"), Code("/some/low flags.py", "1a2b3c4d"))


@pytest.mark.parametrize("rows, why", [
    ((ITEM, ITEM, FULL_END), "the item add float32 stands in it twice"),
    ((RECORD, RECORD, END), "the record Record(case='add(float32[2], float32[2])'"),
    ((DRAWN, DRAWN, END), "the coverage of binary stands in it twice"),
    ((ITEM, END), "its items hold 198 checks agree, its end row says 0"),
    ((FULL_END,), "its items hold 0 checks agree, its end row says 198"),
    ((END, RECORD), "rows stand behind its end row"),
    ((ITEM, replace(ITEM, op="mul", counts={}), FULL_END), "it holds 2 items, its end row says 1"),
    ((ITEM, replace(WHOLE_END, expected=2)), "it holds 1 items, its end row says 2 and names none as lost"),
    ((ITEM, replace(WHOLE_END, expected=3, lost=("a", "a"))), "it holds 1 items, its end row says 3 and names 1 as lost"),
    ((FIGURES, FIGURES, END), "the row of figures of add float32 with keys AAAA stands in it twice"),
    ((PINNED, PINNED, END), "the record Record(case='add(float32[2], float32[2])', op='add', dtype='float32'"),
    ((FEATURES, FEATURES, END), "the row of features of add float32 round 0 stands in it twice"),
    ((AGAIN, AGAIN, END), "the finding tried again add forward add(float32[2], float32[2]) stands in it twice"),
    ((FIGURES, ITEM, FULL_END), "it holds figures of 1 cases of add float32, its item says 200"),
    ((FIGURES, END), "it holds figures of 1 cases of add float32, its item says 0"),
])  # fmt: skip
def test_a_file_that_contradicts_itself_is_damaged(tmp_path: Path, rows: tuple[Row, ...], why: str) -> None:
    told = failure(write(tmp_path / "run.jsonl", HEADER, *rows))
    assert f"contradicts itself: {why}" in told
    assert told.endswith("the file was damaged or edited, run it again")


@pytest.mark.parametrize("why", [{"stopped": "interrupted"}, {"broken": ("it broke",)}, {"lost": ("mul-float32",)}])
def test_a_run_that_says_what_it_lacks_is_sound(tmp_path: Path, why: dict[str, Any]) -> None:
    assert read(write(tmp_path / "run.jsonl", HEADER, ITEM, replace(WHOLE_END, expected=2, **why))).end is not None


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"parity_run": 1, "format": 99}\n')
    assert (
        failure(path)
        == f"the run file {path} has format 99, this parity reads up to {upgrades.FORMAT}; upgrade parity to read it"
    )


def test_an_older_format_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, RECORD, END)
    path.write_text(path.read_text().replace(f'"format":{upgrades.FORMAT}', '"format":0').replace('"status"', '"state"'))
    reason = f"has format 0, too old for this parity (it reads {upgrades.FORMAT})"
    assert failure(path) == f"the run file {path} {reason}; run it again"
    monkeypatch.setitem(upgrades.UPGRADES, 0, lambda row: {"status" if k == "state" else k: v for k, v in row.items()})
    assert read(path).records == (RECORD,)


@pytest.mark.parametrize(
    "line, what",
    [
        ('{"kind":"item","op":"add"}', "object missing required field 'dtype'"),
        ('{"kind":"riddle"}', f"unknown kind 'riddle'; allowed: {', '.join(KINDS)}"),
        ('{"kind":[1]}', f"unknown kind '[1]'; allowed: {', '.join(KINDS)}"),
        ('{"op":"add"}', f"unknown kind ''; allowed: {', '.join(KINDS)}"),
        ('{"kind":"end","stoped":1}', "unknown field 'stoped'; did you mean 'stopped'?"),
        (row("record", measures=[{"tensor": "out", "colour": 1}]), f"unknown field 'colour'; known: {MEASURED}"),
        ("not json", "no JSON"),
        (row("record", status="purple"), f"unknown status 'purple'; allowed: {STATUSES}"),
        (row("record", status=None), "'status' holds 'None', expected a word"),
        (row("record", op=None), "'op' holds 'None', expected 'str', got 'null'"),
        (row("record", aspect="sideways"), f"unknown aspect 'sideways'; allowed: {ASPECTS}"),
        (row("record", digest=[1]), "'digest' holds '[1]', expected 'str', got 'array'"),
        (row("record", count=True), "'count' holds 'True', expected 'int', got 'bool'"),
        (row("record", measures=[{"tensor": "a"}, {"tensor": "b", "share": "1.5"}]), f"{SHARE} holds '1.5', expected a number"),
        (row("record", measures=[{"tensor": "b", "total": -1}]), "'measures[0].total' holds '-1', expected 'int' >= 0"),
        (row("item", counts={"forward": {"purple": 1}}), f"unknown status 'purple'; allowed: {STATUSES}"),
        (row("item", counts={"sideways": {}}), f"unknown aspect 'sideways'; allowed: {ASPECTS}"),
        (row("item", counts={"forward": {"agree": "two"}}), f"{TWO}, expected 'int', got 'str'"),
        (row("item", counts=[1]), "'counts' holds '[1]', expected 'object', got 'array'"),
        (row("figures", keys="A"), "'keys' is no base64"),
        (row("figures", seconds={"forward": "AAAA"}), "'forward' holds 3 bytes, 1 are due"),
        (row("figures", seconds={"sideways": "AQ"}), f"unknown aspect 'sideways'; allowed: {ASPECTS}"),
        (
            row("item", metadata=[{"aspect": "forward", "tensor": "out", "shape": [2, 3], "device": [1], "reference": [3, 1]}]),
            "no strides of a result: forward out, shape (2, 3), strides (1,) and (3, 1)",
        ),
        (
            row("item", metadata=[{"aspect": "forward", "tensor": "out", "shape": [2], "device": ["x"], "reference": [1]}]),
            "'metadata[0].device[0]' holds 'x', expected 'int', got 'str'",
        ),
        ('{"kind":"coverage","family":"binary","cases":1,"counts":{"a":2}}', "a feature counts more cases than there are"),
        ('{"kind":"end","totals":{"purple":1}}', f"unknown status 'purple'; allowed: {STATUSES}"),
        (
            row("record", measures=[{"tensor": "out", "shape": [2]}]),
            "a picture of errors has 0 letters that do not fit the shape [2]",
        ),
        (row("death", how="boredom"), f"no process ends by 'boredom'; allowed: {', '.join(DEATHS)}"),
        (row("death", how="agree"), f"no process ends by 'agree'; allowed: {', '.join(DEATHS)}"),
        (row("death", aspect="sideways"), f"unknown aspect 'sideways'; allowed: {ASPECTS}"),
        (row("death", blame="fate"), "unknown blame 'fate'; allowed: device, cpu, outside, unknown"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_told_with_its_line(tmp_path: Path, line: str, what: str) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, END)
    path.write_text(path.read_text() + line + "\n")
    assert failure(path) == f"{path}:3: the row cannot be read ({what}); the file was damaged or edited, run it again"


def test_a_damaged_header_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"parity_run": 1, "format": 1}\n')
    reason = (
        "the header cannot be read (object missing required field 'fingerprint'); the file was damaged or edited, run it again"
    )
    assert failure(path) == f"{path}:1: {reason}"


def test_notes_of_metadata_come_back_and_those_of_parts_are_joined(tmp_path: Path) -> None:
    assert read(write(tmp_path / "run.jsonl", HEADER, NOTED, END)).items == (NOTED,)
    other = replace(NOTE, device=(3, 1), reference=(1, 2), count=2)
    later = replace(NOTED, round=1, metadata=(replace(NOTE, case="another", count=5), other))
    (item,) = read(write(tmp_path / "parts.jsonl", HEADER, NOTED, later, END)).items
    assert item.metadata == (replace(NOTE, count=9), other)


@pytest.mark.parametrize(("length", "shown"), [(400, "x" * 400), (401, "x" * 400 + " ...")])
def test_a_long_reason_is_cut(length: int, shown: str) -> None:
    assert run_file._short(ValueError("x" * length)) == shown


def test_the_share_that_was_judged_is_of_all_elements() -> None:
    """And whole where there are none."""
    item = ItemRow("exp", "float32", 2, left={"overflow": 1, "a tie": 2}, judged=9)
    assert (item.unjudged, item.judged_share) == (3, 0.75)
    assert replace(item, judged=0, left={}).judged_share == 1.0


def test_a_finding_whose_least_case_drifts_stands_once() -> None:
    """Shrinking may leave of a wrong case one that drifts; the row with the cause replaces the one as it was drawn."""
    drawn = replace(FULL, status="wrong", shrunk=FULL.case, script="", count=1)
    explained = replace(drawn, status="drift", shrunk="softmax(float16[1], dim=-1)", cause=Cause("aten::_softmax", "values"))
    other = replace(drawn, aspect="forward")  # nobody looked into this one
    assert rows.explained([drawn, other, explained]) == (other, explained)
