"""The options of a run: one field of `RunOptions` for each, with its help texts for the command line and pytest.

`offered` says whether `parity run` and the pytest plugin offer a field. A new option needs a field here and the code that uses
it; `parity.engine.reading` reads its text.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from parity.core.devices import BACKENDS
from parity.engine.reading import (
    Code,
    Workers,
    hang_after,
    holds,
    read_amount,
    read_count,
    read_duration,
    read_input,
    read_place,
    read_seconds,
    read_share,
    read_study,
    read_text,
    read_words,
)

DEVICES = f"{', '.join(BACKENDS)}, sim, sim:mps, cpu, or auto: the first accelerator"
DEVICE_HELP = f"{DEVICES} that torch reports, else sim:mps"
FAULTS_HELP = "faults for a simulated device: a Python file, or an installed module by its name"
SETUP_HELP = (
    "Python that every process runs first: backend flags, a backend's import; or faults for a simulated device: a file with "
    "FAULTS, or an installed module by its name (one of each may be given)"
)
INPUT_HELP = (
    "an input of the model, 'float32[1, 3, 224, 224]' or 'mask=bool[2, 16]', in place of those that are made (repeatable)"
)
PROFILE_HELP = "mac (few shapes), quick (the default), full or deep"
METADATA, KNOWN = ALSO = ("metadata", "known")  # what fails a run with --fail-on besides a status
STRICT = f"--fail-on {METADATA}"
METADATA_HELP = f"{METADATA}: other strides than the CPU's also where torch promises none (else they are only reported)"
SCREENS, SHRINK, AGAIN = STEPS = ("screens", "shrink", "again")  # what a run does by itself, unless it is to --skip it
MIXED, PARTIAL = "mixed", "partial"  # what is refused unless it is accepted
MIXED_HELP = f"{MIXED}: machines that differ in torch, OS, chip or settings, and note how they differ"
WORKERS_HELP = "worker processes; by default one per core, at most 8, and no more than the memory holds"
PLACES_HELP = (
    "; or a worker on another machine or in another environment, as pytest-xdist takes it (repeatable): "
    "ssh=mac2//python=PATH, 2*popen//python=PATH"
)
RUN, PYTEST = BOTH = ("run", "pytest")  # where an option of a run is offered
PYTEST_PREFIX = "parity"  # of the options in pytest, because other plugins have options too


def is_strict(options: str) -> bool:
    """Whether the options of a header say that strides which torch does not promise are findings."""
    given = [word.partition("=") for word in options.split()]
    return ("--fail-on-metadata", "", "") in given or any(  # as runs were asked before
        flag == "--fail-on" and holds((value,), METADATA) for flag, _, value in given
    )


# ---------------------------------------------------------------------------------------------------------- the fields


def _option(
    default: Any,
    help: str,
    pytest_help: str = "",
    *,
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    flags: tuple[str, ...] = (),
    offered: tuple[str, ...] = BOTH,
) -> Any:
    """A field of `RunOptions`; see `Option` for the arguments."""
    how = {"help": help, "pytest_help": pytest_help, "metavar": metavar, "read": read, "flags": flags}
    return field(default=default, metadata=how | {"offered": offered})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    A field with the default False is a switch, one with an empty tuple is repeatable, every other one takes a value. power: 0
    for none; source: None for the profile's own.
    """

    op: tuple[str, ...] = _option(
        (),
        "ops by name, with * and ?; all by default; and models.py, or models.py:bert: functions of yours that return a model "
        "or function and its inputs; and models by name, timm:resnet18 (parity help models)",
        "only ops whose name matches this pattern (repeatable)",
        metavar="PATTERN",
        flags=("op",),
    )
    device: str = _option("auto", DEVICE_HELP + " (auto by default)", DEVICES)
    dtype: tuple[str, ...] = _option((), "only this dtype (repeatable, or separated by commas)", "only this dtype (repeatable)")
    family: tuple[str, ...] = _option(
        (), "only this family (repeatable, or separated by commas)", "only this family (repeatable)"
    )
    profile: str = _option("quick", PROFILE_HELP, "mac, quick, full or deep")
    source: str | None = _option(
        None,
        "native, opinfo, both as ops, modules, optimizers, or all (by default the profile's: full and deep all, others native)",
        "native, opinfo, both as ops, modules, optimizers, or all; the profile's own by default",
        read=read_text,
    )
    examples: int | None = _option(
        None,
        "cases per op and dtype instead of the profile's number",
        "cases per op and dtype instead of the profile's",
        metavar="N",
        read=read_count,
    )
    time: float | None = _option(
        None,
        "how long the run may take (90s, 5m, 1h): pinned cases of every item, then rounds of exploration until it is over",
        "seconds that the run may take",
        metavar="TIME",
        read=read_duration,
    )
    seed: str = _option("0", "seed of the explored cases; the pinned ones are always the same")
    workers: int | None = _option(None, WORKERS_HELP + PLACES_HELP, metavar="N", read=read_place, flags=("-n",), offered=(RUN,))
    tx: tuple[str, ...] = _option((), "the places of -n", flags=("-n",), offered=())
    accept: tuple[str, ...] = _option(
        (),
        f"run over machines all the same: {MIXED_HELP}",
        metavar="WHAT",
        read=read_words("thing to accept", MIXED),
        offered=(RUN,),
    )
    faults: str | None = _option(None, FAULTS_HELP, metavar="FILE", read=read_text, offered=(PYTEST,))
    skip: tuple[str, ...] = _option(
        (),
        f"leave a step out (repeatable, or separated by commas): {SCREENS}, so that every pair goes to the float64 oracle; "
        f"{SHRINK}: findings are reported as they were drawn; {AGAIN}: they are not tried again in a fresh process",
        f"a step to leave out: {SCREENS} (every pair goes to the oracle) or {SHRINK} (findings stay as they were drawn)",
        metavar="STEP",
        read=read_words("step", *STEPS),
    )
    power: int | None = _option(
        None,
        "how many comparisons that agree are judged again with errors put in (by default 400, or 3 in 1,000 if less; 0: none)",
        "comparisons that are judged once more with errors put in",
        metavar="N",
        read=read_amount,
    )
    hang_after: float | None = _option(
        None,
        "seconds after which a call counts as hung (by default 20, and more for large operands)",
        metavar="SECONDS",
        read=read_seconds,
        offered=(PYTEST,),
    )
    setup: str | None = _option(None, SETUP_HELP, metavar="FILE", read=read_text)
    fail_on: tuple[str, ...] = _option(
        (),
        f"also fail on this status, such as unsupported; on {METADATA_HELP}; or on {KNOWN}: findings of --known that are "
        "fixed, or that grew where only exploration shows it, for nightly runs (repeatable, or separated by commas)",
        f"status that fails a test besides the findings: unsupported, ...; or {METADATA}, {KNOWN}",
        metavar="WHAT",
    )
    model: tuple[str, ...] = _option(
        (), "files of PATTERN", "a model to compare, models.py:net or timm:resnet18, without a test (repeatable)",
        metavar="MODEL", read=read_text, offered=(PYTEST,),
    )  # fmt: skip
    input: tuple[str, ...] = _option((), INPUT_HELP, INPUT_HELP, metavar="INPUT", read=read_input)
    known: str | None = _option(
        None,
        "accept the findings in this file, which parity known add writes; their cases run first",
        "a file of known findings, which do not fail; known in [tool.parity] names one, too",
        metavar="FILE",
        read=read_text,
    )
    min_judged: float = _option(
        0.0,
        "fail an op of whose elements less than this share was judged (0.9 for nine in ten; none by default)",
        "share of an op's elements that must have been judged",
        metavar="SHARE",
        read=read_share,
    )
    output: str | None = _option(
        None,
        "the run file to write (JSON lines; by default parity-run-DATE-TIME.jsonl)",
        metavar="FILE",
        read=read_text,
        flags=("-o", "--output"),
        offered=(RUN,),
    )
    resume: str | None = _option(
        None,
        "finish this run file of an interrupted run, with the options that it says; only what is not whole is run",
        metavar="RUN",
        read=read_text,
        offered=(RUN,),
    )
    findings: str = _option(
        "findings",
        "folder for the scripts that reproduce findings (findings by default)",
        "folder for the scripts that reproduce findings",
        metavar="FOLDER",
        read=read_text,
    )
    junit_xml: str | None = _option(None, "also write JUnit's XML", metavar="FILE", read=read_text, offered=(RUN,))
    shard: str | None = _option(
        None,
        "only the items of this shard, 3/7 for the third of seven, by a stable hash; parity merge joins the run files",
        "only the items of this shard, 3/7 for the third of seven",
        metavar="K/N",
        read=read_text,
    )
    study: str | None = _option(
        None, "for parity prove: what the run notes or draws for it (counts, reach)", metavar="STUDY", read=read_study
    )
    verbose: bool = _option(False, "every finding in full", offered=())
    list: bool = _option(False, "list the selected ops with their dtypes, and run nothing", offered=(RUN,))

    @classmethod
    def of_command_line(cls, given: Namespace) -> Self:
        """From the namespace that the parser of `parity run` returned. Raises UsageError for a malformed variable."""
        values = ((o, getattr(given, o.name, None)) for o in OPTIONS)
        made = cls(**{o.name: o.default if value is None else _frozen(value) for o, value in values})
        return made if made.resume else replace(made, hang_after=hang_after())  # the run file says how it was begun

    @property
    def no_screens(self) -> bool:
        """Whether every pair goes to the float64 oracle."""
        return holds(self.skip, SCREENS)

    @property
    def no_shrink(self) -> bool:
        """Whether findings stay as they were drawn."""
        return holds(self.skip, SHRINK)

    @property
    def no_again(self) -> bool:
        """Whether findings are not tried again in a fresh process."""
        return holds(self.skip, AGAIN)

    @property
    def mixed(self) -> bool:
        """Whether machines may differ."""
        return holds(self.accept, MIXED)

    @property
    def fail_on_statuses(self) -> tuple[str, ...]:
        """The statuses that fail the run in addition."""
        return tuple(w for w in self.fail_on if w not in ALSO)

    @property
    def fail_on_metadata(self) -> bool:
        """Whether strides that torch does not promise are findings."""
        return holds(self.fail_on, METADATA)

    @property
    def strict_known(self) -> bool:
        """Whether known findings that are fixed, or that grew, fail the run."""
        return holds(self.fail_on, KNOWN)

    @classmethod
    def of_pytest(cls, given: Namespace) -> Self:
        """From pytest's `config.option`."""
        return cls(**{o.name: _frozen(getattr(given, o.pytest_dest)) for o in OPTIONS if o.in_pytest})

    def pytest_arguments(self) -> Iterator[str]:
        """The pytest arguments that give a run these options, without those at their default."""
        for o in OPTIONS:
            if o.in_pytest:
                yield from o.words(o.pytest_flag, getattr(self, o.name))

    def for_header(self) -> str:
        """The options that decide what is compared or how the run ends, without those that a header has a field for."""
        kept = [o for o in OPTIONS if o.name not in (*IN_HEADER, *PRESENTATION)]
        return " ".join(word for o in kept for word in o.words(o.flag, getattr(self, o.name)))


# These have a field of their own in the header of a run file.
IN_HEADER = ("op", "device", "dtype", "family", "profile", "source", "seed", "faults", "setup", "model", "known", "shard")
# These say where a run is made, written and shown. Every other option is part of the run: --resume takes it from the run file.
PRESENTATION = ("workers", "tx", "accept", "output", "resume", "findings", "junit_xml", "verbose", "list")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------- for the two parsers


@dataclass(frozen=True, slots=True)
class Option:
    """How a field of `RunOptions` is offered.

    plain: the type of its value. pytest_help: the help in pytest if it differs. read: how the command line parses and checks
    its text; pytest reads numbers by `IN_PYTEST`, and every other value by the plain type. flags: its names on the command line
    if they are not derived from the field's name; one without a dash is positional. offered: where it is an option of that
    name, in `RUN` or `PYTEST`.
    """

    name: str
    default: Any
    plain: type
    help: str
    pytest_help: str
    metavar: str | None
    read: Callable[[str], Any] | None
    flags: tuple[str, ...]
    offered: tuple[str, ...]

    @property
    def in_run(self) -> bool:
        """Whether `parity run` has it."""
        return RUN in self.offered

    @property
    def in_pytest(self) -> bool:
        """Whether pytest has it."""
        return PYTEST in self.offered

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.default is False

    @property
    def is_repeatable(self) -> bool:
        """Whether its values are collected in a tuple."""
        return isinstance(self.default, tuple)

    @property
    def flag(self) -> str:
        """Its name on the command line and in the header of a run file."""
        return self.flags[-1] if self.flags else f"--{self.name.replace('_', '-')}"

    @property
    def pytest_flag(self) -> str:
        """Its name in pytest."""
        return f"--{PYTEST_PREFIX}-{self.name.replace('_', '-')}"

    @property
    def pytest_dest(self) -> str:
        """The attribute of pytest's `config.option` that holds its value."""
        return f"{PYTEST_PREFIX}_{self.name}"

    def for_command_line(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Names and keywords for `argparse.ArgumentParser.add_argument`."""
        flags = self.flags or (self.flag,)
        if not self.flag.startswith("-"):
            return flags, {"nargs": "*", "metavar": self.metavar, "help": self.help}
        how = {"dest": self.name, "help": self.help, **self._action()}
        return flags, how if self.is_switch else how | {"metavar": self.metavar, "type": self.read or self.plain}

    def for_pytest(self) -> tuple[str, dict[str, Any]]:
        """Name and keywords for `addoption` of a group of pytest's parser."""
        how = {"dest": self.pytest_dest, "help": self.pytest_help or self.help, **self._action()}
        return self.pytest_flag, how if self.is_switch else how | {"type": IN_PYTEST.get(self.name, self.plain)}

    def words(self, flag: str, value: Any) -> Iterator[str]:
        """The words under this flag that give it a value; none for its default."""
        if value == self.default:
            return
        if self.is_switch:
            yield flag
        else:
            yield from (f"{flag}={v}" for v in (value if self.is_repeatable else (value,)))

    def _action(self) -> dict[str, Any]:
        if self.name in ACTIONS:
            return {"action": ACTIONS[self.name]}
        if self.is_switch:
            return {"action": "store_true", "default": False}
        return {"action": "append", "default": []} if self.is_repeatable else {"action": "store", "default": self.default}


# In pytest a time is in seconds, and a power of 0 is none at all.
IN_PYTEST: dict[str, Callable[[str], Any]] = {
    "examples": read_count,
    "time": read_seconds,
    "power": read_amount,
    "skip": read_words("step", *STEPS),
    "hang_after": read_seconds,
    "min_judged": read_share,
    "study": read_study,
}
ACTIONS = {"setup": Code, "workers": Workers}
PLAIN = {"int": int, "float": float}
OPTIONS = tuple(
    Option(f.name, f.default, PLAIN.get(str(f.type).partition(" | ")[0], str), **f.metadata) for f in fields(RunOptions)
)
