"""The page of `parity locate`: the first module and operator that diverge, and a table of all modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment

from parity.locating.located import Located
from parity.locating.modules import ModuleError

TEMPLATE = Path(__file__).with_name("located.html")
DECADES = 6.0  # of an error that fill a bar
PARAMETERS = 6  # of a module, the worst ones


def page(found: Mapping[str, Located]) -> str:
    """The page of some models, by name: HTML without scripts and without anything from elsewhere."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    models = [_model(name, one) for name, one in found.items()]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(models=models)


def _model(name: str, one: Located) -> dict[str, Any]:
    first = None if one.first is None else one.first.place.module
    text = str(one).splitlines()[1:]
    end = next((k for k, line in enumerate(text) if line.startswith(("each module", "note:"))), len(text))
    after = [f"next: {one.next}"] if one.next and f"next: {one.next}" not in text[:end] else []
    ran = sorted(enumerate(one.modules, 1), key=lambda ke: -ke[1].worst)
    rows = [_row(order, e, first) for order, e in ran]
    return {
        "name": name,
        "headline": f"{name}: {one.headline}",
        "agrees": one.agrees,
        "details": "\n".join([*(line.removeprefix("  ") for line in text[:end]), *after]),
        "notes": [*(f"{n} calls of operators not compared: {why}" for why, n in one.left.items()), *one.notes],
        "rows": rows,
        "marked": any(r["first"] for r in rows),
    }


def _row(order: int, e: ModuleError, first: str | None) -> dict[str, Any]:
    parameters = sorted(e.parameters.items(), key=lambda nv: -nv[1])[:PARAMETERS]
    return {
        "module": e.module or "the model",
        "kind": e.kind,
        "order": order,
        "first": first is not None and e.module == first,
        "cells": [_cell(e.outputs), _cell(e.input_gradients)],
        "parameters": [f"{n.rpartition('.')[2]} {x:.2g}" for n, x in parameters],
    }


def _cell(x: float | None) -> dict[str, Any] | None:
    """The number with the length of its bar, in percent: nothing up to 1, all from 10**DECADES on."""
    if x is None:
        return None
    width = 0.0 if not x > 1 else 100.0 if math.isinf(x) else min(100.0, 100.0 * math.log10(x) / DECADES)
    return {"text": f"{x:.2g}", "width": round(width, 1)}
