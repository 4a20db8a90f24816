"""Merge the run files of shards into the run file that one run of all their items would have written.

Resumes an interrupted run: what is whole in its run file, and the options with which the rest is run.

An item is whole if its row is there, which is written last, and the causes of all that it found. Everything else of the file
is made again: rows of items without one, what was tried again, and what the end sums up.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from parity.core import project
from parity.core.errors import RunFileError, UsageError
from parity.core.results import Fingerprint, Json, Record, Status
from parity.engine import suite
from parity.engine.options import KNOWN, OPTIONS, RunOptions
from parity.findings.known import Known
from parity.findings.verdict import RunResult
from parity.store import marginal, run_file
from parity.store.code import Code, code_of
from parity.store.features import Coverage, DrawnFeatures
from parity.store.figures import Figures
from parity.store.rows import Death, End, Header, ItemRow, Power, Row, Run, Sighting, is_own, totals

Part: TypeAlias = tuple[Path, Run]
# What the headers of all shards of a run have in common, and the option that sets it.
COMMON = {"seed": "--seed", "profile": "--profile", "selection": "the selection", "options": "the options"}
STOPPED = "merged without all of its shards"  # `End.stopped` of what --accept partial merged


def merged(
    parts: Sequence[Part], mixed: bool = False, partial: bool = False, given: Callable[[Run], Known | None] = lambda made: None
) -> Run:
    """The run whose shards these are: all rows, in the order of the catalog; sums where a row counts over all items.

    mixed: take shards whose fingerprints differ, and note the differences; partial: take a run with missing shards, as one that
    was stopped; given: the file of known findings that they had. Raises UsageError, which names the files, for what does not
    belong together: no shard, other numbers of shards, seeds, options, code or machines, one shard twice, or one missing.
    """
    numbered = _numbered(parts)
    (first_path, first), *others = numbered
    for path, run in others:
        _same_question(first_path, first.header, path, run.header)
    machines = _machines(numbered, mixed)
    missing = _missing(numbered, partial)
    runs = [run for _, run in numbered]
    place = _places()

    def by_item(rows: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(sorted(rows, key=lambda r: place(r.op, r.dtype)))

    items = by_item(i for r in runs for i in r.items)
    header = replace(
        first.header, shard="", started=min(r.header.started for r in runs), machines=machines or first.header.machines
    )
    end = _end([r.end or End(stopped="truncated") for r in runs], missing)
    made = Run(
        header,
        by_item(x for r in runs for x in r.records),
        items,
        by_item(x for r in runs for x in r.deaths),
        replace(end, totals=dict(totals(items))),
        _coverage(c for r in runs for c in r.coverage),
        by_item(x for r in runs for x in r.power),
        tuple(x for r in runs for x in r.again),
        by_item(x for r in runs for x in r.figures),
        by_item(x for r in runs for x in r.known),
        by_item(x for r in runs for x in r.features),
    )
    return replace(made, end=replace(made.end or end, failed=tuple(dict.fromkeys((*end.failed, *_failed(made, given(made)))))))


def _failed(made: Run, known: Known | None) -> tuple[str, ...]:
    """What a merged run was asked to fail on, which no shard knows, in words. known: the file that its shards were given."""
    whole = marginal.of_run(made)
    few, strict = (f"--fail-on={word}" in made.header.options.split() for word in (Status.MARGINAL, KNOWN))
    asked = [Status.MARGINAL] if few else []
    return RunResult(whole.items, whole.records, fail_on=asked, known=known, sightings=made.known, strict=strict).failed


def _numbered(parts: Sequence[Part]) -> list[Part]:
    """The shards by their number, all of one division."""
    for path, run in parts:
        if not run.header.shard:
            raise UsageError(f"{path} is not a shard: it holds a whole run; merge what parity run --shard K/N wrote")
    first_path, first = parts[0]
    _, count = suite.shard_numbers(first.header.shard)
    by_number: dict[int, Part] = {}
    for path, run in parts:
        number, of = suite.shard_numbers(run.header.shard)
        if of != count:
            raise UsageError(
                f"{first_path} is shard {first.header.shard} and {path} is shard {run.header.shard}: "
                "they divide the run into other numbers of shards; merge shards of one division"
            )
        if number in by_number:
            raise UsageError(f"{by_number[number][0]} and {path} are both shard {run.header.shard}; leave one of them out")
        by_number[number] = path, run
    return [by_number[n] for n in sorted(by_number)]


def _same_question(path: Path, a: Header, other: Path, b: Header) -> None:
    """Refuse shards that were not run with the same options and the same code."""
    for name, word in COMMON.items():
        x, y = getattr(a, name), getattr(b, name)
        if x != y:
            raise UsageError(f"{path} and {other} differ in {word}: '{x}' and '{y}'; merge shards of one run")
    for option, one, two in (("--setup", a.faults, b.faults), ("--setup", a.setup, b.setup), ("--known", a.known, b.known)):
        if not one.same(two):
            raise UsageError(f"{path} and {other} differ in {option}: '{one}' and '{two}'; merge shards of one run")


def _machines(parts: Sequence[Part], mixed: bool) -> tuple[str, ...]:
    """How the fingerprints differ from the first one, for --accept mixed."""
    path, first = parts[0]
    texts = []
    for other, run in parts[1:]:
        if said := difference(first.header.fingerprint, run.header.fingerprint):
            if not mixed:
                raise UsageError(
                    f"{path} and {other} are of different machines: {said}; "
                    "run all shards on equal ones, or merge them as they are with --accept mixed"
                )
            texts.append(f"shard {run.header.shard}: {said}")
    return tuple(texts)


def difference(a: Fingerprint, b: Fingerprint) -> str:
    """In which fields two fingerprints differ, in words; empty if they are equal."""
    texts = []
    for f in dataclasses.fields(Fingerprint):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name in ("environment", "facts"):
            one, two = dict(x), dict(y)
            names = [k for k in {**one, **two} if one.get(k) != two.get(k)]
            texts += [f"{k} '{one.get(k, 'not set')}' and '{two.get(k, 'not set')}'" for k in names]
        elif x != y:
            texts.append(f"{f.name} '{x}' and '{y}'")
    return ", ".join(texts)


def _missing(parts: Sequence[Part], partial: bool) -> str:
    """The numbers of the shards that are not there, in words."""
    _, count = suite.shard_numbers(parts[0][1].header.shard)
    here = {suite.shard_numbers(run.header.shard)[0] for _, run in parts}
    missing = [str(n) for n in range(1, count + 1) if n not in here]
    if not missing:
        return ""
    said = f"shard{'s' if len(missing) > 1 else ''} {', '.join(missing)} of {count}"
    if not partial:
        raise UsageError(f"{said} missing; name the run files of all shards, or merge what is there with --accept partial")
    return said


def _places() -> Callable[[str, str], tuple[int, str, int, str]]:
    """The place of an item in the order of a whole run; ops that this parity does not know come last."""
    rows = {r.name: (k, {d: n for n, d in enumerate(r.dtypes)}) for k, r in enumerate(suite.rows("all"))}
    nowhere: tuple[int, dict[str, int]] = len(rows), {}

    def place(op: str, dtype: str) -> tuple[int, str, int, str]:
        k, dtypes = rows.get(op, nowhere)
        return k, op, dtypes.get(dtype, len(dtypes)), dtype

    return place


def _coverage(rows: Iterable[Coverage]) -> tuple[Coverage, ...]:
    """One row for each family."""
    by: dict[str, list[Coverage]] = {}
    for c in rows:
        by.setdefault(c.family, []).append(c)
    return tuple(_one_family(family, some) for family, some in by.items())


def _one_family(family: str, rows: Sequence[Coverage]) -> Coverage:
    counts: Counter[str] = Counter()
    together: dict[str, Counter[str]] = {}
    for c in rows:
        counts.update(c.counts)
        for f, others in c.together.items():
            together.setdefault(f, Counter()).update(others)
    pairs: Mapping[str, Mapping[str, int]] = {f: dict(sorted(n.items())) for f, n in sorted(together.items())}
    return Coverage(family, sum(c.cases for c in rows), dict(sorted(counts.items())), pairs)


def _end(ends: Sequence[End], missing: str) -> End:
    """The end of the whole run: the longest time of a shard, for they ran side by side."""
    stopped = next((e.stopped for e in ends if e.stopped), "")
    return End(
        max(e.seconds for e in ends),
        {},
        f"{STOPPED}: without {missing}" if missing else stopped,
        sum(e.expected for e in ends),
        tuple(x for e in ends for x in e.lost),
        tuple(x for e in ends for x in e.broken),
        tuple(map(sum, itertools.zip_longest(*(e.rounds for e in ends), fillvalue=0))),
        tuple(x for e in ends for x in e.lacking),
        tuple(dict.fromkeys(x for e in ends for x in e.failed)),
    )


CODE = ("faults", "setup", "known")
# Options that may be given with --resume; the file says all others.
WITH_RESUME = (*CODE, "resume", "workers", "findings", "verbose")


@dataclass(frozen=True, slots=True)
class Kept:
    """The whole items of a run. parts: op and dtype -> rows; deaths: of these items."""

    path: Path
    header: Header
    parts: dict[tuple[str, str], tuple[Row, ...]]

    @property
    def ids(self) -> tuple[str, ...]:
        """The items' ids."""
        return tuple(f"{op}-{dtype}" for op, dtype in self.parts)


def kept(path: Path) -> Kept:
    """What is whole in a run file. Raises RunFileError, and UsageError if there is nothing left to run."""
    run = run_file.read(path, partial=True)
    unexplained = {(r.op, r.dtype) for r in run.records if r.unexplained and not is_own(r.op)}
    if run.end is not None and not run.end.stopped and len(run.items) == run.end.expected and not unexplained:
        raise UsageError(f"{path} holds a whole run: nothing is left to run; compare it with another one: parity diff")
    whole = {(i.op, i.dtype) for i in run.items if not is_own(i.op)} - unexplained  # users' own functions are compared again
    parts: dict[tuple[str, str], list[Row]] = defaultdict(list)
    of_items = (Record, Power, Figures, Sighting, ItemRow, Death, DrawnFeatures)
    for row in run_file.rows_of(path):
        again = isinstance(row, Death) and bool(row.shrunk)  # it is shrunk once more at the end
        again |= isinstance(row, Record) and row.unexplained  # it is there once more, with its cause
        if isinstance(row, of_items) and (row.op, row.dtype) in whole and not again:
            parts[row.op, row.dtype].append(row)
    old = [k for k, rows in parts.items() if not any(isinstance(r, DrawnFeatures) for r in rows)]
    if old:
        raise RunFileError(f"{path} was written by a parity that could not resume: run it again")
    return Kept(path, run.header, {k: tuple(rows) for k, rows in parts.items()})


def resumed_options(header: Header, given: RunOptions) -> RunOptions:
    """The options of the run, with those that were given with --resume, and the files of `[tool.parity]` where it had some.
    Raises UsageError for what would make it another run."""
    path = given.resume
    for o in OPTIONS:
        if o.name not in WITH_RESUME and getattr(given, o.name) != o.default:
            why = "and writes into it" if o.name == "output" else "and runs the rest alike"
            raise UsageError(f"--resume takes the options of {path} {why}; leave {o.flag} out")
    then = dict(_said(header))
    if "time" in then:
        raise UsageError(f"{path} is a run with --time, which has no rest; run it again")
    asked = project.found()
    named: dict[str, Any] = {n: getattr(given, n) or getattr(asked, n) or None for n in CODE if getattr(header, n).name}
    given = replace(given, **named)
    for name in CODE:
        _check_code("--known" if name == "known" else "--setup", str(path), getattr(header, name), getattr(given, name))
    return replace(given, **then)


def resumed_selection(words: Iterable[str]) -> str:
    """Words as a header holds them, from which `options` has them again: what has a space or a quote is quoted, patterns are
    not."""
    return " ".join(shlex.quote(w) if re.search(r"""[\s'"\\]""", w) else w for w in words)


def check_same(path: Path, then: Fingerprint, now: Fingerprint) -> None:
    """Refuse another device, torch, parity or machine: the halves would not be one run. Raises UsageError."""
    if said := difference(then, now):
        raise UsageError(f"{path} cannot be finished here, it was begun elsewhere: {said}; run it again as a new one")


def _check_code(option: str, path: str, then: Code, given: str | None) -> None:
    if then.name and not given:
        raise UsageError(
            f"{path} was run with {option} {then}; parity takes no file because a run file names it. Look at it, then type: "
            f"parity run --resume {path} {option} {then.name}"
        )
    if given and not code_of(given).same(then):
        what = f"{option} {code_of(given)} is not what {path} was run with"
        raise UsageError(f"{what}: {then if then.name else 'none'}; the halves would not be one run")


def _said(header: Header) -> Iterator[tuple[str, Any]]:
    """The options that a header holds, by name."""
    yield from {"device": header.fingerprint.device, "seed": header.seed, "profile": header.profile}.items()
    yield "shard", header.shard or None
    try:
        words = shlex.split(header.selection)
    except ValueError as e:
        raise UsageError(f"the selection of the run file cannot be read ({e}): {header.selection}; run it again") from None
    for name in ("family", "dtype", "model"):
        yield name, tuple(w.partition("=")[2] for w in words if w.startswith(f"{name}="))
    yield "source", next((w.partition("=")[2] for w in words if w.startswith("source=")), None)
    yield "op", tuple(w for w in words if w.partition("=")[0] not in ("family", "dtype", "model", "source"))
    by_flag, given = {o.flag: o for o in OPTIONS}, defaultdict[str, list[str]](list)
    for word in header.options.split():
        flag, _, value = word.partition("=")
        given[flag].append(value)
    for flag, values in given.items():
        if (o := by_flag.get(flag)) is None:
            raise UsageError(f"the run file was run with {flag}, which this parity does not know; run it again")
        yield o.name, True if o.is_switch else tuple(values) if o.is_repeatable else o.plain(values[-1])


def as_part(rows: tuple[Row, ...]) -> Json:
    """The rows of an item as its worker sent them."""
    found = [r for r in rows if isinstance(r, Record) and r.shrunk and not r.known]
    features = next(r for r in rows if isinstance(r, DrawnFeatures))
    lines = [run_file.encode(r) for r in rows if not isinstance(r, (Death, DrawnFeatures))]
    return {"rows": lines, "findings": [""] * len(found), "features": features.packed}
