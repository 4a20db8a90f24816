"""Does each planted bug come out as one cause, and two bugs as two? `python -m tests.bench causes [--pairs N] [-n WORKERS]`.

Each bug of the zoo is planted alone on the simulated device, and the rows that reach its ops are examined with few examples.
One line per bug: how many kinds of findings, how many causes, and whether each cause names what was planted: an operator or
function of the fault. With --pairs, N random pairs of bugs are planted together; a pair is separated if it gives two causes.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import front
import known

from parity import tolerance
from parity.devices import resolve
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.findings.causes import gather
from parity.zoo.subjects import load

SECONDS = 300
DTYPES = ("float32", "float16", "int64", "complex64")
CHILD = "--child"


def examined(ids: Sequence[str], rows: Sequence[str], examples: int) -> dict[str, Any]:
    """The causes of some bugs planted together: (subject, symptom, properties, weight, kinds, ops)."""
    front.in_one_thread()
    faults = tuple(s.fault for s in load() if s.id in ids)
    device = resolve("sim", faults)
    options = RunOptions(device="sim", examples=examples, power=0)
    plan = RunPlan(device, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)
    records: list[Any] = []
    broken: list[str] = []
    for item in suite.select(rows, dtypes=DTYPES):
        try:
            records += examine(item, plan, NoJournal()).records
        except Exception as e:  # a bug that breaks the device
            broken.append(f"{item.id}: {type(e).__name__}: {str(e)[:100]}")
    causes = [
        (c.cause.subject, c.cause.symptom, list(c.cause.properties), c.weight, len(c.records), list(c.ops), c.case)
        for c in gather(records)
    ]
    return {"ids": list(ids), "causes": causes, "broken": broken}


def in_a_process(ids: Sequence[str], rows: Sequence[str], examples: int) -> dict[str, Any]:
    """`examined` in a process of its own, which the bug may end."""
    asked = json.dumps([list(ids), list(rows), examples])
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, CHILD, asked], capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"ids": list(ids), "causes": [], "broken": ["it hangs"]}
    if done.returncode:
        return {"ids": list(ids), "causes": [], "broken": [f"ended with {done.returncode}: {done.stderr.strip()[-200:]}"]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def names_it(cause: Sequence[Any], ops: Sequence[str]) -> bool:
    """Whether the subject, or an op among the members, is what was planted."""

    planted = {_bare(o) for o in ops}
    return _bare(str(cause[0])) in planted or any(_bare(op) in planted for op in cause[5])


def _bare(name: str) -> str:
    """An operator or function without its namespace, overload and underscore."""
    if name.startswith("torch.") or "::" in name:
        name = name.rpartition("::")[2] if "::" in name else name.rpartition(".")[2]
    return name.partition(".")[0].strip("_")


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per bug, then the sums."""
    if (argv or sys.argv[1:])[:1] == [CHILD]:
        print(json.dumps(examined(*json.loads(sys.argv[2]))))
        return 0
    parser = front.parser(__doc__)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("-n", type=int, default=2)
    o = parser.parse_args(argv)
    bugs = [(s.id, tuple(s.fault.ops), rows) for s, rows in known.reached(o.patterns) if s.silent is not False]
    tasks: list[tuple[list[str], list[str], list[str]]] = [([i], list(ops), list(rows)) for i, ops, rows in bugs]
    if o.pairs:
        draw = random.Random(o.seed)
        pairs = [draw.sample(bugs, 2) for _ in range(o.pairs)]
        tasks = [([a[0], b[0]], [*a[1], *b[1]], list({*a[2], *b[2]})) for a, b in pairs]
    pool = ThreadPoolExecutor(o.n)
    shown = right = named = 0
    examples = itertools.repeat(o.examples)
    for (ids, ops, _), answer in zip(tasks, pool.map(in_a_process, [t[0] for t in tasks], [t[2] for t in tasks], examples)):
        causes = answer["causes"]
        kinds = sum(c[4] for c in causes)
        shown += bool(causes)
        # A fault of several operators gives one cause for each; they count as one if all their other facts are equal.
        alike = {(c[1], tuple(c[2])) if any(names_it(c, [o]) for o in ops) else tuple(map(str, c)) for c in causes}
        right += bool(causes) and len(alike) == len(ids)
        named += bool(causes) and all(any(names_it(c, [o]) for o in ops) for c in causes)
        print(
            f"{'+'.join(ids)}: {kinds} kinds, {len(causes)} causes; planted in {', '.join(ops)}; {'; '.join(answer['broken'])}",
            flush=True,
        )
        for c in causes:
            print(f"    {c[3]} {c[0]} | {c[1]} | {', '.join(c[2])} | {c[4]} kinds in {', '.join(c[5])} | {c[6][:100]}")
    print(f"{len(tasks)} asked, {shown} show findings, {right} give as many causes as bugs, {named} name what was planted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
