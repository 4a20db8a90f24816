"""The causes of a run's findings as text: a list by weight for the end of a run, and each one with its members."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

from parity.core.results import SYMPTOMS, Cause, Record
from parity.core.status import Conclusion
from parity.findings.causes import OF_NUMBERS, OPERATORS, RESULTS, Gathered
from parity.findings.verdict import Mark
from parity.findings.weights import WEIGHTS
from parity.findings.wording import GONE, HANG, LOST, SKELETON
from parity.report.output import fitted, last_line
from parity.report.run_answers import CauseRow, Causes, Died, Finding, RunInfo
from parity.report.words import called_in, listed, plural, reproduced, script_line
from parity.store.rows import UNKNOWN as NOBODY
from parity.store.rows import Header

UNKNOWN = "?"
UNKNOWN_WORDS = (
    "not looked into: no time was left, it ended the process, the run was cut (parity run --resume RUN), "
    "or shrinking was skipped; by operator"
)
ENDED = re.compile(rf"^(?:{HANG}|ended by parity after N s)")  # the second in files of known findings of an older parity
COMMENT = 65_536  # most characters of a comment on GitHub
REASON = 110  # most characters of a reason
WAYS = 3  # errors of a kernel that are named where several are one cause
CUT = SKELETON - 3  # characters that are left of a long message, at least
NONE: Mapping[str, Mark] = {}
LINE = 230  # most characters of a line that is printed while a run goes on
PLURAL = {
    "values": "give wrong values",
    "memory": "write outside their destinations, or not at all",
    "raises": "raise where the CPU computes",
    "accepts": "compute what must be refused",
    "metadata": "give a wrong shape, dtype, stride or aliasing",
    "operands": "change operands that they must only read",
}


def sentence_of(c: Gathered) -> str:
    """What is known of a cause with its findings: of deaths also whether the device was found to have caused one."""
    unknown = c.deaths and all(d.blame == NOBODY for d in c.deaths)
    return sentence(c.cause, c.members, "the device or the CPU" if unknown else "the device")


def sentence(c: Cause, members: Iterable[Cause] = (), whose: str = "the device") -> str:
    """What is known of a cause, as one sentence without its full stop. members: those that were joined to it: what these say
    or do besides is a part of it, so that no fault hides behind another one of the same kernel; whose: what caused deaths."""
    word, _, words = c.symptom.partition(": ")
    if word == "dies":
        how, _, signal = c.subject.partition(": ")
        if signal.startswith((LOST, GONE)):  # and in which call, or what was said of it
            words = signal.removeprefix(f"{LOST}: ")
            return signal.replace(GONE, LOST) if words == signal else f"{LOST} ({_whole(words)})"
        if how == HANG:
            return f"{whose} hangs{ENDED.sub('', signal)}"
        return f"{whose} ends the process ({_whole(signal)})"
    said = {**SYMPTOMS, **PLURAL} if c.subject == OPERATORS else SYMPTOMS
    text = f"{c.subject} {said[word]}" + (f" ({_whole(words)})" if words else "")
    if not c.properties and c.symptom in RESULTS:
        text += "".join(f", and {said[x]}" for x in RESULTS if x != c.symptom and any(m.symptom == x for m in members))
    elif not c.properties and c.symptom == "raises":
        ways = [*dict.fromkeys(_whole(words) for m in members if (words := m.symptom.partition(": ")[2]))]
        text += (
            f", in {plural(len(ways), 'way')} ({'; '.join(ways[:WAYS])}{'; ...' if len(ways) > WAYS else ''})" if ways else ""
        )
    several = "; each may have a fault of its own" if c.subject == OPERATORS and set(c.properties) & set(OF_NUMBERS) else ""
    under = [p for p in c.properties if p.startswith("under ")]  # no property of an operand
    other = [p for p in c.properties if p not in under]
    text += (f", with {listed(other, 80)}" if other else "") + "".join(f", {p}" for p in under)
    dying = {m.subject.partition(": ")[0] for m in members if m.symptom == "dies"}
    ends = ("hang", "end the process") if c.subject == OPERATORS else ("hangs", "ends the process")
    return text + (f", and {ends[dying != {'hang'}]}" if dying else "") + several


def _whole(words: str) -> str:
    """What an error says, without the rest of a word where the text was cut."""
    return f"{words.rpartition(' ')[0]} ..." if CUT <= len(words) <= SKELETON and " " in words else words


def amount(c: Gathered, of: str = "", by: str = "") -> str:
    """Of how many findings and deaths it is the cause. of, by: what follows these words."""
    some = (len(c.records), "kind", of), (len(c.deaths), "death", by)
    return " and ".join(plural(n, word) + rest for n, word, rest in some if n)


def line(c: Gathered) -> str:
    """The cause in one line, as it is reported when a run meets it."""
    return shorten(f"{letter(c)} [{c.cause.id}] {sentence_of(c)}: {c.case}", LINE, placeholder=" ...")


def as_drawn(r: Record) -> str:
    """A finding without a cause in one line, as it is reported when a run meets its first one."""
    said = f"first finding, its cause comes later: {r.op} {r.dtype} {r.aspect}: {r.status}, {r.reason}: {r.case}"
    return shorten(said, LINE, placeholder=" ...")


def letter(c: Gathered) -> str:
    """The weight of a cause; `UNKNOWN` for what nobody looked into."""
    return c.weight if c.searched else UNKNOWN


def by_weight(causes: Sequence[Gathered]) -> list[tuple[str, str, list[Gathered]]]:
    """The parts of a list of causes: (letter, what it stands for, those of it); last what was not looked into."""
    letters = [letter(c) for c in causes]
    words = {**WEIGHTS, UNKNOWN: UNKNOWN_WORDS}
    return [(x, words[x], [c for c, y in zip(causes, letters) if x == y]) for x in words if x in letters]


def count_text(causes: Sequence[Gathered], of: str = "", form: str = "{} ({})") -> str:
    """How many causes there are, and of each weight, then how many operators have findings that were not looked into. of: what
    they are the causes of."""
    counts = {x: len(some) for x, _, some in by_weight(causes)}
    unknown = counts.pop(UNKNOWN, 0)
    said = form.format(plural(sum(counts.values()), "cause"), ", ".join(f"{w} {n}" for w, n in counts.items()))
    rest = f"{plural(unknown, 'operator')} not looked into"
    said += f" of {of}" if of else ""
    return (f"{said}, and {rest}" if unknown else said) if counts else f"{rest}: {of}" if of else rest


def more_text(rest: Sequence[Gathered]) -> str:
    """How many causes a list leaves out, and how many operators that were not looked into."""
    unknown = sum(not c.searched for c in rest)
    more = [plural(len(rest) - unknown, "more cause")] if len(rest) > unknown else []
    return ", and ".join([*more, f"{plural(unknown, 'more operator')} not looked into"] if unknown else more)


def lines(causes: Sequence[Gathered], room: int, header: Header, columns: int | None = None) -> list[str]:
    """The causes in so many lines of a screen, by weight: as many as fit in two lines each, and if all do, the first ones in
    full. columns: of the screen, None for a file."""

    def on_screen(texts: Sequence[list[str]]) -> list[str]:
        text = _by_weight(causes, texts)
        return [part for line in text for part in (fitted(line, columns) if columns else [line])]

    texts = [short(c) for c in causes[: max(room, 0)]]
    while texts and len(on_screen(texts)) > room - (len(texts) < len(causes)):
        texts.pop()
    if len(texts) < len(causes):
        more = more_text(causes[len(texts) :])
        return [*on_screen(texts), f"... and {more}"] if texts else [more]
    for form in (medium, full):
        for k, c in enumerate(causes):
            longer = [*texts[:k], form(c, header), *texts[k + 1 :]]
            texts = longer if len(on_screen(longer)) <= room else texts
    return on_screen(texts)


def _by_weight(causes: Sequence[Gathered], texts: Sequence[list[str]]) -> list[str]:
    made, rest = list[str](), iter(texts)
    for x, words, some in by_weight(causes[: len(texts)]):
        made += [f"{x}: {words}", *(line for _ in some for line in next(rest))]
    return made


def short(c: Gathered) -> list[str]:
    """A cause in two lines: what and where, and its least case."""
    return [f"  [{c.cause.id}] {sentence_of(c)}; {amount(c)} in {listed(c.ops)} ({listed(c.dtypes, 40)})", f"    {c.case}"]


def medium(c: Gathered, header: Header) -> list[str]:
    """A cause with the ways around it, and the command that shows it again."""
    return [*short(c)[:1], *([f"    workaround: {c.workaround}"] if c.workaround else []), f"    {reproduced(c.case, header)}"]


def full(c: Gathered, header: Header) -> list[str]:
    """A cause with the worst element of its least case, and the commands that show it again."""
    text = short(c)[:1]
    if c.records:
        r = c.records[0]
        m = r.measures[0] if r.measures else None
        tensor = f" in {m.tensor}" if m is not None and m.tensor else ""
        origin = f" ({r.origin})" if r.origin else ""
        text.append(f"    {r.status}{tensor}, {r.aspect}: {shorten(r.reason, REASON, placeholder=' ...')}{origin}")
        if m is not None and m.device:
            truth = f", truth {m.truth}" if m.truth and m.truth != m.reference else ""
            other = f", reference {m.reference}" if m.reference else ""
            text.append(f"    worst at {list(m.index)}: device {m.device}{other}{truth}")
    text += [f"    workaround: {c.workaround}"] if c.workaround else []
    text += [
        f"    {c.deaths[0].why}" for _ in c.deaths[:1] if not c.records and c.deaths[0].blame == NOBODY and c.deaths[0].why
    ]
    text.append(f"    {reproduced(c.case, header)}")
    alone = [*((r.script, r.op) for r in c.records if r.shows_alone), *((d.script, d.op) for d in c.deaths)]
    simulated, command = header.fingerprint.simulated, called_in(header)
    return text + [f"    {script_line(script, simulated, command, op)}" for script, op in alone if script][:1]


def render(
    causes: Sequence[Gathered],
    header: Header,
    conclusion: Conclusion,
    members: bool = False,
    caveats: Sequence[str] = (),
    known: Mapping[str, Mark] = NONE,
) -> str:
    """All causes in full, with the verdict last. conclusion: what they say of the device (`verdict.of_causes`); members: list
    every finding, too; caveats: what a reader must know before (`report.gaps`); known: those that are, by id."""
    text = list(caveats)
    for x, words, some in by_weight(causes):
        text.append(f"{x}: {words}")
        for c in some:
            first, *rest = full(c, header) if c.searched else medium(c, header)
            mark = [f"    {mark_text(known[c.cause.id])}"] if c.cause.id in known else []
            text += [first, *mark, *rest, *(_members(c) if members else ())]
    accepted = sum(c.cause.id in known and known[c.cause.id].whole for c in causes)
    but = f", {accepted} of them known" if accepted else ""
    why = ", but the run was asked to fail: see above" if conclusion is Conclusion.FAIL else ""
    said = f"{count_text(causes, form='{}: {}')}{but}" if causes else f"no finding{why}"
    return "\n".join([*text, last_line(conclusion, said)])


def mark_text(m: Mark | None) -> str:
    """Why a cause is known, and whether all of it is; empty for one that is not."""
    return "" if m is None else f"known{'' if m.whole else ' in part'}: {m.why}"


def answer(causes: Sequence[Gathered], header: Header, caveats: Sequence[str] = (), known: Mapping[str, Mark] = NONE) -> Causes:
    """All causes for other programs; the field names are those of the run file where both have one. known: as in `render`."""
    rows = (
        CauseRow(
            c.cause.id, c.weight, sentence_of(c), c.cause.subject, c.cause.symptom, c.cause.properties,
            mark_text(known.get(c.cause.id)), c.case, c.workaround, c.ops, c.dtypes,
            tuple(Finding(r.op, r.dtype, r.aspect, r.status, r.shrunk or r.case, r.reason) for r in c.records),
            tuple(Died(d.op, d.dtype, d.how, d.least, d.signal) for d in c.deaths),
        )
        for c in causes
    )  # fmt: skip
    return Causes(1, of_run(header), tuple(caveats), tuple(rows))


def of_run(header: Header) -> RunInfo:
    """What a report for other programs says of the run."""
    f = header.fingerprint
    started = header.profile, header.seed, header.started
    return RunInfo(f.device, f.device_name, f.torch, f.parity, f.simulated, *started)


def as_markdown(
    causes: Sequence[Gathered],
    header: Header,
    conclusion: Conclusion,
    caveats: Sequence[str] = (),
    known: Mapping[str, Mark] = NONE,
    excluded: Sequence[str] = (),
) -> str:
    """The causes for a pull request's comment or a job's summary, the worst first, within GitHub's limit for a comment.
    conclusion, known: as in `render`; excluded: what the run does not speak of."""
    f = header.fingerprint
    device = f"{f.device} ({f.device_name})" if f.device_name else f.device
    text = f"**parity on {inert(device)}**, torch {inert(f.torch)}: {count_text(causes) if causes else '0 causes'}\n"
    text += "".join(f"\n> {inert(shortened(c, REASON * 4))}\n" for c in caveats)
    text += "\nEverything that counts agrees.\n" if conclusion is Conclusion.PASS and not causes else ""
    text += "\nNot part of this verdict:\n\n" if excluded else ""
    text += "".join(f"- {inert(shortened(line, REASON * 4))}\n" for line in excluded)
    for k, c in enumerate(causes):
        where = f"{amount(c)} in {listed(c.ops, 120)} ({listed(c.dtypes, 60)})"
        part = f"\n- **{letter(c)}** `{c.cause.id}` {inert(sentence_of(c))}; {inert(where)}\n  {code(c.case)}\n"
        part += f"  workaround: {inert(c.workaround)}\n" if c.workaround else ""
        part += f"  {inert(shortened(mark_text(known[c.cause.id]), REASON * 4))}\n" if c.cause.id in known else ""
        if len(text) + len(part) > COMMENT - 200:
            text += f"\n... and {more_text(causes[k:])}: `parity report RUN`\n"
            break
        text += part
    weights = "; ".join(f"{x}: {words}" for x, words, _ in by_weight(causes))
    return text + (f"\n<sub>{weights}</sub>\n" if weights else "")


def shortened(text: str, most: int) -> str:
    """The text without line ends, cut to so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def inert(text: str) -> str:
    """Text that Markdown and HTML show as it is."""
    text = re.sub(r"([\\`*_{}\[\]()+!|<>~-])", r"\\\1", text)
    return re.sub(r"([@#])", "\\1\u200b", text)  # a space of no width: no person is called, no issue is linked


def code(text: str) -> str:
    """Code in a span that no backtick in it can end."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _members(c: Gathered) -> list[str]:
    findings = [f"{r.status} {r.op} {r.dtype} {r.aspect}: {r.shrunk or r.case}" for r in c.records]
    deaths = [f"{d.how} {d.op} {d.dtype} at stage {d.stage}: {d.least}" for d in c.deaths]
    return ["    findings:", *(f"      {line}" for line in (*findings, *deaths))]
