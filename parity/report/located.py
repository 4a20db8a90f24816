"""What `parity locate` found as one page: the first module and operator that diverge, and the modules as a tree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment

from parity.core.status import Conclusion
from parity.locating.located import SHOWN, Divergence, Located, called, plural, worst
from parity.locating.modules import ModuleError

TEMPLATE = Path(__file__).with_name("located.html")
DECADES = 6.0  # of an error that fill a bar
PARAMETERS = 6  # of a module, the worst ones
FAR = 1.0  # in units of what rounding explains: modules above it are open from the beginning


def page(found: Mapping[str, Located], conclusion: Conclusion) -> str:
    """The page of some models, by name, and what is concluded of them: HTML without scripts and without anything from
    elsewhere."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    models = [_model(name, one) for name, one in found.items()]
    devices = ", ".join(dict.fromkeys(one.device for one in found.values()))
    title = f"parity locate: {conclusion} on {devices}, torch {torch.__version__}: {', '.join(found)}"
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(models=models, title=title)


def _model(name: str, one: Located) -> dict[str, Any]:
    return {
        "headline": f"{name}: {one.headline}",
        "agrees": one.agrees,
        "first": None if one.first is None else _divergence(one.first) + _beyond(one),
        "others": [(f"{p.title}: {p.what}", _divergence(p)[2:]) for p in one.divergences[1:SHOWN]],
        "more": max(0, len(one.divergences) - SHOWN),
        "lines": [*one.agreement, *(one.compiled.lines if one.compiled is not None else ())],
        "next": "" if one.first is not None else one.next,
        "notes": [*(f"{plural(n, 'call')} of operators not compared: {why}" for why, n in one.left.items()), *one.notes],
        "tree": _tree(one.modules, one.first),
        "here": None if one.here is None else _model("here", one.here),
    }


def _divergence(p: Divergence) -> list[tuple[str, str]]:
    """What is known of an operator that diverges: (title, text)."""
    found = [("diverges first in", p.title), ("operator", p.what)]
    found += [("worst element", line.removeprefix("worst ")) for line in worst(p)]
    return found + [("called", line) for line in called(p)]


def _beyond(one: Located) -> list[tuple[str, str]]:
    return [(title, text) for title, text in (("workaround", one.workaround), ("next", one.next)) if text]


def _tree(modules: tuple[ModuleError, ...], first: Divergence | None) -> dict[str, Any] | None:
    """The model with its modules below it, in the order in which they ran; None without figures. Containers that do not run
    themselves have none."""
    nodes: dict[str, dict[str, Any]] = {}

    def node(path: str) -> dict[str, Any]:
        if path not in nodes:
            nodes[path] = {
                "name": path.rpartition(".")[2] or "the model",
                "path": path,
                "parts": [],
                "worst": 0.0,
                "first": False,
            }
            if path:
                node(path.rpartition(".")[0])["parts"].append(nodes[path])
        return nodes[path]

    for order, e in enumerate(modules, 1):
        parameters = sorted(e.parameters.items(), key=lambda nv: -nv[1])[:PARAMETERS]
        cells = [
            (title, _cell(x)) for title, x in (("outputs", e.outputs), ("input gradients", e.input_gradients)) if x is not None
        ]
        cells += [(f"gradient of {n.rpartition('.')[2]}", _cell(x)) for n, x in parameters]
        is_first = first is not None and e.module == first.place.module
        node(e.module).update(kind=e.kind, order=order, cells=cells, first=is_first, worst=e.worst)
    if not nodes:
        return None
    _opened(node(""))
    return nodes[""]


def _opened(n: dict[str, Any]) -> bool:
    """Open what is far off, or contains the module that diverges first, and say so."""
    inner = [_opened(part) for part in n["parts"]]
    n["open"] = any(inner) or n["first"] or not n["path"] or n["worst"] > FAR
    return bool(any(inner) or n["first"] or n["worst"] > FAR)


def _cell(x: float) -> dict[str, Any]:
    """The number with the length of its bar, in percent: nothing up to 1, all from 10**DECADES on."""
    width = 0.0 if not x > 1 else 100.0 if math.isinf(x) else min(100.0, 100.0 * math.log10(x) / DECADES)
    return {"text": f"{x:.2g}", "width": round(width, 1), "far": not x <= FAR}
