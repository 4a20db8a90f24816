"""Runs side by side: what each op does on each device and version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]  # check-jsonschema brings it
import pytest
import stored

from parity.core.results import Fingerprint
from parity.core.status import Status
from parity.faces import commandline
from parity.report import answers, run_answers, schema, support
from parity.store import run_file
from parity.store.rows import Header, ItemRow, Run

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = [str(GOLDEN / f"{name}.jsonl") for name in ("healthy", "faulty", "dying")]


def run(chip: str = "M1", **counts: dict[str, dict[str, int]]) -> Run:
    """A run of ops in float32."""
    f = Fingerprint("0.1.0", "2.13.0", "cf30", "3.12", "macOS 15.5", "arm64", "mps", chip)
    return Run(Header(f), items=tuple(ItemRow(op, "float32", 3, by) for op, by in counts.items()))


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ({"forward": {"agree": 3}, "backward": {"agree": 1}}, "works"),
        ({"forward": {"agree": 3, "unsupported": 1}}, "works in part"),
        ({"forward": {"agree": 3}, "backward": {"fallback": 1}}, "works in part"),
        ({"forward": {"agree": 3}, "out=": {"unsupported": 1}}, "works"),
        ({"forward": {"unsupported": 3}}, "refused"),
        ({"forward": {"fallback": 3, "unsupported": 1}}, "falls back"),
        ({"forward": {"agree": 3}, "backward": {"drift": 1}}, "drifts"),
        ({"forward": {"drift": 3, "unsupported": 1}, "out=": {"malformed": 1}}, "wrong"),
        ({"forward": {"agree": 3, "error": 1}}, "fails"),
        ({"forward": {"hang": 1}}, "fails"),
        ({"forward": {"void": 3}}, "not judged"),
    ],
)
def test_an_op_has_one_word(counts: dict[str, dict[str, int]], word: str) -> None:
    made = support.answer([("a.jsonl", run(exp=counts))])
    assert made.ops[0].cells[0].answer == word


def test_every_status_has_a_word_and_every_word_a_meaning() -> None:
    words = {s: support.answer([("a", run(exp={"forward": {s: 1}}))]).ops[0].cells[0].answer for s in Status}
    assert set(words.values()) <= set(run_answers.SUPPORTED)
    assert {s for s, word in words.items() if word in ("drifts", "wrong", "fails")} == {s for s in Status if s.is_finding}
    assert list(support.MEANING) == [*run_answers.SUPPORTED, support.NOT_TESTED]
    assert set(support.WORST_FIRST) == set(support.MEANING)


def test_what_a_run_did_not_draw_is_not_tested() -> None:
    """An op, and a dtype that another run has."""
    both = replace(
        run(exp={"forward": {"agree": 1}}),
        items=(*run(exp={"forward": {"agree": 1}}).items, ItemRow("exp", "int8", 1, {"forward": {"agree": 1}})),
    )
    made = support.answer([("a", both), ("b", run("M2", exp={"forward": {"agree": 1}}, tan={"forward": {"agree": 1}}))])
    exp, tan = made.ops
    assert [str(g) for k in (0, 1) for g in support.groups(exp, k)] == [
        "works: float32, int8",
        "works: float32",
        "not tested: int8",
    ]
    assert [str(g) for k in (0, 1) for g in support.groups(tan, k)] == ["not tested", "works: float32"]


def test_texts_of_three_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that say the same share a line; what works everywhere is counted."""
    assert commandline.main(["report", *FILES]) == 1
    text = capsys.readouterr().out
    assert "3 runs side by side\n  [1] sim (simulated); torch 2.13.0; Linux 6.1; healthy.jsonl" in text
    assert "\nadd\n  [1][3] works: float32\n  [2] wrong: float32 [add-080c22]\n" in text
    assert "[add-080c22] aten::add gives wrong values, with non-contiguous operand" in text
    assert "work in all runs that have them: 1 more op; -v lists them" in text
    assert commandline.main(["report", *FILES, "--format", "markdown"]) == 1
    assert r"| `exp` | works: float32 | wrong: float32 \[exp\-b4c8f1\] | works: float32 |" in capsys.readouterr().out


def test_a_cause_ends_no_process_because_a_death_has_joined_it_in_another_run() -> None:
    after = stored.run()
    found = next(r for r in after.records if r.shrunk)
    same = replace(after.deaths[0], op=found.op, dtype=found.dtype, case=found.case, blame="device")
    made = support.answer([("a", replace(after, deaths=())), ("b", replace(after, deaths=(same,)))])
    assert found.cause is not None
    assert "ends the process" not in made.causes[found.cause.id]


def test_json_is_as_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    made = answers.tree(support.answer([("a.jsonl", stored.run(stored.EVIL)), ("b.jsonl", stored.run())]))
    validator = jsonschema.Draft202012Validator(schema.of_report())
    assert [e.message for e in validator.iter_errors(made)] == []
    made["ops"][0]["cells"][0]["answer"] = "fine"
    assert [*validator.iter_errors(made)]
    assert commandline.main(["report", *FILES, "--format", "json"]) == 1
    assert capsys.readouterr().out.startswith('{\n "parity_support": 1,')


def test_a_page_holds_what_a_file_holds_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = support.as_html(support.answer([("a.jsonl", stored.run(stored.EVIL)), ("b.jsonl", stored.run())]))
    assert "<script>window.evil" not in page
    assert "&lt;script&gt;window.evil" in page
    assert "default-src 'none'" in page
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        run_file.write(Path(path), stored.run())
    for _ in range(2):  # the second one is written over the first, as a report of parity
        assert commandline.main(["report", *paths, "-o", str(tmp_path / "page.html")]) == 1
        assert capsys.readouterr().out == f"FAIL  report of {len(paths)} runs; stored in {tmp_path / 'page.html'}\n"
    page = (tmp_path / "page.html").read_text()
    assert 'data-is="wrong"' in page
    # On a narrow screen each cell says which run it is of; two of one machine differ in the file alone.
    assert len({line for line in page.splitlines() if '<span class="where">' in line}) >= 2
    assert all(f", {name}, " in page.partition("<tbody>")[2] for name in ("a.jsonl", "b.jsonl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "junit"), "several runs are reported as text, markdown, json, html"),
        (("--format", "html"), "a page goes to a file"),
        (("--against", FILES[0], "-o", "x.html"), "several runs are reported as"),
        (("exp-b4c8f1",), "a report is of one cause, exp-b4c8f1, of a whole run, or of several runs"),
    ],
)
def test_what_is_of_one_run_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert commandline.main(["report", *FILES, *words]) == 2
    assert said in capsys.readouterr().err
