"""Do two runs say the same? `python tests/bench/same.py before.jsonl after.jsonl`, for a change that must not change behaviour.

Both run files hold what was drawn (a digest of all case ids of an item), how each aspect came out, the largest error ratio,
every stored record with its cause and least case, the figures of pinned cases, deaths, and what was seen of known findings.
Each difference is printed; the exit code is 1 where there is one. `parity diff` asks another question: whether a device got
worse.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.store import run_file

SHOWN = 200


def rows(path: str) -> dict[tuple[Any, ...], Any]:
    """What a run file says, by what it speaks of."""
    run = run_file.read(Path(path))
    said: dict[tuple[Any, ...], Any] = {}
    for i in run.items:
        for name in ("cases", "ids", "counts", "void", "judged", "left", "elements", "leaks", "not_run", "metadata"):
            said["item", i.op, i.dtype, i.round, name] = getattr(i, name)
        for aspect, worst in i.worst.items():
            said["item", i.op, i.dtype, i.round, "worst", aspect] = f"{worst:.6g}"
    for r in run.records:
        for name in ("status", "reason", "origin", "measures", "shrunk", "cause", "count", "also", "known", "gone"):
            said["record", r.case, r.aspect, name] = getattr(r, name)
    parts: Counter[tuple[str, str]] = Counter()
    for f in run.figures:
        said["figures", f.op, f.dtype, parts[f.op, f.dtype]] = replace(f, seconds={})
        parts[f.op, f.dtype] += 1
    for d in run.deaths:
        for name in ("how", "signal", "stage", "blame", "known", "shrunk", "shrunk_aspect"):
            said["death", d.op, d.dtype, d.case, name] = getattr(d, name)
    for s in run.known:
        said["known", s.id, s.op, s.dtype, s.aspect, s.case] = s.state, s.why, s.fails
    return said


def differences(one: dict[tuple[Any, ...], Any], other: dict[tuple[Any, ...], Any]) -> Iterator[str]:
    """Each thing that only one run says, or that they say otherwise."""
    for key in sorted({*one, *other}, key=str):
        before, after = one.get(key), other.get(key)
        if before != after:
            yield f"{' '.join(map(str, key))}: {before} -> {after}"


def main() -> int:
    before, after = (rows(p) for p in sys.argv[1:3])
    found = list(differences(before, after))
    for line in found[:SHOWN]:
        print(line[:400])
    print(f"{len({*before, *after}):,} statements compared, {len(found):,} differ")
    return 1 if found or not before else 0


if __name__ == "__main__":
    sys.exit(main())
