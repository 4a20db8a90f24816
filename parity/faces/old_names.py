"""Names that commands and options had in the version before. They work in this one, with a warning that gives the new name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from parity.engine.options import HANG_AFTER

Turn = Callable[[str, list[str]], list[str]]  # (the old option, what was typed with it) -> what is to be typed
CODE = ("run", "upgrade", "locate", "train", "capture", "replay", "explain", "doctor", "prove counts", "prove power")
WATCHED = ("run", "locate", "train", "capture")


@dataclass(frozen=True, slots=True)
class Old:
    """A command, or some with a certain option, and what replaces it. option: "" for the command whatever its options; now: in
    words; turn: how what was typed becomes what is to be typed."""

    commands: tuple[str, ...]
    option: str
    now: str
    turn: Turn

    def applies(self, argv: Sequence[str]) -> bool:
        """Whether somebody typed it."""
        return self._command(argv) is not None and (not self.option or any(_is(self.option, w) for w in argv[1:]))

    def warning(self, argv: Sequence[str]) -> str:
        """What it is now."""
        return f"'parity {f'{self._command(argv)} {self.option}'.strip()}' is now '{self.now}'"

    def _command(self, argv: Sequence[str]) -> str | None:
        return next((c for c in self.commands if [*argv[: c.count(" ") + 1]] == c.split()), None)


def _is(option: str, word: str) -> bool:
    return word.partition("=")[0] == option


def _taken(option: str, argv: Sequence[str], several: bool = False) -> tuple[list[str], list[str]]:
    """(the values of an option, what else was typed). several: it takes all words up to the next option."""
    values, rest, words = list[str](), list[str](), [*argv]
    while words:
        word = words.pop(0)
        if not _is(option, word):
            rest.append(word)
        elif "=" in word:
            values.append(word.partition("=")[2])
        else:
            values += [words.pop(0)] if words else []
            while several and words and not words[0].startswith("-"):
                values.append(words.pop(0))
    return values, rest


def _swap(new: str, option: str, argv: list[str]) -> list[str]:
    """Another name, with a value of its own if it has one."""
    name, *value = new.split()
    return [x for w in argv for x in ((name + w.removeprefix(option), *value) if _is(option, w) else (w,))]


def _drop(option: str, argv: list[str]) -> list[str]:
    """Nothing: a switch that another option implies."""
    return [w for w in argv if not _is(option, w)]


def _command(new: str, option: str, argv: list[str]) -> list[str]:
    """Another command, in which what was an option needs none."""
    return [*new.split(), *_drop(option, argv[1:])]


def _first(option: str, argv: list[str]) -> list[str]:
    """An argument, before all others."""
    values, rest = _taken(option, argv, several=True)
    return [rest[0], *values, *rest[1:]]


def _last(option: str, argv: list[str]) -> list[str]:
    """An argument, after all others."""
    values, rest = _taken(option, argv)
    return [*rest, *values]


def _other_command(new: str, option: str, argv: list[str]) -> list[str]:
    """Another command, of which the value is the argument."""
    values, _ = _taken(option, argv)
    head, glued = (new.rstrip("-"), new.endswith("-"))
    return [*head.split()[:-1], *(f"{head.split()[-1]}-{v}" for v in values)] if glued else [*new.split(), *values]


def _changed(new: str, change: Callable[[str], str], option: str, argv: list[str]) -> list[str]:
    """Another name, and the value in another notation."""
    values, rest = _taken(option, argv)
    return [*rest, *(x for v in values for x in (new, change(v)))]


def _unsaid(option: str, argv: list[str]) -> list[str]:
    """Nothing: what the name of a file says."""
    return _taken(option, argv)[1]


def _json(option: str, argv: list[str]) -> list[str]:
    """A switch, where the value is json."""
    values, rest = _taken(option, argv)
    return [*rest, *(["--json"] if values[-1:] == ["json"] else [])]


def _format(option: str, argv: list[str]) -> list[str]:
    """A file that adds a format, before its name."""
    files, rest = _taken(option, argv)
    names, rest = _taken("--format", rest)
    return [*rest, f"--format={files[-1] if files else ''}:{names[-1]}"] if names else rest


def _variable(option: str, argv: list[str]) -> list[str]:
    """A variable, which is set here."""
    values, rest = _taken(option, argv)
    os.environ[HANG_AFTER] = values[-1] if values else ""
    return rest


def _models(option: str, argv: list[str]) -> list[str]:
    """Patterns; without one they were compared with all ops."""
    from parity.faces import commandline  # pytest imports this module, and needs no command
    from parity.faces.commands import run

    values, rest = _taken(option, argv)
    o = commandline.parser(rest[0]).parse_args(rest)
    patterns = o.op if rest[0] == "run" else run.parsed(o.asked).op
    return [rest[0], *([] if patterns else ["*"]), *values, *rest[1:]]


def _capture(option: str, argv: list[str]) -> list[str]:
    """`parity locate --capture`."""
    words = [f"--output{w[2:] and '='}{w[2:].lstrip('=')}" if w.startswith("-o") else w for w in argv[1:]]
    return ["locate", *_swap("--capture", "--output", words)]


def _seeds(option: str, argv: list[str]) -> list[str]:
    """The seeds themselves."""
    times, rest = _taken(option, argv)
    seeds, rest = _taken("--seed", rest)
    first = (seeds or ["0"])[-1]
    many = range(int(times[-1]) if times and times[-1].isdecimal() else 1)
    return [*rest, f"--seed={','.join(_seed(first, k) for k in many)}"]


def _seed(first: str, k: int) -> str:
    """The k-th seed from one on."""
    return str(int(first) + k) if first.lstrip("-").isdecimal() else f"{first}.{k}" if k else first


def _beyond(option: str, argv: list[str]) -> list[str]:
    """A pattern."""
    from parity.faces import commandline  # pytest imports this module, and needs no command

    rest = _drop(option, argv)
    return [*rest[:2], "beyond", *(rest[2:] if commandline.parser("prove").parse_args(rest).patterns else ["*", *rest[2:]])]


OLD = (
    Old(("zoo",), "", "parity prove zoo", partial(_command, "prove zoo")),
    Old(("coverage",), "", "parity prove coverage", partial(_command, "prove coverage")),
    Old(("trace",), "", "parity prove trace", partial(_command, "prove trace")),
    Old(("first",), "", "parity doctor --archive", partial(_command, "doctor --archive")),
    Old(("run",), "--count", "parity prove counts", partial(_command, "prove counts")),
    Old(("run",), "--reach", "parity run --study reach", partial(_swap, "--study reach")),
    Old(("audit",), "--reach", "parity prove reach", partial(_command, "prove reach")),
    Old(("audit",), "--wheel", "parity audit --torch", partial(_swap, "--torch")),
    Old(CODE, "--faults", "--setup", partial(_swap, "--setup")),
    Old(WATCHED, "--hang-after", f"{HANG_AFTER}=SECONDS parity ...", _variable),
    Old(("capture",), "", "parity locate --capture", _capture),
    *(
        Old(("run", "prove counts", "prove power"), f"--no-{step}", f"--skip {step}", partial(_swap, f"--skip {step}"))
        for step in ("screens", "shrink", "again")
    ),
    Old(("run", "prove counts"), "--no-power", "--power 0", partial(_swap, "--power 0")),
    Old(("run", "replay"), "--fail-on-metadata", "--fail-on metadata", partial(_swap, "--fail-on metadata")),
    Old(("run",), "--strict-known", "--fail-on known", partial(_swap, "--fail-on known")),
    Old(("run", "merge"), "--mixed", "--accept mixed", partial(_swap, "--accept mixed")),
    Old(("diff", "merge"), "--partial", "--accept partial", partial(_swap, "--accept partial")),
    Old(("diff",), "--ops", "parity diff BEFORE AFTER PATTERN", _last),
    Old(("upgrade",), "--case", "parity upgrade CASE --bisect PLACE", _first),
    Old(("upgrade",), "--format", "parity upgrade -o diff.html, .md, .json or .xml", _unsaid),
    Old(("locate",), "--script", "parity locate -o call.py", partial(_swap, "--output")),
    Old(("report",), "--issue", "parity report RUN CAUSE --format issue", partial(_swap, "--format issue")),
    Old(("report",), "--setup", "parity report RUN --format FILE.py", _format),
    Old(("report",), "--schema", "parity help schema-run, or schema-report", partial(_other_command, "help schema-")),
    Old(("audit",), "--model", "parity audit FILE.py", _first),
    Old(("audit",), "--run", "parity audit FILE.py RUN", _last),
    Old(("audit", "doctor"), "--format", "--json", _json),
    Old(("audit",), "--pytest", "parity audit FILE.py -o test_on_mps.py", _drop),
    Old(("doctor",), "--minutes", "parity doctor --archive --time 10m", partial(_changed, "--time", "{}m".format)),
    Old(("doctor",), "--import", "parity report ARCHIVE", partial(_other_command, "report")),
    Old(("prove reach",), "--run", "parity prove reach RUN", _last),
    Old(("prove coverage",), "--partial", "parity prove coverage", _drop),
    Old(("prove zoo",), "--repeat", "parity prove zoo --seed 0,1,2", _seeds),
    Old(("prove zoo",), "--include-beyond", "parity prove zoo beyond '*'", _beyond),
    Old(("run", "upgrade"), "--model", "PATTERN FILE.py", _models),
)
OF_PYTEST = {
    "--parity-no-screens": ("--parity-skip", "screens"),
    "--parity-no-shrink": ("--parity-skip", "shrink"),
    "--parity-fail-on-metadata": ("--parity-fail-on", "metadata"),
    "--parity-strict-known": ("--parity-fail-on", "known"),
}
MODULES = {"parity.zoo.honest": "'--faults parity.zoo.honest' is now '--device sim:honest', with MPS's limits 'sim:mps:honest'"}
ONLY = "; the old name works in this version only"


def renamed(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what is to be done, in words of this version, a warning for each old name among what was typed). A time after which a
    call counts as hung is a variable now, which is set."""
    given, warnings = [*argv], list[str]()
    for old in OLD:
        if old.applies(given):
            warnings.append(old.warning(given))
            given = old.turn(old.option, given)
    warnings += [now for module, now in MODULES.items() if any(w.rpartition("=")[2] == module for w in given)]
    return given, [f"parity: {w}{ONLY}" for w in warnings]
