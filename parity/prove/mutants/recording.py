"""What each row calls on a simulated device, and the mutants that follow from it."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import Tensor

from parity.checks.check import check, quiet
from parity.checks.trial import Settings
from parity.core.errors import CaseError, FaultError
from parity.devices import Fault, resolve
from parity.devices.sim.call import Call
from parity.engine import suite
from parity.engine.planning import RunPlan
from parity.generation import generate
from parity.prove import mutants as folder
from parity.prove.mutants.mutant import CLASSES, Facts, Kernel, Mutant, leaves

CASES = {"float32": 7, "float16": 1, "bfloat16": 1, "complex64": 2, "int64": 3, "int32": 1, "int8": 1, "uint8": 1, "bool": 1}
MOST_VALUES = 6  # of an argument
SECONDS = 20.0  # of recording a row
# Kernels that move or make memory; they are a row's own only where it calls no other.
SERVANTS = {
    *("empty", "empty_strided", "copy", "fill", "zero", "set", "resize", "detach", "as_strided", "_local_scalar_dense"),
    *("view", "_reshape_alias", "alias", "record_stream", "is_pinned", "_to_copy", "equal", "resolve_conj", "resolve_neg"),
    *("_has_compatible_shallow_copy_type", "_resize_output", "_conj_physical", "_copy_from", "_copy_from_and_resize"),
}
MOVING = SERVANTS & {"copy", "fill", "zero", "set", "_copy_from", "_reshape_alias", "view", "resolve_neg", "_to_copy"} | {
    "clone"
}
PREPARING = {"zeros", "zeros_like", "ones_like", "empty", "tensor", "full", "full_like", "empty_like", "eye", "arange", "ones"}


def base(op: str) -> str:
    """The name of a kernel without its overload and the mark of its in-place form."""
    name = op.partition(".")[0].replace("_overrideable", "")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def record(name: str, plan: RunPlan) -> Facts:
    """What a row calls in some of its cases: kernels by "name|direction", and public functions."""
    row, kernels, functions = suite.row(name), dict[str, Facts](), Counter[str]()

    def seen(call: Call) -> Any:
        k = kernels.setdefault(f"{base(call.op)}|{call.direction}", _blank())
        _note(k, call)
        result = call.run()
        found = [str(t.dtype)[6:] for t in leaves(result)]
        k["outs"] = max(k["outs"], len(found))
        if found and found not in k["outdt"]:
            k["outdt"].append(found)
        return result

    def publicly(call: Call) -> Any:
        functions[call.op] += 1
        return call.run()

    device = resolve("sim", (Fault("kernels", ("*",), seen), Fault("functions", ("*",), publicly, level="function")))
    until = time.monotonic() + SECONDS
    with device.active(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype, count in CASES.items():
            for n in range(count if dtype in row.dtypes else 0):
                try:
                    case = generate.nth(row, dtype, plan.profile.sizes, "record", n, mixes=False).case
                    if time.monotonic() < until:
                        check(row, replace(case, after=""), device, plan.cpu, plan.tables, Settings(), quiet, [])
                except (CaseError, RuntimeError):
                    continue
    more = {"call": row.call, "view": row.forms.view, "grad": bool(row.grad), "family": row.family}
    return {**more, "kernels": kernels, "functions": dict(functions)}


def _blank() -> Facts:
    counts = dict.fromkeys(("calls", "tensors", "outs", "inplace", "given", "mixed", "numbers", "bcast", "lists"), 0)
    return {**counts, "args": {}, "optional": {}, "ndim": [], "dtypes": [], "ops": [], "outdt": []}


def _note(k: Facts, call: Call) -> None:
    ops = call.operands
    k["calls"] += 1
    k["tensors"] = max(k["tensors"], len(ops))
    for what, v in (("ops", call.op), *((("ndim", ops[0].dim()), ("dtypes", str(ops[0].dtype)[6:])) if ops else ())):
        if v not in k[what]:
            k[what].append(v)
    k["mixed"] += len({t.dtype for t in ops}) > 1
    k["bcast"] += len({tuple(t.shape) for t in ops}) > 1
    k["numbers"] += any(call.is_scalar(i) and isinstance(a, Tensor) for i, a in enumerate(call.args))
    k["lists"] += any(isinstance(a, (list, tuple)) and any(isinstance(x, Tensor) for x in a) for a in call.args)
    k["inplace"] += call.destination == "in place"
    k["given"] += call.destination == "given"
    outs = {id(o) for o in call.outs}
    for n in call.names:
        try:
            v = call.argument(n)
        except FaultError:
            continue
        if isinstance(v, Tensor):
            k["optional"][n] = k["optional"].get(n, 0) | (id(v) not in outs)
            continue
        k["optional"][n] = k["optional"].get(n, 0) | (2 if v is None else 0)
        plain = _plain(v)
        values = k["args"].setdefault(n, [])
        if plain not in values and len(values) < MOST_VALUES and not (isinstance(v, (list, tuple)) and leaves(v)):
            values.append(plain)


def _plain(v: Any) -> Any:
    if isinstance(v, (list, tuple)):
        return [_plain(x) for x in v]
    return v if isinstance(v, (bool, int, float, str)) or v is None else f"<{type(v).__name__}>"


# ------------------------------------------------------------------------------------------------------------ its mutants


@cache
def classes() -> dict[str, Any]:
    """Every class of mutants by its name; loads their modules."""
    for module in iter_modules(folder.__path__):
        if module.name in ("reading", "contents", "extents", "calls", "functions"):
            import_module(f"{folder.__name__}.{module.name}")
    return dict(CLASSES)


def frequencies(recorded: Mapping[str, Facts]) -> Counter[str]:
    """How many rows dispatch each kernel."""
    return Counter(b for r in recorded.values() for b in {key.partition("|")[0] for key in r["kernels"]})


def mutants_of(name: str, facts: Facts, often: Mapping[str, int], seed: str) -> Iterator[Mutant]:
    """All mutants of a row, of the kernels that it mainly dispatches and of its public function."""
    tensors = max([k["tensors"] for key, k in facts["kernels"].items() if key.endswith("|forward")] or [1])
    public = main_function(name, facts)
    targets = [*main_kernels(name, facts, often), *([(public, "any", {"tensors": tensors, "lists": 0})] if public else [])]
    for op, direction, k in targets:
        for kind, c in classes().items():
            if (c.level == "function") == (direction == "any"):
                draw = random.Random(f"{seed}:{name}:{op}:{direction}:{kind}")
                for word, effect in c.make(Kernel(op, direction, k, facts, draw)):
                    yield Mutant(name, op, direction, kind, word, effect, word in c.policy, c.level)


def main_kernels(name: str, facts: Facts, often: Mapping[str, int]) -> Iterator[tuple[str, str, Facts]]:
    """The kernels that a row mainly dispatches: those that the fewest rows do, at most two in each direction."""
    last = facts["call"].rpartition(".")[2]
    own = {name, last, last.strip("_")}
    for direction in ("forward", "backward"):
        of = [(key.partition("|")[0], k) for key, k in facts["kernels"].items() if key.endswith(f"|{direction}")]
        main = [(b, k) for b, k in of if (b not in SERVANTS or b in own) and "::" not in b]
        if not main and direction == "forward" and not facts["view"]:
            main = [(b, k) for b, k in of if b in MOVING]
        rarest = sorted((0 if b in own else often[b], -k["calls"], b) for b, k in main)
        by_name = dict(main)
        for j, (rows, calls, b) in enumerate(rarest[:2]):
            if j and (rows > max(2 * max(rarest[0][0], 1), 4) or 3 * -calls < -rarest[0][1]):
                break
            yield b, direction, by_name[b]


def main_function(name: str, facts: Facts) -> str:
    """The public function of a row as a fault names it, or "". That of an operator of Python, or of an attribute, has another
    name than what the row calls."""
    functions, call = facts["functions"], facts["call"]
    last = call.rpartition(".")[2]
    if call in functions:
        return str(call)
    public = [f for f in functions if not f.startswith("aten.")]
    same = [f for f in public if f.rpartition(".")[2] in (last, f"__{last}__", name)]
    free = [
        f for f in public if not f.startswith("torch.Tensor.") and f.rpartition(".")[2] not in PREPARING and not f.endswith("_")
    ]
    found: list[str] = same or (sorted(free, key=lambda f: -functions[f]) if call.startswith("parity.") else [])
    return found[0] if found else ""


def sample(
    recorded: Mapping[str, Facts],
    names: Sequence[str],
    count: int,
    seed: str,
    wanted: Callable[[Mutant], bool] = lambda m: True,
) -> list[Mutant]:
    """`count` mutants of these rows, all with a count of 0. Each row weighs the same, and in it each class."""
    draw, often = random.Random(seed), frequencies(recorded)
    table: dict[str, dict[str, list[Mutant]]] = {}
    for name in names:
        for m in mutants_of(name, recorded[name], often, seed):
            if wanted(m):
                table.setdefault(name, defaultdict(list))[m.kind].append(m)
    if not count:
        return [m for kinds in table.values() for ms in kinds.values() for m in ms]
    picked: list[Mutant] = []
    while table and len(picked) < count:
        order = sorted(table)
        draw.shuffle(order)
        for name in order[: count - len(picked)]:
            kinds = table[name]
            kind = draw.choice(sorted(kinds))
            picked.append(kinds[kind].pop(draw.randrange(len(kinds[kind]))))
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del table[name]
    return picked
