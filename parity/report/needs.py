"""The needs of a model on MPS as text and as JSON, with the public bugs and the causes of a run that concern it; and which
operators gained or lost an MPS kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap

from parity.core.version import __version__
from parity.devices.mps_calls import Answer
from parity.devices.operator_table import Kernels
from parity.findings.causes import Gathered
from parity.findings.weights import WEIGHTS
from parity.locating.located import PASSES, plural
from parity.locating.needs import Match, Need, Needs, where
from parity.report.answers import Audited
from parity.zoo.bug import Bug

SHOWN = 5  # known bugs, without -v
WIDTH = 118  # of lines of operators
ORDINARY = next(iter(WEIGHTS))  # the class of findings that fails an audit


@dataclass(frozen=True, slots=True)
class Concern:
    """A cause of a run that concerns a model. operators: of the model, that show it, by name without overload."""

    id: str
    weight: str
    symptom: str
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    case: str


def base_name(operator: str) -> str:
    """ "aten::add" of "aten::add_.Tensor" and "aten::add.out"."""
    name = operator.partition(".")[0]
    return name.rstrip("_") or name


def concerns(causes: Sequence[Gathered], needs: Needs) -> tuple[Concern, ...]:
    """The causes that have a finding in an operator and a dtype of the model, by weight."""
    dtypes: dict[str, set[str]] = {}
    for n in needs.needs:
        dtypes.setdefault(base_name(n.operator), set()).add(n.dtype)
    found = []
    for c in causes:
        hits: Counter[tuple[str, str]] = Counter()
        for r in c.records:
            subject = base_name(r.cause.subject if r.cause is not None else c.cause.subject)
            if r.dtype in dtypes.get(subject, ()):
                hits[subject, r.dtype] += 1
        for d in c.deaths:
            if d.dtype in dtypes.get(f"aten::{d.op}", ()):
                hits[f"aten::{d.op}", d.dtype] += 1
        if hits:
            operators, kinds = (tuple(dict.fromkeys(x[k] for x in hits)) for k in (0, 1))
            found.append(Concern(c.cause.id, c.weight, c.cause.symptom, operators, kinds, c.case))
    return tuple(found)


def render(name: str, needs: Needs, bugs: dict[str, Bug], found: Sequence[Concern], ran: str, verbose: bool) -> str:
    """The verdict first; then what is missing, known bugs, findings of a run, and the rest. ran: the run file, "" for none."""
    worst = dict.fromkeys(o for c in found if c.weight == ORDINARY for o in c.operators)
    but = f"; {plural(len(worst), 'operator')} of it with findings of class {ORDINARY} in {ran}" if worst else ""
    lines = [f"{name}: {needs.headline}{but}", *needs.lines(verbose), *_known(needs.matches, needs.torch, bugs, verbose)]
    lines += _found(found, ran)
    return "\n".join([*lines, *(_all(needs) if verbose else (_rest(needs),))])


def _known(matches: Sequence[Match], torch: str, bugs: dict[str, Bug], verbose: bool) -> Iterator[str]:
    if not matches:
        return
    many = plural(len(matches), "known bug")
    yield f"{many} of MPS that such calls met (whether torch {torch} still has it stands in the thread):"
    for m in matches if verbose else matches[:SHOWN]:
        fault = bugs[m.id].fault
        yield f"  {m.id}: {fault.title} ({plural(m.calls, 'call')}, first {where(m.place, PASSES[0])})"
        yield f"    {fault.source}" + (f" (reported for: {bugs[m.id].versions})" if bugs[m.id].versions else "")
    if len(matches) > SHOWN and not verbose:
        yield f"  ... and {len(matches) - SHOWN} more (-v lists all)"


def _found(found: Sequence[Concern], ran: str) -> Iterator[str]:
    if not ran:
        return
    for weight in WEIGHTS:
        some = [c for c in found if c.weight == weight]
        if not some:
            continue
        operators = dict.fromkeys(o for c in some for o in c.operators)
        yield f"it calls {plural(len(operators), 'operator')} with findings of class {weight} in {ran}:"
        for c in some:
            yield f"  [{c.id}] {', '.join(c.operators)} ({', '.join(c.dtypes)}): {c.symptom}"
            yield f"    parity report {ran} {c.id}"
    if not found:
        yield f"no finding of {ran} concerns its operators"


def _rest(needs: Needs) -> str:
    """All operators in one line, by what MPS makes of them."""
    by: dict[Answer, dict[str, None]] = {}
    for n in needs.needs:
        if n.operator:
            by.setdefault(n.answer, {}).setdefault(n.operator)
    parts = [f"{len(by[a])} {_WORDS[a]}" for a in Answer if a in by]
    return f"operators in all: {', '.join(parts)} (-v lists them)" if parts else "no operator ran"


_WORDS = {
    Answer.KERNEL: "with an MPS kernel",
    Answer.COMPOSED: "composed of others",
    Answer.ON_CPU: "always on the CPU",
    Answer.MISSING: "without a kernel",
    Answer.REFUSED: "refused",
    Answer.UNKNOWN: "unknown",
}


def _all(needs: Needs) -> Iterator[str]:
    rows: dict[tuple[str, str, Answer], Counter[str]] = {}
    for n in needs.needs:
        if n.operator:
            rows.setdefault((n.operator, n.dtype, n.answer), Counter())[n.pass_] += n.calls
    wide = max((len(o) for o, _, _ in rows), default=0)
    yield "all operators, with their calls forward and backward:"
    for (operator, dtype, answer), calls in rows.items():
        yield f"  {operator:<{wide}}  {dtype:<9} {calls[PASSES[0]]:>5} {calls[PASSES[1]]:>5}  {answer}"


def answer(answers: Sequence[tuple[str, Needs, Sequence[Concern]]], bugs: dict[str, Bug]) -> Audited:
    """The functions with all that is known of each."""

    def of(n: Need) -> dict[str, object]:
        tree = asdict(n)
        tree["place"].pop("order")
        tree["pass"] = tree.pop("pass_")
        return {**tree, "lacks": n.is_missing}

    tree = [
        {
            "function": name,
            "subject": x.subject,
            "torch": x.torch,
            "complete": x.complete,
            "verdict": x.headline,
            "lacking": {"operators": x.operators, "dtypes": x.dtypes, "refusing": x.refusing, "held": x.held},
            "needs": [of(n) for n in x.needs],
            "bugs": [
                {"id": m.id, "title": bugs[m.id].fault.title, "source": bugs[m.id].fault.source,
                 "versions": bugs[m.id].versions, "calls": m.calls, "line": m.place.line} for m in x.matches
            ],
            "findings": [asdict(c) for c in found],
            "broken": x.broken,
            "notes": x.notes,
        }
        for name, x, found in answers
    ]  # fmt: skip
    return Audited(__version__, tuple(tree))


def kernels(k: Kernels) -> str:
    """Which operators gained or lost an MPS kernel, and in the last line how many."""
    lines = [f"MPS kernels from torch {k.before} to {k.after}"]
    for word, some, new in (("lost", k.lost, "no such operator any more"), ("gained", k.gained, "a new operator")):
        for is_new, names in (("", [n for n, x in some.items() if not x]), (f", {new}", [n for n, x in some.items() if x])):
            text = wrap("  ".join(names), WIDTH, break_long_words=False, break_on_hyphens=False)
            lines += ["", f"{word}{is_new} ({len(names)})", *(f"  {line}" for line in text)] if names else []
    return "\n".join([*lines, "", f"{k.kept} kept, {len(k.gained)} gained, {len(k.lost)} lost"])
