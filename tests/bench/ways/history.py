"""A fault that one call alone does not show: it needs calls before it, or calls after it."""

from acquitted import Way, way

BEGIN = """
import os, random
import torch
from parity.devices import Fault
BAD, N, CHANCE = True, [0], random.Random(5)
"""
RUN = "parity run {ops} --device sim --dtype float32 --examples 12 -n 1 --power 0 --setup f.py --output r.jsonl --seed {seed}"
SINH = "FAULTS = [Fault('f', ('sinh',), f)]"
COUNTED = """
def f(c):
    N[0] += 1
    r = c.run()
    return r * 2 if BAD and {when} else r
"""

# name -> the ops, and the faults
FAULTS = {
    "every tenth kernel call": ("sinh", COUNTED.format(when="N[0] % 10 == 0") + SINH),
    "three calls in the life of a worker": ("sinh", COUNTED.format(when="N[0] in (23, 24, 25)") + SINH),
    "the second half of a worker's life": ("sinh", COUNTED.format(when="N[0] > 30") + SINH),
    "one call in ten by chance": ("sinh", COUNTED.format(when="CHANCE.random() < 0.1") + SINH),
    "every third backward": (
        "sinh",
        COUNTED.format(when="N[0] % 3 == 0").replace("N[0] += 1", "N[0] += c.direction == 'backward'")
        + "FAULTS = [Fault('f', ('cosh',), f)]",
    ),
    "wrong after another op": (
        "acos asin",
        """
SEEN = set()
def f(c):
    SEEN.add(c.op.partition('.')[0].rstrip('_'))
    return c.run() * (2 if BAD and len(SEEN) == 2 else 1)
FAULTS = [Fault('f', ('acos', 'asin'), f)]
""",
    ),
    "a cache with the shape alone as its key": (
        "sinh",
        """
CACHE = {}
def f(c):
    r, x = c.run(), c.args[0]
    return CACHE.setdefault(tuple(x.shape), r.clone()).clone() if BAD and x.numel() else r
"""
        + SINH,
    ),
    "a result whose memory the next call takes": (
        "sinh",
        """
LAST = {}
def f(c):
    r = c.run()
    if BAD and (last := LAST.get(tuple(r.shape))) is not None:
        with torch.no_grad(): last.detach().fill_(77.0)
    LAST[tuple(r.shape)] = r
    return r
FAULTS = [Fault('f', ('sinh',), f, level='function')]
""",
    ),
    "the next call's values in the memory of a result": (
        "sinh",
        """
LAST = {}
def f(c):
    r = c.run()
    if BAD and (last := LAST.get(tuple(r.shape))) is not None:
        last.copy_(r.detach())
    LAST[tuple(r.shape)] = r.detach()
    return r
FAULTS = [Fault('f', ('sinh',), f, level='function')]
""",
    ),
    "a write that comes late": (
        "sinh cosh",
        """
LAST = []
def f(c):
    for r in LAST if BAD else ():
        r.reshape(-1)[-1:].fill_(5.0)
    r = c.run()
    LAST[:] = [r]
    return r
FAULTS = [Fault('f', ('sinh', 'cosh'), f)]
""",
    ),
    "wrong after a large operand": (
        "sinh",
        """
def f(c):
    r = c.run()
    N[0] += r.numel() >= 24
    return r * 2 if BAD and N[0] and r.numel() < 24 else r
"""
        + SINH,
    ),
}


def _way(name: str, seed: int, more: str = "") -> Way:
    ops, text = FAULTS[name]
    bad = BEGIN + text
    files = {"f.py": (bad, bad.replace("BAD, N, CHANCE = True", "BAD, N, CHANCE = False"))}
    return way(f"{name}, seed {seed}{more}", RUN.format(ops=ops, seed=seed) + more, files)


WAYS = (
    *(_way(name, seed) for seed in range(3) for name in FAULTS),
    _way("every tenth kernel call", 0, " --skip again"),
    _way("three calls in the life of a worker", 1, " --skip again"),
)
