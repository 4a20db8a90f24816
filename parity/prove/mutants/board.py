"""The score of mutants as text: by class, family and direction, with the survivors and why they survived."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from parity.core.child import Event
from parity.prove.board import wilson
from parity.prove.mutants.recording import classes
from parity.prove.mutants.scoring import Scores
from parity.report.words import plural

SHOWN = 200  # most survivors to list
JUDGED = 1e-2, 0.02  # a change below, or a part of the budget above which a survivor was judged inside of it


def counts(d: Event) -> bool:
    """Whether a mutant counts: it is killed, or has a witness."""
    return bool(d["killed"] or d.get("witness"))


def reason(d: Event) -> str:
    """Why a mutant survived."""
    if d.get("near"):
        return "drawn, marginal"
    if not d["fired"]:
        return "never drawn"
    if not d["changed"]:
        return "drawn, changed nothing"
    if d["policy"]:
        return "drawn, allowed by policy"
    worst, _, said = d["seen"]
    if "agree" not in said:
        return "drawn, not compared"
    if "unjudged" in said:
        return "drawn, excused"
    share = max(map(float, re.findall(r"share ([^\s;]+)", said)), default=0.0)
    return "drawn, inside the budget" if worst < JUDGED[0] or share > JUDGED[1] else "drawn, masked"


def _share(killed: int, of: int) -> str:
    low, high = wilson(killed, of)
    return f"{killed} of {of} = {100 * killed / of if of else 0:.1f} % (95 %: {100 * low:.0f} to {100 * high:.0f})"


def _table(title: str, ds: Sequence[Event], key: Callable[[Event], str]) -> Iterator[str]:
    yield f"\n{title:46} own row                                  with others"
    groups: dict[str, list[Event]] = defaultdict(list)
    for d in ds:
        groups[key(d)].append(d)
    for name, group in sorted(groups.items()):
        own, also = (sum(bool(d["killed"] or (more and d.get("elsewhere"))) for d in group) for more in (False, True))
        yield f"  {name:44.44} {_share(own, len(group)):40} {100 * also / len(group):.0f} %"


def render(s: Scores) -> str:
    """All of it."""
    return "\n".join(_met(s) if s.met is not None else _scored(s))


def _scored(s: Scores) -> Iterator[str]:
    broken, late = [d for d in s.mutants if d.get("broken")], [d for d in s.mutants if d.get("late")]
    ds = [d for d in s.mutants if not d.get("broken") and not d.get("late") and counts(d)]
    without = len(s.mutants) - len(ds) - len(broken) - len(late)
    yield (
        f"{plural(len(s.mutants), 'mutant')} with seed {s.seed} in {s.profile}: {len(ds)} count, {without} have no witness, "
        f"{len(late)} are not finished, {len(broken)} are broken"
    )
    killed, also = (sum(bool(d["killed"] or (more and d.get("elsewhere"))) for d in ds) for more in (False, True))
    yield f"killed by their own row                      {_share(killed, len(ds))}"
    yield f"killed by it or another row of the kernel    {_share(also, len(ds))}"
    little = sum(bool(not d["killed"] and d.get("near")) for d in ds)
    yield f"survive because marginal is no finding          {_share(little, len(ds))}"
    strict = [d for d in ds if not d["policy"]]
    yield f"by their own row, without what policy allows {_share(sum(d['killed'] for d in strict), len(strict))}"
    titles = classes()
    yield from _table("class", ds, lambda d: f"{d['kind']}: {titles[d['kind']].title}")
    yield from _table("family", ds, lambda d: str(d["family"]))
    yield from _table("direction", ds, lambda d: "public function" if d["direction"] == "any" else str(d["direction"]))
    left = sorted((d for d in ds if not d["killed"]), key=lambda d: (d["kind"], d["word"], d["row"]))
    yield "\nwhy survivors survived"
    yield from (f"  {n:5} {why}" for why, n in Counter(map(reason, left)).most_common())
    yield "\nclass and reason"
    yield from (f"  {n:5} {kind}, {why}" for (kind, why), n in Counter((d["kind"], reason(d)) for d in left).most_common(30))
    yield "\nsurvivors" + (f" (the first {SHOWN} of {len(left)})" if len(left) > SHOWN else "")
    for d in left[:SHOWN]:
        other = f"; {d['elsewhere']} reports it" if d.get("elsewhere") else ""
        yield f"  {d['id']}\n    {reason(d)}: {d['fired']} of {d['cases']} cases{other}\n    witness: {d['witness']}"
        if d["seen"]:
            yield f"    in {d['seen'][1]}: {d['seen'][2]}"
    for d in (*broken, *late):
        yield f"  {'not finished' if d.get('late') else 'broken'}: {d['id']} {d.get('broken', '')[:200]}"
    yield from (f"  not recorded: {u}" for u in s.unknown)


def _met(s: Scores) -> Iterator[str]:
    """The conditions that were never met, by class and word."""
    assert s.met is not None
    of, never = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for held in s.met.values():
        for identity, n in held.items():
            _, direction, what = identity.rsplit("/", 2)
            kind, _, word = what.partition(":")
            key = f"{kind} {({'f': 'forward', 'b': 'backward', 'a': 'function'})[direction]}", word.rpartition("=")[2]
            of[key] += 1
            never[key] += not n
    yield f"conditions that the cases of {plural(len(s.met), 'row')} never met, in {s.profile}"
    yield f"in all {sum(never.values()):,} of {sum(of.values()):,} (one that nothing can meet among them)"
    for kind in sorted({k for k, _ in of}):
        words = sorted(((never[k, w], of[k, w], w) for k, w in of if k == kind), reverse=True)
        shown = ", ".join(f"{w} {n} of {m}" for n, m, w in words[:8] if n)
        yield f"  {kind:28} {sum(n for n, _, _ in words):6} of {sum(m for _, m, _ in words):6}  {shown}"
