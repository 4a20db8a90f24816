"""Twenty ways to die outside the device's stage: `python tests/bench/deaths.py [-n 1] [NAME ...]`.

Each is planted in a simulated device (or, under another name, in the CPU), and `parity run` must not end with 0 unless the CPU
was the one. It prints what each run ended with, and what was said of the deaths; the exit code is 1 where one was acquitted
wrongly.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parity.core.errors import RunFileError
from parity.runs import run_file

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
def effect(call):
    out = call.run()
    {act}
    return out
FAULTS = [Fault("dies", ops=("exp", "exp_", "exp.out"), effect=effect, level="kernel")]
"""
DEVICE = {
    "abort after 4 ms": "later(0.004, os.abort)",
    "abort after 1 ms": "later(0.001, os.abort)",
    "abort after 50 ms": "later(0.05, os.abort)",
    "abort after 200 ms": "later(0.2, os.abort)",
    "abort in another thread at once": "later(0.0, os.abort)",
    "segfault after 4 ms": "later(0.004, lambda: ctypes.string_at(0))",
    "exit code 0 after 4 ms": "later(0.004, lambda: os._exit(0))",
    "exit code 1 after 4 ms": "later(0.004, lambda: os._exit(1))",
    "exit code 0 at once": "os._exit(0)",
    "heap corruption": "corrupt()",
    "closed descriptors": "os.closerange(3, 64)",
    "closed descriptors after 4 ms": "later(0.004, lambda: os.closerange(3, 64))",
    "closed standard streams": "os.closerange(0, 3)",
    "killed by itself after 4 ms": "later(0.004, lambda: os.kill(os.getpid(), signal.SIGKILL))",
    "killed by itself at once": "os.kill(os.getpid(), signal.SIGKILL)",
    "bus error after 4 ms": "later(0.004, lambda: os.kill(os.getpid(), signal.SIGBUS))",
    "abort in the comparison": "poison()",
    "one abort in three after 4 ms": "later(0.004, lambda: time.time_ns() % 3 or os.abort())",
}
SETUP = """
import os, torch
real = torch.exp
def exp(x, *a, **k):
    return {act} if x.is_cpu and x.dtype is torch.float32 else real(x, *a, **k)
torch.exp = exp
"""
CPU = {"the CPU aborts": "os.abort()", "the CPU is killed": "os.kill(os.getpid(), 9)"}


def main() -> int:
    """Run all; the exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*")
    p.add_argument("-n", type=int, default=1)
    o = p.parse_args()
    bad = 0
    for name, act in {**DEVICE, **CPU}.items():
        if o.names and not any(part in name for part in o.names):
            continue
        cpu = name in CPU
        with tempfile.TemporaryDirectory() as folder:
            file, run = Path(folder, "code.py"), Path(folder, "run.jsonl")
            file.write_text(SETUP.format(act=act) if cpu else HEAD.replace("{act}", act))
            command = [
                sys.executable, "-P", "-m", "parity", "run", "exp", "--device", "sim", "--dtype", "float32", "--examples", "6",
                "-n", str(o.n), "--no-shrink", "--no-power", "--setup" if cpu else "--faults", str(file), "--output", str(run),
                "--findings", folder,
            ]  # fmt: skip
            begun = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            try:
                deaths = run_file.read(run, partial=True).deaths
            except RunFileError:
                deaths = ()
            said = sorted({f"{d.how} ({d.signal}) at {d.stage}: {d.blame or '?'}" for d in deaths})
            wrong = done.returncode == 0 and not (deaths and all(d.acquitted for d in deaths))
            wrong |= (not cpu and any(d.acquitted for d in deaths)) or "Traceback" in done.stderr
            bad += wrong
            mark = "WRONG " if wrong else ""
            print(f"{mark}{name}: exit code {done.returncode}, {time.monotonic() - begun:.0f} s; {'; '.join(said)}", flush=True)
            if wrong:
                print(done.stdout[-1500:] + done.stderr[-1500:])
    print(f"{bad} acquitted wrongly")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
