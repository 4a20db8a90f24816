"""JSON schemas (draft 2020-12) of run files and of reports for other programs.

A run file is JSON lines, so its schema is that of one line: the header, or a row of one of the kinds. It is made from the
dataclasses that are written, whose docstrings describe it. `parity/report/schemas/` holds both as files, for programs that read
them without parity; `tests/unit/report/test_schema.py` holds those files to what stands here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.core.results import AspectWord, Json, StatusWord
from parity.core.stored import schema_of, schemas
from parity.findings.causes import WEIGHTS
from parity.report.matrix import PASSES
from parity.store.rows import KINDS, Ending, Header
from parity.store.upgrades import FORMAT, MAGIC

FOLDER = Path(__file__).with_name("schemas")
DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT: Json = {"type": "string"}
WORD, ASPECT, END = schema_of(StatusWord), schema_of(AspectWord), schema_of(Ending)


def _list(of: Json, **more: Any) -> Json:
    return {"type": "array", "items": of, **more}


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
        "oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in first],
        "$defs": {**{kind.__name__: made[kind.__name__] for kind in first}, **made},
    }


def _object(description: str, **properties: Json) -> Json:
    """An object that has all of these."""
    return {
        "description": description,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def of_report() -> Json:
    """The schema of `parity report RUN --format json`, and of the same with --matrix."""
    texts = ("device", "device_name", "torch", "parity")
    run = _object(
        "What was run, and on what.",
        **dict.fromkeys(texts, TEXT),
        simulated={"type": "boolean"},
        profile=TEXT,
        seed=TEXT,
        started=TEXT,
    )
    finding = _object(
        "One kind of difference of an op in a dtype. case: the least one that shows it.",
        op=TEXT, dtype=TEXT, aspect=ASPECT, status=WORD, case=TEXT, reason=TEXT,
    )  # fmt: skip
    death = _object("A process that ended or hung in a case.", op=TEXT, dtype=TEXT, how=END, case=TEXT, signal=TEXT)
    cause = _object(
        "Findings with one origin. id: equal for equal facts, in every run; sentence: for a person; subject, symptom, "
        "properties: the facts; known: why it is accepted, empty if it is new; case: the least case of its plainest finding; "
        "workaround: a way around it that agreed in all cases that it was tried in, empty if there is none.",
        id=TEXT,
        weight={"enum": list(WEIGHTS), "description": "; ".join(f"{w}: {words}" for w, words in WEIGHTS.items())},
        sentence=TEXT, subject=TEXT, symptom=TEXT, properties=_list(TEXT), known=TEXT, case=TEXT, workaround=TEXT,
        ops=_list(TEXT), dtypes=_list(TEXT),
        findings=_list({"$ref": "#/$defs/Finding"}), deaths=_list({"$ref": "#/$defs/Death"}),
    )  # fmt: skip
    causes = _object(
        "The causes of a run, the worst first. caveats: what a reader must know before, such as that nothing was compared.",
        parity_causes={"const": 1},
        run={"$ref": "#/$defs/Run"},
        caveats=_list(TEXT),
        causes=_list({"$ref": "#/$defs/Cause"}),
    )
    passes = _object("The worst status of each pass.", **{name: {"enum": [*WORD["enum"], "not run"]} for name, _ in PASSES})
    matrix = _object(
        "Each op and dtype of a run.",
        parity_matrix={"const": 1},
        run={"$ref": "#/$defs/Run"},
        ops=_list(_object("An op in a dtype.", op=TEXT, dtype=TEXT, passes=passes)),
    )
    return {
        "$schema": DRAFT,
        "title": "A report of parity",
        "oneOf": [{"$ref": "#/$defs/Causes"}, {"$ref": "#/$defs/Matrix"}],
        "$defs": {"Causes": causes, "Matrix": matrix, "Run": run, "Cause": cause, "Finding": finding, "Death": death},
    }


SCHEMAS = {"run": of_run_file, "report": of_report}


def text(name: str) -> str:
    """A schema of `SCHEMAS` as JSON."""
    return json.dumps(SCHEMAS[name](), indent=1) + "\n"
