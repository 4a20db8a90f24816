"""A run as one self-contained page: causes with their findings, the matrix of ops, distributions of errors, what was refused,
power, coverage and the environment; against an earlier run, trends too.

Everything from the run file is escaped by Jinja2, and the page's own policy forbids it to load anything.
"""

from __future__ import annotations

import math
import shlex
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from parity import catalog
from parity.core import notation, picture
from parity.core.case import OpClass, source_of
from parity.core.dtypes import DEFAULT
from parity.core.errors import CaseError
from parity.core.results import BY_SEVERITY, COMPARED, Json, Measure, Record, Status
from parity.core.status import BLIND, ERRORS, SEEN
from parity.findings.causes import Gathered, gather
from parity.findings.verdict import compared, marks, of_causes, poorly_judged
from parity.report import gaps, matrix, power, summary, svg, trends
from parity.report.causes import amount, by_weight, count_text, mark_text, more_text, sentence_of
from parity.report.short_script import minimal
from parity.report.words import clock, listed, plural, reproduced
from parity.store.features import ASPECT, Coverage
from parity.store.rows import Death, Header, ItemRow, Run, counted, totals

FOLDER = Path(__file__).with_name("page")
SCRIPTS = 600  # findings with a script: each is built here, which takes some milliseconds
ELEMENTS = 1024  # no case of more can be written as literal values that a person would read
ROOM = 2_500_000  # characters for the details of findings; what comes after them is one line each, then a number
LAST = -1_000_000  # characters of `ROOM` left, when only the number is given
CAUSES = 2000  # most causes that are shown
UNJUDGED = 0.9  # items of which a smaller fraction was judged are listed
GROUPS = ("dtype", "layout", "values", "special", "shape", "into", "cotangent", "mode", "after")  # first words of features


def render(run: Run, before: Run | None = None, name: str = "RUN") -> str:
    """The page. before: an earlier run to set it against; name: of the run file, for the commands that the page shows.

    Raises NothingCompared if the two runs have nothing in common.
    """
    deaths = counted(run.deaths, run.items)
    causes = gather(run.records, deaths)
    f = run.header.fingerprint
    loader = FileSystemLoader(FOLDER, encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader, undefined=StrictUndefined)
    environment.filters |= {"colour": _colour, "number": lambda n: f"{n:,}"}
    return environment.get_template("page.html").render(
        device=f"{f.device} ({f.device_name})" if f.device_name and f.device_name != f.device else f.device,
        torch=f.torch,
        simulated=f.simulated,
        profile=run.header.profile,
        seed=run.header.seed,
        started=run.header.started,
        headline=_headline(run, causes),
        verdict=of_causes(run, causes, marks(run, causes)),
        warnings=gaps.caveat_sentences(run),
        **_of_causes(run, causes, name),
        checks=_checks(run.items, deaths),
        **_of_matrix(run.items, deaths),
        errors=_errors(run, before),
        refused=_refused(run),
        power=_power(run),
        judged=[x.strip() for x in power.left(poorly_judged(run.items, UNJUDGED))],
        worse=[x.strip() for x in gaps.worse_reference(run.records)],
        groups=GROUPS,
        coverage=[_coverage(c) for c in run.coverage],
        trends=None if before is None else trends.of_runs(before, run),
        facts=_facts(run),
    )


def _of_causes(run: Run, causes: Sequence[Gathered], name: str) -> Json:
    """What the template is given of the causes, by their weights."""
    details, shown = _Details(run.header, _pictured(run.records)), causes[:CAUSES]
    known = marks(run, shown)
    described = {id(c): _cause(c, details, name) | {"known": mark_text(known.get(c.cause.id))} for c in shown}
    return {
        "causes": causes,
        "unshown": more_text(causes[len(shown) :]),
        "weights": [{"letter": x, "words": w, "causes": [described[id(c)] for c in some]} for x, w, some in by_weight(shown)],
        "scale": [(svg.level_class(x), picture.between(k)) for k, x in enumerate(picture.LETTERS)],
    }


def _of_matrix(items: Sequence[ItemRow], deaths: Sequence[Death]) -> Json:
    """What the template is given of the matrix of ops and passes."""
    passes = [name for name, _ in matrix.PASSES]
    letters = {letter: ", ".join(some) for letter, some in _letters().items()}
    return {
        "matrix": matrix.rows(items, deaths, everything=True),
        "some_odd": len(matrix.rows(items, deaths)) > 1,
        "passes": passes,
        "letters": list(letters.items()),
        "not_run": matrix.NOT_RUN,
        "meanings": {"passes": passes, "letters": letters | {matrix.NOT_RUN: "not run"}},
    }


def _headline(run: Run, causes: Sequence[Gathered]) -> str:
    if causes:
        return count_text(causes)
    if not any(map(compared, run.items)):
        return "Nothing was compared"
    said = "; ".join(run.end.failed if run.end is not None else ()) or summary.agreed(run.records)
    return said[:1].upper() + said[1:]


def _colour(letters: str) -> str:
    """The class of a cell."""
    shown = [s for s in Status if s.letter in letters]
    return " bad" if any(s.is_finding for s in shown) else " cool" if any(s.is_absence for s in shown) else ""


def _letters() -> dict[str, list[str]]:
    """The statuses of each letter of the matrix."""
    by: dict[str, list[str]] = defaultdict(list)
    for status in BY_SEVERITY:
        by[status.letter].append(str(status))
    return by


# ---------------------------------------------------------------------------------------------------------------- causes


@dataclass(slots=True)
class _Details:
    """The findings of a page. drawn: pictures of cases as they were drawn, by kind of finding; room, scripts: what
    is left of `ROOM` and `SCRIPTS`."""

    header: Header
    drawn: dict[tuple[str, ...], tuple[Record, Measure]]
    room: int = ROOM
    scripts: int = SCRIPTS

    def of(self, r: Record) -> dict[str, Any]:
        """What the page says of a finding; a title alone where no room is left."""
        case, m = r.shrunk or r.case, r.measures[0] if r.measures else None
        tensor = f" in {m.tensor}" if m is not None and m.tensor else ""
        made: dict[str, Any] = {"title": f"{r.op} {r.dtype}: {r.status}{tensor}, {r.aspect}", "case": case, "whole": False}
        if self.room < 0:
            self.room -= len(case) + 200
            return made
        made |= {
            "whole": True,
            "says": r.reason,
            "origin": r.origin,
            "replay": reproduced(case, self.header).partition(": ")[2],
            "script": self._script(r, case, m.problem if m is not None else ""),
            **_of_measure(m),
            "drawn": self._drawn(r, m),
        }
        self.room -= sum(len(str(v)) for v in made.values()) + 600  # and the tags around them
        return made

    def _drawn(self, r: Record, m: Measure | None) -> dict[str, Any] | None:
        """The picture of the same tensor in a larger case that was drawn; a least case often has one element."""
        record, larger = self.drawn.get(_kind(r, m), (None, None)) if m is not None else (None, None)
        if m is None or record is None or larger is None or larger.total <= m.total:
            return None
        caption = svg.map_caption(larger)
        return {
            "status": record.status,
            "case": record.case,
            "map": svg.heat_map(larger),
            "map_caption": caption,
            "bins": svg.of_bins(larger),
        }

    def _script(self, r: Record, case: str, about: str) -> str:
        self.scripts -= 1
        if self.scripts < 0:
            return ""
        try:
            with warnings.catch_warnings():  # torch's, of a function that the case calls
                warnings.simplefilter("ignore")
                parsed = notation.parse(case)
                small = parsed.numel <= ELEMENTS
                device = self.header.fingerprint.device
                return (minimal(parsed, r.aspect, device, about) or "") if small else ""
        except CaseError:  # of another version
            return ""


def _kind(r: Record, m: Measure) -> tuple[str, ...]:
    return r.op, r.dtype, r.aspect, m.tensor


def _clarity(m: Measure) -> tuple[bool, int]:
    """Many single elements show a pattern best; of pictures of blocks, the one with the smallest."""
    whole = len(m.errors) == m.total
    return whole, m.total if whole else -m.total


def _pictured(records: Sequence[Record]) -> dict[tuple[str, ...], tuple[Record, Measure]]:
    """Findings of cases as they were drawn: for each tensor of an aspect of an op in a dtype the picture that shows most."""
    by: dict[tuple[str, ...], tuple[Record, Measure]] = {}
    for r in records:
        for m in r.measures[:1] if r.counts and not r.shrunk else ():
            known = by.get(_kind(r, m))
            if m.errors and (known is None or _clarity(known[1]) < _clarity(m)):
                by[_kind(r, m)] = r, m
    return by


def _of_measure(m: Measure | None) -> dict[str, Any]:
    """Worst element, budget and pictures."""
    if m is None:
        return {
            "undrawn": False,
            "values": [],
            "worst": "",
            "counted": "",
            "budget": [],
            "map": None,
            "map_caption": "",
            "bins": None,
        }
    total = sum(v for _, v in m.budget)
    counted_text = f"{m.mismatched:,} of {plural(m.total, 'element')} above the budget" if m.total else ""
    if m.unjudged:
        counted_text += f"; {m.unjudged:,} not judged: {m.why}"
    share = f"{m.share:.3g} times the budget" if m.share is not None and math.isfinite(m.share) else ""
    own = f"the CPU's own: {m.reference_share:.3g}" if m.reference_share is not None and share else ""
    return {
        "worst": f"at {list(m.index)}" + "".join(f"; {x}" for x in (share, own) if x) if m.device else "",
        "values": [
            (k, v) for k, v in (("device", m.device), ("CPU", m.reference), ("float64 truth", m.truth)) if v and m.device
        ],
        "counted": counted_text,
        "budget": [(f"{v:.3g}", f"{100 * v / total:.0f}", name) for name, v in m.budget if v] if total > 0 else [],
        "undrawn": bool(m.device and m.mismatched and not m.errors),
        "map": svg.heat_map(m),
        "map_caption": svg.map_caption(m) if m.errors else "",
        "bins": svg.of_bins(m) if sum(m.bins) > picture.SIDE else None,
    }


def _cause(c: Gathered, details: _Details, name: str) -> dict[str, Any]:
    findings: list[dict[str, Any]] = []
    for r in c.records:
        if findings and details.room < LAST:
            break
        findings.append(details.of(r))
    deaths = c.deaths[: 200 if details.room > 0 else 1]
    return {
        "id": c.cause.id,
        "sentence": sentence_of(c),
        "where": f"{amount(c)} in {listed(c.ops, 160)} ({listed(c.dtypes, 80)})",
        "case": c.case,
        "workaround": c.workaround,
        "issue": f"parity report {shlex.quote(name)} {c.cause.id} --format issue",
        "first": findings[0] if findings else None,
        "others": findings[1:],
        "deaths": [_death(d, details.header) for d in deaths],
        "more": len(c.records) - len(findings) + len(c.deaths) - len(deaths),
    }


def _death(d: Death, header: Header) -> dict[str, str]:
    replay = reproduced(d.least, header).partition(": ")[2]
    stage = f" at stage {d.stage}" if d.stage else ""
    return {"title": f"{d.op} {d.dtype}: {d.how}{stage}", "case": d.least, "says": d.signal, "why": d.why, "replay": replay}


# -------------------------------------------------------------------------------------------------------- the other parts


def _in_order(dtypes: set[str]) -> list[str]:
    return [d for d in DEFAULT if d in dtypes] + sorted(dtypes - set(DEFAULT))


def _checks(items: Sequence[ItemRow], deaths: Sequence[Death]) -> dict[str, Any]:
    """Checks by dtype and status."""
    by: dict[str, Counter[str]] = defaultdict(Counter)
    for i in items:
        for counts in i.counts.values():
            by[i.dtype].update(counts)
    for d in deaths:
        by[d.dtype][d.how] += 1
    every = totals(items) + Counter(d.how for d in deaths)
    seen = [s for s in Status if every[s]]
    rows = [(d, [by[d][s] for s in seen]) for d in _in_order(set(by))]
    return {
        "statuses": [(str(s), s.meaning, s.is_finding) for s in seen],
        "rows": [*rows, ("all", [every[s] for s in seen])] if rows else [],
        "compared": sum(n for s, n in every.items() if s in COMPARED),
    }


def _class_of(op: str) -> str:
    """The class of an op by this parity's catalog."""
    if (source := source_of(op)) != "native":
        return {"opinfo": "torch's OpInfo entries"}.get(source, f"torch's {source}")
    row = catalog.ROWS.get(op)
    return str(row.rule) if row is not None else "unknown to this parity"


def _errors(run: Run, before: Run | None) -> list[dict[str, Any]]:
    """The largest measured error ratio of each op, dtype and aspect, by dtype and by class of op."""
    classes = [str(c) for c in OpClass]
    made = []
    for title, key, order in (
        ("By dtype", lambda i: i.dtype, [*DEFAULT]),
        ("By class of op", lambda i: _class_of(i.op), classes),
    ):
        now, earlier = _ratios(run, key), _ratios(before, key) if before is not None else {}
        keys = [k for k in order if now.get(k)] + sorted(k for k in now if k not in order and now[k])
        pictures = []
        for k in keys:
            exact, some = sum(x == 0.0 for x in now[k]), [x for x in now[k] if x != 0.0]
            label = f"{k}: {plural(len(now[k]), 'cell')}"
            label += f", {sum(not x <= 1 for x in some)} above the budget" + (f", {exact} without any error" if exact else "")
            old = None if before is None else [x for x in earlier.get(k, ()) if x != 0.0]
            pictures.append((svg.of_ratios(some, old, label), label))
        made.append({"title": title, "pictures": pictures})
    return made


def _ratios(run: Run, key: Callable[[ItemRow], str]) -> dict[str, list[float]]:
    by: dict[str, list[float]] = defaultdict(list)
    for i in run.items:
        by[key(i)] += [x for x in i.worst.values() if not math.isnan(x)]
    return by


def _refused(run: Run) -> list[tuple[str, list[str]]]:
    parts = [("Refused", [x.strip() for x in gaps.refused(run.items)])]
    fallen = sorted({i.op for i in run.items if any(c.get(Status.FALLBACK) for c in i.counts.values())})
    parts.append(("Ran on the CPU unasked", fallen))
    parts.append(("Compared nothing for a reason", [x.strip() for x in gaps.voids(run.items)]))
    acquitted = [f"{d.case} ({d.signal}; {d.why})" for d in run.deaths if d.acquitted]
    parts.append(("The CPU itself died or hung in", acquitted))
    near = [x.strip() for x in gaps.dropped(run.records)]
    parts.append(("Drift near its budget that was not reproduced in a fresh process: dropped", near))
    parts.append((f"Marginal: {Status.MARGINAL.meaning}", [x.strip() for x in gaps.marginal(run.records)]))
    return [(title, lines) for title, lines in parts if lines]


def _power(run: Run) -> list[list[str]]:
    """The table of power as cells: a head, and a row for each dtype."""
    outcomes = power.counts(run.power)
    dtypes = _in_order({d for d, _ in outcomes})
    if not dtypes:
        return []
    rows = [["dtype", *ERRORS]]
    for d in (*dtypes, "all"):
        chosen = [sum((c for (t, e), c in outcomes.items() if e == x and d in (t, "all")), Counter[str]()) for x in ERRORS]
        asked = [(c[SEEN], c[SEEN] + c[BLIND]) for c in chosen]
        rows.append([d, *(f"{seen:,} of {n:,}" if n else "" for seen, n in asked)])
    return rows


def _coverage(c: Coverage) -> dict[str, Any]:
    """What one family drew: the number of different features of each group."""
    by = Counter(f.partition(" ")[0].partition("[")[0] for f in c.counts)
    drawn = [f for f in c.counts if not f.startswith(ASPECT)]
    return {
        "family": c.family,
        "cases": c.cases,
        "features": len(drawn),
        "pairs": sum(1 for _ in c.drawn()),
        "groups": [by[g] for g in GROUPS],
    }


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
        facts.append(("plant them again with", f"--setup {shlex.quote(run.header.faults.name)}"))
    return [(k, v.strip()) for k, v in facts if v.strip()]
