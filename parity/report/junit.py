"""A stored run as JUnit's XML: a test case for each op and dtype, so that a CI shows what failed and since when.

`parity run --junit-xml` lets pytest write the same while a run goes on; this needs only the run file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from parity import catalog
from parity.core import outputs
from parity.core.case import source_of
from parity.core.results import BY_SEVERITY, FINDINGS, Record, Status
from parity.engine.rounds import AGAIN
from parity.findings.causes import Gathered, gather
from parity.findings.verdict import compared, known_of, new_of
from parity.report import gaps
from parity.report.causes import shortened
from parity.report.words import listed, plural, reproduced
from parity.store.rows import Death, Header, ItemRow, Run

GONE = "drift of this op was near its budget and was not reproduced in a fresh process, so it does not count"
KNOWN = "findings of this op are known"
MARGINAL = f"marginal, which is no failure: {Status.MARGINAL.meaning}"
LISTED = 10  # findings of a test case that are reported
MESSAGE = 300  # most characters of a message


def render(run: Run) -> str:
    """The XML. What was asked for and never finished is an error, and so is a run that compared nothing."""
    header, f = run.header, run.header.fingerprint
    found, deaths = new_of(run)
    causes = gather(found, deaths)
    suite = Element("testsuite", name=f"parity on {f.device}")
    properties = SubElement(suite, "properties")
    facts = {"device": f.device_name or f.device, "torch": f.torch, "parity": f.parity, "profile": header.profile}
    for name, value in {**facts, "seed": header.seed, "simulated": str(f.simulated).lower()}.items():
        SubElement(properties, "property", name=name, value=value)
    records, dead, ids = _by_item(r for c in causes for r in c.records), _by_item(deaths), _ids(causes)
    excused = {(x.op, x.dtype): MARGINAL for x in run.records if x.status == Status.MARGINAL}
    excused |= {(x.op, x.dtype): GONE for x in run.records if x.gone}
    excused |= {(op, dtype): KNOWN for _, op, dtype in known_of(run)}
    items = {(i.op, i.dtype): i for i in run.items}
    for op, dtype in dict.fromkeys([*items, *dead]):
        item = items.get((op, dtype)) or ItemRow(op, dtype)  # a death may have left an item unfinished
        both = [*records.get((op, dtype), ())], [*dead.get((op, dtype), ())]
        suite.append(_case(header, item, *both, ids, excused.get((op, dtype), "")))
    for what, more in gaps.caveat_failures(run):
        case = SubElement(suite, "testcase", classname="parity", name=what, time="0")
        SubElement(case, "error", type="incomplete", message=shortened(more, MESSAGE))
    for kind, attribute in (("testcase", "tests"), ("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f".//{kind}"))))
    suite.set("time", f"{run.end.seconds if run.end is not None else 0.0:.3f}")
    suite.set("timestamp", header.started)
    whole = Element("testsuites", {k: v for k, v in suite.attrib.items() if k not in ("name", "timestamp")}, name="parity")
    whole.append(suite)
    ElementTree.indent(whole, " ")
    return ElementTree.tostring(whole, encoding="unicode", xml_declaration=True) + "\n"


def acquit(path: Path, items: Collection[str], once: Collection[str] = (), little: Collection[str] = ()) -> None:
    """Take back the failures of items whose findings were dropped, or are marginal, in the file that pytest wrote before the
    end of the run, and say which are not reproduced. items, once, little: the ids of those that were dropped ("exp-float32"),
    were not reproduced, and are marginal."""
    tree, why = ElementTree.parse(path), dict.fromkeys(items, GONE) | dict.fromkeys(little, MARGINAL)
    for suite in tree.iter("testsuite"):
        for case in suite.findall("testcase"):
            item = (case.get("name") or "").partition("[")[2].rpartition("]")[0]
            failure, item = case.find("failure"), item.partition(" ")[0]
            if failure is not None and item in once:
                failure.set("message", f"{Status.NOT_REPRODUCED}: {failure.get('message')}")
            if failure is None or item not in why:
                continue
            case.remove(failure)
            SubElement(case, "skipped", message=why[item])
            for name, more in (("failures", -1), ("skipped", 1)):
                suite.set(name, str(int(suite.get(name) or 0) + more))
    outputs.write(path, ElementTree.tostring(tree.getroot(), encoding="utf-8", xml_declaration=True))


def join_causes(path: Path) -> None:
    """Make one test case of an item and of the part that explains what it found, in the file that pytest wrote: with the
    failure of the latter, or none if it found nothing new. One that failed in parity itself stays."""
    tree = ElementTree.parse(path)
    for suite in tree.iter("testsuite"):
        cases = {case.get("name") or "": case for case in suite.findall("testcase")}
        for name, case in cases.items():
            whole = cases.get(name.replace(f"{AGAIN}]", "]"))
            if whole is None or whole is case or case.find("error") is not None:
                continue
            before, after = whole.find("failure"), case.find("failure")
            if before is not None:
                whole.remove(before)
                whole.extend([after] if after is not None else [Element("skipped", message=KNOWN)])
                suite.set("skipped", str(int(suite.get("skipped") or 0) + (after is None)))
                suite.set("failures", str(int(suite.get("failures") or 0) - 1))
            suite.remove(case)
            suite.set("tests", str(int(suite.get("tests") or 0) - 1))
    outputs.write(path, ElementTree.tostring(tree.getroot(), encoding="utf-8", xml_declaration=True))


def _by_item(rows: Iterable[Record | Death]) -> dict[tuple[str, str], list[Record | Death]]:
    by: dict[tuple[str, str], list[Record | Death]] = defaultdict(list)
    for r in rows:
        by[r.op, r.dtype].append(r)
    return by


def _ids(causes: Sequence[Gathered]) -> dict[int, str]:
    """The cause of each record and death, by the object."""
    return {id(x): c.cause.id for c in causes for x in (*c.records, *c.deaths)}


def _family(op: str) -> str:
    if source_of(op) != "native":
        return source_of(op)
    return catalog.ROWS[op].family if op in catalog.ROWS else "unknown"


def _case(
    header: Header,
    item: ItemRow,
    records: Sequence[Record | Death],
    deaths: Sequence[Record | Death],
    ids: dict[int, str],
    excused: str,
) -> Element:
    """excused: why some of its findings do not count, if that is so."""
    case = Element(
        "testcase", classname=f"parity.{_family(item.op)}", name=f"{item.op} {item.dtype}", time=f"{item.seconds:.3f}"
    )
    counts: Counter[str] = Counter()
    for by_status in item.counts.values():
        counts.update(by_status)
    findings = {s: counts[s] for s in BY_SEVERITY if s.is_finding and counts[s] and (records or not excused)}
    properties = SubElement(case, "properties")
    numbers = {"cases": item.cases, "findings": sum(findings.values())}
    causes = list(dict.fromkeys(ids[id(x)] for x in (*records, *deaths)))
    for name, value in {**numbers, **({"causes": listed(causes, 120)} if causes else {})}.items():
        SubElement(properties, "property", name=name, value=str(value))
    text = "\n".join([*(_line(x, ids, header) for x in (*deaths, *records)[:LISTED]), *_more(len(deaths) + len(records))])
    if deaths:
        first = deaths[0]
        assert isinstance(first, Death)
        SubElement(case, "error", type=first.how, message=shortened(first.signal, MESSAGE)).text = text
    elif findings:
        worst = next(iter(findings))
        message = ", ".join(f"{n} {s}" for s, n in findings.items()) + f" of {plural(sum(counts.values()), 'check')}"
        reason = next((r.reason for r in records if isinstance(r, Record) and r.status == worst), "")
        said = f"{message}: {reason}" if reason else message
        SubElement(case, "failure", type=str(worst), message=shortened(said, MESSAGE)).text = text
    elif not compared(item):
        SubElement(case, "skipped", message=shortened(_why_nothing(item, counts), MESSAGE))
    elif excused == KNOWN:
        SubElement(case, "skipped", message=KNOWN)
    elif excused:
        SubElement(case, "system-out").text = excused
    return case


def _line(x: Record | Death, ids: dict[int, str], header: Header) -> str:
    """A finding with the command that shows it again."""
    if isinstance(x, Death):
        return f"{x.how} [{ids[id(x)]}] at stage {x.stage}: {x.signal}\n  {reproduced(x.least, header)}"
    return f"{x.status} [{ids[id(x)]}] {x.aspect}: {x.reason}\n  {reproduced(x.shrunk or x.case, header)}"


def _more(n: int) -> list[str]:
    return [f"... and {plural(n - LISTED, 'more finding')}"] if n > LISTED else []


def _why_nothing(item: ItemRow, counts: Counter[str]) -> str:
    """Why an item compared nothing."""
    words = ", ".join(f"{n} {s}" for s, n in counts.items() if n and s not in FINDINGS)
    reason = next(iter(item.void), "")
    return "nothing was compared" + (f": {words}" if words else "") + (f" ({reason})" if reason else "")
