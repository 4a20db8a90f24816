"""Mutated notations, run files and tables: `python tests/bench/hostile.py --notations 100000 --files 10000`.

Each is read right, or refused with one of parity's own errors, in one line that a terminal shows as it is. Anything else
(another exception, two lines, a control character, more than 5 seconds, more than 1 GB) is printed, and the exit code is 1.
Mutations are those of a hostile or broken writer: bytes flipped, doubled, cut, numbers and brackets grown, code put in.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from parity import tolerance
from parity.core import notation, resources
from parity.core.errors import ParityError
from parity.core.results import Fingerprint, Measure, Record
from parity.history import diff
from parity.report import diff as report
from parity.store import run_file
from parity.store.rows import Death, End, Header, ItemRow
from parity.store.run_file import Writer

CASES = (
    'softmax(float16[1, 3].flat(1, 0).at(2, "nan"), dim=-1).cotangent("normal", "expanded", 3).into("rows")',
    "add(float32[()], float32[2, 3].transpose(0, 1).frozen(), alpha=0.5)",
    "add(complex64[2], complex(1.0, -2.0))",
    "getitem(float32[4, 4], (slice(None, 3, 2), ..., None))",
    'op("opinfo:special.zeta", "float32")(3, float32[2].sample(3, 0))',
    "sum(float16[2].of(0.1, nan), (0,), dtype=float32)",
)
SPARKS = (
    "9" * 400, "-" * 3000, "[" * 5000, "(" * 300, "{" * 50, "}", "'", '"', "\\", "\x1b[2J", "\n::error::x\n", "\ud800",
    "\u202e", "\0", "1e999", "10**400", "0xfff", "{[]: 1}", "[]", "None", "lambda: 0", "__import__('os')", "*a", "**k", ":=",
    "not " * 500, ".a" * 2000, "[0]" * 2000, "1+" * 2000 + "1", "f'{1}'", "nan", "inf", "True", "...", "@", "\t", "é",
)  # fmt: skip
SECONDS, BYTES = 5.0, 1 << 30


def mutated(text: str, r: random.Random) -> str:
    """A text with one to four mutations."""
    for _ in range(r.randint(1, 4)):
        k, n = r.randrange(len(text) + 1), r.randint(1, 8)
        how = r.randrange(6)
        if how == 0:
            text = text[:k] + r.choice(SPARKS) + text[k + r.choice((0, n)) :]
        elif how == 1:
            text = text[:k] + text[k + n :]
        elif how == 2:
            text = text[: k + n] + text[k:]
        elif how == 3:
            text = text[:k] + chr(r.choice((r.randrange(128), r.randrange(0x3000)))) + text[k + 1 :]
        elif how == 4:
            other = r.choice(CASES)
            text = text[:k] + other[r.randrange(len(other)) :][: 4 * n] + text[k:]
        else:
            text = text[:k]
    return text


def chosen_file(path: Path) -> bytes:
    """A run file with a row of each kind."""
    f = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True)
    with Writer(path) as w:
        w.write(Header(f, "0", "quick"))
        w.write(Record(CASES[1], "add", "float32", "forward", "wrong", measures=(Measure("out", 3.0, 0.5, True, max_abs=1.0),)))
        w.write(ItemRow("add", "float32", 2, {"forward": {"wrong": 1, "agree": 1}}, {"forward": 3.0}))
        w.write(Death("sort", "int8", "sort(int8[0])", "forward", "crash", "SIGSEGV", "device", blame="device"))
        w.write(End(1.0, {"wrong": 1, "agree": 1}, "", 2, ("sort-int8",)))
    return path.read_bytes()


def files(folder: Path, count: int, r: random.Random) -> Iterator[tuple[str, Callable[[], object]]]:
    """Mutated run files and tables, each with what reads it."""
    runs, tables = chosen_file(folder / "whole.jsonl"), (resources.folder("tolerances") / "default.toml").read_text()
    (folder / "t").mkdir()
    path, table = folder / "run.jsonl", folder / "t" / "default.toml"
    for k in range(count):
        if k % 4 == 3:
            start = r.randrange(len(tables))
            table.write_text(tables[:start] + mutated(tables[start : start + 400], r), errors="surrogatepass")
            yield str(table), lambda: tolerance.load("cpu", table.parent)
        else:
            raw = bytearray(runs)
            if k % 2:
                for _ in range(r.randint(1, 6)):
                    raw[r.randrange(len(raw))] = r.randrange(256)
                path.write_bytes(raw)
            else:
                path.write_text(mutated(runs.decode(), r), errors="surrogatepass")
            yield str(path), lambda: both(path)


def both(path: Path) -> str:
    """A run compared with itself."""
    run = run_file.read(path, partial=True)
    return report.terminal(diff.compare(run, run, partial=True))


def asked(what: str, ask: Callable[[], object]) -> str:
    """What is wrong with the answer; empty where nothing is."""
    begun = time.monotonic()
    try:
        ask()
    except ParityError as e:
        text = str(e)
        if not text.isprintable():
            return f"an error that is more than one plain line: {text[:200]!r}"
    except BaseException as e:
        return f"{type(e).__name__}: {str(e)[:200]}"
    spent = time.monotonic() - begun
    return f"it took {spent:.1f} s" if spent > SECONDS else ""


def main() -> int:
    """Ask all; the exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--notations", type=int, default=100_000)
    p.add_argument("--files", type=int, default=10_000)
    p.add_argument("--seed", type=int, default=0)
    o = p.parse_args()
    r, wrong, told = random.Random(o.seed), Counter[str](), Counter[str]()

    def note(kind: str, what: str, why: str) -> None:
        told[kind] += 1
        if why:
            wrong[kind] += 1
            if wrong[kind] <= 10:
                print(f"{kind}: {why}\n  {what[:300]!r}")

    for _ in range(o.notations):
        text = mutated(r.choice(CASES), r)
        note("notation", text, asked(text, lambda: notation.case_text(notation.parse(text))))  # noqa: B023 -- asked at once
    with tempfile.TemporaryDirectory() as folder:
        for name, ask in files(Path(folder), o.files, r):
            note("file", Path(name).read_bytes().decode(errors="replace"), asked(name, ask))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"{told['notation']} notations, {told['file']} files: {sum(wrong.values())} wrong answers; {most >> 20} MiB at most")
    return 1 if wrong or most > BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
