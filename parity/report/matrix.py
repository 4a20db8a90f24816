"""What a run says of each op, dtype and pass, as one table: agrees, drifts, wrong, refused, ran on the CPU, not judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from parity.core.dtypes import DEFAULT
from parity.core.results import Aspect, Status
from parity.report.words import plural, table
from parity.runs.rows import Death, ItemRow

# One letter for each status, the worst first: a cell shows the worst that occurred.
LETTERS: dict[Status, str] = {
    Status.CRASH: "X",
    Status.HANG: "X",
    Status.KILLED: "X",
    Status.WRONG: "W",
    Status.MALFORMED: "M",
    Status.UNSTABLE: "N",
    Status.DRIFT: "D",
    Status.ERROR: "E",
    Status.OOM: "O",
    Status.FALLBACK: "f",
    Status.UNSUPPORTED: "u",
    Status.AGREE: ".",
    Status.VOID: "v",
}
NOT_RUN = "-"
PASSES: tuple[tuple[str, tuple[Aspect, ...]], ...] = (
    ("forward", (Aspect.FORWARD, Aspect.REPEAT)),
    ("backward", (Aspect.BACKWARD, Aspect.DOUBLE, Aspect.TANGENT)),
    ("out= and in-place", (Aspect.OUT, Aspect.INPLACE)),
    ("transfer and refusal", (Aspect.TRANSFER, Aspect.REFUSAL)),
)
LEGEND = (
    ". agrees  D drifts  W wrong  M wrong shape or aliasing  N changes from call to call  E raises  O out of memory  "
    "X ended the process  u refused  f ran on the CPU  v says nothing  - not run; where several occurred, the worst"
)


def cell(counts: Mapping[str, Mapping[str, int]], died: bool = False) -> str:
    """One letter per pass. counts: aspect -> status -> checks, of one op in one dtype."""
    letters = []
    for k, (_, aspects) in enumerate(PASSES):
        seen = {s for a in aspects for s, n in counts.get(a, {}).items() if n}
        letters.append("X" if died and k == 0 else next((x for s, x in LETTERS.items() if s in seen), NOT_RUN))
    return "".join(letters)


def rows(items: Iterable[ItemRow], deaths: Iterable[Death] = (), everything: bool = False) -> list[list[str]]:
    """A head and one row per op, by name; only ops with a letter other than `.`, `v` and `-` unless everything is asked for."""
    dead = {(d.op, d.dtype) for d in deaths}
    cells: dict[str, dict[str, str]] = {}
    for i in items:
        cells.setdefault(i.op, {})[i.dtype] = cell(i.counts, (i.op, i.dtype) in dead)
    for op, dtype in dead:
        cells.setdefault(op, {}).setdefault(dtype, cell({}, True))
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
    """The table for GitHub. Names of ops and dtypes are words of the catalog, so that nothing needs to be escaped."""
    head, *body = rows(items, deaths, everything)
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(f"`{c}`" if c else "" for c in row) for row in body]
    passes = ", ".join(name for name, _ in PASSES)
    return f"Four letters: {passes}. {LEGEND}\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"
