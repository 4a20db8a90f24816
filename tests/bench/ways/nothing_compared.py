"""A run, a diff or a merge in which nothing was compared, or less than was asked for."""

from acquitted import Way

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

WAYS = (
    Way(
        "a diff with a second run that compared nothing",
        (
            f"{RUN} sinh --output before.jsonl",
            f"{RUN} sinh --setup setup.py --output after.jsonl",
            "parity diff before.jsonl after.jsonl",
        ),
        files={"setup.py": GONE},
        healthy={"setup.py": ""},
        red=(1, 3),
    ),
    Way(
        "a diff with a second run that compared nothing of one op",
        (
            f"{RUN} sinh mul --output before.jsonl",
            f"{RUN} sinh mul --setup setup.py --output after.jsonl",
            "parity diff before.jsonl after.jsonl",
        ),
        files={"setup.py": GONE},
        healthy={"setup.py": ""},
        says="compared -> nothing compared",
    ),
    Way(
        "a diff of a whole run with one of fewer ops, with --accept partial",
        (
            f"{RUN} sinh mul --output before.jsonl",
            f"{RUN} sinh --output after.jsonl",
            "parity diff before.jsonl after.jsonl --accept partial",
        ),
        healthy_commands=(
            f"{RUN} sinh mul --output before.jsonl",
            f"{RUN} sinh --output after.jsonl",
            "parity diff before.jsonl after.jsonl sinh",
        ),
        says="mul float32",
    ),
    Way(
        "a diff whose first run is a shard of the second",
        (
            f"{RUN} sinh mul cosh exp --output after.jsonl",
            f"{RUN} sinh mul cosh exp --shard 1/2 --output before.jsonl",
            "parity diff before.jsonl after.jsonl",
        ),
        healthy_commands=(
            f"{RUN} sinh mul cosh exp --output after.jsonl",
            f"{RUN} sinh mul cosh exp --shard 1/1 --output before.jsonl",
            "parity diff before.jsonl after.jsonl",
        ),
        says="the first run is missing",
    ),
    Way(
        "a merge of shards that compared nothing",
        (f"{RUN} sinh --setup setup.py --shard 1/1 --output shard.jsonl", "parity merge shard.jsonl -o run.jsonl"),
        files={"setup.py": GONE},
        healthy={"setup.py": ""},
        red=(3,),
    ),
    Way(
        "a model that gives no number, beside an op",
        (f"{RUN} mul models.py",),
        files={"models.py": MODELS.format(result="str(x)")},
        healthy={"models.py": MODELS.format(result="x.sinh()")},
        says="models.py:net",
    ),
    Way(
        "tests that compare nothing, whose run file is asked for",
        ("pytest test_net.py --parity-device sim --parity-output run.jsonl",),
        files={"test_net.py": "def test_net():\n    pass\n"},
        healthy={"test_net.py": TEST.format(call="parity(torch.sinh, torch.ones(3))")},
        red=(5,),
    ),
    Way(
        "a test that takes the fixture and calls something else",
        ("pytest test_net.py --parity-device sim",),
        files={"test_net.py": TEST.format(call="torch.sinh(torch.ones(3))")},
        healthy={"test_net.py": TEST.format(call="parity(torch.sinh, torch.ones(3))")},
    ),
)
