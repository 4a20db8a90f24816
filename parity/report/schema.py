"""JSON schemas (draft 2020-12) of run files and of reports for other programs.

A run file is JSON lines, so its schema is that of one line: the header, or a row of one of the kinds. It is made from the
dataclasses that are written, whose docstrings describe it. `parity/report/schemas/` holds both as files, for programs that read
them without parity; `tests/unit/report/test_schema.py` holds those files to what stands here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.core import picture
from parity.core.extensions import NAME
from parity.core.results import (
    DEATHS,
    SYMPTOMS,
    Aspect,
    Cause,
    Fingerprint,
    Json,
    Measure,
    MetadataNote,
    Record,
    Status,
    Workaround,
)
from parity.findings.causes import WEIGHTS
from parity.report.matrix import PASSES
from parity.store.code import Code
from parity.store.rows import BLAMES, KINDS, SIGHTED, Death, Header, Sighting
from parity.store.upgrades import FORMAT, MAGIC

FOLDER = Path(__file__).with_name("schemas")
DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
NUMBER: Json = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
STATUSES, ASPECTS, ENDS = list(map(str, Status)), list(map(str, Aspect)), list(map(str, DEATHS))
WORD: Json = {"enum": STATUSES}
ASPECT: Json = {"anyOf": [{"enum": ASPECTS}, {"type": "string", "pattern": f"^{NAME.pattern}$"}]}


def _list(of: Json, **more: Any) -> Json:
    return {"type": "array", "items": of, **more}


def _map(of: Json, **more: Any) -> Json:
    return {"type": "object", "additionalProperties": of, **more}


def _pair(one: Json, other: Json) -> Json:
    return {"type": "array", "prefixItems": [one, other], "items": False, "minItems": 2}


# The schema of a field by its annotation.
TYPES: Mapping[str, Json] = {
    "str": TEXT,
    "bool": {"type": "boolean"},
    "int": COUNT,
    "float": NUMBER,
    "float | None": {"anyOf": [*NUMBER["anyOf"], {"type": "null"}]},
    "Counts": _map(_map(COUNT, propertyNames=WORD), propertyNames=ASPECT),
    "Mapping[str, int]": _map(COUNT),
    "Mapping[str, float]": _map(NUMBER),
    "Mapping[str, str]": _map(TEXT),
    "Mapping[str, Mapping[str, int]]": _map(_map(COUNT)),
    "tuple[str, ...]": _list(TEXT),
    "tuple[int, ...]": _list({"type": "integer"}),
    "tuple[tuple[str, float], ...]": _list(_pair(TEXT, NUMBER)),
    "tuple[tuple[str, str], ...]": _list(_pair(TEXT, TEXT)),
    "tuple[Measure, ...]": _list({"$ref": "#/$defs/Measure"}),
    "tuple[MetadataNote, ...]": _list({"$ref": "#/$defs/MetadataNote"}),
    "tuple[Workaround, ...]": _list({"$ref": "#/$defs/Workaround"}),
    "Fingerprint": {"$ref": "#/$defs/Fingerprint"},
    "Cause | None": {"anyOf": [{"$ref": "#/$defs/Cause"}, {"type": "null"}]},
    "Code": {"$ref": "#/$defs/Code"},
}
# Fields that hold one of some words, or text of a form, by class and name.
WORDS: Mapping[tuple[type, str], Json] = {
    (Record, "status"): WORD,
    (Record, "aspect"): ASPECT,
    (MetadataNote, "aspect"): ASPECT,
    (Death, "how"): {"enum": ENDS},
    (Death, "aspect"): {"anyOf": [{"const": ""}, ASPECT]},
    (Death, "blame"): {"enum": list(BLAMES)},
    (Sighting, "state"): {"enum": list(SIGHTED)},
    (Sighting, "aspect"): {"anyOf": [{"const": ""}, ASPECT]},
    (Cause, "symptom"): {"type": "string", "pattern": f"^({'|'.join(SYMPTOMS)})"},
    (Measure, "errors"): {"type": "string", "pattern": f"^[{picture.LETTERS[0]}-{picture.LETTERS[-1]}-]*$"},
}


def _of_class(kind: type[Any], first: Mapping[str, Json] | None = None) -> Json:
    """The schema of a dataclass as it is written: fields at their default are left out. first: what the writer adds."""
    properties = {f.name: WORDS.get((kind, f.name), TYPES[str(f.type)]) for f in dataclasses.fields(kind)}
    needed = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
    return {
        "description": " ".join(inspect.cleandoc(kind.__doc__ or "").split()),
        "type": "object",
        "properties": {**(first or {}), **properties},
        "required": [*(first or ()), *needed],
        "additionalProperties": False,
    }


def of_run_file() -> Json:
    """The schema of one line of a run file."""
    rows = {k.__name__: _of_class(k, {"kind": {"const": word}}) for word, k in KINDS.items()}
    header = _of_class(Header, {MAGIC: {"const": 1}, "format": {"const": FORMAT}})
    parts = {k.__name__: _of_class(k) for k in (Fingerprint, Code, Measure, MetadataNote, Cause, Workaround)}
    return {
        "$schema": DRAFT,
        "title": f"A line of a run file of parity, format {FORMAT}",
        "description": "The first line is a Header, the last one an End; a file without it is cut. A finding may stand twice, "
        "first as it was drawn and later shrunk, with its cause: the later one counts. Fields at their default are "
        "left out; NaN and infinities are strings.",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in ("Header", *rows)],
        "$defs": {"Header": header, **rows, **parts},
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
    death = _object("A process that ended or hung in a case.", op=TEXT, dtype=TEXT, how={"enum": ENDS}, case=TEXT, signal=TEXT)
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
    passes = _object("The worst status of each pass.", **{name: {"enum": [*STATUSES, "not run"]} for name, _ in PASSES})
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
