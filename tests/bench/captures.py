"""Do captures say what both sides at hand say? `python tests/bench/captures.py [--dtype D ...] [--limit SIZE] [network ...]`.

The networks and faults of `locating.py`. One process runs each network on its healthy, honest or faulty device, locates there
with both sides at hand, and writes a capture; this process reads the captures and judges them on the CPU. One line for each
that names another module or operator; then how many are the same, and sizes and times.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from locating import FAULTS, NETWORKS, Made, Planted, callers, plain

import parity
from parity.devices import Device, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.engine.options import read_size

BLAMELESS = ("healthy", "honest")


def made(name: str, dtype: str) -> Made:
    """A network in a dtype, the same in every process."""
    torch.manual_seed(0)
    net, inputs = NETWORKS[name]()
    kind = getattr(torch, dtype)
    return net.to(kind), tuple(x.to(kind) if x.is_floating_point() else x for x in inputs)


def devices(name: str, dtype: str) -> Iterator[tuple[str, str, Callable[[], Device]]]:
    """(what, the module that is struck, what makes the device) of each device for a network. A device is made for each run, as
    its fault counts calls."""
    yield "healthy", "", lambda: resolve("sim")
    yield "honest", "", lambda: resolve("sim", tuple(HONEST))
    for what, planted in FAULTS.items():
        calling = callers(*made(name, dtype), planted.forward)
        if calling:
            at = len(calling) // 2
            number = len(calling) - 1 - at if planted.backward else at
            yield what, calling[at], functools.partial(struck, planted, number, len(calling))


def struck(planted: Planted, number: int, of: int) -> Device:
    """A device with a fault in one of its calls."""
    return resolve("sim", (planted.fault(number, of),))


def answer(found: parity.Located) -> list[str]:
    """The first module, operator and pass that were named."""
    one = found.first
    return [] if one is None else [one.place.module, one.operator, one.pass_]


def record(names: Sequence[str], dtypes: Sequence[str], limit: int, folder: Path) -> None:
    """Write the captures, and one line of JSON for each: what it is, and what both sides at hand say."""
    k = 0
    for name in names:
        for dtype in dtypes:
            net, inputs = made(name, dtype)
            sim = resolve("sim")
            plain(net, inputs, sim)
            usual = min(plain(net, inputs, sim) for _ in range(3))
            net, inputs = made(name, dtype)
            for what, module, device in devices(name, dtype):
                began = time.perf_counter()
                both = parity.locate(net, *inputs, device=device())
                locating = (time.perf_counter() - began) / usual
                if what in FAULTS and not FAULTS[what].struck:
                    continue
                path = folder / f"{(k := k + 1)}.capture"
                began = time.perf_counter()
                kept = parity.capture(net, *inputs, device=device(), path=path, limit=limit)
                took = (time.perf_counter() - began) / usual
                row = {
                    "name": name, "dtype": dtype, "what": what, "module": module, "both": answer(both), "path": str(path),
                    "size": kept.size, "calls": kept.operators, "sketched": kept.sketched, "took": took, "usual": usual,
                    "locating": locating,
                }  # fmt: skip
                print(json.dumps(row), flush=True)


def judged(row: dict[str, Any]) -> tuple[list[str], float]:
    """What the capture says here, and how many times a plain pass on both sides that takes."""
    net, inputs = made(row["name"], row["dtype"])
    began = time.perf_counter()
    found = parity.locate(net, *inputs, against=row["path"])
    return answer(found), (time.perf_counter() - began) / row["usual"]


def middle(values: Sequence[float]) -> str:
    """The median and the largest."""
    return f"{statistics.median(values):.3g} (at most {max(values):.3g})"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is not the same, and the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--limit", type=read_size, default=64 << 20)
    parser.add_argument("--record", type=Path, help="write the captures into this folder, and judge none")
    parser.add_argument("patterns", nargs="*", help="networks by a part of their name")
    o = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    dtypes = o.dtype or ["float32", "float16", "bfloat16"]
    names = [n for n in NETWORKS if not o.patterns or any(p in n for p in o.patterns)]
    if o.record:
        record(names, dtypes, o.limit, o.record)
        return 0
    rows = same = right = blamed = healthy = 0
    took: list[float] = []
    judging: list[float] = []
    locating: list[float] = []
    sizes: list[int] = []
    sketched = 0
    with tempfile.TemporaryDirectory() as folder:
        given = [*names, *(f"--dtype={d}" for d in dtypes), f"--limit={o.limit}", f"--record={folder}"]
        with subprocess.Popen([sys.executable, __file__, *given], stdout=subprocess.PIPE, text=True) as there:
            for line in there.stdout or ():
                row = json.loads(line)
                here, ratio = judged(row)
                rows, same = rows + 1, same + (here == row["both"])
                took, judging, sizes = [*took, row["took"]], [*judging, ratio], [*sizes, row["size"]]
                sketched += row["sketched"]
                locating.append(row["locating"])
                if row["what"] in BLAMELESS:
                    healthy, blamed = healthy + 1, blamed + bool(here)
                else:
                    right += here[:1] == [row["module"]]
                if here != row["both"]:
                    print(f"{row['name']} {row['dtype']}: {row['what']} in {row['module']}: {here}, and both: {row['both']}")
                Path(row["path"]).unlink()
        if there.returncode:
            return there.returncode
    faults, kib = rows - healthy, [size / 1024 for size in sizes]
    share = right / max(1, faults)
    print(
        f"{rows} captures: {same} say what both sides at hand say; {faults} faults: module named in {right} ({share:.0%}); "
        f"{healthy} healthy and honest devices, {blamed} blamed; {sketched} results are sketches"
    )
    print(
        f"a capture has {middle(kib)} KiB, making it takes {middle(took)} times plain passes on both sides, judging it "
        f"{middle(judging)}; locating with both sides at hand takes {middle(locating)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
