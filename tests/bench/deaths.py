"""Is each of 72 ways to die reported rightly? `python -m tests.bench survival deaths [-n 1] [NAME ...]`.

Each is planted in a simulated device (in a kernel, a backward, a transfer or an allocation, at once or later, in this thread or
another), or, under another name, in the CPU. `parity run` of the op and of a healthy one must report the right status, name the
case, shrink it and write its script where it comes every time. What the fault does not touch must have the rows of a run
without it. Where the CPU dies the device must be acquitted. The exit code is 1 where one of these fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import front

from parity.core.errors import RunFileError
from parity.core.status import FINDINGS
from parity.engine.reading import HANG_AFTER
from parity.store import run_file
from parity.store.rows import Run

HEAD = """
import ctypes, os, signal, sys, threading, time, torch
from parity.devices import Fault
def later(seconds, act):
    threading.Thread(target=lambda: (time.sleep(seconds), act()), daemon=True).start()
def corrupt():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(ctypes.c_size_t(40)) for _ in range(8)]
    for b in blocks:
        ctypes.memset(b, 255, 120)
    for b in blocks:
        libc.free(ctypes.c_void_p(b))
def poison():
    torch.Tensor.isfinite = torch.equal = torch.isnan = lambda *a, **k: os.abort()
def raises(error):
    raise error
class Mute(RuntimeError):
    def __str__(self):
        raise ValueError
def odd(shape):
    return len(shape) == 3 and "examining" not in sys.argv[0]  # a device that dies of transfers in the probe is unusable
def effect(call):
    out = call.run()
    {act}
    return out
def when(call):
    if call.level == "allocation":
        return odd(call.args[0]) and call.kwargs.get("dtype") is torch.float32
    return bool(call.operands) and odd(call.operands[0].shape) and call.operands[0].dtype is torch.float32
FAULTS = [Fault("dies", ops={ops}, effect=effect, when=when, level="{level}")]
"""
SETUP = """
import os, torch
real = torch.exp
def exp(x, *a, **k):
    return {act} if x.is_cpu and x.dtype is torch.float32 and x.dim() == 3 else real(x, *a, **k)
torch.exp = exp
"""
FORWARD, BACKWARD = '("exp", "exp_", "exp.out")', '("sigmoid_backward",)'
PLACES = {
    "forward": (FORWARD, "kernel", "exp"),
    "backward": (BACKWARD, "kernel", "sigmoid"),
    "upload": ('("upload",)', "transfer", "exp"),
    "download": ('("download",)', "transfer", "exp"),
    "allocation": ('("empty",)', "allocation", "exp"),
}
AT_ONCE = {
    "abort": "os.abort()",
    "segfault": "ctypes.string_at(0)",
    "exit code 0": "os._exit(0)",
    "exit code 1": "os._exit(1)",
    "killed by itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "bus error": "os.kill(os.getpid(), signal.SIGBUS)",
    "hang": "time.sleep(1000)",
}
LATER = {
    "abort after 1 ms": "later(0.001, os.abort)",
    "abort after 4 ms": "later(0.004, os.abort)",
    "abort after 50 ms": "later(0.05, os.abort)",
    "abort in another thread at once": "later(0.0, os.abort)",
    "segfault after 4 ms": "later(0.004, lambda: ctypes.string_at(0))",
    "exit code 0 after 4 ms": "later(0.004, lambda: os._exit(0))",
    "exit code 1 after 4 ms": "later(0.004, lambda: os._exit(1))",
    "bus error after 4 ms": "later(0.004, lambda: os.kill(os.getpid(), signal.SIGBUS))",
}
ODD = {
    "heap corruption": "corrupt()",
    "closed descriptors": "os.closerange(3, 64)",
    "closed standard streams": "os.closerange(0, 3)",
    "abort in the comparison": "poison()",
    "killed by itself after 4 ms": "later(0.004, lambda: os.kill(os.getpid(), signal.SIGKILL))",
    "one abort in three after 4 ms": "later(0.004, lambda: time.time_ns() % 3 or os.abort())",
    "abort after 200 ms": "later(0.2, os.abort)",
}
ERRORS = {
    "KeyboardInterrupt": "raises(KeyboardInterrupt())",
    "SystemExit": "raises(SystemExit(3))",
    "an exception without words": "raises(Mute())",
    "five megabytes of words": "raises(RuntimeError('long ' * 1_000_000))",
    "a fork": "os.fork()",
    "a generator's end": "raises(StopIteration())",
}
CPU = {"the CPU aborts": "os.abort()", "the CPU is killed": "os.kill(os.getpid(), 9)"}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to die. status: what it must be reported as; empty if that is left to chance, as whether it comes at all. sure:
    whether it comes every time, so that it must be shrunk."""

    name: str
    code: str
    op: str
    option: str = "--setup"
    status: str = "crash"
    sure: bool = True


def ways() -> Iterator[Way]:
    """All of them."""
    for place, (ops, level, op) in PLACES.items():
        acts = AT_ONCE | (LATER if place in ("forward", "backward") else {k: LATER[k] for k in list(LATER)[1:3]})
        for name, act in acts.items():
            # The gradient's op is the last of the run, and its process may have ended before.
            chance = "killed" in name or (place, name) == ("backward", "abort after 50 ms")
            status = "hang" if name == "hang" else "" if chance else "crash"
            code = HEAD.replace("{act}", act).replace("{ops}", ops).replace("{level}", level)
            yield Way(f"{place}: {name}", code, op, status=status, sure=name in AT_ONCE and "killed" not in name)
    for name, act in (ODD | ERRORS).items():
        code = HEAD.replace("{act}", act).replace("{ops}", FORWARD).replace("{level}", "kernel")
        yield Way(name, code, "exp", status="error" if name in ERRORS else "", sure=False)
    for name, act in CPU.items():
        yield Way(name, SETUP.format(act=act), "exp", "--setup", "cpu", False)


def healthy_rows(path: Path, touched: bool) -> list[str]:
    """The rows of the healthy op, without times. touched: whether the fault reaches every op in float32."""
    kinds = ("item", "record", "figures", "power", "features")
    own = (row for row in front.rows(path)[1:] if row["kind"] in kinds and row["op"] == "neg")
    return front.texts([row for row in own if row["dtype"] == "int64" or not touched])


def problems(w: Way, run: Run, code: int, path: Path, healthy: dict[bool, list[str]], folder: Path) -> Iterator[str]:
    """What is wrong with how a way to die was reported."""
    deaths = [d for d in run.deaths if d.blame != "outside"]
    if w.status == "cpu":  # its other results may change with the function that the setup replaces
        acquitted = bool(deaths) and all(d.acquitted for d in deaths)
        if acquitted != (code == 0) or ("killed" not in w.name and not acquitted):  # a kill proves nothing
            yield "the CPU was not convicted"
        return
    touched = w.name.partition(":")[0] in ("upload", "download", "allocation")
    strays = touched and w.name.endswith("after 50 ms")  # any transfer starts one, and it may end the healthy op's process
    if not strays and healthy_rows(path, touched) != healthy[touched]:
        yield "the rest of the run is another one"
    survived = not w.status and not deaths  # a late death may come after the end, and closed streams harm nobody
    accused = any(r.op == w.op and r.status in FINDINGS for r in run.records) or any(run.end.broken if run.end else ())
    if code != (0 if survived and not accused else 1):
        yield f"exit code {code}"
    if survived:
        return
    if any(d.acquitted for d in deaths):
        yield "the device was acquitted"
    item = next((i for i in run.items if i.op == w.op), None)
    if item is None:
        yield "the item is lost"
    if w.status == "error":
        yield from () if any(r.status == "error" and r.op == w.op for r in run.records) else ("no error was reported",)
        return
    allowed = {w.op, "neg"} if touched else {w.op}
    if (
        not deaths
        or not {d.op for d in deaths} <= allowed
        or not all(d.case.startswith(d.op) for d in deaths if d.blame != "unknown")
    ):
        yield f"the deaths are named {sorted({d.op for d in deaths})}"
    if w.status and {d.how for d in deaths} != {w.status}:
        yield f"reported as {sorted({d.how for d in deaths})}"
    if w.sure and not any(d.shrunk and (folder / "findings" / Path(d.script).name).is_file() for d in deaths):
        yield "not shrunk, or no script"


def wrongly_told(w: Way, workers: int, healthy: dict[bool, list[str]]) -> bool:
    """Run one way to die, and print how it was reported."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "code.py").write_text(w.code)
        begun = time.monotonic()
        done = ended(w.op, Path(folder), [w.option, "code.py"], workers)
        path = Path(folder, "run.jsonl")
        said: list[str] = []
        try:
            run = run_file.read(path, partial=True)
            wrong = list(problems(w, run, done.returncode, path, healthy, Path(folder)))
            said = sorted({f"{d.how} ({d.signal}) at {d.stage}: {d.blame or '?'}" for d in run.deaths})
            said += [f"least: {d.shrunk}" for d in run.deaths if d.shrunk]
        except RunFileError as e:
            wrong = [str(e)]
        wrong += ["a traceback"] if "Traceback" in done.stderr else []
        mark = f"WRONG ({'; '.join(wrong)}) " if wrong else ""
        text = f"{mark}{w.name}: exit code {done.returncode}, {time.monotonic() - begun:.0f} s; {'; '.join(said)}"
        print(text + (f"\n{done.stdout[-1500:]}{done.stderr[-1500:]}" if wrong else ""), flush=True)
    return bool(wrong)


def main() -> int:
    """Run all; the exit code."""
    p = front.parser(__doc__)
    p.add_argument("names", nargs="*", help="names of the ways, or pieces of names")
    p.add_argument("-n", type=int, default=1)
    p.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    p.add_argument("--list", action="store_true", help="name the ways")
    o = p.parse_args()
    names = {w.name for w in ways()}
    chosen = [w for w in ways() if not o.names or any(w.name == a or (a not in names and a in w.name) for a in o.names)]
    if o.list:
        print("\n".join([*(w.name for w in chosen), f"{len(chosen)} ways to die"]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ended("exp", Path(folder), [], o.n)
        healthy = {touched: healthy_rows(Path(folder, "run.jsonl"), touched) for touched in (False, True)}
    with ThreadPoolExecutor(o.jobs) as pool:
        bad = sum(pool.map(lambda w: wrongly_told(w, o.n, healthy), chosen))
    print(f"{len(chosen)} ways to die, {bad} reported wrongly")
    return 1 if bad else 0


def ended(op: str, folder: Path, more: list[str], workers: int) -> subprocess.CompletedProcess[str]:
    """A run of an op and a healthy one."""
    env = {HANG_AFTER: "12"}  # a process's first gradient takes 8 s on a busy machine with torch for CUDA
    asked = ("run", op, "neg", "--device", "sim", "--dtype", "float32,int64", "--examples", "8", "--power", "0")
    return front.ran(*asked, "-n", str(workers), *more, "--output", "run.jsonl", folder=folder, env=env, codes=())


if __name__ == "__main__":
    sys.exit(main())
