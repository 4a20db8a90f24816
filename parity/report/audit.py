"""The report of an audit, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from parity.core.errors import OutputError
from parity.core.version import __version__
from parity.runs.audit import Audit, Kernels, Operator, State

WIDTH = 120
MEANING = {
    State.REACHED: "a compared case dispatched it",
    State.WHOLE: "its public op was compared whole on sim:mps, or it was dispatched on MPS",
    State.MISSED: "see the reasons",
}


def render(audit: Audit) -> str:
    """The operators by state, the reasons, and in the last line how many count."""
    missed = audit.of(State.MISSED)
    lines = [f"parity {__version__} audit: operators with an MPS kernel in torch {audit.torch}", *audit.runs]
    for state in (State.REACHED, State.WHOLE):
        if operators := audit.of(state):
            lines += ["", f"{state} ({len(operators)})", *_packed(operators)]
    if missed:
        lines += ["", f"{State.MISSED} ({len(missed)})", *_reasons(missed)]
    lines += ["", *_table(audit), "", last_line(audit)]
    return "\n".join(lines)


def kernels(k: Kernels) -> str:
    """Which operators gained or lost an MPS kernel, and in the last line how many."""
    lines = [f"MPS kernels from torch {k.before} to {k.after}"]
    for word, some, new in (("lost", k.lost, "no such operator any more"), ("gained", k.gained, "a new operator")):
        for is_new, names in (("", [n for n, x in some.items() if not x]), (f", {new}", [n for n, x in some.items() if x])):
            text = wrap("  ".join(names), WIDTH - 2, break_long_words=False, break_on_hyphens=False)
            lines += ["", f"{word}{is_new} ({len(names)})", *(f"  {line}" for line in text)] if names else []
    return "\n".join([*lines, "", f"{k.kept} kept, {len(k.gained)} gained, {len(k.lost)} lost"])


def last_line(audit: Audit) -> str:
    """N of M (x %)."""
    many = len(audit.operators)
    return f"{audit.reached} of {many} ({100 * audit.reached / max(1, many):.1f} %)"


def _packed(operators: Sequence[Operator]) -> Iterator[str]:
    """Overloads grouped by their common name: "add.Tensor .out"."""
    words = []
    for base, some in groupby(operators, lambda o: o.name.partition(".")[0]):
        overloads = [o.name.removeprefix(base) for o in some]
        words.append((base + " ".join(overloads)).replace(" ", "\0"))
    for line in wrap("  ".join(words), WIDTH - 2, break_long_words=False, break_on_hyphens=False):
        yield "  " + line.replace("\0", " ")


def _reasons(missed: Sequence[Operator]) -> Iterator[str]:
    wide = max(len(o.name) for o in missed)
    for o in missed:
        yield f"  {o.name:<{wide}}  {o.reason}"


def _table(audit: Audit) -> Iterator[str]:
    wide = max(map(len, State))
    yield f"{'state':<{wide}}  operators"
    for state in State:
        yield f"{state:<{wide}}  {len(audit.of(state)):>9}  {MEANING[state]}"


def write(audit: Audit, path: Path) -> None:
    """Write everything as JSON. Raises OutputError."""
    tree = {
        "parity": __version__,
        "torch": audit.torch,
        "runs": audit.runs,
        "reached": audit.reached,
        "operators": {o.name: {"state": o.state, "rows": o.rows, "reason": o.reason} for o in audit.operators},
    }
    try:
        path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another with --output") from None
