"""Does `assert_parity` keep silent on an honest device? `python tests/bench/silent.py -n 2 --seconds 400`.

Every native row that a function can express, as that function, in three dtypes and with the cases of three seeds, and random
models (`functions.py`) of as many seeds, on `sim:honest`: nothing is planted, so that each finding is a false alarm. The order
is drawn, so that a run that is cut short is a sample. One line for each alarm, the counts at the end. The exit code is 1 where
a finding says that a number is wrong.
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functions import random_model
from yardstick import DTYPES, TRIES

import parity
from parity.catalog.row import Row
from parity.core.errors import CaseError, ParityError
from parity.devices import Device, resolve
from parity.devices.sim import honest
from parity.engine import suite
from parity.execution import execute as ex
from parity.execution.inputs import build, torch_word
from parity.generation import generate
from parity.judging.rules import rule_of

SEEDS = 3
MODELS = 300  # of each seed


def as_function(row: Row, dtype: str, seed: int) -> tuple[Callable[..., Any], list[torch.Tensor]] | None:
    """A row as a function, and its inputs, of the first case of this seed that an ordinary call can be; None without one."""
    program = ex.program(row)
    for ordinal in range(1, TRIES + 1):
        try:
            case = generate.nth(row, dtype, suite.profile("quick").sizes, f"silent {seed}", ordinal).case
            inputs = build(case)
        except CaseError:
            continue
        if case.refused or case.under != "grad" or not inputs.operands or not inputs.operands[0].view.numel():
            continue

        def function(*xs: torch.Tensor, case: Any = case, inputs: Any = inputs) -> Any:
            args, kwargs = ex.arguments(case, inputs, xs, torch_word)
            return program.function(*args, **kwargs)

        leaves = [o.view.detach().clone() for o in inputs.operands]
        for x, o in zip(leaves, inputs.operands):
            x.requires_grad_(o.spec.grad and (x.is_floating_point() or x.is_complex()))
        return function, leaves
    return None


def tasks(seed: int) -> list[tuple[str, Callable[[], Any]]]:
    """All functions by name, in a drawn order."""
    native = {i.row.name: i.row for i in suite.select((), dtypes=DTYPES, source="native")}
    # without those whose values nobody promises: memory as it comes, random numbers
    rows = [r for r in native.values() if not (r.forms.mutates or r.forms.updates) and rule_of(r).has_values]
    found: list[tuple[str, Callable[[], Any]]] = [
        (f"{r.name} {d}, seed {s}", lambda r=r, d=d, s=s: as_function(r, d, s))  # type: ignore[misc]
        for s in range(seed, seed + SEEDS)
        for r in rows
        for d in DTYPES
        if d in r.dtypes
    ]
    found += [(f"random model {k}", random_model(k)) for k in range(seed * MODELS, (seed + SEEDS) * MODELS)]
    random.Random(seed).shuffle(found)
    return found


def one(make: Callable[[], Any], device: Device) -> tuple[str, str]:
    """("agrees", "alarm", "odd" or "left out", in words)."""
    torch.manual_seed(0)
    try:
        if (made := make()) is None:
            return "left out", "no plain case"
        parity.assert_parity(made[0], *made[1], device=device)
    except parity.ParityFailure as e:
        bad = [(n, v) for n, v in e.comparison.findings]
        kind = "alarm" if any(v.status.name in ("DRIFT", "WRONG") for _, v in bad) else "odd"
        return kind, "; ".join(f"{v.status} in {n or 'the call'}: {v.reason}" for n, v in bad[:3])[:300]
    except ParityError as e:
        return "left out", f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:150]}"
    except Exception as e:  # a function may raise anything
        return "odd", f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:150]}"
    return "agrees", ""


def part(k: int, of: int, seed: int, seconds: float, only: str) -> None:
    """Every `of`-th function, from the one with number k; one line for each."""
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    warnings.simplefilter("ignore")
    until, device = time.monotonic() + seconds, resolve("sim", tuple(honest.FAULTS))
    for name, make in [t for t in tasks(seed) if re.search(only, t[0])][k::of]:
        if time.monotonic() > until:
            break
        print("\t".join(("#", name, *one(make, device))), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the alarms and the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=400.0, help="after which no function is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of functions, as a regular expression: '^(svd|max_pool)'")
    parser.add_argument("--part", type=int, default=-1, help=argparse.SUPPRESS)
    o = parser.parse_args(argv)
    if o.part >= 0:
        part(o.part, o.n, o.seed, o.seconds, o.only)
        return 0
    began = time.monotonic()
    own = [sys.executable, __file__, "-n", str(o.n), "--seconds", str(o.seconds), "--seed", str(o.seed)]
    own += ["--only", o.only, "--part"]
    running = [
        subprocess.Popen([*own, str(k)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for k in range(o.n)
    ]
    counts: collections.Counter[str] = collections.Counter()
    left: collections.Counter[str] = collections.Counter()
    for k, p in enumerate(running):
        said, _ = p.communicate()
        for line in said.splitlines():
            if line.startswith("#\t") and line.count("\t") == 3:
                _, name, kind, text = line.split("\t")
                counts[kind] += 1
                left[text[:100]] += kind == "left out"
                if kind in ("alarm", "odd"):
                    print(f"{kind.upper()}: {name}: {text}", flush=True)
        if p.returncode:
            print(f"part {k} ended with {p.returncode} after {said.splitlines()[-1:]}", flush=True)
            counts["dead parts"] += 1
    for why, many in left.most_common(12):
        print(f"left out {many}: {why}")
    every = sum(bool(re.search(o.only, name)) for name, _ in tasks(o.seed))
    print(
        f"{counts['agrees']} functions agree on the honest device, {counts['alarm']} alarms about numbers, {counts['odd']} "
        f"other findings, {counts['left out']} left out, {counts['dead parts']} dead parts, of {every}; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if counts["alarm"] or counts["dead parts"] else 0


if __name__ == "__main__":
    sys.exit(main())
