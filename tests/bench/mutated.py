"""How many small changes of parity's own code do its tests see? A sign, a limit, a lost branch, one at a time, each in a copy.

    python tests/bench/mutated.py --list                                        # the 60 changes that are drawn
    python tests/bench/mutated.py -o seen.jsonl --stage control -j 8            # the mirrored tests on unchanged code: all pass
    python tests/bench/mutated.py -o seen.jsonl --stage mirrored -j 8           # each change, by the tests of its own module
    python tests/bench/mutated.py -o seen.jsonl --stage control-all -n 4        # the README's command on unchanged code
    python tests/bench/mutated.py -o seen.jsonl --stage all --range 0:30 -j 4 -n 4  # what these left, by the README's command
    python tests/bench/mutated.py -o seen.jsonl --summary

A change is seen where tests fail that pass on unchanged code. What has an answer in the file is not asked again. A run that is
stopped at its limit (--limit, seconds), or that ends without tests, has no answer: it counts neither as seen nor as unseen, and
is asked again by the next call.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]
FOLDERS = ("judging", "checks", "store", "engine")
LEFT_OUT = (".git", ".venv", "__pycache__", ".*_cache", "parity-run-*")
CONTROL = {"mirrored": "control", "all": "control-all"}  # of each stage: the same tests on unchanged code
STAGES = ("control", "mirrored", "control-all", "all")
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


def asked(change: Change, stage: str, workers: int, limit: float) -> dict[str, Any]:
    """What the tests of a stage say of a change, in a copy of the tree."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as outside:
        copy = Path(scratch, "copy")
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        if stage in CONTROL:
            file = copy / change.path
            file.write_bytes(change.made(file.read_bytes()))
        paths, spread = ([], workers) if stage.endswith("all") else (change.mirrored, 0)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", str(spread), "-p", "no:cacheprovider", *paths]
        begun = time.monotonic()
        surroundings = {**os.environ, "PYTHONPATH": str(copy), "TMPDIR": outside}
        with subprocess.Popen(
            command,
            cwd=copy,
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                text, _ = process.communicate(timeout=limit)
                code: int | None = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, code = process.communicate()[0], None
    by = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    answer = "not seen" if code == 0 else "seen" if by and code in (1, 2) else "no answer"
    return {
        "stage": stage, "change": vars(change), "answer": answer, "by": by[:3], "code": code,
        "seconds": round(time.monotonic() - begun, 1), "tail": text[-300:] if answer == "no answer" else "",
    }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]], number: int) -> str:
    """The counts of a file: the last answer to each question holds. Tests that do not pass on unchanged code see nothing."""
    last = {(r["index"], r["stage"]): r["answer"] for r in rows}
    lines = [f"{stage}: {dict(Counter(a for (_, s), a in last.items() if s == stage))}" for stage in STAGES]
    noticed = {i for (i, stage), answer in last.items() if stage in CONTROL and answer == "seen"}
    seen = {
        i for i in noticed for stage, control in CONTROL.items()
        if last.get((i, stage)) == "seen" and last.get((0 if stage == "all" else i, control)) == "not seen"
    }  # fmt: skip
    unseen = sorted(i for (i, stage), answer in last.items() if stage == "all" and answer == "not seen" and i not in noticed)
    left = sorted(noticed - seen)
    without = f" (without a control that passes: {left})" if left else ""
    still = number - len(seen) - len(unseen)
    return "\n".join([*lines, f"seen {len(seen)} of {number}; not seen {unseen}; open {still}{without}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws, asks what has no answer yet, writes each answer at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("mutated.jsonl"))
    parser.add_argument("--stage", choices=STAGES, default="mirrored")
    parser.add_argument("--range", default=":", help="of the changes, as FROM:TO")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-j", type=int, default=1, help="copies at the same time")
    parser.add_argument("-n", type=int, default=2, help="workers of the README's command")
    parser.add_argument("--limit", type=float, default=500, help="seconds of one run of tests")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--summary", action="store_true")
    o = parser.parse_args(arguments)
    all_of_them = drawn(o.count, o.seed)
    rows = [json.loads(line) for line in o.output.read_text().splitlines()] if o.output.exists() else []
    if stale := [r["index"] for r in rows if r["index"] < len(all_of_them) and r["change"] != vars(all_of_them[r["index"]])]:
        parser.error(
            f"{o.output} is of other changes or another state of the code, first at {stale[0]}; name another file with -o"
        )
    if o.list:
        print("\n".join(f"{i:3} {c.kind:6} {c.path}:{c.line}  {c.new}" for i, c in enumerate(all_of_them)))
        return 0
    if not o.summary:
        done = {(r["index"], r["stage"]): r["answer"] for r in rows if r["answer"] != "no answer"}
        first, _, end = o.range.partition(":")
        chosen = range(len(all_of_them))[int(first or 0) : int(end or len(all_of_them))]
        if o.stage == "control-all":
            chosen = range(1)
        asks = [i for i in chosen if o.stage != "all" or done.get((i, "mirrored")) == "not seen"]
        with ThreadPoolExecutor(o.j) as pool, o.output.open("a") as file:
            runs = {pool.submit(asked, all_of_them[i], o.stage, o.n, o.limit): i for i in asks if (i, o.stage) not in done}
            for run in as_completed(runs):
                rows.append({"index": runs[run], **run.result()})
                print(json.dumps(rows[-1]), file=file, flush=True)
                print(runs[run], rows[-1]["answer"], *rows[-1]["by"], f"{rows[-1]['seconds']} s", flush=True)
    print(summary(rows, len(all_of_them)))
    return 0


if __name__ == "__main__":
    if "--list" in sys.argv:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--list | head`
    sys.exit(main())
