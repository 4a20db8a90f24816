"""Values of a capture: storages by the digest of what they hold, whole up to a limit of size, and sketches beyond it.

A storage that an operator leaves and one that a later operator takes hold the same bytes, so they have the same digest: the
digests alone say which result went into which call, whatever views and writes lay between them.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parity.comparing.subject import word
from parity.oracle.yardstick import OWN_ULP, SKETCH, SUM_ULP

SAMPLES = 256  # elements of a storage that a sketch keeps
BLOCKS = 64  # sums that a sketch keeps
DIGEST = 16  # bytes
GOLDEN = 0.6180339887498949  # its multiples fall evenly into every interval


def key_of(flat: Tensor) -> str:
    """The digest of a flat CPU tensor: of its dtype and its bytes."""
    plain = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    raw: Any = plain.contiguous().view(-1).view(torch.uint8).numpy() if flat.numel() else b""
    return hashlib.blake2b(raw, digest_size=DIGEST, person=word(flat.dtype).encode()).hexdigest()


def positions(count: int) -> Tensor:
    """The elements of a storage of `count` elements that a sketch keeps: the first, the last, and others spread evenly."""
    spread = {int(count * (k * GOLDEN % 1.0)) for k in range(SAMPLES - 1)}
    return torch.tensor(sorted({p for p in (*spread, count - 1) if 0 <= p < count}), dtype=torch.int64)


def block_sums(flat: Tensor) -> Tensor:
    """The sums of `BLOCKS` equal parts of a flat tensor in float64, with signs that seem random, so that errors of one sign do
    not add up. What is not finite counts as 0; real and imaginary parts are elements of their own."""
    parts = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    length = -(-parts.numel() // BLOCKS)
    sums = []
    for k in range(BLOCKS):
        part = parts[k * length : (k + 1) * length].to(torch.float64)
        part = part if bool(part.isfinite().all()) else torch.where(part.isfinite(), part, 0.0)
        sums.append((part * _signs(length)[: len(part)]).sum())
    return torch.stack(sums)


@functools.lru_cache(maxsize=16)
def _signs(length: int) -> Tensor:
    """Signs that seem random, for a part of this length, as small integers."""
    return (1 - 2 * ((torch.arange(length, dtype=torch.int64) * 0x9E3779B1 >> 15) & 1)).to(torch.int8)


def sums_agree(theirs: Tensor, ours: Tensor, flat: Tensor, calls: int) -> bool:
    """Whether two `block_sums` differ by no more than the roundings of so many calls explain. flat: the CPU's elements."""
    if not flat.is_floating_point() and not flat.is_complex():
        return bool(torch.equal(theirs, ours))
    parts = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).to(torch.float64)
    parts = torch.where(parts.isfinite(), parts, 0.0)
    length = max(1, -(-parts.numel() // BLOCKS))
    most = float(parts.abs().max()) if parts.numel() else 0.0
    each = OWN_ULP * parts.abs() + SUM_ULP * most
    padded = torch.nn.functional.pad(each, (0, BLOCKS * length - len(each)))
    allowed = calls * SKETCH * torch.finfo(flat.dtype).eps * padded.view(BLOCKS, length).norm(dim=1)
    return bool(((theirs - ours).abs() <= allowed + torch.finfo(flat.dtype).tiny).all())


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is kept of a storage that is too large. count: its elements; nan, inf: how many of them are; samples: the elements
    at `positions(count)`; sums: those of `block_sums`, which every element moves."""

    dtype: torch.dtype
    count: int
    nan: int
    inf: int
    samples: Tensor
    sums: Tensor

    @classmethod
    def of(cls, flat: Tensor) -> Sketch:
        """The sketch of a flat CPU tensor."""
        nan = inf = 0
        if flat.is_floating_point() or flat.is_complex():
            nan, inf = int(flat.isnan().sum()), int(flat.isinf().sum())
        return cls(flat.dtype, flat.numel(), nan, inf, flat[positions(flat.numel())].clone(), block_sums(flat))

    def over(self, ours: Tensor) -> Tensor:
        """A storage of the CPU with what is known of the other in place of its own: the samples, and a NaN or an Inf more, at
        its largest element, if the other has more. What the judge finds in it, it would find in the other as well."""
        made = ours.clone()
        at = positions(self.count)
        made[at] = self.samples
        if made.is_floating_point() or made.is_complex():
            free = torch.where(ours.isfinite(), ours.abs(), -1.0)
            free[at] = -1.0
            largest = int(free.argmax())
            if self.inf > int(made.isinf().sum()):
                made[largest] = torch.inf
            elif self.nan > int(made.isnan().sum()):
                made[largest] = torch.nan
        return made


@dataclass(slots=True)
class Store:
    """The storages of a capture. limit: bytes of those that are kept whole. Where they are more, results go first, the largest
    and then by their digests, which spreads what stays over the whole run; operands that no operator made go last."""

    limit: int
    whole: dict[str, Tensor] = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)  # known by their digests alone: weights that are too large
    bytes: int = 0
    _order: list[tuple[bool, int, str]] = field(default_factory=list)

    def add(self, flat: Tensor, made: bool) -> str:
        """Keep a flat CPU tensor, which is not written later. made: whether an operator made it. Returns its digest."""
        key = key_of(flat)
        if key in self.whole or key in self.sketches or key in self.absent:
            return key
        size = flat.numel() * flat.element_size()
        self.whole[key] = flat
        self.bytes += size
        heapq.heappush(self._order, (not made, -size.bit_length(), key))
        while self.bytes > self.limit:
            gone = heapq.heappop(self._order)[2]
            left = self.whole.pop(gone)
            self.bytes -= left.numel() * left.element_size()
            self.sketches[gone] = Sketch.of(left)
        return key
