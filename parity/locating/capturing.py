"""`parity.capture`: what a model's operators take and give on one device, in a file that another machine can judge.

The model runs on the device twice: once with every operator recorded, forward and backward, and once more with the public
functions of its forward pass. Nothing is judged here: `parity.locate(..., against=file)` does that.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.checks.equivalents import EQUIVALENTS
from parity.checks.operators import OperatorCall, Reader, StridedOperand
from parity.comparing.comparison import ParityWarning
from parity.comparing.function import device_results, target
from parity.comparing.places import Place
from parity.comparing.subject import SEED, Subject, is_compiled, known, original, subject, word
from parity.core.errors import NothingCompared, ParityError
from parity.core.results import Raised
from parity.devices import Device
from parity.devices.base import fingerprint
from parity.devices.refusals import REFUSED, classify
from parity.locating.calls import LARGEST, Search, shortened
from parity.locating.capture_file import Capture, Given, RecordedCall, Ref, encoded, write
from parity.locating.located import PASSES, plural
from parity.locating.search import cotangents_of
from parity.locating.values import Store, key_of

LIMIT = 64 << 20  # bytes of tensors that a capture keeps whole
WEIGHTS = 0.5  # of the limit; weights that take more are kept as digests alone


@dataclass(frozen=True, slots=True)
class Captured:
    """What `capture` wrote. size: bytes of the file; operators: calls of operators; whole, sketched: tensors that are kept
    whole and as sketches; weights: whether those of the model are in it."""

    subject: str
    path: Path
    size: int
    limit: int
    operators: int
    whole: int
    sketched: int
    weights: bool
    left: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f"{plural(self.whole, 'tensor')} whole" + (f" and {self.sketched} as sketches" if self.sketched else "")
        lines = [f"{self.subject}: {plural(self.operators, 'call')} of operators in {self.path}, {in_bytes(self.size)}: {kept}"]
        if self.sketched or not self.weights:
            lines.append(f"note: tensors are kept whole up to {in_bytes(self.limit)} together; take more with --limit")
        if not self.weights:
            lines.append("note: the weights are too large for it: make the same ones where you compare (a seed, a checkpoint)")
        lines += [f"note: {plural(n, 'call')} not recorded: {why}" for why, n in self.left.items()]
        return "\n".join((*lines, *(f"note: {n}" for n in self.notes)))


def in_bytes(n: int) -> str:
    """A size as a person reads it."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << shift:
            return f"{n / (1 << shift):.3g} {unit}"
    return f"{n} bytes"


def capture(
    fn: Callable[..., Any],
    *inputs: Any,
    path: str | Path,
    device: str | torch.device | Device = "auto",
    backward: bool = True,
    limit: int = LIMIT,
    keep_on_cpu: str | Iterable[str] = (),
    **kwargs: Any,
) -> Captured:
    """Run `fn(*inputs, **kwargs)` on the device, forward and (`backward`) backward, and write what each of its operators took
    and gave to `path`, for `locate(..., against=path)` on another machine.

    The caller's objects stay unchanged. limit: bytes of tensors that are kept whole; of more, sketches are kept, the largest
    results first. Weights are kept if they take at most half of it. keep_on_cpu: as for `assert_parity`. Raises UsageError for
    a function that does not run on the CPU, NothingCompared if no operator ran on the device, DeviceError for a device that is
    not available, OutputError for a path that cannot be written.

    >>> made = parity.capture(torch.nn.Linear(4, 2), torch.randn(3, 4), path=folder / "a.capture", device="sim")
    """
    near = (keep_on_cpu,) if isinstance(keep_on_cpu, str) else tuple(keep_on_cpu)
    s, place = subject(original(fn), inputs, kwargs, near), target(device)
    if not s.moves:
        raise NothingCompared(f"{s.name}: no input is a tensor, so nothing would reach {place.name}; give it tensors")
    cotangents = cotangents_of(s) if backward else []
    recorder = _Recorder(place, Store(limit), s)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), place.active():
        warnings.simplefilter("ignore", ParityWarning)
        place.seed(SEED)
        recorder.operators(s, cotangents)
        left = Counter(recorder.left)
        place.seed(SEED)
        recorder.functions(s)
        aside = recorder.left - left
        whole = None if recorder.broken else recorder.results(s, backward)
    count = sum(c.kind == "operator" for c in recorder.calls)
    if not count and not recorder.calls:
        raise NothingCompared(f"{s.name}: no operator that can be compared ran on {place.name}")
    notes: tuple[str, ...] = (f"it raises: {recorder.broken}",) if recorder.broken else ()
    notes += ("it is compiled, and what was captured is its eager code",) if is_compiled(fn) else ()
    title = f"{s.name} {s.dtype} on {place.name}"
    made = Capture(
        title, s.name, word(s.coarsest), fingerprint(place), backward, given(s), recorder.store, recorder.calls,
        dict(left), recorder.broken, whole, notes, dict(aside),
    )  # fmt: skip
    size, store = write(made, Path(path)), recorder.store
    kept = len(store.whole), len(store.sketches), not store.absent
    return Captured(title, Path(path), size, limit, count, *kept, dict(recorder.left), notes)


def given(s: Subject) -> tuple[Given, ...]:
    """The tensors that go in, with digests of their elements."""
    return tuple(Given(n, word(t.dtype), tuple(t.shape), elements(t)) for n, t in s.tensors if known(t))


def elements(t: Tensor) -> str:
    """The digest of a tensor's elements in order, whatever its strides are."""
    return key_of(flat(t))


def storages(s: Subject, t: Tensor) -> Iterator[Tensor]:
    """The flat tensors in which an operator may get a tensor that goes in: its elements in order, and its storage."""
    if known(t):
        yield flat(t)
    key = t.untyped_storage().data_ptr(), t.dtype
    if known(t) and t.numel() and not t.is_contiguous() and not t.is_conj() and not t.is_neg():
        yield t.detach().as_strided((s.extents[key],), (1,), 0).cpu()


def flat(t: Tensor) -> Tensor:
    """A tensor's elements in order, on the CPU."""
    return t.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)


class _Recorder(Search):
    """Records the calls that the modes of `locate` see, instead of judging them."""

    def __init__(self, device: Device, store: Store, s: Subject) -> None:
        super().__init__(device)
        self.store, self.calls = store, list[RecordedCall]()
        weights = [t for n, t in s.tensors if known(t)]
        names = {id(t) for _, t in s.given}
        large = sum(t.numel() * t.element_size() for t in weights if id(t) not in names) > WEIGHTS * store.limit
        for t in weights:
            if id(t) in names or not large:
                store.add(flat(t).clone(), False)
            else:
                store.absent |= {key_of(base) for base in storages(s, t)}

    def ref(self, x: StridedOperand, made: bool = False, grad: bool = False) -> Ref:
        """The reference of a tensor, whose storage is kept."""
        return Ref.to(x, self.store.add(x.base, made), grad)

    def tree(self, tree: Any) -> Any:
        """Arguments with references in place of tensors. Raises ValueError for what cannot be kept."""
        kept = tree_map(lambda x: self.ref(x) if isinstance(x, StridedOperand) else x, tree)
        encoded(kept)
        return kept

    def keep(self, call: OperatorCall, results: list[StridedOperand], after: dict[int, Tensor], error: Any = None) -> None:
        """Record an operator. A file names those of aten alone: what others give is recorded where it is used."""
        if call.operator.namespace != "aten":
            return
        pass_, place = self.where()
        try:
            args, kwargs = self.tree(call.args), self.tree(call.kwargs)
        except ValueError:
            self.left["their arguments cannot be kept"] += 1
            return
        kept = tuple(self.ref(x, True) for x in results)
        written = {g: self.store.add(b, True) for g, b in after.items()}
        self.calls.append(RecordedCall("operator", call.name, PASSES.index(pass_), place, args, kwargs, kept, written, error))

    def finished(self, call: OperatorCall, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator that the device has run to its end, unless the CPU has no such operator."""
        if not runs_on_the_cpu(call.operator):
            self.not_on_cpu(call)
            return
        read, operands = Reader(self.device, LARGEST), call.operands
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        after = {operands[k].group: read(tensors[k]).base for k in call.written}
        self.keep(call, [read(t) for t in tree_leaves(result) if isinstance(t, Tensor)], after)

    def raised(self, call: OperatorCall, e: Exception) -> None:
        """The device raised in an operator."""
        self.keep(call, [], {}, (type(e).__name__, shortened(e), classify(e) == REFUSED))

    def functions(self, s: Subject, only_foreign: bool = False) -> None:
        """Record the public functions of the forward pass."""
        super().functions(s, only_foreign)
        if names := [n for some in self.foreign.values() for n in some]:
            self.left[f"the CPU does not run them ({', '.join(sorted(set(names)))[:80]})"] += len(names)

    def with_gradients(self, func: Any, name: str, given: Any, place: Place) -> None:
        """Record what a function with operators that the CPU does not have gives by itself, and its gradients."""
        try:
            results = self.results(subject(func, given[0], given[1]), True)
        except ParityError:  # it draws random numbers, or does not run on the CPU
            results = None
        if results is not None:
            names = tuple(self.foreign.pop(place.order))
            args, kwargs = self._arguments(given)
            self.calls.append(RecordedCall("function", name, 0, place, args, kwargs, named=results, foreign=names))

    def function(self, func: Any, name: str, given: Any, theirs: Any, place: Place) -> None:
        """Record a public function. given: its arguments before the call, on the CPU."""
        read = Reader(self.device, LARGEST)
        try:
            args, kwargs = self._arguments(given)
            results = tuple(self.ref(read(t), True) for t in tree_leaves(theirs) if isinstance(t, Tensor))
        except ValueError:  # an argument that is no data, such as a generator
            self.left[f"an argument of {name} cannot be kept"] += 1
            return
        self.calls.append(RecordedCall("function", name, 0, place, args, kwargs, results))

    def _arguments(self, given: Any) -> Any:
        read = Reader(self.device, LARGEST)

        def kept(x: Any) -> Any:
            return self.ref(read(x), grad=x.requires_grad) if isinstance(x, Tensor) else x

        tree = tree_map(kept, given)
        encoded(tree)
        return tree

    def results(self, s: Subject, backward: bool) -> dict[str, Ref] | None:
        """The results and gradients of a function alone; None if it raises on the device or cannot be compared whole."""
        try:
            theirs = device_results(s, self.device, backward)
        except ParityError:
            return None
        if isinstance(theirs, Raised):
            return None
        # A reader for each, because one knows storages by their addresses, and these copies do not last.
        return {n: self.ref(Reader(self.device, LARGEST)(t.contiguous()), True) for n, t in theirs.items() if known(t)}


def runs_on_the_cpu(operator: Any) -> bool:
    """Whether the CPU has a kernel of an operator, or an equivalent of it."""
    name = operator.name()
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return name.partition("::")[2] in EQUIVALENTS or any(has(name, key) for key in keys)
