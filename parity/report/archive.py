"""The archive that `parity doctor --archive` writes and `parity report` prints: texts without the names and places of the
person and the machine that made them.

The doctor's answer as text and as JSON.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parity.core import outputs, stored, untrusted
from parity.core.devices import BACKENDS, HEALTHY, conclusion
from parity.core.dtypes import FACTS
from parity.core.errors import ArchiveError, RunFileError
from parity.core.results import Json
from parity.core.untrusted import Archive
from parity.core.version import __version__
from parity.devices.base import VARIABLES
from parity.devices.costs import Costs
from parity.engine import suite
from parity.engine.doctor import fingerprint_of, in_words, named
from parity.findings import causes
from parity.findings.verdict import of_causes
from parity.report import causes as causes_text
from parity.report import gaps
from parity.report.answers import Examined, Variable
from parity.report.output import last_line
from parity.report.words import plural
from parity.store import run_file
from parity.store.rows import counted, totals

WIDE = 28
DEFAULTS = "none of those that change numbers is set"


def doctor_text(found: dict[str, Any], seconds: float | None = None) -> str:
    """An examination's answer as text. seconds: that it took."""
    f = fingerprint_of(found)
    lines = [f"device   {named(f)}", f"verdict  {in_words(found['verdict'])}", *(f"         {r}" for r in found["reasons"])]
    if found["dtypes"]:
        lines.append(f"dtypes   {', '.join(found['dtypes'])}")
        lines.append(f"         not: {', '.join(d for d in FACTS if d not in found['dtypes']) or 'none'}")
    software = ("torch", f"{f.torch} ({f.torch_git[:10]})"), ("os", f.os), ("machine", f.machine)
    lines += [f"{key:<{WIDE}}{value}" for key, value in (*f.facts, *found["machine"], *software)]
    lines.append(f"environment{'' if f.environment else ': ' + DEFAULTS}")
    lines += [f"  {f'{k}={v}':<{WIDE + 12}}  {VARIABLES.get(k, '')}".rstrip() for k, v in f.environment]
    following = f"parity run --device {f.device}" if found["verdict"] == HEALTHY else ""
    said = last_line(conclusion(found["verdict"]), f"{f.device} is {found['verdict']}", seconds, following=following)
    return "\n".join([*lines, said])


def doctor_answer(found: dict[str, Any]) -> Examined:
    """The same for other programs: the probe's answer, the meaning of its verdict, and what each variable does."""
    f = fingerprint_of(found)
    environment = tuple(Variable(k, v, VARIABLES.get(k, "")) for k, v in f.environment)
    facts, machine = (dict(found[key]) for key in ("facts", "machine"))
    verdict, reasons, dtypes = found["verdict"], tuple(found["reasons"]), tuple(found["dtypes"])
    means = in_words(verdict)
    return Examined(str(found["device"]), verdict, means, reasons, dtypes, facts, machine, environment, found["fingerprint"])


ABOUT, COSTS = "first.json", "costs.json"
PACKED, MEMBERS = 128 << 20, 5000  # bytes and files of an archive that is read
LARGEST = 64 << 20  # bytes of one file; the rest of a longer one is left out
NAME = re.compile(r"(findings/)?[\w~$-][\w.~$-]*")  # of a file in it: letters, digits, and what stands for names
DIED, DIFFERS = "died", "differs"  # states of a reported case, as parity.zoo.reported has them, which loads torch

KEPT = "PYTORCH_"  # variables whose values stay: they say how torch was run
SHORTEST_NAME, SHORTEST_VALUE = 3, 8  # characters of a name or a value that is looked for at all
# Values that many machines share say nothing of a person.
COMMON = re.compile(r"[\d.:]+|[a-z]{2}_[A-Z]{2}\.UTF-8|xterm.*|(/usr|/opt|/bin|/sbin|/etc)(/[\w.:/-]*)?")
HOMES = re.compile(r"(/Users|/home)/(?!Shared\b)[^/\s\"'\\:,)]+")


class Anonymous:
    """Replaces what names a person or a machine: home, working and temporary folders, user and host names, and the values of
    environment variables other than PYTORCH_..."""

    def __init__(self, secrets: Mapping[str, str], names: Mapping[str, str]) -> None:
        """secrets: text -> what stands for it, replaced anywhere. names: the same, replaced where it is a word of its own."""
        self._secrets = {form: mask for text, mask in secrets.items() for form in _forms(text)}
        self._names = {form: mask for text, mask in names.items() for form in _forms(text)}
        self._anywhere = _any_of(self._secrets, "{}")
        self._as_word = _any_of(self._names, r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])")

    def text(self, text: str) -> str:
        """The text without them."""
        text = self._anywhere.sub(lambda m: self._secrets[m[0]], text) if self._anywhere else text
        text = HOMES.sub("~", text)
        return self._as_word.sub(lambda m: self._names[m[0].lower()], text) if self._as_word else text


def of_this_machine(vocabulary: Collection[str], variables: Mapping[str, str] | None = None) -> Anonymous:
    """For what this process, and others that it starts, may have written. vocabulary: words that stay whatever they are called:
    a user named `max` cannot be distinguished from an operator, and the word names nobody."""
    variables = os.environ if variables is None else variables
    folders = {str(Path.home()): "~", os.path.realpath(Path.home()): "~", variables.get("HOME", ""): "~"}
    folders |= {tempfile.gettempdir(): "TMP", os.path.realpath(tempfile.gettempdir()): "TMP", os.getcwd(): "HERE"}
    folders |= {sys.prefix: "PYTHON", sys.base_prefix: "PYTHON", str(Path(__file__).resolve().parents[2]): "PARITY"}
    users = {variables.get(v, "") for v in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")} | {_user(), Path.home().name}
    hosts = {platform.node(), socket.gethostname(), variables.get("HOSTNAME", ""), variables.get("HOST", "")}
    hosts |= {h.partition(".")[0] for h in hosts}
    known, people = {w.lower() for w in vocabulary}, {n.lower() for n in users | hosts}
    names = {n.lower(): "USER" for n in users} | {n.lower(): "HOST" for n in hosts}
    names = {n: mask for n, mask in names.items() if len(n) >= SHORTEST_NAME and n not in known}
    values = {
        v: f"${k}"
        for k, v in variables.items()
        if not k.startswith(KEPT) and len(v) >= SHORTEST_VALUE and v.lower() not in known | people and not COMMON.fullmatch(v)
    }
    return Anonymous({**values, **{f: mask for f, mask in folders.items() if len(f) > 1}}, names)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process without a name
        return ""


def _forms(text: str) -> set[str]:
    """As it is, and as JSON writes it."""
    return {text, json.dumps(text)[1:-1]}


def _any_of(texts: Collection[str], around: str) -> re.Pattern[str] | None:
    """The longest first: a home folder lies in others. Names in either case, as hosts are written."""
    parts = "|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True) if t)
    return re.compile(around.format(f"(?:{parts})"), re.IGNORECASE if around != "{}" else 0) if parts else None


# ------------------------------------------------------------------------------------------------------------- the archive


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was taken. code: its exit code, negative where a signal ended it. late: whether it was asked to stop since
    its time was over, which is no failure. said: its last line."""

    name: str
    code: int
    seconds: float
    said: str
    late: bool = False


def write(path: Path, folder: Path, about: Json, steps: Sequence[Step]) -> None:
    """All that the steps wrote into a folder, as texts without personal data. about: of the whole. Raises OutputError."""
    hide = of_this_machine(_vocabulary())
    about = {
        "parity": __version__,
        "python": platform.python_version(),
        **about,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(KEPT)},
        "steps": [asdict(s) for s in steps],
    }
    remedy = "name another file with --output"
    with outputs.replacing(path, remedy) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ABOUT, hide.text(json.dumps(about, indent=1, ensure_ascii=False)))
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
            with file.open("rb") as f:
                text = f.read(LARGEST).decode("utf-8", "replace")
            archive.writestr(hide.text(file.relative_to(folder).as_posix()), hide.text(text))


def _vocabulary() -> set[str]:
    """Words of the suite, which stay even where a person or a machine is called so."""
    names = {i.row.name for i in suite.select(source="all")} | {i.row.family for i in suite.select()}
    words = {w for n in names for w in n.replace(":", ".").replace("_", ".").split(".")}
    return names | words | {*BACKENDS, "cpu", "sim", "auto", "torch", "parity", "python", "darwin", "macos", "linux"}


# ------------------------------------------------------------------------------------------------------ what one holds


def render(path: Path) -> str:
    """What an archive holds: the device and its verdict, each step, the reported cases that differ, the counts of the run, its
    findings by cause, and the operators that it reached.

    Raises ArchiveError for what is no such archive, is damaged, or holds more than parity writes.
    """
    held = _Held(path)
    about = held.json(ABOUT)
    steps = about.get("steps")
    if not isinstance(steps, list) or not all(isinstance(s, dict) for s in steps) or "parity" not in about:
        raise held.error(f"its {ABOUT} does not say what was done")
    asked = f"parity {about['parity']}, Python {about.get('python')}: {about.get('minutes')} minutes on {about.get('device')}"
    lines = [f"{asked}, {about.get('when')}{', INTERRUPTED' * bool(about.get('interrupted'))}"]
    for s in steps:
        ended = "its time was over" if s.get("late") else f"exit code {s.get('code')}"
        lines.append(f"  {s.get('name')}: {ended}; {s.get('said')}")
    for name, render in FILES.items():
        lines += ["", *(render(held, name) if name in held.names else [f"it holds no {name}"])]
    return "\n".join(lines)


def costs_in(path: Path) -> Costs:
    """What an archive says that the pieces of a run take on its machine. Raises ArchiveError, also for one that has no such
    figures."""
    held = _Held(path)
    if COSTS not in held.names:
        why = "its device compiles no graphs, or its --time was too short to measure any"
        raise ArchiveError(f"{path} holds no {COSTS}: {why}; parity report {path} says which")
    return _costs_of(held, COSTS)


class _Held:
    """An archive that somebody else made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._archive = Archive(path, PACKED, MEMBERS)
        except OSError as e:
            remedy = "name a file that parity doctor --archive wrote"
            raise ArchiveError(f"cannot read {path}: {e.strerror or e}; {remedy}") from None
        except ValueError as e:
            raise self.error(str(e)) from None
        self.names = self._archive.names
        if odd := next((n for n in self.names if not NAME.fullmatch(n)), ""):
            raise self.error(f"it holds '{odd[:80]}', which parity does not write")
        if len(set(self.names)) < len(self.names):
            raise self.error("it holds two files of one name")
        if ABOUT not in self.names:
            raise self.error(f"it holds no {ABOUT}")

    def error(self, why: str) -> ArchiveError:
        """Why it cannot be used."""
        return ArchiveError(f"{self._path} is not an archive of parity doctor --archive: {untrusted.printable(why)}")

    def text(self, name: str) -> str:
        """One of its files."""
        try:
            return self._archive.content(name, LARGEST).decode("utf-8")
        except (OSError, ValueError) as e:
            raise self.error(str(e)) from None

    def json(self, name: str) -> Json:
        """One of its files, which must hold an object."""
        return self._object(name, self.text(name))

    def lines(self, name: str) -> Iterator[Json]:
        """The objects of a file that has one in each line; the last one may be cut."""
        whole = self.text(name).splitlines(keepends=True)
        yield from (self._object(name, line) for line in whole if line.endswith("\n"))

    def _object(self, name: str, text: str) -> Json:
        try:
            tree = untrusted.parsed(text)
        except ValueError as e:
            raise self.error(f"its {name} is damaged ({e})") from None
        if not isinstance(tree, dict):
            raise self.error(f"its {name} is damaged (no object)")
        return tree


def _doctor(held: _Held, name: str) -> list[str]:
    found = held.json(name)
    if "device" not in found:
        return [f"the device was not examined: {found.get('error', 'the examination died')}"]
    try:
        return doctor_text(found).splitlines()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise held.error(f"its {name} is damaged (no examination)") from None


def _costs_of(held: _Held, name: str) -> Costs:
    try:
        return stored.convert(held.json(name), Costs)
    except ValueError as e:
        wrote = held.json(ABOUT).get("parity", "another version")
        other = f"; parity {wrote} wrote it, and this is {__version__}" * (wrote != __version__)
        raise held.error(f"its {name} is damaged ({e}){other}") from None


def _costs(held: _Held, name: str) -> list[str]:
    costs = _costs_of(held, name)
    figures = [
        f"  {piece:<14}{' '.join(f'{v:>11.3g}' for v in (s.low, s.middle, s.high))}, of {s.samples}"
        for piece, s in costs.pieces.items()
    ]
    return [f"costs on {costs.where}: low, middle, high in seconds and bytes", *figures]


def _reported(held: _Held, name: str) -> list[str]:
    ended = [r for r in held.lines(name) if "state" in r]
    counts = Counter(str(r["state"]) for r in ended)
    bad = [r for r in ended if r["state"] in (DIED, DIFFERS)]
    lines = [f"reported cases: {', '.join(f'{n} {state}' for state, n in sorted(counts.items())) or 'none'}"]
    return lines + [f"  {r.get('id')} {r['state']}: {str(r.get('how', ''))[:160]}" for r in bad]


def _run(held: _Held, name: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="parity-archive-") as folder:
        path = Path(folder, name)
        path.write_text(held.text(name), encoding="utf-8")
        try:
            run = run_file.read(path, partial=True)
        except RunFileError as e:
            raise held.error(f"its {name} is damaged ({str(e).replace(str(path), name)})") from None
    deaths = counted(run.deaths, run.items)
    checks = ", ".join(f"{status} {n:,}" for status, n in sorted(totals(run.items).items()))
    lines = [f"run: {plural(len(run.items), 'op x dtype pair')}; checks: {checks or 'none'}", *gaps.caveat_sentences(run)]
    gathered = causes.gather(run.records, deaths)
    return lines + causes_text.render(gathered, run.header, of_causes(run, gathered, {})).splitlines()


def _audit(held: _Held, name: str) -> list[str]:
    tree = held.json(name)
    operators = tree.get("operators")
    many = len(operators) if isinstance(operators, dict) else 0
    return [f"reached {tree.get('reached')} of {many} operators with an MPS kernel in torch {tree.get('torch')}"]


FILES: dict[str, Callable[[_Held, str], list[str]]] = {  # in the order in which they are shown
    "doctor.json": _doctor,
    COSTS: _costs,
    "reported.jsonl": _reported,
    "run.jsonl": _run,
    "audit.json": _audit,
}
