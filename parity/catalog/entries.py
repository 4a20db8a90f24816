"""torch's own test data behind one interface: OpInfo, its modules and its optimizers, by the source that an op's name begins
with.

All three are private to torch and change between versions, so that the first sample loads them, and a case that was drawn from
other samples than those here is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from parity import catalog
from parity.catalog import module_entries, opinfo, optimizer_entries
from parity.catalog.draw import Arguments
from parity.catalog.row import Row
from parity.catalog.samples import Sample, call_of, rebuilt, torch_version
from parity.core.case import entry_of, source_of
from parity.core.errors import CaseError, UsageError, near

if TYPE_CHECKING:
    from torch import Tensor


class TestData(Protocol):
    """One of torch's databases."""

    def rows(self) -> tuple[Row, ...]: ...  # all its rows

    def samples(self, key: str, dtype: str) -> dict[int, Sample]: ...  # by index; raises CaseError

    def errors(self, key: str) -> dict[int, Sample]: ...  # calls that must be refused, by negative index


SOURCES: dict[str, TestData] = {"opinfo": opinfo, "modules": module_entries, "optimizers": optimizer_entries}


def rows(source: str) -> tuple[Row, ...]:
    """All rows of a source."""
    return SOURCES[source].rows()


def row(name: str) -> Row:
    """The row of any source with this full name. Raises UsageError."""
    if (source := source_of(name)) == "native":
        return catalog.row(name)
    found = {r.name: r for r in rows(source)}
    if name not in found:
        raise UsageError(f"unknown op '{name}'; {near(name, found) or f'parity run --list --source {source} lists them'}")
    return found[name]


def samples(op: str, dtype: str) -> dict[int, Sample]:
    """The samples of an op in a dtype by their index. Raises CaseError."""
    return SOURCES[source_of(op)].samples(entry_of(op), dtype)


def refusals(op: str) -> Iterator[tuple[Arguments, bool]]:
    """(arguments, whether an index is out of range) of each call of an op that must be refused. Raises CaseError."""
    for index, sample in SOURCES[source_of(op)].errors(entry_of(op)).items():
        yield call_of(index, sample), sample.out_of_range


def _sample(op: str, dtype: str, index: int) -> Sample:
    kept = SOURCES[source_of(op)].errors(entry_of(op)) if index < 0 else samples(op, dtype)
    if index not in kept:
        raise CaseError(
            f"{op} has no sample {index} in {dtype} here (it has {len(kept)}, up to {max(kept, key=abs, default=0)}); "
            "draw the case anew"
        )
    return kept[index]


def sample_tensor(op: str, dtype: str, index: int, position: int) -> Tensor:
    """The tensor at a position of a sample; do not write into it. Raises CaseError."""
    tensors = _sample(op, dtype, index).tensors
    if not 0 <= position < len(tensors):
        raise CaseError(f"sample {index} of {op} in {dtype} has {len(tensors)} tensors, none at {position}; draw the case anew")
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
    op: str, dtype: str, index: int, tensors: Iterable[Any], torch: str, digest: str, device: str = "cpu"
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
    sample = _sample(op, dtype, index)
    if digest != sample.digest:
        raise CaseError(
            f"sample {index} of {op} in {dtype} has digest {sample.digest} here and {digest} in the case: "
            "other values on another machine; replay it where it was found, or draw anew"
        )
    given = list(tensors)
    if len(given) != len(sample.tensors):
        raise CaseError(f"sample {index} of {op} in {dtype} takes {len(sample.tensors)} tensors, the case has {len(given)}")
    it = iter(given)

    def leaf(x: Any) -> Any:
        if isinstance(x, library.Tensor):
            return next(it)
        if isinstance(x, str) and _is_device(x):
            return device
        return library.device(device) if isinstance(x, library.device) else x

    args, kwargs = rebuilt((sample.args, sample.kwargs), leaf)
    return args, kwargs
