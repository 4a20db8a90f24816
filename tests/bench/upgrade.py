"""Does `parity upgrade` report what changes between two torches, and nothing else?

    python -m tests.bench same upgrade --after ~/torch-2.14/bin/python       # this torch and that one: 200 ops, two models
    python -m tests.bench same upgrade --stub                                # this torch twice, the second under another name
    python -m tests.bench same upgrade --stub --together --ops 20            # all changes in one run, in a minute
    python -m tests.bench same upgrade --stub --bisect                       # three environments, with a change in the second

The other side is an environment without pytest, pip or parity, made of the torch of --after or of this one. There it is run
unchanged with several seeds, and then with each change planted. A change is reported right if the diff has the groups of the
change, with its op and no other, and the exit code that they have. The exit code is 1 where one is not.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import front
import second_torch

from parity.engine import suite
from parity.history.change import ALWAYS_FAIL, Group

MODELS = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 4)), torch.randn(32, 24)


def attention():
    def attend(q, k, v):
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)

    return attend, *(torch.randn(2, 8, 16, requires_grad=True) for _ in range(3))
"""
FAULTS = """
def faults():
    import os, time, torch
    from parity.devices import Fault
    from parity.devices.sim.faults import hang, refuse
    def nan(call):
        out = call.run()
        if out.numel():
            out.view(-1)[0] = float("nan")
        return out
    def slow(call):
        time.sleep(0.02)
        return call.run()
    def twice_as_far(call):
        x = call.args[0]
        exact = torch.sinc(x.double()) if isinstance(x, torch.Tensor) and x.is_floating_point() else None
        out = call.run()
        if exact is None or out.dtype is not torch.float32:
            return out
        return torch.where(exact.isfinite(), (exact + 2 * (out - exact)).float(), out)
    def matrix(call):
        return call.operands[0].dim() > 1
    def of_the_model(call):
        return call.operands[0].shape == (32, 24)
    return [{faults}]
"""


@dataclass(frozen=True, slots=True)
class Plant:
    """A change of the other side. op: what the diff is to name, in these groups; fault: of the simulated device; code: of torch
    itself."""

    op: str
    groups: tuple[Group, ...]
    fault: str = ""
    code: str = ""


def _instead(name: str, body: str) -> str:
    """Another function in torch."""
    return f"\n    plain_{name} = torch.{name}\n    def {name}(*args, **kwargs):\n        {body}\n    torch.{name} = {name}"


REFUSAL = """
        if any(isinstance(a, TORCH.Tensor) and a.dtype is TORCH.float32 for a in args):
            raise RuntimeError("\\"atan2\\" not implemented for 'Float'")
        return plain_atan2(*args, **kwargs)"""
# torch's own list of its functions is made before; of one that torch's compiler names, its optimizers could not run either.
GONE = "\n    torch.overrides.get_overridable_functions()\n    del torch.special.entr"
PLANTS = {
    "value": Plant("special.ndtri", (Group.REGRESSED,), 'Fault("value", ("special_ndtri",), lambda c: c.run() * 1.01)'),
    "NaN": Plant("asinh", (Group.REGRESSED,), 'Fault("NaN", ("asinh",), nan)'),
    "refusal": Plant("logcumsumexp", (Group.LOST,), 'Fault("refusal", ("_logcumsumexp",), refuse)'),
    "missing function": Plant("special.entr", (Group.LOST,), code=GONE),
    "signature": Plant("lerp", (Group.SIGNATURE,), code=_instead("lerp", "raise TypeError('lerp() takes no weight')")),
    "dtype": Plant("atan2", (Group.REFUSED,), code=_instead("atan2", REFUSAL)),
    "slower": Plant("logaddexp", (Group.SLOWER,), 'Fault("slower", ("logaddexp",), slow)'),
    "drift x2": Plant("sinc", (Group.WORSE,), 'Fault("drift", ("sinc",), twice_as_far)'),
    "strides": Plant(
        "exp2", (Group.REGRESSED,), 'Fault("strides", ("exp2",), lambda c: c.run().contiguous(), level="function")'
    ),
    "death": Plant("erfinv", (Group.DYING,), 'Fault("death", ("erfinv",), lambda c: os.abort(), when=matrix)'),
    "hang": Plant("special.erfcx", (Group.DYING,), 'Fault("hang", ("special_erfcx",), hang, when=matrix)'),
    "model only": Plant(
        "models.py:mlp",
        (Group.REGRESSED,),
        'Fault("model", ("linear",), lambda c: c.run() * 1.01, when=of_the_model, level="function")',
    ),
}


def planted(plants: Sequence[Plant]) -> str:
    """The code that plants these."""
    own = "def planted(torch):\n    global TORCH\n    TORCH = torch" + "".join(p.code for p in plants) + "\n"
    return own + FAULTS.replace("{faults}", ", ".join(p.fault for p in plants if p.fault))


def ops(count: int, plants: Collection[Plant]) -> list[str]:
    """So many ops from all over the catalog, with those of the plants."""
    names = list(dict.fromkeys(i.row.name for i in suite.select(dtypes=("float32",))))
    own = [p.op for p in plants if ".py" not in p.op]
    rest = [n for n in names if n not in own]
    more = max(0, count - len(own))
    return sorted([*own, *rest[:: max(1, len(rest) // max(1, more))][:more]])


@dataclass(frozen=True, slots=True)
class Told:
    """What an upgrade said. groups: group -> the ops that it names."""

    code: int
    groups: dict[str, set[str]]
    verdict: str
    seconds: float


def upgraded(folder: Path, other: Path, asked: Sequence[str]) -> Told:
    """Run `parity upgrade` with this Python and another environment. Ends the program if it ends without a verdict."""
    began = time.monotonic()
    asked = ("--folder", str(folder / "sides"), "-o", "diff.json", *asked, "models.py")
    command = ("upgrade", "--after", str(other), "--device", "sim", "--dtype", "float32", *asked)
    done = front.ran(*command, folder=folder, seconds=36_000)
    tree: dict[str, Any] = json.loads((folder / "diff.json").read_text(encoding="utf-8"))
    groups = {g: {op for entry in entries for op in entry["ops"]} for g, entries in tree["groups"].items()}
    said = [line for line in done.stdout.splitlines() if line.strip()]
    return Told(
        done.returncode,
        groups | ({"doubts": set(tree["doubts"])} if tree["doubts"] else {}),
        said[-2],
        time.monotonic() - began,
    )


def expected(plants: Sequence[Plant]) -> tuple[int, dict[str, set[str]]]:
    """The exit code and the groups that report these changes and no other."""
    groups: dict[str, set[str]] = {}
    for p in plants:
        for g in p.groups:
            groups.setdefault(str(g), set()).add(p.op)
    return int(any(g in ALWAYS_FAIL for p in plants for g in p.groups)), groups


def main(argv: Sequence[str] | None = None) -> int:
    """Compare unchanged and with each change, and print the table."""
    parser = front.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="CHANGE", help=f"of {', '.join(PLANTS)}; all by default")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--after", metavar="PYTHON", help="the Python of an environment with another torch")
    what.add_argument("--stub", action="store_true", help="this torch once more, as 2.99.0")
    parser.add_argument("--ops", type=int, default=200, help="how many ops (200)")
    parser.add_argument("--seeds", type=int, default=5, help="how often unchanged, with other seeds (5)")
    parser.add_argument("--together", action="store_true", help="all changes in one run, and unchanged not at all")
    parser.add_argument("--bisect", action="store_true", help="instead: three environments with a change in the second")
    parser.add_argument("-n", default="2", help="worker processes (2)")
    o = parser.parse_args(argv)
    chosen = {name: PLANTS[name] for name in front.chosen(o.names, [*PLANTS], parser)}
    base = str(Path(o.after).absolute().parents[1]) if o.after else ""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "models.py").write_text(MODELS, encoding="utf-8")
        if o.bisect:
            return bisected(folder, base)
        asked = [*ops(o.ops, chosen.values()), "--examples", "12", "-n", o.n]
        runs: list[tuple[str, str, list[Plant]]] = [(f"unchanged, seed {k}", str(k), []) for k in range(o.seeds)]
        runs += [(name, "0", [p]) for name, p in chosen.items()]
        runs = [("all together", "0", [*chosen.values()])] if o.together else runs
        wrong = 0
        for k, (name, seed, plants) in enumerate(runs):
            other = second_torch.environment(folder / f"other-{k}", "" if base else "2.99.0", planted(plants), base)
            told, (code, groups) = upgraded(folder, other, [*asked, "--seed", seed]), expected(plants)
            right = (told.code, told.groups) == (code, groups)
            wrong += not right
            said = ", ".join(f"{g} {' '.join(sorted(names))}" for g, names in told.groups.items()) or "silent"
            print(f"{'right' if right else 'WRONG'}  {name:<18} exit {told.code}  {told.seconds:4.0f} s  {said}", flush=True)
            print(f"       {told.verdict}", flush=True)
    print(f"{len(runs) - wrong} of {len(runs)} right")
    return int(wrong > 0)


def bisected(folder: Path, base: str) -> int:
    """Three environments, the second of which and the third have the change."""
    plant = planted([PLANTS["value"]])
    places = [second_torch.environment(folder / f"v{k}", f"2.9{k}.0", plant if k else "", base) for k in range(3)]
    case = "special.ndtri(float32[3].between(0.1, 0.9))"
    done = front.ran("upgrade", case, "--bisect", *map(str, places), "--device", "sim", folder=folder, codes=())
    print(done.stdout + done.stderr)
    return 0 if done.returncode == 1 and f"{places[1]} is the first that differs: forward drift" in done.stdout else 1


if __name__ == "__main__":
    sys.exit(main())
