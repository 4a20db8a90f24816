"""A run, a diff or a merge in which nothing was compared, or less than was asked for."""

from acquitted import way

GONE = """
import torch
def gone(*a, **k): raise RuntimeError("sinh was taken out of this torch")
torch.sinh = torch.Tensor.sinh_ = gone
"""
RUN = "parity run --device sim --dtype float32 --examples 8 -n 1"
MODELS = """
import torch
def net(): return (lambda x: {result}), torch.ones(3)
"""
TEST = """
import torch
def test_net(parity):
    {call}
"""

SINH, MUL, FOUR = f"{RUN} sinh", f"{RUN} sinh mul", f"{RUN} sinh mul cosh exp"
DIFF = "parity diff before.jsonl after.jsonl"
SETUP = {"setup.py": (GONE, "")}
PYTEST = "pytest test_net.py --parity-device sim"
COMPARED = TEST.format(call="parity(torch.sinh, torch.ones(3))")
WAYS = (
    way(
        "a diff with a second run that compared nothing",
        (f"{SINH} --output before.jsonl", f"{SINH} --setup setup.py --output after.jsonl", DIFF), SETUP, red=(1, 3),
    ),
    way(
        "a diff with a second run that compared nothing of one op",
        (f"{MUL} --output before.jsonl", f"{MUL} --setup setup.py --output after.jsonl", DIFF), SETUP,
        "compared -> nothing compared",
    ),
    way(
        "a diff of a whole run with one of fewer ops, with --accept partial",
        (f"{MUL} --output before.jsonl", f"{SINH} --output after.jsonl", f"{DIFF} --accept partial"), {}, "mul float32",
        twin=(f"{MUL} --output before.jsonl", f"{SINH} --output after.jsonl", f"{DIFF} sinh"),
    ),
    way(
        "a diff whose first run is a shard of the second",
        (f"{FOUR} --output after.jsonl", f"{FOUR} --shard 1/2 --output before.jsonl", DIFF), {}, "the first run is missing",
        twin=(f"{FOUR} --output after.jsonl", f"{FOUR} --shard 1/1 --output before.jsonl", DIFF),
    ),
    way(
        "a merge of shards that compared nothing",
        (f"{SINH} --setup setup.py --shard 1/1 --output shard.jsonl", "parity merge shard.jsonl -o run.jsonl"), SETUP, red=(3,),
    ),
    way(
        "a model that gives no number, next to an op", f"{RUN} mul models.py",
        {"models.py": (MODELS.format(result="str(x)"), MODELS.format(result="x.sinh()"))}, "models.py:net",
    ),
    way(
        "tests that compare nothing, whose run file is asked for", f"{PYTEST} --parity-output run.jsonl",
        {"test_net.py": ("def test_net():\n    pass\n", COMPARED)}, red=(5,),
    ),
    way(
        "a test that takes the fixture and calls something else", PYTEST,
        {"test_net.py": (TEST.format(call="torch.sinh(torch.ones(3))"), COMPARED)},
    ),
)  # fmt: skip
