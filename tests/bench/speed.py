"""How fast parity checks, against the bare OpInfo loop on the same pair of devices: `python -m tests.bench cost speed --all`.

The bare loop takes OpInfo samples in float32 (or `--dtype`), runs them on the CPU and on the same device as parity (a CPU copy
by default), forward and backward with a cotangent of ones, and compares with `torch.testing.assert_close`. A device that rounds
otherwise gives the judge work, as real hardware does: `--device cuda`, or `--device sim:honest`. Parity examines the native
rows that cover the same entries, in the quick profile, with screens: all, or a spread of them.

For each row both sides take the same number of cases: as many as parity draws. The bare loop goes through the samples of the
row's entries in turn, and again, made anew, where there are fewer. The sizes of 4,097 to 65,537 that a run tries in turn are
left out, because OpInfo has none like them; the cases that are drawn with one long dimension stay. Each side has a process of
its own, which does one row after the other while the other side waits. So both pay alike for what only the first call of an op
costs (loading or compiling its kernel). The first round is cold; later ones (--rounds), with new cases of parity's, are warm:
each row has been run once, with these cases and untimed, on both sides. A row that breaks its process, or holds it longer than
--limit, is named and left out, from the rounds that follow too.

A check is one comparison of all results of a call with the CPU's: forward, backward and so on of one case. Equal calls that
are compared with each other and calls that must be refused do not count. Times are CPU times of these processes, one thread
each, so that other work on the machine distorts them little. Findings are not shrunk. Where parity's time goes is sampled, some
250 times a second, in one more pass over the last cases; the work of the honest device stands apart there.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import front
import torch
from front import Apart
from torch import Tensor
from torch.utils._pytree import tree_map

import parity
from parity.catalog import opinfo
from parity.core.errors import ParityError
from parity.core.results import Aspect, Status
from parity.devices import Device, load_faults, resolve
from parity.engine import suite
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import Item
from parity.tolerance import load

ROWS = 60  # spread over the families, unless --all
LIMIT = 120.0  # seconds: a device's compiler may need 40 for one row
WARM = "add"  # run on both sides before the clock starts
BARE = (Aspect.FORWARD, Aspect.BACKWARD)  # what the bare loop compares too
COUNTED = (*BARE, Aspect.INPLACE, Aspect.OUT, Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER)
SAMPLED = 0.002  # seconds of CPU time between two samples; the system's clock may be coarser

# Stage -> the functions of parity whose time it is, with all that they call, as "file.function", a whole "file" or a folder.
# The first stage that stands anywhere on the stack has the sample.
STAGES: dict[str, tuple[str, ...]] = {
    "the honest device": ("honest",),
    "oracle": ("oracle",),
    "the simulated device": ("kernels.fallback", "functions.observe", "device.upload", "device.download"),
    "laws of random ops": ("check._by_law",),
    "calls before the case": ("history.play",),
    "refusals": ("refusal.check",),
    "leaks": ("checking.leak_of",),
    "draw": ("cases.drawn",),
    "text": ("notation.case_text",),
    "comparison": ("trial.compare", "trial.agrees", "metadata.judged"),
    "build": ("inputs.build", "check._bound"),
    "digest of the inputs": ("inputs.digest",),
    "figures and features": ("tally.hear",),
    "state of torch": ("state", "execute.__enter__", "execute.__exit__"),
    "double backward": ("derivatives._double_backward",),
    "forward-mode": ("derivatives._tangents",),
    "backward": ("derivatives._backward",),
    "out=": ("writes.out",),
    "in-place": ("writes.inplace",),
    "repeat": ("repeat.check",),
    "transfer": ("transfer.check",),
    "forward on the CPU": ("check._on_reference",),
    "forward": ("check._aspects",),
}
JUDGED = ("oracle", "comparison")


@dataclass(slots=True)
class Side:
    """What one side did so far. failed: comparisons that did not agree. refused: samples or cases that gave no comparison."""

    cases: int = 0
    checks: int = 0
    seconds: float = 0.0
    failed: int = 0
    refused: int = 0
    aspects: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Checks per second."""
        return self.checks / self.seconds if self.seconds else 0.0


Pair = tuple[Side, Side]  # parity, bare loop


def total(sides: Iterable[Side]) -> Side:
    """All of them together."""
    whole = Side()
    for s in sides:
        for f in fields(Side):
            setattr(whole, f.name, getattr(whole, f.name) + getattr(s, f.name))
    return whole


# ---------------------------------------------------------------------------------------------------------- the bare loop


def samples(item: Item) -> Iterator[tuple[str, Any]]:
    """(entry, sample) of the entries that a row covers, in turn, without end; nothing if there are no samples. From the second
    time on without the seeding that `OpInfo.sample_inputs` begins with: it costs as much as a sample where there is no GPU."""
    made = {key: opinfo._info(key).sample_inputs for key in entries(item)}
    while True:
        each = [_made(key, item, make) for key, make in made.items()]
        known = False
        for layer in zip_longest(*each):
            for one in layer:
                if one is not None:
                    known = True
                    yield one
        if not known:
            return
        made = {key: partial(opinfo._info(key).sample_inputs_func, opinfo._info(key)) for key in made}


def _made(key: str, item: Item, make: Callable[..., Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    for sample in make("cpu", getattr(torch, item.dtype), requires_grad=_grad(key, item)):
        yield key, sample


def _grad(key: str, item: Item) -> bool:
    return item.dtype in opinfo.ENTRIES[key].backward


def bare(item: Item, cases: int, device: Device) -> Side:
    """So many samples of a row's entries, generated, copied to the device, run on both sides and compared."""
    side, started = Side(), time.process_time()
    with device.active():
        for key, sample in islice(samples(item), cases):
            side.cases += 1
            _one(opinfo._info(key).op, sample, _grad(key, item), side, device)
    side.seconds = time.process_time() - started
    return side


def _one(op: Any, sample: Any, grad: bool, side: Side, device: Device) -> None:
    ours = (sample.input, *sample.args), sample.kwargs
    theirs = tree_map(partial(_copied, device), ours)
    try:
        here, there = _outputs(op, ours), _outputs(op, theirs)
    except Exception:  # the samples of some entries are not meant for the plain function
        side.refused += 1
        return
    _compare(here, [_home(device, x) for x in there], Aspect.FORWARD, side)
    if not grad:
        return
    tracked = [(a, b) for a, b in zip(here, there) if isinstance(a, Tensor) and a.requires_grad]
    leaves, copies = _leaves(ours), _leaves(theirs)
    if not tracked or not leaves:
        return
    try:
        first, second = (
            torch.autograd.grad(outputs, inputs, [torch.ones_like(t) for t in outputs], allow_unused=True)
            for outputs, inputs in (([a for a, _ in tracked], leaves), ([b for _, b in tracked], copies))
        )
    except RuntimeError:
        side.refused += 1
        return
    got = [_home(device, g) for g in second if g is not None]
    _compare([g for g in first if g is not None], got, Aspect.BACKWARD, side)


def _copied(device: Device, x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    there = x.detach().clone() if device.name == "cpu" else device.upload(x.detach())
    return there.requires_grad_(x.requires_grad)


def _home(device: Device, x: Any) -> Any:
    return device.download(x.detach()) if isinstance(x, Tensor) and not x.is_cpu else x


def _outputs(op: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    """The results of a call as a list; both sides draw the same random numbers."""
    torch.default_generator.manual_seed(0)
    result = op(*call[0], **call[1])
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _leaves(tree: Any) -> list[Tensor]:
    return [t for t in opinfo.tensors_of(tree) if t.requires_grad]


def _compare(here: Sequence[Any], there: Sequence[Any], aspect: Aspect, side: Side) -> None:
    side.checks += 1
    side.aspects[aspect] += 1
    try:
        torch.testing.assert_close(there, here, equal_nan=True)
    except (AssertionError, TypeError):  # a TypeError: results that it does not know, such as dtypes
        side.failed += 1


# ----------------------------------------------------------------------------------------------------------------- parity


def account(done: Examined, side: Side) -> None:
    """Add what parity compared of an item; repeated calls do not count."""
    side.cases += done.summary.cases
    for aspect in COUNTED:
        for word, n in done.summary.counts.get(aspect, {}).items():
            status = Status(word)
            if not status.is_comparison:
                side.refused += n
                continue
            side.checks += n
            side.aspects[aspect] += n
            side.failed += n if status.is_finding else 0


def examined(item: Item, plan: RunPlan) -> Side:
    """What parity does with an item, timed."""
    side, started = Side(), time.process_time()
    done = examine(item, plan, NoJournal())
    side.seconds = time.process_time() - started
    account(done, side)
    return side


def _named(path: str, function: str) -> tuple[str, ...]:
    """What a function of parity is called in `STAGES`: its folder, "file" and "file.function"; () elsewhere."""
    p = Path(path)
    return (p.parent.name, p.stem, f"{p.stem}.{function}") if p.is_relative_to(_PACKAGE) else ()


_PACKAGE = Path(parity.__file__).parent
_known: dict[Any, tuple[str, ...]] = {}


class Sampler:
    """Counts, by stage, where parity's CPU time is spent: a signal now and then looks at the stack, which slows nothing. (While
    its timer runs, the clock of the process ticks coarsely: nothing is timed then.)"""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def _look(self, _: int, frame: FrameType | None) -> None:
        stack: set[str] = set()
        while frame is not None:
            code = frame.f_code
            if code not in _known:
                _known[code] = _named(code.co_filename, code.co_name)
            stack.update(_known[code])
            frame = frame.f_back
        self.seen[next((s for s, names in STAGES.items() if not stack.isdisjoint(names)), "the rest")] += 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While parity runs. Nothing on systems without this timer."""
        if not hasattr(signal, "setitimer"):
            yield
            return
        before = signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLED, SAMPLED)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)


# ---------------------------------------------------------------------------------------------------------------- the run


def items(ops: str, dtype: str, everything: bool) -> list[Item]:
    """The rows that cover OpInfo entries in a dtype. Raises UsageError for an op that nothing is named like."""
    found = suite.select([p for p in ops.split(",") if p], dtypes=(dtype,), source="native")
    covering = [i for i in found if any(True for _ in entries(i))]
    return covering if everything or ops else list(_spread(covering))[:ROWS]


def entries(item: Item) -> Iterator[str]:
    """The OpInfo entries that an item's row covers and that take its dtype."""
    known = opinfo.database()  # an older torch lacks some
    return (n for n in item.row.counts.opinfo if n in known and n in opinfo.ENTRIES and item.dtype in opinfo.ENTRIES[n].dtypes)


def _spread(found: Sequence[Item]) -> Iterator[Item]:
    """One item of each family, then another of each."""
    groups: dict[str, list[Item]] = defaultdict(list)
    for i in found:
        groups[i.row.family].append(i)
    for layer in zip_longest(*groups.values()):
        yield from (i for i in layer if i is not None)


@dataclass(frozen=True, slots=True)
class Asked:
    """How both sides run."""

    device: str
    faults: str
    full_precision: bool

    def plan(self) -> RunPlan:
        """What a worker of the suite has: one thread, backward on it, and everything loaded before the first case."""
        front.in_one_thread()
        if self.full_precision:
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        there = resolve(self.device, load_faults(self.faults) if self.faults else ())
        gc.freeze()
        return RunPlan(there, resolve("cpu"), load(there.name), suite.profile("quick"), RunOptions(skip=("shrink",)))


def asked_of(side: Apart, seconds: float, task: Any, *given: Any) -> Any:
    """The result of a task; None, with a process of its own for the next one, if this one broke or took longer."""
    try:
        return side.ask(task, *given).result(seconds)
    except (BrokenProcessPool, ParityError, TimeoutError) as e:
        why = f"it took more than {seconds:.0f} s" if isinstance(e, TimeoutError) else f"{type(e).__name__}: {str(e)[:160]}"
        print(f"left out: {given[0]}, because of {why}", flush=True)
        side.kill()
        side.renew()
        return None


_plan: RunPlan


def _begin(asked: Asked) -> None:
    """Prepare a process, and run a row that is not timed."""
    global _plan
    _plan = asked.plan()
    warm = suite.select([WARM], dtypes=("float32",))[0]
    examined(warm, _seeded(warm, "warm"))
    bare(warm, 4, _plan.device)


def _seeded(item: Item, seed: str) -> RunPlan:
    """The plan for an item: without the sizes that OpInfo has none like, as the number of cases is given."""
    own = _plan.profile.examples(item.row, item.dtype)
    return replace(_plan, options=replace(_plan.options, seed=seed, examples=own))


def _parity(item: str, dtype: str, seed: str) -> Side:
    one = Item(suite.row(item), dtype)
    return examined(one, _seeded(one, seed))


def _bare(item: str, dtype: str, cases: int) -> Side:
    return bare(Item(suite.row(item), dtype), cases, _plan.device)


def _sampled(item: str, dtype: str, seed: str) -> Counter[str]:
    one, sampler = Item(suite.row(item), dtype), Sampler()
    with sampler.watching():
        examine(one, _seeded(one, seed), NoJournal())
    return sampler.seen


def show(name: str, side: Side) -> None:
    """What one side did."""
    told = ", ".join(f"{a} {n}" for a, n in side.aspects.items())
    rates = f"{side.rate:7.0f} checks/s {side.cases / side.seconds:7.0f} cases/s"
    print(f"{name:12} {side.cases:6} cases {side.checks:7} checks {side.seconds:8.2f} s {rates}   ({told})")
    print(f"{'':12} not agreed: {side.failed}, not compared: {side.refused}")


def show_stages(seen: Counter[str], ours: Side) -> str:
    """Print the share of every stage, and what it makes of a case; what the oracle and the comparison take."""
    whole = seen.total()
    if not whole:
        return "no samples of where parity's time goes"
    each = 1e3 * ours.seconds / max(1, ours.cases) / whole
    print(f"parity's time per case ({whole} samples):")
    for name, n in seen.most_common():
        print(f"  {name:22} {n / whole:6.1%} {n * each:8.3f} ms")
    return f"oracle and comparison: {sum(seen[s] for s in JUDGED) * each:.3f} ms a case"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = front.parser(__doc__)
    parser.add_argument("--ops", default="", help="comma-separated ops or patterns; all by default")
    parser.add_argument("--device", default="cpu", help="the device of both; the CPU means a CPU copy for the bare loop")
    parser.add_argument("--setup", default="", help="faults of a simulated device: --device sim:honest rounds as hardware may")
    parser.add_argument("--dtype", default="float32", help="the dtype of both (float32)")
    parser.add_argument("--all", action="store_true", help=f"all rows instead of {ROWS} spread over the families")
    parser.add_argument("--rounds", type=int, default=2, help="how often, each with cases of its own; the first is cold (2)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds of a row and its process's start ({LIMIT:.0f})")
    parser.add_argument("--full-precision", action="store_true", help="without TF32, which is a setting and no fault, on CUDA")
    a = parser.parse_args(argv)
    asked = Asked(a.device, a.setup, a.full_precision)
    try:
        chosen = items(a.ops, a.dtype, a.all)
        resolve(a.device, load_faults(a.setup) if a.setup else ())
    except ParityError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    if not chosen:
        print(f"none of {a.ops} covers an OpInfo entry in {a.dtype}; see Row.opinfo", file=sys.stderr)
        return 2
    ours, theirs = Apart(_begin, asked), Apart(_begin, asked)
    covered = sum(1 for i in chosen for _ in entries(i))
    print(f"{len(chosen)} rows, {covered} OpInfo entries, {a.dtype}, device {a.device}, torch {torch.__version__}, CPU time")
    ratios = []
    for k in range(a.rounds):
        print(f"round {k + 1}, {'warm' if k else 'cold'}", flush=True)
        pairs: dict[Item, Pair] = {}
        for item in chosen:
            for _ in range(2 if k else 1):  # the last one counts
                one = asked_of(ours, a.limit, _parity, item.row.name, item.dtype, str(k))
                other = one and one.cases and asked_of(theirs, a.limit, _bare, item.row.name, item.dtype, one.cases)
                if not (other and other.cases):
                    pairs.pop(item, None)
                    break
                pairs[item] = one, other
        chosen = [*pairs]
        if not chosen:
            print("no row is left", file=sys.stderr)
            return 1
        ratios.append(_compared(pairs))
    seen: Counter[str] = Counter()
    for item in pairs:
        seen += asked_of(ours, a.limit, _sampled, item.row.name, item.dtype, str(k)) or Counter()
    judged = show_stages(seen, total(o for o, _ in pairs.values()))
    warm = f"{statistics.median(ratios[1:] or ratios):.2f} {'warm' if ratios[1:] else 'cold'}"
    print(f"{a.device}: {warm}, the middle of rounds of {' '.join(f'{r:.2f}' for r in ratios)} times the bare loop; {judged}")
    ours.end()
    theirs.end()
    return 0


def _compared(pairs: dict[Item, Pair]) -> float:
    """Print both sides and their ratios, of the whole and of parts of it; the ratio of the whole."""
    ours, theirs = total(o for o, _ in pairs.values()), total(t for _, t in pairs.values())
    show("OpInfo loop", theirs)
    show("parity", ours)
    whole = ours.rate / theirs.rate
    print(f"parity / OpInfo loop: {whole:.2f} times the checks/s")
    shared = sum(ours.aspects[a] for a in BARE) / ours.seconds / theirs.rate
    by_case = (ours.cases / ours.seconds) / (theirs.cases / theirs.seconds)
    print(f"  forward and backward checks alone, parity's time whole: {shared:.2f} times; cases: {by_case:.2f} times")
    each = [o.rate / t.rate for o, t in pairs.values() if o.checks and t.checks]
    if each:
        faster = sum(r > 1 for r in each)
        print(f"  row by row: {statistics.median(each):.2f} times in the middle, above 1 in {faster} of {len(each)}")
    return whole


if __name__ == "__main__":
    sys.exit(main())
