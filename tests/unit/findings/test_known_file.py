"""Writing the file of known findings: what a person wrote stays, and a change is a change of few lines."""

from __future__ import annotations

import difflib
import math
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from parity.core.errors import KnownError, OutputError
from parity.core.results import Cause, Fingerprint, Measure, Record
from parity.findings import known_entries, known_file
from parity.findings.known import Entry, Environment
from parity.findings.known_file import parse
from parity.store.rows import Death, Header, ItemRow, Run

PATH = Path("parity-known.toml")
HERE = Environment("mps", "2.13.0", "macOS 15.5")
PRINT = Fingerprint("0", "2.13.0", "", "3.11", "macOS 15.5 (24F74)", "arm64", "mps", "Apple M1")
ENTRY = Entry(
    "exp-b4c8f1", 'it is "wrong"', ("exp", "log_softmax"), "wrong", Cause("aten::exp", "values", ("NaN",)),
    (Cause("aten::exp", "values", ("NaN",)), Cause("aten::cos", "values", ("NaN",))), ("float32", "float16"), ("forward",),
    ("values in out",), ("forward: exp(float32[1])",), ('exp(float32[2]).into("stepped")',), "https://example.org",
    date(2027, 1, 31), HERE, extent=(("float32", (("NaN", 0.0), ("huge", 12.5))), ("float16", (("class NaN", math.inf),))),
)  # fmt: skip


def written(*entries: Entry, text: str = "") -> str:
    return known_file.updated(text, [(e, "it gives wrong values") for e in entries], HERE)


def test_what_is_written_is_read_back() -> None:
    held = parse(PATH, written(ENTRY, replace(ENTRY, id="other", by_chance=True, cause=None, members=())))
    assert held.environment == HERE
    assert replace(held.entries[0], line=0) == ENTRY
    assert held.entries[1].by_chance
    for extent in ((), None):
        assert parse(PATH, written(replace(ENTRY, extent=extent))).entries[0].extent == extent


def test_comments_and_order_stay_and_a_new_case_is_one_line() -> None:
    text = written(ENTRY, replace(ENTRY, id="second"))
    text = text.replace("[[known]]", "# ours since the spring\n[[known]]", 1).replace(
        'ops = [\n    "exp",', 'ops = [\n    "exp",  # the worst'
    )
    more = replace(ENTRY, ops=(*ENTRY.ops, "sigmoid"))
    kept = replace(ENTRY, id="second")
    after = written(more, kept, text=text)
    changed = [x for x in difflib.ndiff(text.splitlines(), after.splitlines()) if x[0] in "+-"]
    assert '+     "sigmoid",' in changed
    assert "# ours since the spring" in after
    assert len(changed) <= 2  # the comment inside of the list that changed goes with it
    assert known_file.dropped(after, ["second"]).count("[[known]]") == 1
    assert "# ours since the spring" in known_file.dropped(after, ["second"])
    assert parse(PATH, known_file.dropped(text, ["second", ENTRY.id])).entries == ()


def test_nothing_that_cannot_be_read_is_written(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    known_file.write(path, written(ENTRY))
    with pytest.raises(KnownError):
        known_file.write(path, "format = 1\nfoo = 2\n")
    assert parse(path, path.read_text()).entries
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError, match="name another with --file"):
        known_file.write(Path("/dev/null/known.toml"), written(ENTRY))


def record(op: str, dtype: str, status: str, cause: Cause | None = None, **more: object) -> Record:
    case = f"{op}({dtype}[2])"
    measures = (Measure("out", share=9.0, measured=True, problem="value"),)
    return Record(case, op, dtype, "forward", status, "", False, "9 times", "", measures, case, "", cause, **more)  # type: ignore[arg-type]


def test_entries_of_a_run_are_its_causes() -> None:
    """One for each kind of status; what is known already is left out; deaths have theirs."""
    exp, cos = Cause("aten::exp", "values"), Cause("aten::cos", "values")
    records = (
        record("exp", "float32", "drift", exp), record("log_softmax", "float16", "wrong", exp),
        record("cos", "float32", "wrong", cos, known="cos-x"), record("cos", "float16", "wrong", cos, by_chance=True),
    )  # fmt: skip
    deaths = (
        Death("sin", "float32", "sin(float32[2])", "", "crash", "SIGABRT"),
        Death("sin", "float32", "sin(float32[3])", "", "crash", "SIGABRT"),
    )
    run = Run(Header(PRINT), records, (), deaths)
    made = [e for c in known_entries.causes_of(run) for e in known_entries.of_cause(c, run, "r")]
    assert [c.cause.id for c in known_entries.causes_of(run)].count(cos.id) == 1
    by_id = {e.id: e for e in made}
    assert by_id[exp.id].ops == ("exp", "log_softmax")
    assert by_id[exp.id].status == "wrong"
    assert by_id[exp.id].since == HERE
    assert set(by_id[exp.id].cases) == {"forward: exp(float32[2])", "forward: log_softmax(float16[2])"}
    assert by_id["cos-comes-and-goes"].dtypes == ("float16",) or "float16" in by_id["cos-comes-and-goes"].dtypes
    (dies,) = (e for e in made if e.dies)
    assert dies.cases == ("sin(float32[2])",)
    assert dies.also == ("sin(float32[3])",)


def test_refused_ops_are_grouped_by_dtypes_and_aspects() -> None:
    items = [ItemRow(op, d, 3, {"forward": {"unsupported": 3}}) for op in ("exp", "cos") for d in ("float32", "float16")] + [
        ItemRow("sin", "int8", 3, {"forward": {"unsupported": 1, "agree": 2}})
    ]
    run = Run(Header(PRINT), (record("exp", "float32", "unsupported"),), tuple(items))
    made = known_entries.of_status("unsupported", run, "no kernel")
    assert {(e.ops, e.dtypes, e.aspects, e.status) for e in made} == {
        (("exp", "cos"), ("float16", "float32"), ("forward",), "unsupported"),
        (("sin",), ("int8",), ("forward",), "unsupported"),
    }  # fmt: skip
    assert made[0].cases == ("forward: exp(float32[2])",)
    assert known_entries.of_status("fallback", run, "r") == ()


def test_what_a_run_adds_leaves_reason_and_day_alone() -> None:
    grown = replace(
        ENTRY,
        reason="",
        link="",
        until=None,
        ops=("exp", "sigmoid"),
        status="drift",
        cases=("forward: exp(float32[3])", "forward: sigmoid(float32[1])"),
        also=(),
    )
    made = known_entries.merged(ENTRY, grown)
    assert (made.reason, made.link, made.until, made.status) == (ENTRY.reason, ENTRY.link, ENTRY.until, "wrong")
    assert made.ops == ("exp", "log_softmax", "sigmoid")
    assert made.cases == ("forward: exp(float32[1])", "forward: sigmoid(float32[1])")
    assert made.also == (*ENTRY.also, "exp(float32[3])")
    assert known_entries.merged(replace(ENTRY, dtypes=()), grown).dtypes == ()
    larger = replace(grown, extent=(("float32", (("NaN", 3.0),)), ("int64", (("zero", math.inf),))))
    assert known_entries.merged(ENTRY, larger).extent == (
        ("float32", (("NaN", 3.0), ("huge", 12.5))), ("float16", (("class NaN", math.inf),)), ("int64", (("zero", math.inf),)),
    )  # fmt: skip
    assert known_entries.merged(replace(ENTRY, extent=None), larger).extent == larger.extent
    assert known_entries.merged(replace(ENTRY, by_chance=True, also=()), grown).also == ()
