"""A table of a run's ops, dtypes and passes: agrees, drifts, wrong, refused, ran on the CPU, not judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from parity.core.dtypes import DEFAULT
from parity.core.results import BY_SEVERITY, Aspect, Status
from parity.report.causes import COMMENT, of_run
from parity.report.run_answers import NOT_RUN as NOT_RUN_WORD
from parity.report.run_answers import Matrix, MatrixRow
from parity.report.words import plural, table
from parity.store.rows import Death, Header, ItemRow

NOT_RUN = "-"
PASSES: tuple[tuple[str, tuple[Aspect, ...]], ...] = (
    ("forward", (Aspect.FORWARD, Aspect.REPEAT)),
    ("backward", (Aspect.BACKWARD, Aspect.DOUBLE, Aspect.TANGENT)),
    ("out= and in-place", (Aspect.OUT, Aspect.INPLACE)),
    ("transfer and refusal", (Aspect.TRANSFER, Aspect.REFUSAL)),
)
LEGEND = (
    ". agrees  D drifts  m marginal  W wrong  M wrong shape or aliasing  N changes from call to call  R not reproduced  "
    "E raises  O out of memory  X ended the process  u refused  f ran on the CPU  v not judged  - not run; "
    "of several, the worst"
)


def passes_of(counts: Mapping[str, Mapping[str, int]], deaths: Iterable[Death] = ()) -> list[Status | None]:
    """The worst status of each pass; None where nothing ran. counts: aspect -> status -> checks, of one op in one dtype;
    deaths: of the same, in the forward pass if they name none."""
    died = {(d.aspect or Aspect.FORWARD, d.how) for d in deaths}
    worst = []
    own = tuple(Aspect(a) for a in counts if a not in tuple(Aspect))  # of files outside of the package: of the forward pass
    for aspects in (a if k else (*a, *own) for k, (_, a) in enumerate(PASSES)):
        seen = {s for a in aspects for s, n in counts.get(a, {}).items() if n} | {how for a, how in died if a in aspects}
        worst.append(next((s for s in BY_SEVERITY if s in seen), None))
    return worst


def letters(worst: Iterable[Status | None]) -> str:
    """One for each pass."""
    return "".join(NOT_RUN if s is None else s.letter for s in worst)


def _by_item(deaths: Iterable[Death]) -> dict[tuple[str, str], list[Death]]:
    by: dict[tuple[str, str], list[Death]] = {}
    for d in deaths:
        by.setdefault((d.op, d.dtype), []).append(d)
    return by


def rows(items: Iterable[ItemRow], deaths: Iterable[Death] = (), everything: bool = False) -> list[list[str]]:
    """A head and one row per op, by name; only ops with a letter other than `.`, `v` and `-` unless everything is asked for."""
    cells: dict[str, dict[str, str]] = {}
    for (op, dtype), worst in worst_of(items, deaths).items():
        cells.setdefault(op, {})[dtype] = letters(worst)
    used = {d for by in cells.values() for d in by}
    dtypes = [d for d in DEFAULT if d in used] + sorted(used - set(DEFAULT))
    chosen = [op for op, by in sorted(cells.items()) if everything or set("".join(by.values())) - set(".v-")]
    return [["op", *dtypes], *([op, *(cells[op].get(d, "") for d in dtypes)] for op in chosen)]


def render(items: Sequence[ItemRow], deaths: Sequence[Death] = (), everything: bool = False) -> str:
    """The table as text, with its legend."""
    made = rows(items, deaths, everything)
    left = len(rows(items, deaths, True)) - len(made)
    passes = ", ".join(name for name, _ in PASSES)
    text = [f"four letters for each op and dtype: {passes}", LEGEND, "", *table(made)]
    return "\n".join([*text, *([f"\nall agree: {plural(left, 'more op')}; -v lists them"] if left > 0 else [])])


def as_markdown(items: Sequence[ItemRow], deaths: Sequence[Death] = (), everything: bool = False) -> str:
    """The table for GitHub, the worst ops first, cut to the length of a comment. Names of ops and dtypes are words of the
    catalog, or escaped where they are not."""
    head, *body = rows(items, deaths, everything)
    body.sort(key=lambda row: _badness("".join(row[1:])))
    passes = ", ".join(name for name, _ in PASSES)
    text = f"Four letters: {passes}. {LEGEND}\n\n"
    text += "".join(f"| {' | '.join(cells)} |\n" for cells in (list(map(_plain, head)), ["---"] * len(head)))
    for k, row in enumerate(body):
        line = f"| {' | '.join(f'`{_plain(c)}`' if c else '' for c in row)} |\n"
        if len(text) + len(line) > COMMENT - 200:
            return text + f"\n... and {plural(len(body) - k, 'more op')}: `parity report RUN --matrix`\n"
        text += line
    return text


def _badness(letters: str) -> tuple[int, ...]:
    """How often each letter occurs, the worst letter first: the smaller the worse."""
    return tuple(-letters.count(x) for x in dict.fromkeys(s.letter for s in BY_SEVERITY) if x not in ".v")


def _plain(name: str) -> str:
    """A name without what would end its cell or its code."""
    return name.replace("|", "\\|").replace("`", "'")


def answer(header: Header, items: Sequence[ItemRow], deaths: Sequence[Death] = ()) -> Matrix:
    """The whole table for other programs: for each op and dtype the worst status of each pass, `not run` for none."""
    return Matrix(
        1,
        of_run(header),
        tuple(
            MatrixRow(op, dtype, {name: str(s or NOT_RUN_WORD) for (name, _), s in zip(PASSES, worst)})
            for (op, dtype), worst in worst_of(items, deaths).items()
        ),
    )


def worst_of(items: Iterable[ItemRow], deaths: Iterable[Death] = ()) -> dict[tuple[str, str], list[Status | None]]:
    """What `passes_of` says of each op and dtype, those at the end of which only a death is known."""
    dead = _by_item(deaths)
    found = {(i.op, i.dtype): passes_of(i.counts, dead.pop((i.op, i.dtype), ())) for i in items}
    return found | {where: passes_of({}, died) for where, died in dead.items()}
