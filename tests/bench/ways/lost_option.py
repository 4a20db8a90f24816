"""An option that decides how a run ends and is lost on the way: the rest of an interrupted run, shards, workers."""

from acquitted import Way, way

# Takes the rows of an op and the end out of a run file, as if the run had been killed before.
CUT = """
import json, sys
path, op = sys.argv[1:]
lines = open(path).read().splitlines(keepends=True)
rows = [json.loads(line) for line in lines]
gone = [row.get("op") == op or row.get("kind") in ("end", "coverage") for row in rows]
open(path, "w").writelines(line for line, out in zip(lines, gone) if not out)
"""
# A device that refuses sinh, or is off in it, in the workers alone: neither when it is examined nor in a fresh process.
FAULTS = """
import os, time
from parity.devices import Fault
from parity.devices.sim import faults as F
FAULTS = [Fault("sinh", ("sinh",), {effect}, lambda c: "PYTEST_XDIST_WORKER" in os.environ)]
"""
REFUSES, WRONG, SLOW = "F.refuse", "lambda c: c.run() * 1.5", "lambda c: (time.sleep(4), c.run())[1]"
NONE = "from parity.devices import Fault\nFAULTS = [Fault('none', ('sinh',), lambda c: c.run(), lambda c: False)]\n"
RUN = "parity run sinh mul --device sim --dtype float32 --examples 6 -n 1 --output run.jsonl"
JUDGED = "parity run solve exp --device sim --dtype float32 --examples 60 --power 0 -n 1 --output run.jsonl"
SHARD = "parity run sinh mul --device sim --dtype float32 --examples 3 -n 1"
REST = ("python cut.py run.jsonl mul", "parity run --resume run.jsonl -n 1 --setup faults.py")
TEST = "import torch\ndef test_sin(parity):\n    parity(torch.sin, torch.ones(3))\n"
FALLS_BACK = """
from parity.devices import Fault
from parity.devices.sim import faults as F
FAULTS = [Fault("sin", ("sin",), F.fall_back)]
"""
ENTRY = """format = 1
[[known]]
id = "sinh-by-hand"
reason = "ours"
ops = ["sinh"]
status = "wrong"
cases = ["forward: sinh(float32[3])"]
"""


INTERRUPTED = f"""
parity() {{ python -m parity "$@"; }}
python -m {RUN} --setup faults.py --fail-on unsupported > log 2>&1 &
until grep -q '"kind":"item"' run.jsonl 2> /dev/null; do sleep 0.05; done
kill -TERM $!
wait $!
sed -n 's/.*the run was interrupted.*; next: parity /python -m parity /p' log > next.sh
[ -s next.sh ] || echo 'echo the run was not interrupted; exit 99' > next.sh
"""
BEGUN = f"PARITY_HANG_AFTER=2 python -m {RUN} --setup faults.py --skip shrink\n"
AGAIN = "python cut.py run.jsonl exp", "parity run --resume run.jsonl -n 1"
SECOND, MERGED = f"{SHARD} --shard 2/2 --output 2.jsonl", "parity merge 1.jsonl 2.jsonl -o run.jsonl"
FIRST = f"{SHARD} --shard 1/2 --output 1.jsonl --fail-on void"


def resumed(name: str, option: str, effect: str, says: str = "") -> Way:
    """A way in which the run is killed after its first op and resumed."""
    return way(name, (f"{RUN} --setup faults.py {option}", *REST), {"cut.py": CUT, **planted(effect)}, says)


def planted(effect: str) -> dict[str, str | tuple[str, str]]:
    """The device of the workers, and a healthy one."""
    return {"faults.py": (FAULTS.format(effect=effect), NONE)}


WAYS = (
    resumed("--fail-on of a run that is resumed", "--fail-on unsupported", REFUSES, "failed by --fail-on"),
    resumed("--skip again of a run that is resumed", "--skip again", WRONG),
    way(
        "PARITY_HANG_AFTER of a run that is resumed", ("bash begun.sh", *REST),
        {"cut.py": CUT, **planted(SLOW), "begun.sh": BEGUN}, "hang",
    ),
    way(
        "--min-judged of a run that is resumed", (f"{JUDGED} --min-judged 1.0", *AGAIN), {"cut.py": CUT},
        "failed by --min-judged", twin=(f"{JUDGED} --min-judged 0.1", *AGAIN),
    ),
    way(
        "--fail-on known of a run that is resumed",
        (
            f"{RUN} --known known.toml --fail-on known", "python cut.py run.jsonl mul",
            "parity run --resume run.jsonl -n 1 --known known.toml",
        ),
        {"cut.py": CUT, "known.toml": (ENTRY, "format = 1\n")}, "1 fixed",
    ),
    way(
        "the command that an interrupted run prints", ("bash interrupted.sh", "bash next.sh"),
        {**planted(REFUSES), "interrupted.sh": INTERRUPTED}, "failed by --fail-on",
    ),
    way(
        "shards that were run with different gates", (FIRST, SECOND, MERGED), {}, "differ in the options", (2,),
        (FIRST, f"{SECOND} --fail-on void", MERGED),
    ),
    way(
        "--parity-fail-on in a worker of pytest-xdist",
        "pytest test_net.py -n 1 --parity-device sim --parity-faults=faults.py --parity-fail-on fallback",
        {"test_net.py": TEST, "faults.py": (FALLS_BACK, NONE)}, "ran on the CPU",
    ),
)  # fmt: skip
