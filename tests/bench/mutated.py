"""How many small changes of parity's own code do its tests see? A sign, a limit, a lost branch, one at a time, each in a copy.

    python tests/bench/mutated.py --list                                   # the 60 changes that are drawn
    python tests/bench/mutated.py -o own.jsonl -j 2                         # ask the tests of the changed modules
    python tests/bench/mutated.py -o seen.jsonl --readme -j 15 --limit 550  # and the README's command, on 15 cores
    python tests/bench/mutated.py -o seen.jsonl --readme --summary

Each change is made in a copy of the tree and tried by the tests of its own module; with --readme then by all others that the
README's command runs, those that reach the module by the fewest imports first, until one fails. It is seen where that test
fails again by itself, and does not on unchanged code. With --readme the unchanged code is asked first, and what fails there is
left out. What has an answer in the file is not asked again. What is stopped at the limit, or after --each, has none: it counts
neither as seen nor as unseen, and is asked by the next call.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]
FOLDERS = ("judging", "checks", "store", "engine")
LEFT_OUT = (".git", ".venv", "__pycache__", ".*_cache", "parity-run-*")
STAGES = {"mirrored": 1, "others": 5}  # cores of each
TESTPATHS = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
ENTRY = "[pytest11]\nparity = parity.faces.plugin\n"
SIGNS = {ast.Add: "-", ast.Sub: "+"}
LIMITS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True, order=True)
class Change:
    """Bytes `begin` to `end` of a file are replaced by `new`."""

    path: str
    line: int
    begin: int
    end: int
    kind: str
    new: str

    def made(self, source: bytes) -> bytes:
        """The file with the change in it."""
        return source[: self.begin] + self.new.encode() + source[self.end :]

    @property
    def mirrored(self) -> list[str]:
        """The tests of the module, or of its folder where it has none of its own."""
        folder = Path("tests/unit", Path(self.path).parts[1])
        own = sorted((REPO / folder).rglob(f"test_{Path(self.path).stem}.py"))
        return [str(p.relative_to(REPO)) for p in own] or [str(folder)]

    @property
    def others(self) -> list[str]:
        """All other files of tests that the README's command runs, those that reach the module by the fewest imports first."""
        imports, away, reached = imported(), dict[str, int](), {name_of(self.path)}
        while reached:
            away |= dict.fromkeys(reached, len(set(away.values())))
            reached = {name for name, of in imports.items() if name not in away and of & reached}
        found = [str(p.relative_to(REPO)) for folder in TESTPATHS for p in sorted((REPO / folder).rglob("test_*.py"))]
        return sorted(
            (t for t in found if not any(Path(t).is_relative_to(own) for own in self.mirrored)),
            key=lambda t: away.get(name_of(t), len(imports)),
        )

    @property
    def tests(self) -> dict[str, list[str]]:
        """Those of each stage."""
        return {"mirrored": self.mirrored, "others": self.others}


def name_of(path: str) -> str:
    """A module's name in an import. What tests/shared and tests/meta hold is imported without their folders."""
    return re.sub(r"^tests\.(shared|meta)\.|\.__init__$", "", path.removesuffix(".py").replace("/", "."))


@functools.cache
def imported() -> dict[str, set[str]]:
    """What each module of parity and of its tests imports, anywhere in it."""
    files = {name_of(str(p.relative_to(REPO))): p for top in ("parity", "tests") for p in (REPO / top).rglob("*.py")}
    of: dict[str, set[str]] = {}
    for name, file in files.items():
        nodes = [n for n in ast.walk(ast.parse(file.read_bytes())) if isinstance(n, ast.Import | ast.ImportFrom)]
        named = {f"{n.module}.{a.name}" if isinstance(n, ast.ImportFrom) else a.name for n in nodes for a in n.names}
        of[name] = {m for m in named | {m.rpartition(".")[0] for m in named} if m in files}
    return of


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
            yield Change(path, node.lineno, begin, end, "branch", f"(False and ({source[begin:end].decode()}))")
        if new and between:
            begin, end = place(between[0])[1], place(between[1])[0]
            found = re.search(rb"[-+]|[<>]=?", source[begin:end])  # brackets of the operands may stand in between
            if found:
                yield Change(path, between[0].lineno, begin + found.start(), begin + found.end(), kind, new)


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


def failures(tests: list[str], change: Change | None, workers: int, limit: float, left_out: Sequence[str]) -> dict[str, Any]:
    """The tests that fail in a copy of the tree: all of them where nothing is changed, else the first."""
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
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *(["-x"] if change else []), *tests]
        command += ["--dist", "load", "--maxschedchunk", "20"] if change and workers else []  # in the order of the files
        path = [str(p) for p in (copy, entry, *(p for p in places if p != REPO))]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": outside}
        where = "import importlib.util as u; print(u.find_spec('parity').origin)"
        asked = subprocess.run(
            [sys.executable, "-c", where], cwd=outside, env=env, check=True, capture_output=True, text=True
        ).stdout
        if not Path(asked.strip()).is_relative_to(copy):
            raise SystemExit(f"the tests would import {asked.strip()}, and not the copy in {copy}")
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
        last = copy / ".pytest_cache/v/cache/lastfailed"
        failed = sorted(json.loads(last.read_text())) if code in (1, 2) and last.exists() else []
    answer = "not seen" if code == 0 else "seen" if failed else "no answer"
    return {
        "answer": answer, "by": failed, "code": code,
        "seconds": round(time.monotonic() - begun, 1), "tail": text[-300:] if answer == "no answer" else "",
    }  # fmt: skip


def answer(change: Change, stage: str, cores: Cores, broken: Sequence[str], each: float = 3600) -> dict[str, Any]:
    """What a stage says of a change. broken: tests that fail on unchanged code, which are not asked."""
    left_out, workers = [*broken], STAGES[stage]
    while True:
        with cores.taken(workers):
            row = failures(change.tests[stage], change, workers if workers > 1 else 0, min(cores.left, each), left_out)
        if row["answer"] != "seen":
            return row
        tests = row["by"][:3]
        with cores.taken(1):
            again, unchanged = (failures(tests, c, 0, cores.left, ()) for c in (change, None))
        if None in (again["code"], unchanged["code"]):
            return {**row, "answer": "no answer"}
        if real := sorted({*again["by"]} - {*unchanged["by"]}):
            return {**row, "by": real}
        left_out += tests


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
    imported()  # once, and not by each thread
    cores, turn = Cores(max(o.jobs, *STAGES.values()) if o.readme else o.jobs, o.limit), threading.Lock()
    base = [r for r in rows if r.get("unchanged") and r["answer"] != "no answer"][-1:]
    with o.output.open("a") as file, ThreadPoolExecutor(len(asks)) as pool:

        def write(row: dict[str, Any], what: str) -> dict[str, Any]:
            with turn:
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                print(what, row["answer"], *row["by"][:3], f"{row['seconds']} s", flush=True)
            return row

        if o.readme and not base:
            row = failures([], None, o.jobs, cores.left, ())
            base = [write({"unchanged": True, **row}, "unchanged:")]
            if row["answer"] == "no answer":
                return 1

        def ask(i: int) -> None:
            for stage in (s for s in stages if (i, s) not in done):
                row = {"index": i, "stage": stage, "change": vars(all_of_them[i])}
                row |= answer(all_of_them[i], stage, cores, base[0]["by"] if base else [], o.each)
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
