"""A run, a diff or a merge in which nothing was compared."""

from acquitted import Way

GONE = """
import torch
def gone(*a, **k): raise RuntimeError("sinh was taken out of this torch")
torch.sinh = torch.Tensor.sinh_ = gone
"""
RUN = "parity run sinh --device sim --dtype float32 --examples 8 -n 1"

WAYS = (
    Way(
        "a diff with a second run that compared nothing",
        (
            f"{RUN} --output before.jsonl",
            f"{RUN} --setup setup.py --output after.jsonl",
            "parity diff before.jsonl after.jsonl",
        ),
        files={"setup.py": GONE},
        healthy={"setup.py": ""},
        red=(1, 3),
    ),
)
