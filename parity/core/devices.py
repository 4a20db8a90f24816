"""Names of devices, what parity knows of torch's backends, a table each (`parity.core.backends`), and the result of probing a
device. Without torch.

Whatever depends on the backend of a device asks its table. A backend without one is taken as torch takes every other: it
refuses in torch's own words, and its functions have the usual names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.core import backends
from parity.core.errors import DeviceError
from parity.core.status import Conclusion

HONEST = ":honest"  # behind the name of a simulated device: its healthy twin, which rounds as real devices do
SIMULATED = ("sim", "sim:mps", f"sim{HONEST}", f"sim:mps{HONEST}")
BACKENDS = tuple(sorted(m.name for m in pkgutil.iter_modules(backends.__path__)))  # those with a table
# For hints, and where a name must be recognised before torch is imported; torch knows more of them.
USUAL = ("auto", "cpu", *SIMULATED, *BACKENDS, "mtia", "hpu", "npu", "privateuseone")

# ------------------------------------------------------------------------------------------------------------------- its words

# What stands in a hole of a message, for examples.
HOLES = {
    "{op}": "aten::op.out", "{sha}": "cf30153c4c13", "{dtype}": "ComplexDouble", "{rank}": "17", "{device}": "mps",
    "{size}": "24.00 GiB", "{allocated}": "9.06 GiB", "{other}": "384.00 KiB", "{most}": "9.07 GiB", "{asked}": "256 bytes",
    "{pool}": "shared",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """One message. pieces: the literals of the library in order, and "{name}" for what torch puts in between them.

    since, until: the first and the last minor version of torch that has it; empty for the oldest and the newest that was read.
    """

    pieces: tuple[str, ...]
    since: str = ""
    until: str = ""

    @property
    def text(self) -> str:
        """The whole message, to be filled by `str.format`."""
        return "".join(self.pieces)

    @property
    def literals(self) -> tuple[str, ...]:
        """What must stand in the library."""
        return tuple(p for p in self.pieces if not p.startswith("{"))

    @property
    def example(self) -> str:
        """The message as a person may see it."""
        return "".join(HOLES.get(p, "x") if p.startswith("{") else p for p in self.pieces)

    def is_in(self, torch: str) -> bool:
        """Whether that torch ("2.13.0") has it, by what is declared here."""
        return _minor(self.since or "0.0") <= _minor(torch) <= _minor(self.until or "9999.0")


@dataclass(frozen=True, slots=True)
class Wording:
    """A message by type and text. pattern: a regular expression that finds it in an exception's text, and kernels to come
    that say it alike; texts: all messages that it was written for. source: torch's own file, below aten/src/ATen, or the public
    report, where one is known."""

    types: tuple[type[BaseException], ...]
    pattern: re.Pattern[str]
    texts: tuple[Text, ...]
    source: str = ""


def text(*pieces: str, since: str = "", until: str = "") -> Text:
    """A message in pieces."""
    return Text(pieces, since, until)


def says(kind: type[BaseException], pattern: str, *texts: str | Text, source: str = "") -> Wording:
    """Messages of one type that one pattern finds."""
    entries = tuple(t if isinstance(t, Text) else Text((t,)) for t in texts)
    return Wording((kind,), re.compile(pattern, re.DOTALL), entries, source)


def _minor(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"'{version}' is no version")
    return int(match[1]), int(match[2])


# ------------------------------------------------------------------------------------------------------------------- its flags


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of torch that lowers a device's precision or lets it choose its algorithm. name: under which a person sets it;
    pair: of torch's own functions that get and set it, which work where importing OpInfo has frozen the flags of
    `torch.backends`; off: its value where it changes nothing; dtypes: those of which an operand is where it matters, any if
    empty."""

    name: str
    pair: str
    off: Any = False
    dtypes: tuple[str, ...] = ()

    def value(self) -> Any:
        """Its value now; None where this torch does not have it, was built without its library, or does not give it: that of
        TF32 where somebody has set `fp32_precision` of a part."""
        get = getattr(torch_at("_C"), f"_get_{self.pair}", None)
        try:
            return None if get is None else get()
        except RuntimeError:
            return None

    def in_force(self) -> bool:
        """Whether it may change results now."""
        value = self.value()
        return value is not None and (value[0] if isinstance(value, tuple) else value) != self.off

    @contextlib.contextmanager
    def without(self) -> Iterator[None]:
        """A context in which it is off."""
        before, put = self.value(), getattr(torch_at("_C"), f"_set_{self.pair}")
        put(self.off)
        try:
            yield
        finally:
            put(*before) if isinstance(before, tuple) else put(before)


def torch_at(path: str) -> Any:
    """What torch has at a dotted path below it."""
    return functools.reduce(getattr, filter(None, path.split(".")), importlib.import_module("torch"))


# ------------------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One of torch's backends. name: torch's type of the device; key: its dispatch key.

    Its words. refusals, out_of_memory, errors: what an exception means; no_float64: a pattern of those that refuse float64,
    with the dtype as its first group where they name it; fallback: a pattern of the warning of an operator that ran on the
    CPU, with the operator as its first group where it names one; fallback_variable: lets operators without a kernel run there;
    ends: a pattern of errors by which any kernel may end the process.

    What changes its results. variables: of the environment, each with its effect; retried: (variable, value that turns it
    off) that a process reads at its start; flags: of torch; has_fast_math: whether it may compute with fast functions, which
    have a table of tolerances of their own; asserts: whether an index or a chance out of range ends the kernel by an
    assertion, after which nothing works.

    How it is asked. alone: torch knows one device of the type, and its functions take none; reads_at_once: the memory of an
    upload has been read when its copy returns, so that nobody need wait; waits: errors of earlier kernels are raised at the
    next synchronisation, so a download waits first; shares_memory, keeps_graphs: as a `Device` says; memory: figure ->
    function; most_virtual: bytes that it gets in a virtual machine, whatever it reports, 0 for no such limit; releases:
    functions that give back memory; facts: fact -> function of `torch.<name>`, or a path below torch;
    properties: fact -> attribute of the device's properties; driver: in words; absent: why this torch sees none.
    """

    name: str
    key: str = "PrivateUse1"
    refusals: tuple[Wording, ...] = ()
    out_of_memory: tuple[Wording, ...] = ()
    errors: tuple[Wording, ...] = ()
    no_float64: re.Pattern[str] | None = None
    fallback: re.Pattern[str] | None = None
    fallback_variable: str = ""
    ends: re.Pattern[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    retried: tuple[tuple[str, str], ...] = ()
    flags: tuple[Flag, ...] = ()
    has_fast_math: bool = False
    asserts: bool = False
    alone: bool = False
    reads_at_once: bool = False
    waits: bool = False
    shares_memory: bool = False
    keeps_graphs: bool = False
    memory: Mapping[str, str] = field(default_factory=lambda: {"allocated": "memory_allocated", "reserved": "memory_reserved"})
    most_virtual: int = 0
    releases: tuple[str, ...] = ("empty_cache",)
    facts: Mapping[str, str] = field(default_factory=lambda: {"chip": "get_device_name", "capability": "get_device_capability"})
    properties: Mapping[str, str] = field(default_factory=dict)
    driver: Callable[[], str] = str
    absent: Callable[[], str] = str


@functools.cache
def backend_of(device: str) -> Backend:
    """The table of a device's backend, by the name of the device ("cuda:1") or its type in torch; of a backend without one,
    what holds for all."""
    kind = device.partition(":")[0]
    if kind not in BACKENDS:
        return Backend(name=kind)
    table: Backend = importlib.import_module(f"{backends.__name__}.{kind}").BACKEND
    return table


def all_backends() -> tuple[Backend, ...]:
    """Every table."""
    return tuple(map(backend_of, BACKENDS))


HEALTHY, SUSPECT, UNUSABLE = "healthy", "suspect", "unusable"
DOCTOR = "doctor"  # the fact of a fingerprint that names what is wrong with a suspect device
MEANING = {
    HEALTHY: "all known answers are right",
    SUSPECT: "it computes, but not all known answers are right; a run goes on, and its findings may be this machine's own",
    UNUSABLE: "nothing can be compared on it",
}


@dataclass(frozen=True, slots=True)
class Health:
    """verdict: healthy, suspect (computes, but wrongly) or unusable. reasons: a sentence each, none if healthy.

    dtypes: those that could be uploaded, added and downloaded. facts: other measurements that may change numbers. machine: what
    changes none of them, such as its memory.
    """

    verdict: str
    reasons: tuple[str, ...]
    dtypes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...] = ()


def exit_code(verdict: str) -> int:
    """With what an examination that came to this verdict ends."""
    return {HEALTHY: 0, SUSPECT: 1}.get(verdict, DeviceError.exit_code)


def conclusion(verdict: str) -> Conclusion:
    """What it says of the device."""
    return Conclusion.PASS if verdict == HEALTHY else Conclusion.FAIL
