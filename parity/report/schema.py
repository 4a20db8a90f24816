"""JSON schemas (draft 2020-12) of run files, of reports for other programs and of what `--json` prints.

A run file is JSON lines, so its schema is that of one line: the header, or a row of one of the kinds. It is made from the
dataclasses that are written, whose docstrings describe it. `parity/report/schemas/` holds all as files, for programs that read
them without parity; `tests/unit/report/test_schema.py` holds those files to what stands here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity.core.results import Json
from parity.core.stored import schemas
from parity.report.answers import ANSWERS, NONE, Answer
from parity.store.rows import KINDS, Header
from parity.store.upgrades import FORMAT, MAGIC

FOLDER = Path(__file__).with_name("schemas")
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def of_run_file() -> Json:
    """The schema of one line of a run file."""
    made = schemas([Header, *KINDS.values()])
    first: Mapping[type[object], Json] = {
        Header: {MAGIC: {"const": 1}, "format": {"const": FORMAT}},
        **{kind: {"kind": {"const": word}} for word, kind in KINDS.items()},
    }
    for kind, said in first.items():
        tree = made[kind.__name__]
        tree["properties"] = said | tree["properties"]
        tree["required"] = [*said, *tree["required"]]
    return {
        "$schema": DRAFT,
        "title": f"A line of a run file of parity, format {FORMAT}",
        "description": "The first line is a Header, the last one an End; a file without it is cut. A finding may stand twice, "
        "first as it was drawn and later shrunk, with its cause: the later one counts. Fields at their default are "
        "left out; NaN and infinities are strings.",
        "oneOf": [_ref(kind) for kind in first],
        "$defs": {**{kind.__name__: made[kind.__name__] for kind in first}, **made},
    }


def of_report() -> Json:
    """The schema of `parity report RUN --format json`, of the same with --matrix, and of the same over runs."""
    return _described("A report of parity", ANSWERS["report"], schemas(ANSWERS["report"]))


def of_answer() -> Json:
    """The schema of what a command prints with `--json`."""
    made = schemas([Answer, *(kind for kinds in ANSWERS.values() for kind in kinds)])
    of = [
        {"properties": {"command": {"const": command}, "data": {"anyOf": [*map(_ref, kinds), {"type": "null"}]}}}
        for command, kinds in {**ANSWERS, NONE: ()}.items()
    ]
    answer = made["Answer"] | {"oneOf": of}
    return _described("An answer of parity", (Answer,), {**made, "Answer": answer})


def _described(title: str, first: Sequence[type[object]], made: Mapping[str, Json]) -> Json:
    return {"$schema": DRAFT, "title": title, "oneOf": [_ref(kind) for kind in first], "$defs": made}


def _ref(kind: type[object]) -> Json:
    return {"$ref": f"#/$defs/{kind.__name__}"}


SCHEMAS = {"run": of_run_file, "report": of_report, "answer": of_answer}


def text(name: str) -> str:
    """A schema of `SCHEMAS` as JSON."""
    return json.dumps(SCHEMAS[name](), indent=1) + "\n"
