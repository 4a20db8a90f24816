"""The schemas of run files and of reports, against real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # check-jsonschema brings it
import pytest
import stored

from parity.core.results import Json
from parity.faces import commandline
from parity.findings.causes import gather
from parity.report import answers, causes, matrix, schema
from parity.store import run_file
from parity.store.rows import End, Header, Row

RUN, REPORT = schema.of_run_file(), schema.of_report()


def problems(tree: Any, by: Json) -> list[str]:
    """What the schema says against a value."""
    return [e.message for e in jsonschema.Draft202012Validator(by).iter_errors(tree)]


def lines(path: Path) -> Iterator[Json]:
    yield from map(json.loads, path.read_text().splitlines())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a real run: two faulty ops, one that the device refuses."""
    folder = tmp_path_factory.mktemp("run")
    faults = "from parity.devices import Fault\n\n\ndef large(call):\n    return call.run() * 1.01\n\n\n"
    faults += "def no(call):\n    raise RuntimeError('it is broken')\n\n\n"
    faults += "FAULTS = [Fault('a', ops=('exp',), effect=large), Fault('b', ops=('tan',), effect=no)]\n"
    (folder / "faults.py").write_text(faults)
    asked = ["exp", "tan", "svdvals", "--device", "sim:mps", "--examples", "4", "-n", "1", "--dtype", "float32,int64"]
    kept = ["--output", str(folder / "run.jsonl"), "--findings", str(folder)]
    assert commandline.main(["run", *asked, *kept, "--setup", str(folder / "faults.py")]) == 1
    return folder / "run.jsonl"


@pytest.mark.parametrize("name", list(schema.SCHEMAS))
def test_the_files_are_what_the_code_writes(name: str) -> None:
    """After a change: parity help schema-NAME > parity/report/schemas/NAME.json."""
    assert (schema.FOLDER / f"{name}.json").read_text(encoding="utf-8") == schema.text(name)
    jsonschema.Draft202012Validator.check_schema(schema.SCHEMAS[name]())


def test_every_line_of_a_real_run_file_is_valid(path: Path) -> None:
    """A kind of row has one definition; rows with findings, causes and pictures are among them."""
    seen: set[str] = set()
    for tree in lines(path):
        assert problems(tree, RUN) == [], str(tree)[:300]
        seen |= {str(tree.get("kind", "header"))}
        seen |= {"cause"} if "cause" in tree else set()
        seen |= {"picture"} if any("errors" in m for m in tree.get("measures", ())) else set()
    assert seen >= {"header", "record", "item", "coverage", "end", "cause", "picture"}


def test_rows_made_by_hand_are_valid(tmp_path: Path) -> None:
    """Deaths, power, and a header with all that it can hold."""
    run = stored.run(stored.EVIL)
    with run_file.Writer(tmp_path / "run.jsonl") as writer:
        rows: list[Row | Header] = [
            run.header,
            *run.records,
            *run.items,
            *run.deaths,
            *run.coverage,
            *run.power,
            End(1.0, stopped="x"),
        ]
        for row in rows:
            writer.write(row)
    assert [p for tree in lines(tmp_path / "run.jsonl") for p in problems(tree, RUN)] == []


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"aspect": "sideways"},
        {"unknown": 1},
        {"pinned": "yes"},
        {"measures": [{"tensor": "out", "total": -1}]},
        {"measures": [{"tensor": "out", "errors": "A"}]},
        {"cause": {"subject": "aten::exp", "symptom": "itches"}},
        {"kind": "recording"},
    ],
)
def test_a_row_that_no_run_writes_is_invalid(change: Json) -> None:
    tree = json.loads(run_file.encode(stored.run().records[0]))
    assert problems(tree, RUN) == []
    assert problems({**tree, **change}, RUN)
    assert problems({k: v for k, v in tree.items() if k != "op"}, RUN)


def test_reports_are_valid(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Causes and the table of ops, of a real run and of one with a death; what has no such field is not."""
    for given in ((), ("--matrix",)):
        assert commandline.main(["report", str(path), "--format", "json", *given]) == 1
        tree = json.loads(capsys.readouterr().out)
        assert problems(tree, REPORT) == []
        assert problems({k: v for k, v in tree.items() if k != "run"}, REPORT)
    run = stored.run()
    made = answers.tree(causes.answer(gather(run.records, run.deaths), run.header))
    assert problems(made, REPORT) == []
    assert made["causes"][0]["deaths"] or made["causes"][1]["deaths"]
    table = answers.tree(matrix.answer(run.header, run.items, run.deaths))
    assert problems(table, REPORT) == []
    table["ops"][0]["passes"]["forward"] = "fine"
    assert problems(table, REPORT)


def test_the_command_prints_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert commandline.main(["help", "schema-run"]) == 0
    assert json.loads(capsys.readouterr().out) == RUN
    assert commandline.main(["help", "schema-report"]) == 0
    assert json.loads(capsys.readouterr().out) == REPORT


def test_the_formats_of_a_whole_run_go_together_with_no_cause(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """JUnit and annotations are printed; annotations as commands; a page goes to a file, against an earlier run too."""
    assert commandline.main(["report", str(path), "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error title=parity A exp")
    assert commandline.main(["report", str(path), "--format", "junit"]) == 1
    assert capsys.readouterr().out.startswith("<?xml")
    page = tmp_path / "page.html"
    assert commandline.main(["report", str(path), "--against", str(path), "--format", "html", "-o", str(page)]) == 1
    assert "Nothing changed in what is in both runs" in page.read_text()
    for wrong, said in (
        (["--format", "html"], "a page goes to a file"),
        (["exp-b4c8f1", "--format", "junit"], "is of a whole run"),
        (["--against", str(path)], "--against is for a page"),
        (["--matrix", "--format", "github"], "is of a whole run"),
    ):
        assert commandline.main(["report", str(path), *wrong]) == 2
        assert said in capsys.readouterr().err
    assert commandline.main(["report"]) == 2
    assert "report needs a run file" in capsys.readouterr().err
