"""A run as one self-contained page: causes, the matrix of ops, errors, what was refused, power, and the environment.

Everything from the run file is escaped by Jinja2, and the page's own policy forbids it to load anything. The histograms are
drawn by hand, because a plotting library would add megabytes of script for some bars.
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

from parity.core import notation
from parity.core.dtypes import DEFAULT
from parity.core.errors import CaseError
from parity.core.results import Status
from parity.report import matrix, power, summary
from parity.report.causes import counts_line, sentence
from parity.report.minimal import minimal
from parity.report.words import clock, listed, plural, reproduce
from parity.runs.causes import WEIGHTS, Gathered, gather
from parity.runs.rows import Header, Run, counted

TEMPLATE = Path(__file__).with_name("page.html")
SCRIPTS = 60  # causes with a script: each is built here, which takes some milliseconds
MEMBERS = 200  # findings of a cause that are listed
LOW, HIGH = -10, 10  # range of the histograms, as powers of two
WIDTH, HEIGHT = 220, 75  # of a histogram, in pixels


def render(run: Run) -> str:
    """The page."""
    causes = gather(run.records, counted(run.deaths, run.items))
    header, f = run.header, run.header.fingerprint
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["is_odd"] = _is_odd
    environment.filters["colour"] = _colour
    described = {id(c): _cause(c, header, k < SCRIPTS) for k, c in enumerate(causes)}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        device=f"{f.device} ({f.device_name})" if f.device_name and f.device_name != f.device else f.device,
        torch=f.torch,
        simulated=f.simulated,
        profile=header.profile,
        seed=header.seed,
        started=header.started,
        headline=f"{plural(len(causes), 'cause')} ({counts_line(causes)})" if causes else "Everything that was compared agrees",
        causes=causes,
        weights=[
            {"letter": w, "words": words, "causes": [described[id(c)] for c in causes if c.weight == w]}
            for w, words in WEIGHTS.items()
            if any(c.weight == w for c in causes)
        ],
        matrix=matrix.rows(run.items, counted(run.deaths, run.items), everything=True),
        legend=f"Four letters: {', '.join(name for name, _ in matrix.PASSES)}. {matrix.LEGEND}",
        histograms=_histograms(run),
        lacks=_lacks(run),
        power="\n".join(power.lines(run.power)),
        facts=_facts(run),
    )


def _is_odd(letters: str) -> bool:
    return bool(set(letters) - set(".v-"))


def _colour(letters: str) -> str:
    """The class of a cell."""
    if set(letters) & set("XWMNDEO"):
        return " bad"
    return " cool" if set(letters) & set("uf") else ""


def _cause(c: Gathered, header: Header, with_script: bool) -> dict[str, Any]:
    kinds = plural(len(c.records), "kind") if c.records else plural(len(c.deaths), "death")
    r = c.records[0] if c.records else None
    m = r.measures[0] if r is not None and r.measures else None
    total = sum(v for _, v in m.budget) if m is not None else 0.0
    members = [f"{x.status} {x.op} {x.dtype} {x.aspect}: {x.shrunk or x.case}" for x in c.records]
    members += [f"{d.how} {d.op} {d.dtype} at stage {d.stage}: {d.case}" for d in c.deaths]
    worst = ""
    if m is not None and m.device:
        values = [("device", m.device), ("reference", m.reference), ("truth", m.truth)]
        worst = f"at {list(m.index)}: " + ", ".join(f"{who} {v}" for who, v in values if v)
    return {
        "id": c.cause.id,
        "sentence": sentence(c.cause),
        "where": f"{kinds} in {listed(c.ops, 160)} ({listed(c.dtypes, 80)})",
        "case": c.case,
        "says": f"{r.status}, {r.aspect}: {r.reason}" if r is not None else "",
        "worst": worst,
        "budget": [
            {"value": f"{v:.3g}", "share": f"{100 * v / total:.0f}", "name": name} for name, v in (m.budget if m else ()) if v
        ],
        "replay": reproduce(c.case, header.fingerprint.device, header.faults.name, header.setup.name).partition(": ")[2],
        "script": _script(c, header.fingerprint.device) if with_script else "",
        "members": members[:MEMBERS],
    }


def _script(c: Gathered, device: str) -> str:
    if not c.records:
        return ""
    try:
        return minimal(notation.parse(c.case), c.records[0].aspect, device) or ""
    except CaseError:  # of another version
        return ""


def _histograms(run: Run) -> list[dict[str, Any]]:
    """Measured error ratios by dtype, in powers of two."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for r in run.records:
        for m in r.measures:
            if m.measured and m.share is not None and m.share > 0.0 and math.isfinite(m.share):
                ratios[r.dtype].append(m.share)
    order = [d for d in DEFAULT if d in ratios] + sorted(set(ratios) - set(DEFAULT))
    return [_histogram(d, ratios[d]) for d in order]


def _histogram(dtype: str, ratios: Sequence[float]) -> dict[str, Any]:
    bins = [0] * (HIGH - LOW)
    for x in ratios:
        bins[min(max(math.floor(math.log2(x)), LOW), HIGH - 1) - LOW] += 1
    step, most = WIDTH / len(bins), max(bins)
    bars = []
    for k, n in enumerate(bins):
        height = HEIGHT * n / most
        kind, title = "over" if k + LOW >= 0 else "fill", f"{n} between {2.0 ** (k + LOW):g} and {2.0 ** (k + LOW + 1):g}"
        place = {"x": f"{k * step:.1f}", "y": f"{HEIGHT - height:.1f}", "width": f"{step - 1:.1f}", "height": f"{height:.1f}"}
        bars.append({**place, "kind": kind, "title": title})
    label = f"{dtype}: {plural(len(ratios), 'comparison')}, {sum(x > 1 for x in ratios)} above the budget"
    return {"bars": bars, "one": f"{-LOW * step:.1f}", "least": f"{2.0**LOW:.2g}", "most": f"{2.0**HIGH:g}", "label": label}


def _lacks(run: Run) -> list[tuple[str, list[str]]]:
    parts = [("Refused", [x.strip() for x in summary.refused(run.items)])]
    fallen = sorted({i.op for i in run.items if any(c.get(Status.FALLBACK) for c in i.counts.values())})
    parts.append(("Ran on the CPU unasked", [listed(fallen, 2000)] if fallen else []))
    parts.append(("Compared nothing for a reason", [x.strip() for x in summary.voids(run.items)]))
    return [(title, lines) for title, lines in parts if lines]


def _facts(run: Run) -> list[tuple[str, str]]:
    f, end = run.header.fingerprint, run.end
    facts = [
        ("parity", f.parity), ("torch", f"{f.torch} {f.torch_git[:10]}"), ("Python", f.python),
        ("OS", f.os), ("machine", f.machine),
        ("device", f"{f.device} {f.device_name}"), ("driver", f.driver), *f.facts, *f.environment,
        ("selection", run.header.selection), ("took", clock(end.seconds) if end is not None else "not ended"),
        ("items", f"{len(run.items):,}"), ("cases", f"{sum(i.cases for i in run.items):,}"),
        ("faults", run.header.faults.name), ("setup", run.header.setup.name),
        ("ended", (end.stopped or "whole") if end is not None else "the file is cut"),
    ]  # fmt: skip
    if run.header.faults.name:
        facts.append(("plant them again with", f"--faults {shlex.quote(run.header.faults.name)}"))
    return [(k, v.strip()) for k, v in facts if v.strip()]
