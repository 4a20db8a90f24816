"""A known finding that hides another one: the first fault is known, and the second is planted in its place.

The healthy twin meets the first fault again.
"""

from acquitted import Way, way

RUN = "parity run exp --device sim --dtype float32 --examples 12 -n 1 --power 0 --skip again"
HEAD = """
import os, random, torch
from parity.devices import Fault
def larger(call): return call.run() * 1.03
def of(effect, when=lambda call: True): return [Fault("planted", ("exp",), effect, when)]
"""
PLAIN = "FAULTS = of(larger)"
STRIDED = "FAULTS = of(larger, lambda call: not call.operands[0].is_contiguous())"
LOST = "FAULTS = of(lambda call: call.run().nan_to_num(0.0), lambda call: call.operands[0].numel() > 8)"
NEGATIVE = "FAULTS = of(lambda call: call.run() * torch.where(call.operands[0] < 0, 1.03, 1.0))"
MANY = "FAULTS = of(larger, lambda call: call.operands[0].numel() > 64)"
SOMETIMES = "FAULTS = of(larger, lambda call: random.random() < 0.5)"
ABORT = "FAULTS = of(lambda call: os.abort(), lambda call: {})"
MODEL = """
import torch
def net(): return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ELU()), torch.randn(3, 4)
"""


def hides(name: str, known: str, new: str, run: str = RUN, first: str = "", also: str = "") -> Way:
    """first: further options of the run that the known finding comes from; also: a further file, models.py."""
    commands = (
        f"{run} {first} --setup known_fault.py --output known.jsonl",
        "parity known add known.jsonl --reason planted",
        f"{run} --setup fault.py --known parity-known.toml --fail-on known --output new.jsonl",
    )
    return way(name, commands, {"known_fault.py": HEAD + known, "fault.py": (HEAD + new, HEAD + known), "models.py": also})


WAYS = (
    hides("lost NaN hides an error of 3 % everywhere", LOST, PLAIN, RUN.replace("float32", "float32,float16")),
    hides("an error of 3 % hides lost NaN", PLAIN, LOST.replace("> 8", "> 0")),
    hides("an error of 3 % hides one of 300 %", PLAIN, PLAIN.replace("larger", "lambda call: call.run() * 4")),
    hides("an error at negative values hides one at all", NEGATIVE, PLAIN),
    hides("an error of strided operands hides one of all", STRIDED, PLAIN),
    hides("an error of strided operands that nobody investigated hides one of all", STRIDED, PLAIN, first="--skip=shrink"),
    hides("an error of many elements hides one of few", MANY, PLAIN),
    hides("an error that comes and goes hides one that stays", SOMETIMES, PLAIN),
    hides(
        "the end of a process hides another",
        ABORT.format("call.operands[0].dim() > 2"),
        ABORT.format("call.operands[0].dim() < 2"),
    ),
    hides(
        "an error of a model hides a larger one",
        'FAULTS = [Fault("planted", ("elu",), larger)]',
        'FAULTS = [Fault("planted", ("elu",), lambda call: call.run() * 4)]',
        "parity run models.py --device sim",
        also=MODEL,
    ),
)
