"""How many small changes of parity's own code do its tests see? A sign, a limit, a lost branch, one at a time, each in a copy.

    python tests/bench/mutated.py --list                                   # the 60 changes that are drawn
    python tests/bench/mutated.py -o own.jsonl -j 2                         # ask the tests of the changed modules
    python tests/bench/mutated.py -o seen.jsonl --readme -j 15 --limit 550  # and the README's command, on 15 cores
    python tests/bench/mutated.py -o seen.jsonl --readme --summary

Each change is made in a copy of the tree and tried by the tests of its own module; with --readme then by all others that the
README's command runs and that compute what is changed, until one fails. It is seen where that test fails again by itself, and
does not on unchanged code, or where no test can start. With --readme the unchanged code is asked first: what fails there is
left out, and each test notes which of the changed expressions it computes, in other processes too. What has an answer in the
file is not asked again. What is stopped at the limit, or after --each, has none: it counts neither as seen nor as unseen, and
is asked by the next call.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]
FOLDERS = ("judging", "checks", "store", "engine")
LEFT_OUT = (".git", ".venv", "venv", "__pycache__", ".*_cache", "parity-run-*")  # an environment holds gigabytes
STAGES = "mirrored", "others"
TESTPATHS = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
ENTRY = "[pytest11]\nparity = parity.faces.plugin\n"
# A plugin of pytest that says in the environment which test runs, and what notes it, with the number of the change.
WHICH = """import os
import pytest
def note(stage):
    @pytest.hookimpl(wrapper=True)
    def hook(item):
        os.environ["TRIED_BY"] = f"{item.nodeid}\\t{stage}"
        return (yield)
    return hook
pytest_runtest_setup, pytest_runtest_call = note("setup"), note("call")
"""
NOTES = """import builtins, os
noted = set()
def _noted(number):
    line = f"{{number}}\\t{{os.environ.get('TRIED_BY', '')}}\\n"
    if line not in noted:
        noted.add(line)
        with open({path!r}, "a") as file:
            file.write(line)
    return True
builtins._noted = _noted
"""
SIGNS = {ast.Add: "-", ast.Sub: "+"}
LIMITS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True, order=True)
class Change:
    """Bytes `begin` to `end` of a file are replaced by `new`; start, stop: those of the whole expression."""

    path: str
    line: int
    begin: int
    end: int
    kind: str
    new: str
    start: int
    stop: int

    def made(self, source: bytes) -> bytes:
        """The file with the change in it."""
        return source[: self.begin] + self.new.encode() + source[self.end :]

    @property
    def mirrored(self) -> list[str]:
        """The tests of the module, or of its folder where it has none of its own."""
        folder = Path("tests/unit", Path(self.path).parts[1])
        own = sorted((REPO / folder).rglob(f"test_{Path(self.path).stem}.py"))
        return [str(p.relative_to(REPO)) for p in own] or [str(folder)]

    def others(self, notes: Iterable[str]) -> list[str]:
        """The other tests that compute the expression: whole files where that is in a fixture, which others may share, and all
        where it is while modules are imported. notes: the tests, each with its stage, on unchanged code."""
        noted = (note.partition("\t") for note in notes)
        named = dict.fromkeys(test.partition("::")[0] if stage == "setup" else test for test, _, stage in noted)
        found = named if "" not in named else dict.fromkeys(TESTPATHS)
        return [t for t in found if not ("::" in t and t.partition("::")[0] in found) and not self._is_mirrored(t)]

    def _is_mirrored(self, test: str) -> bool:
        return any(Path(test.partition("::")[0]).is_relative_to(own) for own in self.mirrored)


def watched(source: bytes, some: Mapping[int, Change]) -> bytes:
    """A file in which each expression that would be changed notes that it is computed. some: by number."""
    marks = [(c.stop, 0, "))") for c in some.values()] + [(c.start, 1, f"(_noted({i}) and (") for i, c in some.items()]
    for place, _, text in sorted(marks, reverse=True):
        source = source[:place] + text.encode() + source[place:]
    return source


def changes(path: str, source: bytes) -> Iterator[Change]:
    """All that can be made in a file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(source)):
        new, between, kind = None, None, ""
        if isinstance(node, ast.BinOp):
            new, between, kind = SIGNS.get(type(node.op)), (node.left, node.right), "sign"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            new, between, kind = LIMITS.get(type(node.ops[0])), (node.left, node.comparators[0]), "limit"
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") != "TYPE_CHECKING":
            begin, end = place(node.test)
            yield Change(path, node.lineno, begin, end, "branch", f"(False and ({source[begin:end].decode()}))", begin, end)
        if isinstance(node, ast.expr) and new and between:
            begin, end = place(between[0])[1], place(between[1])[0]
            found = re.search(rb"[-+]|[<>]=?", source[begin:end])  # brackets of the operands may stand in between
            if found:
                own = begin + found.start(), begin + found.end()
                yield Change(path, between[0].lineno, *own, kind, new, *place(node))


def drawn(number: int, seed: int) -> list[Change]:
    """As many of each kind, in an order that more of them do not change."""
    files = [p for folder in FOLDERS for p in sorted((REPO / "parity" / folder).rglob("*.py"))]
    every = sorted(c for p in files for c in changes(str(p.relative_to(REPO)), p.read_bytes()))
    kinds = {kind: [c for c in every if c.kind == kind] for kind in ("sign", "limit", "branch")}
    for of in kinds.values():
        random.Random(seed).shuffle(of)
    return [c for three in zip(*kinds.values(), strict=False) for c in three][:number]


class Cores:
    """So many processes at a time, and until when they may run."""

    def __init__(self, number: int, seconds: float) -> None:
        self._free, self.number, self._end = threading.Condition(), number, time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    @contextlib.contextmanager
    def taken(self, some: int) -> Iterator[None]:
        """Waits until they are free."""
        with self._free:
            self._free.wait_for(lambda: self.number >= some)
            self.number -= some
        try:
            yield
        finally:
            with self._free:
                self.number += some
                self._free.notify_all()


def said(code: int | None, fails: bool, changed: bool) -> str:
    """What an end of pytest says. A change with which no test can start is seen by who runs them: 2, a file cannot be
    collected; 3, pytest itself fails; 4, nor conftest.py can be imported. 5: all tests were left out."""
    if code == 0 or (changed and code == 5):
        return "not seen"
    return "seen" if fails or (changed and code in (2, 3, 4)) else "no answer"


def failures(
    tests: list[str], change: Change | None, workers: int, limit: float, left_out: Sequence[str], watch: Sequence[Change] = ()
) -> dict[str, Any]:
    """The tests that fail in a copy of the tree: all of them where nothing is changed, else the first. watch: the changes whose
    expressions are noted."""
    begun = time.monotonic()
    places = [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    inside = [p.relative_to(REPO).parts[0] for p in places if p != REPO and p.is_relative_to(REPO)]  # packages, not copied
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as outside:
        copy, entry = Path(scratch, "copy"), Path(scratch, "site")
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(*LEFT_OUT, *(name for name in inside if name != "tests")))
        if shutil.which("git"):
            subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        entry.mkdir()
        if not any(importlib.metadata.distributions(name="torch-parity")):  # the packages alone were installed
            (facts := entry / "torch_parity-0.dist-info").mkdir()
            (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-parity\nVersion: 0\n")
            (facts / "entry_points.txt").write_text(ENTRY)
        if change:
            file = copy / change.path
            file.write_bytes(change.made(file.read_bytes()))
        for file in {copy / c.path for c in watch}:
            file.write_bytes(watched(file.read_bytes(), {i: c for i, c in enumerate(watch) if copy / c.path == file}))
        if watch:
            (entry / "which_test.py").write_text(WHICH)
            (entry / "sitecustomize.py").write_text(NOTES.format(path=str(notes := Path(scratch, "notes"))))
        (asked := Path(scratch, "tests")).write_text("\n".join(tests))
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *(["-x"] if change else [])]
        command += tests if workers else [f"@{asked}"]  # xdist's workers read no such file
        command += ["-p", "which_test"] if watch else []
        paths = [str(p) for p in (copy, entry, *(p for p in places if p != REPO))]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": outside}
        where = "import importlib.util as u; print(u.find_spec('parity').origin)"
        found = subprocess.run(
            [sys.executable, "-c", where], cwd=outside, env=env, check=True, capture_output=True, text=True
        ).stdout
        if not Path(found.strip()).is_relative_to(copy):
            raise SystemExit(f"the tests would import {found.strip()}, and not the copy in {copy}")
        with subprocess.Popen(
            [*command, *(f"--deselect={test}" if "::" in test else f"--ignore={test}" for test in left_out)],
            cwd=copy,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                text, _ = process.communicate(timeout=max(limit, 0.01))
                code: int | None = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, code = process.communicate()[0], None
        noted = sorted({*notes.read_text().splitlines()}) if watch and notes.exists() else []
        last = copy / ".pytest_cache/v/cache/lastfailed"
        failed = sorted(json.loads(last.read_text())) if code in (1, 2) and last.exists() else []
    answer = said(code, bool(failed), change is not None)
    return {
        "answer": answer, "by": failed, "code": code,
        "seconds": round(time.monotonic() - begun, 1), "tail": text[-300:] if answer == "no answer" else "", "notes": noted,
    }  # fmt: skip


def answer(change: Change, tests: list[str], cores: Cores, broken: Sequence[str], each: float = 3600) -> dict[str, Any]:
    """What tests say of a change. broken: those that fail on unchanged code, which are not asked."""
    left_out = [*broken]
    while True:
        with cores.taken(1):
            row = failures(tests, change, 0, min(cores.left, each), left_out)
        if not row["by"]:
            return row
        with cores.taken(1):
            again, unchanged = (failures(row["by"][:3], c, 0, cores.left, ()) for c in (change, None))
        if None in (again["code"], unchanged["code"]):
            return {**row, "answer": "no answer"}
        if real := sorted({*again["by"]} - {*unchanged["by"]}):
            return {**row, "by": real}
        left_out += row["by"][:3]


def summary(rows: Sequence[dict[str, Any]], number: int, asked: str) -> str:
    """The counts of a file, where `asked` is the last stage: the last answer to each question holds."""
    last = {(r["index"], r["stage"]): r["answer"] for r in rows if "index" in r}
    lines = [f"{stage}: {dict(Counter(a for (_, s), a in last.items() if s == stage))}" for stage in STAGES]
    seen = {i for (i, _), answer in last.items() if answer == "seen"}
    unseen = sorted(i for (i, stage), answer in last.items() if stage == asked and answer == "not seen" and i not in seen)
    left = sorted({*range(number)} - seen - {*unseen})
    return "\n".join([*lines, f"seen {len(seen)} of {number}; not seen {unseen}; not finished {left}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws, asks what has no answer yet, writes each answer at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("mutated.jsonl"))
    parser.add_argument("--range", default=":", help="of the changes, as FROM:TO")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="processes of pytest at the same time")
    parser.add_argument("--limit", type=float, default=7200, help="seconds after which nothing runs any more")
    parser.add_argument("--each", type=float, default=3600, help="seconds after which a change is stopped")
    parser.add_argument("--readme", action="store_true", help="ask all tests that the README's command runs")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--summary", action="store_true")
    o = parser.parse_args(arguments)
    all_of_them = drawn(o.count, o.seed)
    rows = [json.loads(line) for line in o.output.read_text().splitlines()] if o.output.exists() else []
    known = [r for r in rows if r.get("index", len(all_of_them)) < len(all_of_them)]
    if stale := [r["index"] for r in known if r["change"] != vars(all_of_them[r["index"]])]:
        parser.error(
            f"{o.output} is of other changes or another state of the code, first at {stale[0]}; name another file with -o"
        )
    if o.list:
        print("\n".join(f"{i:3} {c.kind:6} {c.path}:{c.line}  {c.new}" for i, c in enumerate(all_of_them)))
        return 0
    done = {(r["index"], r["stage"]): r["answer"] for r in known if r["answer"] != "no answer"}
    stages = [*STAGES][: 2 if o.readme else 1]
    first, _, end = o.range.partition(":")
    chosen = range(len(all_of_them))[int(first or 0) : int(end or len(all_of_them))]
    asks = [i for i in chosen if "seen" not in [done.get((i, s)) for s in STAGES] and (i, stages[-1]) not in done]
    if o.summary or not asks:
        print(summary(rows, len(all_of_them), stages[-1]))
        return 0
    cores, turn = Cores(o.jobs, o.limit), threading.Lock()
    base = [r for r in rows if r.get("unchanged") and r["answer"] != "no answer"][-1:]
    with o.output.open("a") as file, ThreadPoolExecutor(len(asks)) as pool:

        def write(row: dict[str, Any], what: str) -> dict[str, Any]:
            with turn:
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                print(what, row["answer"], *row["by"][:3], f"{row['seconds']} s", flush=True)
            return row

        if o.readme and not base:
            row = failures([*TESTPATHS], None, o.jobs, cores.left, (), all_of_them)
            base = [write({"unchanged": True, **row}, "unchanged:")]
            if row["answer"] == "no answer":
                return 1

        notes = [note.partition("\t") for note in (base[0]["notes"] if base else ())]

        def ask(i: int) -> None:
            change = all_of_them[i]
            for stage in (s for s in stages if (i, s) not in done):
                tests = change.mirrored if stage == "mirrored" else change.others(rest for n, _, rest in notes if n == str(i))
                row = {"index": i, "stage": stage, "change": vars(change), "tests": len(tests)}
                nothing = {"answer": "not seen", "by": [], "code": 5, "seconds": 0.0, "tail": "", "notes": []}
                row |= answer(change, tests, cores, base[0]["by"] if base else [], o.each) if tests else nothing
                if write(row, f"{i} {stage}:")["answer"] != "not seen":
                    break

        for one in [pool.submit(ask, i) for i in asks]:
            one.result()
    print(summary(rows, len(all_of_them), stages[-1]))
    return 0


if __name__ == "__main__":
    if "--list" in sys.argv:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--list | head`
    sys.exit(main())
