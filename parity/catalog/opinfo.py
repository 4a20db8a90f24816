"""Adapter to torch's own test data (OpInfo), for breadth: its samples are the operands, everything else is drawn on them.

`opinfo_names.json` lists the entries, so that rows exist without importing anything; `python -m parity.catalog.opinfo`
writes it anew. OpInfo is private, changes between versions, and importing it freezes `torch.backends` flags: it is loaded
by the first sample. A case names its sample by index, torch version and digest. A
sample's `output_process_fn_grad`, which hides phases and ambiguities, is not used: the rows' relations are.
"""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.catalog import opinfo_rules as rules
from parity.catalog.draw import Call, Draw
from parity.catalog.row import Row
from parity.catalog.trees import digest_of, dtype_of, generators, rebuilt, runs_dense, spoken
from parity.catalog.trees import tensors_of as tensors_of
from parity.dtypes import DEFAULT, FACTS
from parity.errors import CaseError, near
from parity.vocabulary import OpClass, TensorSpec, Values

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "opinfo:"
NAMES = Path(__file__).with_name("opinfo_names.json")
LARGEST = 200_000  # elements of a sample; larger ones say nothing that smaller ones do not
OUT_OF_RANGE = ("out of bounds", "index out of range")  # what the CPU says of indices, not of dims
KEPT = 64  # samples per op and dtype, evenly spaced


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of an OpInfo without importing it. dtypes, backward: on the CPU, of those that parity covers."""

    dtypes: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    out: bool = False
    inplace: bool = False
    gradgrad: bool = False
    forward_ad: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One call: args and kwargs as OpInfo gave them, their tensors in tree order, and which may require a gradient.

    beyond: the call is to be refused for an index out of range.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Tensor, ...]
    grads: tuple[bool, ...]
    digest: str
    beyond: bool = False


def _entry(tree: dict[str, Any]) -> Entry:
    flags = tree.get("flags", "").split()
    return Entry(
        dtypes=tuple(tree.get("dtypes", "").split()),
        backward=tuple(tree.get("backward", "").split()),
        out="out" in flags,
        inplace="inplace" in flags,
        gradgrad="gradgrad" in flags,
        forward_ad="forward_ad" in flags,
    )


@functools.cache
def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(NAMES.read_text(encoding="utf-8"))
    return stored


ENTRIES: dict[str, Entry] = {name: _entry(tree) for name, tree in _stored()["entries"].items()}

MUTATES = rules.MUTATES
OUT_OF_REACH: dict[str, str] = {
    **{name: "no dtype of parity's on the CPU" for name, entry in ENTRIES.items() if not entry.dtypes},
    **rules.OUT_OF_REACH,
}


def rows() -> tuple[Row, ...]:
    """A row per entry within reach, named "opinfo:<entry>"."""
    return tuple(_as_row(key, entry) for key, entry in ENTRIES.items() if key not in OUT_OF_REACH)


def _as_row(key: str, entry: Entry) -> Row:
    base, _, variant = key.partition(":")
    known = key if key in rules.RULE_OF or key in rules.RELATION_OF else base
    rule, relation = rules.RELATION_OF.get(known, (rules.RULE_OF.get(known, OpClass.COMPOSITE), ""))
    plain_name = rules.SAME_KERNEL.get(base, base.removeprefix("masked."))
    relation = "order" if base in rules.ORDER else relation
    mutates = key in rules.MUTATES
    # A variant may be another function (division that rounds down); only the plain ones stand in the ULP tables.
    plain = variant in ("", "no_rounding_mode")
    return Row(
        name=PREFIX + key,
        family="opinfo",
        rule=rule,
        call=PREFIX + key,
        signature=functools.partial(_draw, key),
        dtypes=entry.dtypes,
        grad=() if mutates else entry.backward,
        inplace=PREFIX + key if entry.inplace and not mutates else "",
        out=entry.out and base not in rules.UNSAFE_OUT and base not in rules.FIRST_ONLY,
        mutates=mutates,
        memory=base in rules.MEMORY,
        relation=relation,
        rounds_between=not {key, base, plain_name}.isdisjoint(rules.ROUNDS_BETWEEN),
        accumulates=rules.ACCUMULATES.get(key) or rules.ACCUMULATES.get(plain_name, ()),
        stages=rules.STAGES.get(key, ()),
        updates=base in rules.UPDATES.split(),
        places=base in rules.WRITES_AT.split() or key in (*rules.OF_A_RANK, *rules.CHANCES),
        packed=6 if key in rules.PACKED else 0,
        finite=base in rules.FINITE_ONLY.split() or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
        choices=rules.CHOICES.get(key) or rules.CHOICES.get(base, ()),
        unexpanded=base in ("median", "nanmedian", "masked.median") or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
        unfrozen=base.endswith("group_norm"),
        ulp=rules.ULP_NAMES.get(base, base.split(".")[-1]) if plain else key,
        oracle="exact" if key in rules.DTYPE_BOUND or base in rules.DTYPE_BOUND else "wide",
        opinfo=(key,),
    )


def _draw(key: str, draw: Draw) -> Call:
    """One of the entry's samples: its index, a spec per tensor, and what ties the case to this torch. Most of some entries'
    are empty matrices (46 of 64 of svd's): three cases of four are drawn from the others."""
    kept = samples(key, draw.dtype)
    full = tuple([index for index, s in kept.items() if all(t.numel() for t in s.tensors)])
    index = draw.choice(full if 0 < len(full) < len(kept) and draw.pick(4) else tuple(kept))
    return _call(index, kept[index], on_cpu=key == "tensor_split")


def _call(index: int, sample: Sample, on_cpu: bool = False) -> Call:
    """A sample as operands that can be described. on_cpu: all but the first stay on the CPU."""
    specs = tuple(
        TensorSpec(
            dtype_of(t),
            tuple(t.shape),
            values=Values("sample", (index, position)),
            grad=grad,
            on_cpu=on_cpu and position > 0,
        )
        for position, (t, grad) in enumerate(zip(sample.tensors, sample.grads))
    )
    return Call((index, *specs), (("torch", torch_version()), ("digest", sample.digest)))


# --------------------------------------------------------------------------------------------------------- with torch


def torch_version() -> str:
    """The installed torch without its build ("2.13.0" for "2.13.0+cpu")."""
    import torch

    return str(torch.__version__).partition("+")[0]


@functools.cache
def _database() -> dict[str, Any]:
    """All OpInfos by key. Raises CaseError where they cannot be imported."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except Exception as e:
        raise CaseError(
            f"torch's OpInfo cannot be imported ({type(e).__name__}: {e}); install what it needs: pip install numpy expecttest"
        ) from e
    return {info.name + (f":{info.variant_test_name}" if info.variant_test_name else ""): info for info in op_db}


def _info(name: str) -> Any:
    key = name.removeprefix(PREFIX)
    if key not in _database():
        raise CaseError(f"torch {torch_version()} has no OpInfo '{key}'; {near(key, _database()) or 'see parity run --list'}")
    return _database()[key]


def callables(name: str) -> tuple[Callable[..., Any], Callable[..., Any] | None, bool]:
    """The function of an entry, its in-place form or None, and whether it takes out=. Raises CaseError."""
    info = _info(name)
    function: Callable[..., Any] = info.op
    if name.removeprefix(PREFIX) in rules.FIRST_ONLY:

        def function(*args: Any, **kwargs: Any) -> Any:
            return info.op(*args, **kwargs)[0]

    return function, info.inplace_variant, bool(info.supports_out) and name.removeprefix(PREFIX) not in rules.FIRST_ONLY


@functools.lru_cache(maxsize=4)
def _samples(key: str, dtype: str) -> dict[int, Sample]:
    info = _info(key)
    fit = {index: s for index, s in enumerate(_generated(info, dtype, grad=False)) if _fits(key, s)}
    if not fit:
        raise CaseError(f"OpInfo '{key}' has no sample in {dtype} that parity can take; choose another dtype or op")
    indices = list(fit)
    if len(indices) > KEPT:
        indices = [indices[k * len(indices) // KEPT] for k in range(KEPT)]
    graded = list(_generated(info, dtype, grad=True)) if dtype in ENTRIES.get(key, Entry()).backward else []
    # With gradients some entries give other samples; then the flags cannot be matched, and all inexact tensors get one.
    match = [list(map(spoken, tensors_of(g))) for g in graded]
    made = {}
    for index in indices:
        tensors = tuple(tensors_of(fit[index]))
        grads = tuple(FACTS[dtype_of(t)].is_inexact for t in tensors)
        if index < len(match) and match[index] == list(map(spoken, tensors)):
            grads = tuple(bool(t.requires_grad) for t in tensors_of(graded[index]))
        args, kwargs = fit[index]
        made[index] = Sample(args, kwargs, tensors, grads, digest_of((args, kwargs), tensors))
    return made


def samples(name: str, dtype: str) -> dict[int, Sample]:
    """The samples of an entry in a dtype by their index in OpInfo's own order. Raises CaseError."""
    return _samples(name.removeprefix(PREFIX), dtype)


@functools.lru_cache(maxsize=64)
def errors(key: str) -> dict[int, Sample]:
    """The calls that OpInfo says must be refused, by -1, -2 ...: those that the CPU refuses with dense operands too.

    Empty for an entry that has none, or whose own cannot be made. Raises CaseError where OpInfo cannot be imported.
    """
    import torch

    def dense(x: Any) -> Any:
        return x.detach().clone(memory_format=torch.contiguous_format) if isinstance(x, torch.Tensor) else x

    info, made = _info(key), dict[int, Sample]()
    for k, (args, kwargs) in enumerate(_wrong(info)):
        tensors = tuple(tensors_of((args, kwargs)))
        if not _fits(key, (args, kwargs)) or any(t.device.type != "cpu" for t in tensors):
            continue
        try:
            again = rebuilt((args, kwargs), dense)
            with warnings.catch_warnings(action="ignore"):
                info.op(*again[0], **again[1])
        except Exception as e:
            out = any(word in str(e) for word in OUT_OF_RANGE)
            made[-1 - k] = Sample(args, kwargs, tensors, (False,) * len(tensors), digest_of((args, kwargs), tensors), out)
    return made


def _wrong(info: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all calls that must be refused, the same ones every time."""
    with generators(seeded=True), contextlib.suppress(Exception):
        stream = () if info.error_inputs_func is None else info.error_inputs("cpu")
        return [((e.sample_input.input, *e.sample_input.args), dict(e.sample_input.kwargs)) for e in stream]
    return []


def refusals(name: str) -> Iterator[tuple[Call, bool]]:
    """The calls of an entry that must be refused, and whether what is wrong is an index out of range. Raises CaseError."""
    for index, sample in errors(name.removeprefix(PREFIX)).items():
        yield _call(index, sample), sample.beyond


def as_given(name: str, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of every sample of an entry, just as OpInfo makes them, large ones too. Raises CaseError."""
    return _generated(_info(name), dtype, grad)


def _generated(info: Any, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all samples; the global generators are left as they were. Raises CaseError."""
    import torch

    with generators():
        try:
            stream = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=grad, set_seed=True)
            stream.test_fn = None  # else a unittest on the stack seeds the samples by its name
            return [((s.input, *s.args), dict(s.kwargs)) for s in stream]
        except Exception as e:
            raise CaseError(f"OpInfo '{info.name}' cannot make its samples in {dtype}: {type(e).__name__}: {e}") from e


def _fits(key: str, sample: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Dense tensors of known dtypes, not too large, nothing beside them in memory, no dropout where values are judged."""
    import torch

    found = list(tensors_of(sample))
    drops = sample[1].get("dropout_p") or (key.endswith("multi_head_attention_forward") and sample[1].get("training"))
    known = all(t.layout is torch.strided and dtype_of(t) in FACTS for t in found)
    small = sum(t.numel() for t in found) <= LARGEST
    return known and small and not drops and (key.partition(":")[0] not in rules.MEMORY or runs_dense(_info(key).op, sample))


def _sample(name: str, dtype: str, index: int) -> Sample:
    kept = errors(name.removeprefix(PREFIX)) if index < 0 else samples(name, dtype)
    if index not in kept:
        raise CaseError(
            f"{name} has no sample {index} in {dtype} here (it has {len(kept)}, up to {max(kept, key=abs, default=0)}); "
            "draw the case anew"
        )
    return kept[index]


def sample_tensor(name: str, dtype: str, index: int, position: int) -> Tensor:
    """The raw tensor at a position of a sample; do not write into it. Raises CaseError."""
    tensors = _sample(name, dtype, index).tensors
    if not 0 <= position < len(tensors):
        raise CaseError(
            f"sample {index} of {name} in {dtype} has {len(tensors)} tensors, none at {position}; draw the case anew"
        )
    return tensors[position]


def _is_device(word: str) -> bool:
    """Whether torch knows a device of this name."""
    import torch

    try:
        torch.device(word)
    except RuntimeError:
        return False
    return True


def assemble(
    name: str, dtype: str, index: int, tensors: Iterable[Any], torch: str, digest: str, device: str = "cpu"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a sample with other tensors in their places, and `device` where the sample names one: the CPU, or the
    accelerator of this machine, which some samples ask for by name wherever their operands lie.

    torch, digest: as the case has them. Raises CaseError where the sample here is another one, saying both.
    """
    import torch as library

    if torch != torch_version():
        raise CaseError(
            f"the case was drawn from the samples of torch {torch}, this is torch {torch_version()}; "
            "install that one, or draw anew"
        )
    sample = _sample(name, dtype, index)
    if digest != sample.digest:
        raise CaseError(
            f"sample {index} of {name} in {dtype} has digest {sample.digest} here and {digest} in the case: "
            "other values on another machine; replay it where it was found, or draw anew"
        )
    given = list(tensors)
    if len(given) != len(sample.tensors):
        raise CaseError(f"sample {index} of {name} in {dtype} takes {len(sample.tensors)} tensors, the case has {len(given)}")
    it = iter(given)

    def leaf(x: Any) -> Any:
        if isinstance(x, library.Tensor):
            return next(it)
        if isinstance(x, str) and _is_device(x):
            return device
        return library.device(device) if isinstance(x, library.device) else x

    args, kwargs = rebuilt((sample.args, sample.kwargs), leaf)
    return args, kwargs


# ---------------------------------------------------------------------------------------------------------- the list


def generate() -> dict[str, Any]:
    """The content of `opinfo_names.json` for the installed torch."""
    import torch

    entries = {}
    for key, info in sorted(_database().items()):
        forward, backward = info.supported_dtypes("cpu"), info.supported_backward_dtypes("cpu")
        flags = {
            "out": info.supports_out,
            "inplace": info.inplace_variant is not None,
            "gradgrad": info.supports_autograd and info.supports_gradgrad,
            "forward_ad": info.supports_forward_ad,
        }
        tree = {
            "dtypes": " ".join(d for d in DEFAULT if getattr(torch, d) in forward),
            "backward": " ".join(d for d in DEFAULT if info.supports_autograd and getattr(torch, d) in backward),
            "flags": " ".join(flag for flag, is_set in flags.items() if is_set),
        }
        entries[key] = {word: text for word, text in tree.items() if text}
    return {"torch": torch_version(), "entries": entries}


def text(tree: dict[str, Any]) -> str:
    """The file: one line per entry, so that a new torch reads well in a diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in tree["entries"].items()]
    return f'{{"torch": {json.dumps(tree["torch"])}, "entries": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    made = generate()
    NAMES.write_text(text(made), encoding="utf-8")
    print(f"wrote {len(made['entries'])} entries of torch {made['torch']} to {NAMES.name}")
