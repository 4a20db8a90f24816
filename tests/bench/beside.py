"""The field's rule against parity's, on the same results: `parity run --setup tests/bench/beside.py`, then run this file.

As a set-up it makes every comparison of a run ask `torch.testing.assert_close` (defaults, NaN equal to NaN) too, and appends
one line per comparison in which either rule objects to the file that $BESIDE names. Started as a program with that file it
prints how many ops either rule flags, by dtype and pass:

    BESIDE=beside.jsonl parity run --device cuda --source opinfo --setup tests/bench/beside.py
    python tests/bench/beside.py beside.jsonl
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any


def installed(path: str) -> None:
    """Make `check` ask both rules from now on."""
    import torch
    from torch import Tensor

    from parity.checks import trial

    judge = vars(trial)["judge"]

    def both(bench: Any, device: Mapping[str, Tensor], reference: Any, pass_: str, parts: Any = None) -> Any:
        verdict, measures = judge(bench, device, reference, pass_, parts)
        if reference is None or parts or set(device) != set(reference):
            return verdict, measures
        plain = True
        for name, x in device.items():
            try:
                torch.testing.assert_close(x, reference[name], equal_nan=True)
            except (AssertionError, RuntimeError, ValueError, NotImplementedError):
                plain = False
        if not plain or verdict.status.is_finding:
            main = next((str(x.dtype).removeprefix("torch.") for x in device.values()), "")
            line = {"op": bench.row.name, "dtype": main, "pass": pass_, "plain": plain, "status": str(verdict.status)}
            with open(path, "a") as f:  # one short line is appended whole
                f.write(json.dumps(line) + "\n")
        return verdict, measures

    vars(trial)["judge"] = both


def table(path: str) -> None:
    """Ops flagged by either rule."""
    flagged: dict[tuple[str, str], tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    with open(path) as f:
        for line in map(json.loads, f):
            plain, parity = flagged[line["dtype"], line["pass"]]
            if not line["plain"]:
                plain.add(line["op"])
            if line["status"] != "agree":
                parity.add(line["op"])
    print(f"{'dtype':12}{'pass':12}{'assert_close':>14}{'parity':>8}   parity's alone")
    for (dtype, pass_), (plain, parity) in sorted(flagged.items()):
        print(f"{dtype:12}{pass_:12}{len(plain):14}{len(parity):8}   {' '.join(sorted(parity - plain))[:150]}")


if __name__ == "__main__":
    table(sys.argv[1])
elif path := os.environ.get("BESIDE"):
    installed(path)
