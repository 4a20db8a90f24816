"""Can a run end green although something is wrong? Each way to be green wrongly is tried, and its healthy twin.

    python -m tests.bench green acquitted [KIND ...] [--sample N] [-n PROCESSES]

A way is a few small files and one or more commands in an empty folder. With the fault in place the last command must end with
one of the codes that the way names, never 0; its healthy twin must end with 0. The ways are in ways/, one file a kind, each
with a tuple WAYS. The program prints a line for each way and ends with 1 where one was green wrongly or a twin was red.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import front

FOLDER = Path(__file__).parent / "ways"
SECONDS = 300  # what one command may take


@dataclass(frozen=True, slots=True)
class Way:
    """One way to be green wrongly, as `way` makes it. red: the codes with which the last command may end; says: what its output
    must hold then."""

    name: str
    commands: tuple[str, ...]
    healthy_commands: tuple[str, ...]
    files: Mapping[str, str]
    healthy: Mapping[str, str]
    red: tuple[int, ...]
    says: str


def way(
    name: str,
    command: str | tuple[str, ...],
    files: Mapping[str, str | tuple[str, str]],
    says: str = "",
    red: tuple[int, ...] = (1,),
    twin: str | tuple[str, ...] = (),
) -> Way:
    """A way by the files that are written into an empty folder: each is of both sides, or (the bad one's, the healthy one's).
    A command begins with `parity`, `pytest` or `python` (those of this interpreter), or is any other line of the shell. twin:
    the healthy one's commands, where they differ."""
    commands, others = ((c,) if isinstance(c, str) else c for c in (command, twin or command))
    bad, good = ({n: t if isinstance(t, str) else t[k] for n, t in files.items()} for k in (0, 1))
    return Way(name, commands, others, bad, good, red, says)


@dataclass(frozen=True, slots=True)
class Tried:
    """How one side of a way ended."""

    code: int
    output: str
    seconds: float


def ways(kinds: Sequence[str] = ()) -> dict[str, tuple[Way, ...]]:
    """The ways of each kind, read from ways/."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if kinds and path.stem not in kinds:
            continue
        spec = importlib.util.spec_from_file_location(f"ways_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found[path.stem] = module.WAYS
    missing = set(kinds) - set(found)
    if missing:
        sys.exit(f"no kind {', '.join(sorted(missing))}; there are {', '.join(p.stem for p in sorted(FOLDER.glob('*.py')))}")
    return found


def line(command: str) -> str:
    """The command with this interpreter in place of parity, pytest and python."""
    first, _, rest = command.partition(" ")
    python = shlex.quote(sys.executable)
    known = {"parity": f"{python} -m parity", "pytest": f"{python} -m pytest -q -p no:cacheprovider", "python": python}
    return f"{known.get(first, first)} {rest}"


def tried(way: Way, healthy: bool) -> Tried:
    """Run the commands of one side in an empty folder; all but the last may end as they like."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parity-way-") as folder:
        for name, text in (way.healthy if healthy else way.files).items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(text)
        code, output = 0, ""
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        for command in way.healthy_commands if healthy else way.commands:
            try:
                done = subprocess.run(
                    ["bash", "-c", line(command)],
                    cwd=folder,
                    env=env,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=SECONDS,
                )
                code, output = done.returncode, done.stdout + done.stderr
            except subprocess.TimeoutExpired:
                code, output = 124, f"not done after {SECONDS} s"
    return Tried(code, output, time.monotonic() - began)


def problem(way: Way, bad: Tried, good: Tried) -> str:
    """What is wrong with how a way ended, or nothing."""
    if bad.code not in way.red:
        return f"ended with {bad.code}, expected {' or '.join(map(str, way.red))}"
    if way.says and way.says not in bad.output:
        return f"does not say {way.says!r}"
    if "Traceback (most recent call last)" in bad.output and not way.commands[-1].startswith(("pytest", "python")):
        return "ended with a traceback"
    return f"the healthy twin ended with {good.code}, expected 0" if good.code else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Try the ways and print a line for each."""
    parser = front.parser(__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="the first N ways of each kind")
    parser.add_argument("-n", type=int, default=2, dest="processes", metavar="PROCESSES")
    parser.add_argument("-v", action="store_true", dest="verbose", help="print what the last command of a wrong way said")
    options = parser.parse_args(argv)
    jobs = [(k, w) for k, all_ in ways(options.kinds).items() for w in all_[: options.sample or None]]
    wrong = 0
    with ThreadPoolExecutor(options.processes) as pool:
        sides = {(k, w.name, h): pool.submit(tried, w, h) for k, w in jobs for h in (False, True)}
        for kind, way in jobs:
            bad, good = sides[kind, way.name, False].result(), sides[kind, way.name, True].result()
            says = problem(way, bad, good)
            wrong += bool(says)
            print(f"{kind:<20} {way.name:<60} {says or 'red, twin green'} ({bad.seconds + good.seconds:.0f} s)", flush=True)
            if says and options.verbose:
                print((bad if not says.startswith("the healthy") else good).output[-3000:])
    print(f"{len(jobs)} ways: {len(jobs) - wrong} red with a green twin, {wrong} wrong")
    return 1 if wrong or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
