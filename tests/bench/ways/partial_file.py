"""A file of which a part is missing or was changed."""

from acquitted import Way, way

RUN = "parity run sinh mul --device sim --dtype float32 --examples 6 -n 1"
# Changes a run file: takes rows out of it, or bytes, or edits them.
SPOIL = """
import json, sys
path, how = sys.argv[1:]
text = open(path).read()
lines = text.splitlines(keepends=True)
rows = [json.loads(line) for line in lines]
last = max(k for k, row in enumerate(rows) if row.get("kind") == "item")
if how == "whole": pass
elif how == "last line": text = text[:-20]
elif how == "end": text = "".join(line for row, line in zip(rows, lines) if row.get("kind") != "end")
elif how == "item": text = "".join(lines[:last] + lines[last + 1:])
elif how == "header": text = "".join(lines[1:])
elif how == "empty": text = ""
elif how == "wrong": text = text.replace('"wrong"', '"agree"')
open(path, "w").write(text)
"""
FAULTS = "from parity.devices import Fault\nFAULTS = [Fault('sinh', ('sinh',), lambda c: c.run() * {by})]\n"
KNOWN = """format = 1
[[known]]
id = "sinh-by-hand"
reason = "ours"
ops = ["sinh"]
status = "wrong"
cases = ["forward: sinh(float32[3])"]
"""
MODELS = "import torch\ndef net(): return torch.nn.Linear(3, 2), torch.ones(4, 3)\n"


WRONG, RIGHT = FAULTS.format(by=1.5), FAULTS.format(by=1.0)
FIRST = f"{RUN} --setup honest.py --output before.jsonl"
SHARDS = f"{RUN} --shard 1/2 --output 1.jsonl", f"{RUN} --shard 2/2 --output 2.jsonl"
FOUR = "parity run sinh mul cosh exp --device sim --dtype float32 --examples 3 -n 1"
PART = (
    f"{FOUR} --output before.jsonl", f"{FOUR} --shard 1/2 --output 1.jsonl",
    "parity merge 1.jsonl --accept partial -o after.jsonl",
)  # fmt: skip
DIFF, AGAINST = "parity diff before.jsonl after.jsonl", "parity locate models.py:net --against"
CAPTURE = "parity locate models.py:net --device sim --capture net.capture"


def spoiled(name: str, how: str, says: str) -> Way:
    """A way in which the second run file of a diff is spoiled."""

    def commands(how: str) -> tuple[str, ...]:
        copied = f"{RUN} --output run.jsonl", "cp run.jsonl after.jsonl"
        return *copied, f"python spoil.py after.jsonl '{how}'", "parity diff run.jsonl after.jsonl"

    return way(name, commands(how), {"spoil.py": SPOIL}, says, (2,), commands("whole"))


WAYS = (
    spoiled("a run file whose last line is cut", "last line", "is truncated: its last line is cut"),
    spoiled("a run file without its end", "end", "is truncated: it has no end row"),
    spoiled("a run file without one of its items", "item", "contradicts itself"),
    spoiled("a run file without its header", "header", "is no run file of parity"),
    spoiled("an empty run file", "empty", "is empty"),
    way(
        "a run file whose findings were edited away",
        (FIRST, f"{RUN} --setup faults.py --output after.jsonl", "python spoil.py after.jsonl wrong", DIFF),
        {"spoil.py": SPOIL, "faults.py": WRONG, "honest.py": RIGHT}, red=(1, 2),
        twin=(FIRST, f"{RUN} --setup honest.py --output after.jsonl", "python spoil.py after.jsonl whole", DIFF),
    ),
    way(
        "a merge without one shard", (*SHARDS, "parity merge 2.jsonl -o run.jsonl"), {},
        "missing; name the run files of all shards", (2,), (*SHARDS, "parity merge 1.jsonl 2.jsonl -o run.jsonl"),
    ),
    way(
        "a run that was merged without a shard, against the whole one", (*PART, DIFF), {},
        "merged without all of its shards", twin=(*PART, f"{DIFF} --accept partial"),
    ),
    way(
        "a file of known findings that is cut",
        "parity run sinh --device sim --dtype float32 --examples 3 -n 1 --setup faults.py --known known.toml",
        {"faults.py": (WRONG, RIGHT), "known.toml": (KNOWN[: KNOWN.index("status")], KNOWN)}, "'status' is missing", (2,),
    ),
    way(
        "a capture that is cut", (CAPTURE, "head -c 700 net.capture > cut.capture", f"{AGAINST} cut.capture"),
        {"models.py": MODELS}, red=(2,), twin=(CAPTURE, f"{AGAINST} net.capture"),
    ),
)  # fmt: skip
