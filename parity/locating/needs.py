"""The needs of a model on MPS: operators and dtypes with MPS's answer, the places of the calls, and the text of it all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parity.comparing.advice import LENGTHS, cast, on_the_cpu
from parity.comparing.places import Place
from parity.core.backends import mps
from parity.devices.mps_calls import NOT_ON_MPS, Answer
from parity.locating.located import PASSES, plural

SHOWN = 8  # of each kind of what is missing, in the text


@dataclass(frozen=True, slots=True)
class Need:
    """An operator of aten in one dtype and pass. operator: "aten::add.out"; dtype: of its first tensor, or the one that is
    refused; pass_: one of `PASSES`; calls: how many; place: of the first; why: MPS's words, where it refuses."""

    operator: str
    dtype: str
    pass_: str
    answer: Answer
    calls: int
    place: Place
    why: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether MPS cannot run it."""
        return self.answer in NOT_ON_MPS


@dataclass(frozen=True, slots=True)
class Match:
    """A known bug whose condition holds at calls of the model. id: of the fault; calls: how many; place: of the first."""

    id: str
    operator: str
    calls: int
    place: Place


@dataclass(frozen=True, slots=True, repr=False)
class Needs:
    """What a model needs, and what MPS makes of it. subject: "Net"; torch: whose operator table answers; needs: in the order of
    their first calls; held: dtype -> the names of inputs, parameters and buffers that MPS refuses; matches: known bugs.
    broken: what was raised on the way, behind which nothing was seen; mixed: where, if it says that tensors lie on two devices;
    remedy: what to do about these.
    """

    subject: str
    torch: str
    needs: tuple[Need, ...]
    held: Mapping[str, tuple[str, ...]]
    matches: tuple[Match, ...] = ()
    broken: str = ""
    mixed: Place | None = None
    remedy: str = ""
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Need, ...]:
        """What MPS cannot run, in the order of the first calls."""
        return tuple(n for n in self.needs if n.is_missing)

    @property
    def complete(self) -> bool:
        """Whether MPS has all that is needed, and all was seen."""
        return not (self.missing or self.held or self.broken)

    @property
    def operators(self) -> tuple[str, ...]:
        """Those that MPS has in no dtype, each once."""
        return tuple(dict.fromkeys(n.operator for n in self.missing if n.answer is Answer.MISSING))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those that MPS has for no operator, each once."""
        own = (n.dtype for n in self.missing if n.answer is Answer.REFUSED and n.operator == "")
        return tuple(dict.fromkeys((*self.held, *own)))

    @property
    def refusing(self) -> tuple[str, ...]:
        """Operators that MPS has, and that refuse the model's calls."""
        return tuple(dict.fromkeys(n.operator for n in self.missing if n.answer is Answer.REFUSED and n.operator))

    @property
    def headline(self) -> str:
        """The answer in one line."""
        parts = []
        if self.operators:
            parts.append(f"{plural(len(self.operators), 'operator')} missing on MPS: {', '.join(self.operators)}")
        if self.dtypes:
            parts.append(f"{' and '.join(self.dtypes)}, which MPS does not have")
        if self.refusing:
            parts.append(f"calls that MPS refuses: {', '.join(self.refusing)}")
        if parts:
            return f"{self.subject} needs {'; '.join(parts)} (torch {self.torch})"
        if self.mixed is not None:
            why = "takes to it what must lie" if LENGTHS.search(self.broken) else "leaves a tensor"
            return f"{self.subject} will not run on MPS, nor on any GPU: it {why} on the CPU (torch {self.torch})"
        if self.broken:
            return f"{self.subject} was not seen to its end: {self.broken}"
        slow = tuple(dict.fromkeys(n.operator for n in self.needs if n.answer is Answer.ON_CPU))
        where = f", {', '.join(slow)} always on the CPU" if slow else ""
        many = plural(len({n.operator for n in self.needs if n.answer is not Answer.UNKNOWN}), "operator")
        return f"{self.subject} will run on MPS (torch {self.torch}): all {many} that it calls are there{where}"

    def __repr__(self) -> str:
        return f"<{self.headline}>"

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.lines()])

    def lines(self, all_: bool = False) -> Iterator[str]:
        """What is missing, where it is called, and what to do. all_: however many they are."""
        for dtype, names in self.held.items():
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            yield f"  {dtype}: {', '.join(names[:SHOWN])}{more}"
            yield f"    do: {cast(dtype)}; no fallback helps"
        missing = self.missing
        for n in missing if all_ else missing[:SHOWN]:
            times = f", {plural(n.calls, 'call')}" if n.operator and n.calls > 1 else ""
            yield f"  {n.operator or 'a tensor'} {n.dtype}".rstrip() + f": {n.answer}, {n.pass_}{times}"
            yield f"    {where(n.place, n.pass_)}"
            yield from (f"    MPS says: {n.why}",) if n.why else ()
            yield f"    do: {remedy(n)}"
        if len(missing) > SHOWN and not all_:
            yield f"  ... and {len(missing) - SHOWN} more (-v lists all)"
        if self.mixed is not None:
            yield f"  {self.broken}"
            yield f"    {where(self.mixed, PASSES[0])}"
            yield f"    do: {self.remedy}"
        elif self.broken and missing:
            yield f"  not seen to its end: {self.broken}"
        yield from (f"note: {n}" for n in self.notes)


def where(place: Place, pass_: str) -> str:
    """Module, function and line in words."""
    of = "of " if pass_ == PASSES[1] else ""
    called = f"{of}{place.function or 'a call'}" + (f" at {place.line}" if place.line else "")
    return f"in {place}: {called}" if place.module or place.kind else called


def remedy(n: Need) -> str:
    """What the user may do about something that is missing."""
    if n.answer is Answer.MISSING:
        return f"{on_the_cpu(mps.FALLBACK_VARIABLE)}; or move this part there, x.cpu() before and .to(device) behind"
    if "autocast" in n.why:
        wide = "float32, or the dtype of autocast, for all of its operands"
        return f"give it {wide}; or leave autocast here: with torch.autocast(..., enabled=False)"
    if n.operator:
        return f"another dtype or shape here, or this part on the CPU; {mps.FALLBACK_VARIABLE} does not help"
    return f"{cast(n.dtype)}; no fallback helps" if n.dtype else "fewer dimensions"
