"""Adapter to torch's own test data (OpInfo): its samples give the operands; layouts and the rest are drawn as for other rows.

`opinfo_names.json` lists the entries, so that rows exist without importing torch; `python -m parity.catalog.opinfo` regenerates
it. OpInfo is private, changes between versions, and importing it freezes `torch.backends` flags, so the first sample loads it.
A case names its sample by index, torch version and digest. A sample's `output_process_fn_grad`, which hides phases and
ambiguities, is not used; the relations of the rows replace it.
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
from parity.catalog.draw import Arguments, Draw
from parity.catalog.opinfo_trees import digest_of, dtype_of, generators, outline, rebuilt, runs_dense
from parity.catalog.opinfo_trees import tensors_of as tensors_of
from parity.catalog.row import Row
from parity.core.case import OpClass, TensorSpec, Values
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import CaseError, near

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "opinfo:"
NAMES = Path(__file__).with_name("opinfo_names.json")
LARGEST = 200_000  # elements; larger samples are left out
OUT_OF_RANGE = ("out of bounds", "index out of range")  # messages of the CPU for indices, but not for dims
KEPT = 64  # samples per op and dtype, evenly spaced


@dataclass(frozen=True, slots=True)
class OpInfoEntry:
    """Facts about an OpInfo entry, without importing it. dtypes, backward: on the CPU, of those that parity covers."""

    dtypes: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    out: bool = False
    inplace: bool = False
    gradgrad: bool = False
    forward_ad: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OpInfoSample:
    """One call: args and kwargs as OpInfo gave them, their tensors in tree order, and which of these may require a gradient.

    out_of_range: the call must be refused because of an index out of range.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Tensor, ...]
    grads: tuple[bool, ...]
    digest: str
    out_of_range: bool = False


def _entry(tree: dict[str, Any]) -> OpInfoEntry:
    flags = tree.get("flags", "").split()
    return OpInfoEntry(
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


ENTRIES: dict[str, OpInfoEntry] = {name: _entry(tree) for name, tree in _stored()["entries"].items()}

MUTATES = rules.MUTATES
OUT_OF_REACH: dict[str, str] = {
    **{name: "no dtype of parity's on the CPU" for name, entry in ENTRIES.items() if not entry.dtypes},
    **rules.OUT_OF_REACH,
}


def rows() -> tuple[Row, ...]:
    """A row named "opinfo:<entry>" per entry, without those in `OUT_OF_REACH`."""
    return tuple(_as_row(key, entry) for key, entry in ENTRIES.items() if key not in OUT_OF_REACH)


def _as_row(key: str, entry: OpInfoEntry) -> Row:
    base, _, variant = key.partition(":")
    known = key if key in rules.RULE_OF or key in rules.RELATION_OF else base
    rule, relation = rules.RELATION_OF.get(known, (rules.RULE_OF.get(known, OpClass.COMPOSITE), ""))
    plain_name = rules.SAME_KERNEL.get(base, base.removeprefix("masked."))
    relation = "order" if base in rules.ORDER else relation
    mutates = key in rules.MUTATES
    # A variant may be another function (division that rounds down); the ULP tables have only the plain ones.
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
        nondeterministic=("uint8",) if base in rules.RESIZED else (),
        spatial=_spatial(base),
        unchecked=base.startswith(("_", "native_")) and not base.startswith("__"),
        law=rules.LAWS.get(key, ""),
        running=base in rules.RUNNING,
        transform=base in rules.TRANSFORMS or base.startswith("fft."),
        gauss=base.startswith("nn.functional.conv"),
        by_norm=base in rules.BY_NORM.split(),
        bias=rules.BIAS.get(base),
        unexpanded=base in ("median", "nanmedian", "masked.median") or rule in (OpClass.SOLVER, OpClass.DECOMPOSITION),
        unfrozen=base.endswith("group_norm"),
        ulp=rules.ULP_NAMES.get(base, base.split(".")[-1]) if plain else key,
        oracle="exact" if key in rules.DTYPE_BOUND or base in rules.DTYPE_BOUND else "wide",
        opinfo=(key,),
    )


def _spatial(base: str) -> int:
    """The number of dimensions of a pooling entry, from the end of its name; 0 for other entries."""
    return int(base[-2]) if "pool" in base and base.endswith(("1d", "2d", "3d")) else 0


def _draw(key: str, draw: Draw) -> Arguments:
    """One of the entry's samples: its index, a spec per tensor, torch version and digest. Most samples of some entries are
    empty matrices (46 of 64 of svd), so three of four cases are drawn from the others."""
    kept = samples(key, draw.dtype)
    full = tuple([index for index, s in kept.items() if all(t.numel() for t in s.tensors)])
    index = draw.choice(full if 0 < len(full) < len(kept) and draw.pick(4) else tuple(kept))
    return _call(index, kept[index], on_cpu=key == "tensor_split")


def _call(index: int, sample: OpInfoSample, on_cpu: bool = False) -> Arguments:
    """A sample with TensorSpecs for its tensors. on_cpu: all but the first stay on the CPU."""
    specs = tuple(
        TensorSpec(
            dtype_of(t), tuple(t.shape), values=Values("sample", (index, position)), grad=grad, on_cpu=on_cpu and position > 0
        )
        for position, (t, grad) in enumerate(zip(sample.tensors, sample.grads))
    )
    return Arguments((index, *specs), (("torch", torch_version()), ("digest", sample.digest)))


# --------------------------------------------------------------------------------------------------------- with torch


def torch_version() -> str:
    """The version of the installed torch without its build ("2.13.0" for "2.13.0+cpu")."""
    import torch

    return str(torch.__version__).partition("+")[0]


@functools.cache
def _database() -> dict[str, Any]:
    """All OpInfos by key. Raises CaseError if they cannot be imported."""
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
def _samples(key: str, dtype: str) -> dict[int, OpInfoSample]:
    info = _info(key)
    fit = {index: s for index, s in enumerate(_make_samples(info, dtype, grad=False)) if _fits(key, s)}
    if not fit:
        raise CaseError(f"OpInfo '{key}' has no sample in {dtype} that parity can take; choose another dtype or op")
    indices = list(fit)
    if len(indices) > KEPT:
        indices = [indices[k * len(indices) // KEPT] for k in range(KEPT)]
    graded = list(_make_samples(info, dtype, grad=True)) if dtype in ENTRIES.get(key, OpInfoEntry()).backward else []
    # With gradients some entries give other samples. Their flags cannot be matched, so all inexact tensors get a gradient.
    match = [list(map(outline, tensors_of(g))) for g in graded]
    kept = {}
    for index in indices:
        tensors = tuple(tensors_of(fit[index]))
        grads = tuple(FACTS[dtype_of(t)].is_inexact for t in tensors)
        if index < len(match) and match[index] == list(map(outline, tensors)):
            grads = tuple(bool(t.requires_grad) for t in tensors_of(graded[index]))
        args, kwargs = fit[index]
        kept[index] = OpInfoSample(args, kwargs, tensors, grads, digest_of((args, kwargs), tensors))
    return kept


def samples(name: str, dtype: str) -> dict[int, OpInfoSample]:
    """The samples of an entry in a dtype by their index in OpInfo's own order. Raises CaseError."""
    return _samples(name.removeprefix(PREFIX), dtype)


@functools.lru_cache(maxsize=64)
def errors(key: str) -> dict[int, OpInfoSample]:
    """OpInfo's error inputs by index -1, -2 ...; only those that the CPU also refuses with dense operands.

    Empty if the entry has none, or fails to make them. Raises CaseError if OpInfo cannot be imported.
    """
    import torch

    def dense(x: Any) -> Any:
        return x.detach().clone(memory_format=torch.contiguous_format) if isinstance(x, torch.Tensor) else x

    info, kept = _info(key), dict[int, OpInfoSample]()
    for k, (args, kwargs) in enumerate(_error_inputs(info)):
        tensors = tuple(tensors_of((args, kwargs)))
        if not _fits(key, (args, kwargs)) or any(t.device.type != "cpu" for t in tensors):
            continue
        try:
            again = rebuilt((args, kwargs), dense)
            with warnings.catch_warnings(action="ignore"):
                info.op(*again[0], **again[1])
        except Exception as e:
            out = any(word in str(e) for word in OUT_OF_RANGE)
            kept[-1 - k] = OpInfoSample(args, kwargs, tensors, (False,) * len(tensors), digest_of((args, kwargs), tensors), out)
    return kept


def _error_inputs(info: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all error inputs, with seeded generators."""
    with generators(seeded=True), contextlib.suppress(Exception):
        stream = () if info.error_inputs_func is None else info.error_inputs("cpu")
        return [((e.sample_input.input, *e.sample_input.args), dict(e.sample_input.kwargs)) for e in stream]
    return []


def refusals(name: str) -> Iterator[tuple[Arguments, bool]]:
    """(arguments, whether an index is out of range) of each error input of an entry. Raises CaseError."""
    for index, sample in errors(name.removeprefix(PREFIX)).items():
        yield _call(index, sample), sample.out_of_range


def raw_samples(name: str, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all samples of an entry as OpInfo makes them, including large ones. Raises CaseError."""
    return _make_samples(_info(name), dtype, grad)


def _make_samples(info: Any, dtype: str, grad: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(args, kwargs) of all samples; restores the global generators. Raises CaseError."""
    import torch

    with generators():
        try:
            stream = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=grad, set_seed=True)
            stream.test_fn = None  # otherwise a unittest on the stack seeds the samples by its name
            return [((s.input, *s.args), dict(s.kwargs)) for s in stream]
        except Exception as e:
            raise CaseError(f"OpInfo '{info.name}' cannot make its samples in {dtype}: {type(e).__name__}: {e}") from e


def _fits(key: str, sample: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a sample can be used: strided tensors of known dtypes, not too large, no reads outside them, no dropout."""
    import torch

    tensors = list(tensors_of(sample))
    drops = sample[1].get("dropout_p") or (key.endswith("multi_head_attention_forward") and sample[1].get("training"))
    known = all(t.layout is torch.strided and dtype_of(t) in FACTS for t in tensors)
    small = sum(t.numel() for t in tensors) <= LARGEST
    return known and small and not drops and (key.partition(":")[0] not in rules.MEMORY or runs_dense(_info(key).op, sample))


def _sample(name: str, dtype: str, index: int) -> OpInfoSample:
    kept = errors(name.removeprefix(PREFIX)) if index < 0 else samples(name, dtype)
    if index not in kept:
        raise CaseError(
            f"{name} has no sample {index} in {dtype} here (it has {len(kept)}, up to {max(kept, key=abs, default=0)}); "
            "draw the case anew"
        )
    return kept[index]


def sample_tensor(name: str, dtype: str, index: int, position: int) -> Tensor:
    """The tensor at a position of a sample; do not write into it. Raises CaseError."""
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
    """(args, kwargs) of a sample with these tensors instead of its own, and with `device` instead of any device that it names.

    torch, digest: from the case. Raises CaseError if they differ from those of the sample here.
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
    """The text of the file: one line per entry, so that a new torch gives a readable diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in tree["entries"].items()]
    return f'{{"torch": {json.dumps(tree["torch"])}, "entries": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    tree = generate()
    NAMES.write_text(text(tree), encoding="utf-8")
    print(f"wrote {len(tree['entries'])} entries of torch {tree['torch']} to {NAMES.name}")
