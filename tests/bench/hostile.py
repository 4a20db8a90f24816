"""What do others send, and what happens to a run? `python -m tests.bench survival hostile --scale 1 -n 14 --out hostile.json`.

Notations, run files (with every report of them), captures, tables, wheels, operator tables and Pythons that answer are mutated
as a hostile or broken writer would: bytes flipped, doubled, cut, numbers and brackets grown, code put in, or a pipe, a device
or a folder in their place; files of an attacker lie in the folder, with the names of modules. Each is read right, or refused
with one of parity's own errors, in one line of at most 500 characters that a terminal shows as it is. Outputs are named that
cannot be written; signals are sent to runs, whose files must be readable at any moment; devices do to their process what no
call may, and are accused by name; processes live long, and must not grow in memory and descriptors. Anything else (another
exception, code that ran, more than 20 seconds, more than 1 GB) is printed, and the exit code is 1.

`--scale 1` tries all kinds in their whole numbers (`WHOLE`), 0.03 a few of each; `--notations 500` and so on say one kind's.
The work is cut into jobs, each a process of its own, of which `-n` run at the same time. The table at the end has a line for
each kind; `--out` keeps it as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import front
import msgspec
import torch

import parity
from parity import catalog, tolerance
from parity.checks.check import Settings, check, quiet
from parity.checks.trial import HELD
from parity.core import notation, processes, project
from parity.core.errors import LONGEST, ParityError
from parity.core.results import Fingerprint, Measure, Record
from parity.devices import Call, Fault, resolve
from parity.devices.refusals import listening
from parity.faces import commandline
from parity.findings import known_file
from parity.history import diff
from parity.history.environments import operator_table
from parity.locating import capture_file
from parity.report import diff as report
from parity.report import formats, short_script
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
    "{a=" * 3000, "float32[1000000000]", "float32[30000, 10000]", "= 0", "= 1e308",
    "float32[3].expand(1000000000)",
    "not " * 500, ".a" * 2000, "[0]" * 2000, "1+" * 2000 + "1", "f'{1}'", "nan", "inf", "True", "...", "@", "\t", "é",
)  # fmt: skip
SECONDS, BYTES = 20.0, 1 << 30
GIVEN_UP = 120.0  # seconds after which a process that answers nothing is ended
# Kind -> (how many there are to be, how many a job tries). Signals first: they take longest.
WHOLE = {
    "signals": (100, 3), "captures": (500, 32), "files": (20_000, 500), "notations": (200_000, 10_000), "tables": (300, 20),
    "outputs": (200, 25), "liars": (60, 10),
}  # fmt: skip
TRACEBACK, CODE, MEMORY, TIME, OTHER = COLUMNS = ("tracebacks", "runs of code", "over 1 GB", "over 20 s", "other")
ODD = ("pipe", "device", "folder", "nothing")  # in the place of a file, now and then
# Parts of so few cases that a run of minutes has as many as one of eight hours.
SMALL = "from parity.engine import rounds\nrounds.MOST_CASES, rounds.MOST_PARTS = 24, 1_000_000\n"
GROWTH, MORE_FILES = 16 << 20, 8  # more in the second half of a life is a leak: large cases alone leave some memory behind
RUN = ("run", "add", "exp", "--device", "sim", "--dtype", "float32", "--examples", "8", "-n", "1", "--skip", "again")


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
    runs, tables = chosen_file(folder / "whole.jsonl"), (project.resource_folder("tolerances") / "default.toml").read_text()
    (folder / "t").mkdir()
    path, table = folder / "run.jsonl", folder / "t" / "default.toml"
    for k in range(count):
        if k % 4 == 3:
            start = r.randrange(len(tables))
            table.write_text(tables[:start] + mutated(tables[start : start + 400], r), errors="surrogatepass")
            yield str(table), lambda: tolerance.load("cpu", table.parent)
        else:
            raw = bytearray(runs)
            if k % 8 == 4:  # of no dtype, or of many elements
                big = r.choice(("3", "float32[1000000000]", "float32[30000, 10000]", "float32[3].expand(1000000000)"))
                path.write_bytes(runs.replace(r.choice((b"float32[()]", b"float32[2, 3]", b"int8[0]")), big.encode()))
            elif k % 2:
                for _ in range(r.randint(1, 6)):
                    raw[r.randrange(len(raw))] = r.randrange(256)
                path.write_bytes(raw)
            else:
                path.write_text(mutated(runs.decode(), r), errors="surrogatepass")
            yield str(path), lambda: both(path)


def both(path: Path) -> None:
    """A run compared with itself, and each of its reports."""
    run = run_file.read(path, partial=True)
    report.terminal(diff.compare(run, run, partial=True))
    for form in formats.OURS:
        form.render(formats.Reported(run, path.name))
    for r in run.records:
        short_script.minimal(notation.parse(r.case), r.aspect, "sim")


def spoiled(path: Path, raw: bytes, r: random.Random) -> Path:
    """A file with these bytes mutated; or what is no file in its place."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    kind = r.choice(ODD) if r.random() < 0.1 else ""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif not kind:
        changed = bytearray(raw)
        for _ in range(r.randint(1, 5)):
            k = r.randrange(len(changed)) if r.random() < 0.5 else r.randrange(min(400, len(changed)))
            spark = r.choice(SPARKS).encode("utf-8", "surrogatepass")[:3000]
            changed[k : k + r.choice((0, 1, 8))] = r.choice((spark, bytes([r.randrange(256)]), b""))
            changed = changed[: r.choice((len(changed), len(changed), k))] or bytearray(b" ")
        path.write_bytes(changed)
    return path


def captures(folder: Path, count: int, r: random.Random) -> Iterator[tuple[str, Callable[[], object]]]:
    """Mutated captures: their bytes, and with a sound digest their descriptions."""
    whole = folder / "whole.capture"
    parity.capture(torch.nn.Linear(3, 2), torch.ones(4, 3), path=whole, device="cpu")
    made = capture_file.read(whole)
    path = folder / "odd.capture"
    for k in range(count):
        if k % 2:
            sizes = tuple(r.choice((0, 1, 3, 10**5, 3 * 10**8, 1 << 62)) for _ in range(2))
            spoiled(path, b"x", random.Random(1))  # no folder, and no pipe
            strides = tuple(r.choice((0, 0, 1, -1, 1 << 40)) for _ in range(2))
            calls = [replace(c, args=tuple(_stretched(a, sizes, strides) for a in c.args)) for c in made.calls]
            capture_file.write(replace(made, calls=calls), path)
        else:
            spoiled(path, whole.read_bytes(), r)
        yield str(path), lambda: parity.locate(torch.nn.Linear(3, 2), torch.ones(4, 3), against=path, device="cpu")


def _stretched(a: Any, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A tensor of a capture with other sizes and strides."""
    return msgspec.structs.replace(a, shape=sizes, strides=strides) if isinstance(a, capture_file.Ref) else a


def tables(folder: Path, count: int, r: random.Random) -> Iterator[tuple[str, Callable[[], object]]]:
    """Mutated operator tables, wheels, files of known findings, and Pythons that answer anything."""
    yaml = b"- func: add.out(Tensor a) -> Tensor\n  dispatch:\n    CPU, MPS: x\n- func: sin(Tensor a) -> Tensor\n" * 20
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("torch-2.13.0.dist-info/METADATA", "Version: 2.13.0\n")
        archive.writestr("torchgen/packaged/ATen/native/native_functions.yaml", yaml)
    known = b"format = 1\n[[known]]\nid = 'a'\nreason = 'b'\nops = ['exp']\nstatus = 'wrong'\n"
    answers = (b"", b"None", b"/", b"\xff\xfe", b"x" * (2 << 20), b'{"python": [3, 12, 1]}', b"/no/where/torch/__init__.py")
    python = folder / "python"
    for k in range(count):
        if k % 4 == 3:
            (folder / "answer").write_bytes(r.choice(answers))
            python.write_text(f"#!/bin/sh\ncat {folder}/answer\nexit {r.randrange(2)}\n")
            python.chmod(0o755)
            yield str(folder / "answer"), lambda: operator_table(str(python))
        elif k % 4 == 2:
            yield str(p := spoiled(folder / "known.toml", known, r)), lambda p=p: known_file.read(p)  # type: ignore[misc]
        else:
            name, raw = ("t.whl", packed.getvalue()) if k % 4 else ("t.yaml", yaml)
            yield str(p := spoiled(folder / name, raw, r)), lambda p=p: operator_table(str(p))  # type: ignore[misc]


# -------------------------------------------------------------------------------------------------------------- a run's outputs


def outputs_named(folder: Path, count: int, r: random.Random) -> Iterator[tuple[str, str]]:
    """(what was named, what is wrong with the answer) for outputs that exist, cannot be written, or are an input."""
    for name in ("a.jsonl", "b.jsonl"):
        chosen_file(folder / name)
    (folder / "dir").mkdir()
    (folder / "notes.md").write_text("precious")
    (folder / "loop").symlink_to("loop")
    (folder / "link").symlink_to("a.jsonl")
    os.mkfifo(folder / "fifo")
    names = [
        *("dir", "notes.md", "loop", "link", "fifo", "a.jsonl", "./b.jsonl", "/dev/zero", "/dev/full"),
        *(os.fsdecode(b"\xff"), "x" * 300, "notes.md/x", "/proc/x", "", " "),
    ]
    before = (folder / "a.jsonl").read_bytes()
    for k in range(count):
        name = names[k] if k < len(names) else mutated(r.choice(names[:6]), r).replace("\0", "")
        path = name if name.startswith(("/", "")) and (not name.strip() or name.startswith("/dev")) else str(folder / name)
        said = io.StringIO()
        argv = ["diff", str(folder / "a.jsonl"), str(folder / "b.jsonl"), "--format", "json", "-o", path]
        if k % 5 == 4:  # two outputs that are one, or one that is an input; the op is unknown, so that nothing is run
            argv = ["run", "zork", "--device", "sim", "-o", path, "--junit-xml", r.choice((path, "new.xml", f"./{name}"))]
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                commandline.main(argv)
        except SystemExit as e:
            said.write("" if e.code == 2 else f"Traceback: exit {e.code}")
        except BaseException as e:
            said.write(f"Traceback: {type(e).__name__}: {e}")
        kept = (folder / "a.jsonl").read_bytes() == before and (folder / "notes.md").read_text() == "precious"
        left = [p.name for p in folder.rglob("*.part*")]
        text = said.getvalue()
        long = max(map(len, text.splitlines()), default=0) > LONGEST + len("parity: ")
        yield name, "" if kept and not left and not long and "Traceback" not in text else f"{text[-300:]} {left}"


# ------------------------------------------------------------------------------------------------------------------ signals


def signals(folder: Path, count: int, r: random.Random) -> Iterator[tuple[str, str]]:
    """(signal, what is wrong) for runs that get one at a random moment; STOP: all its processes but the first are stopped for
    half a minute; GONE: its temporary folder goes away; START: its workers end at their start, which is said in a line."""
    (folder / "ends.py").write_text("import os, sys\nif 'execnet' in sys.modules:\n    os._exit(1)\n")
    first = r.randrange(6)
    for k in range(count):
        name = ("SIGINT", "SIGTERM", "SIGHUP", "STOP", "GONE", "START")[(first + k) % 6]
        path, temporary = folder / f"{k}.jsonl", folder / f"tmp{k}"
        temporary.mkdir()
        with (folder / "said").open("w+") as said:
            run = subprocess.Popen(
                (*front.PARITY, *RUN, "--output", str(path), *(("--setup", "ends.py") if name == "START" else ())), cwd=folder,
                env={**os.environ, "TMPDIR": str(temporary)}, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            until = time.monotonic() + 300
            while time.monotonic() < until and run.poll() is None and not (path.exists() and path.stat().st_size):
                time.sleep(0.1)
            time.sleep(r.random() * 10)
            why = ""
            with contextlib.suppress(ParityError):
                run_file.read(path, partial=True)
            if name == "GONE":
                for p in temporary.glob("parity-*"):
                    subprocess.run(["rm", "-rf", str(p)], check=False)
            elif name == "STOP":
                pids = front.descendants(run.pid)
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in pids:
                        with contextlib.suppress(OSError):
                            os.kill(pid, number)
                    time.sleep(30 * (number == signal.SIGSTOP))
            elif name != "START" and run.poll() is None:
                run.send_signal(getattr(signal, name))
            try:
                code = run.wait(timeout=300)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                code, why = run.wait(), "it did not end"
            said.seek(0)
            text = said.read()
            allowed = {"STOP": (0,), "GONE": (0,), "START": (4,)}.get(name, (0, 130))
            why = why or ("Traceback" if "Traceback" in text else "" if code in allowed else f"code {code}")
            if name == "START" and "before their first case; look at" not in text:
                why = why or "no reason"
            try:
                run_file.read(path, partial=True)
            except ParityError as e:
                why = why or str(e)
            yield name, f"{why}: {text[-400:]}" if why else ""


# ------------------------------------------------------------------------------------------------------------ devices that lie


def liars() -> dict[str, Callable[[Call], Any]]:
    """What kernels do that no kernel may."""

    def raises(call: Call) -> Any:
        raise GeneratorExit("a kernel")

    def warns(call: Call) -> Any:
        for _ in range(3000):
            warnings.warn("endless", stacklevel=1)
        return call.run()

    held: list[torch.Tensor] = []

    def again(call: Call) -> Any:
        """Its first result, wherever the values are equal."""
        held.append(call.run())
        first, last = held[0], held[-1]
        return first if first.shape == last.shape and torch.equal(first.cpu(), last.cpu()) else last

    def after(act: Callable[[], object]) -> Callable[[Call], Any]:
        return lambda call: (act(), call.run())[1]

    return {
        "": lambda call: call.run(),
        "the recursion limit": after(lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 100)),
        "the current folder": after(lambda: os.chdir("/")),
        "the handler of SIGTERM": after(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
        "descriptors": after(lambda: [os.write(n, b"x") for n in processes._decoys]),
        "GeneratorExit": raises,
        "lies in the memory of the result of": again,
        "memory of an operand": lambda call: (call.run(), call.operands[0].view(call.operands[0].shape))[1],
        "more than 1,000 warnings": warns,
    }


def lying(count: int, r: random.Random) -> Iterator[tuple[str, str]]:
    """(lie, what is wrong): each must be named in the verdict, and the next case must agree; "": a healthy twin."""
    number, cpu, tables_ = os.dup(1), resolve("cpu"), tolerance.load("sim")
    moved = processes.set_aside(number)
    lies = liars()
    for k in range(count):
        name = list(lies)[k % len(lies)]
        level, twice = ("function", name.endswith("of")) if "memory" in name else ("kernel", False)
        place = resolve("sim", (Fault("lies", ("abs",), lies[name], level=level),))
        n = r.randint(1, 9)
        said = []
        one = f"abs(float32[{n}].of({', '.join('1.0' for _ in range(n))}))"
        for text in (*[one] * (1 + twice), f"exp(float32[{n}])"):
            case = notation.parse(text)
            with place.active(), listening([]):
                settings = Settings(held=HELD if twice else 0)
                results, _ = check(catalog.row(case.op), case, place, cpu, tables_, settings, quiet, [])
            said.append("; ".join(f"{x.verdict.status} {x.verdict.reason}" for x in results if x.verdict.status.is_finding))
        accused, after = said[-2:]
        fine = (name in accused if name else not accused) and not after
        yield name, "" if fine else f"{accused[:200]!r}, then {after[:200]!r}"
    processes._decoys.remove(number)
    os.close(number)
    os.close(moved)


# ------------------------------------------------------------------------------------------------------------------ long lives


def lives(folder: Path, minutes: float) -> Iterator[tuple[str, str]]:
    """(process, how it grows) over the many small rounds of a run of so many minutes: memory and descriptors of all its
    processes at a half and at the end of its time, and whether the file could be read at each look."""
    path = folder / "long.jsonl"
    (folder / "small.py").write_text(SMALL)
    asked = ("exp", "sin", "--dtype", "float32,float16", "--device", "sim", "-n", "1", "--skip", "again", "--setup", "small.py")
    argv = (*front.PARITY, "run", *asked, "--time", f"{minutes * 60:.0f}s", "--output", str(path))
    run = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun, figures, unread = time.monotonic(), dict[int, list[tuple[float, int, int]]](), 0
    while run.poll() is None:
        time.sleep(2.0)
        for pid in (run.pid, *front.descendants(run.pid)):
            with contextlib.suppress(OSError, IndexError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                figures.setdefault(pid, []).append((time.monotonic() - begun, pages * 4096, len(os.listdir(f"/proc/{pid}/fd"))))
        if path.exists() and path.stat().st_size:
            try:
                run_file.read(path, partial=True)
            except ParityError:
                unread += 1
    for pid, seen in figures.items():
        late = [f for f in seen if f[0] > 30 * minutes]
        if len(late) > 4:
            memory, files = late[-2][1] - late[0][1], late[-2][2] - late[0][2]
            first = f"{late[0][1] >> 20} MiB, {late[0][2]} descriptors"
            note(f"process {pid}: {first}; in the second half {memory / 2**20:+.1f} MiB, {files:+} descriptors")
            yield str(pid), "" if memory < GROWTH and files < MORE_FILES else "it grows"
    end = run_file.read(path, partial=True).end
    note(f"{sum(end.rounds) if end else 0:,} parts of items in {minutes:g} minutes")
    yield "file", f"{unread} times unreadable" if unread or end is None else ""


def note(text: str) -> None:
    """Say something that is not wrong, in a job."""
    print(json.dumps({"note": text}), flush=True)


def asked(ask: Callable[[], object]) -> tuple[str, str]:
    """(column, what is wrong with the answer); empty where nothing is."""
    begun, held = time.monotonic(), resident()
    faulthandler.dump_traceback_later(GIVEN_UP, exit=True)
    try:
        ask()
    except ParityError as e:
        text = str(e)
        if not text.isprintable() or len(text) > LONGEST:
            return OTHER, f"an error that is more than one plain line of {LONGEST} characters: {text[:200]!r}"
    except BaseException as e:
        return TRACEBACK, f"{type(e).__name__}: {str(e)[:200]}"
    finally:
        faulthandler.cancel_dump_traceback_later()
    spent, most = time.monotonic() - begun, peak() - held
    if spent > SECONDS:
        return TIME, f"it took {spent:.1f} s"
    return (MEMORY, f"{most >> 20} MiB") if most > BYTES else ("", "")


def resident() -> int:
    """The memory that this process holds, where the system counts it, else 0. After too much of it `peak` counts anew."""
    try:
        if peak() > BYTES:
            Path("/proc/self/clear_refs").write_text("5")
        text = Path("/proc/self/status").read_text()
        return int(text[text.index("VmRSS:") :].split()[1]) << 10
    except (OSError, ValueError):
        return 0


def peak() -> int:
    """The most memory that this process has held, where the system counts it since `resident` was asked."""
    try:
        text = Path("/proc/self/status").read_text()
        return int(text[text.index("VmHWM:") :].split()[1]) << 10
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


EVIL = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').write_text('')\n"
MODULES = ("random", "json", "typing", "runpy", "numpy", "torch", "safetensors", "evil", "xdist")


@contextlib.contextmanager
def attacked() -> Iterator[Path]:
    """A folder, which is the current one, with modules whose code leaves a trace where it runs."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        for module in MODULES:
            Path(name, f"{module}.py").write_text(EVIL)
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)
            RAN.extend(p.name for p in Path(name).glob("*.ran"))


RAN: list[str] = []  # code of an attacker


def answers(kind: str, count: float, r: random.Random) -> Iterator[tuple[str, str, str]]:
    """(what was tried, column, what is wrong) of so many of a kind."""
    if kind == "notations":
        for _ in range(int(count)):
            text = mutated(r.choice(CASES), r)
            yield text, *asked(lambda: notation.case_text(notation.parse(text)))  # noqa: B023 -- asked at once
        return
    with attacked() as folder:
        if kind in READERS:
            yield from ((name, *asked(ask)) for name, ask in READERS[kind](folder, int(count), r))
            return
        for what, why in ACTORS[kind](folder, count if kind == "lives" else int(count), r):
            yield what, (TRACEBACK if "Traceback" in why else OTHER) if why else "", why


READERS = {"files": files, "captures": captures, "tables": tables}
ACTORS: dict[str, Callable[[Path, Any, random.Random], Iterator[tuple[str, str]]]] = {
    "outputs": outputs_named,
    "signals": signals,
    "liars": lambda folder, count, r: lying(count, r),
    "lives": lambda folder, minutes, r: lives(folder, minutes),
}


def job(kind: str, count: float, seed: int) -> int:
    """Try so many of a kind in this process, and print what was wrong, a line of JSON each."""
    torch.set_num_threads(1)
    tried, seconds = 0, 0.0
    begun = time.monotonic()
    for what, column, why in answers(kind, count, random.Random(f"{kind} {seed}")):
        now = time.monotonic()
        tried, seconds, begun = tried + 1, max(seconds, now - begun), now
        if column:
            print(json.dumps({"column": column, "what": ascii(what[:300]), "why": ascii(why[:1000])}), flush=True)
        if tried % 50 == 0:
            print(json.dumps({"tried": tried}), flush=True)
    own = {"tried": tried, "seconds": seconds, "MiB": peak() >> 20, CODE: RAN}
    print(json.dumps(own), flush=True)
    return 0


def sent(kind: str, count: float, seed: int) -> tuple[str, Counter[str], dict[str, float], list[str]]:
    """A job in a process of its own: its kind, its counts, its largest figures, and what was wrong."""
    argv = [sys.executable, __file__, "--job", kind, str(count), str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print("".join(f"{kind}: {row['note']}\n" for row in rows if "note" in row), end="", flush=True)
    wrong = [f"{kind}: {row['why']}\n  {row['what']}" for row in rows if "why" in row]
    counts = Counter[str](row["column"] for row in rows if "column" in row)
    last = rows[-1] if rows and "MiB" in rows[-1] else {}
    if not last:  # it was ended, by its system or because it answered nothing
        counts[TIME if "Timeout" in done.stderr else OTHER] += 1
        wrong.append(f"{kind}: a job ended with {done.returncode}: {done.stderr[-2000:]}")
    counts["tried"] = max((row["tried"] for row in rows if "tried" in row), default=0)
    counts[CODE] = len(last.get(CODE, ()))
    wrong += [f"{kind}: code ran: {last[CODE]}"] if counts[CODE] else []
    return kind, counts, {k: last.get(k, 0) for k in ("seconds", "MiB")}, wrong


def main() -> int:
    """Ask all; the exit code."""
    p = front.parser(__doc__)
    p.add_argument("--scale", type=float, default=0.0, help="so much of the whole numbers of all kinds")
    for kind, (whole, _) in WHOLE.items():
        p.add_argument(f"--{kind}", type=int, help=f"instead; the whole number is {whole:,}")
    p.add_argument("--lives", type=float, default=0.0, help="minutes of a long run")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("-n", type=int, default=1, help="jobs at the same time")
    p.add_argument("--out", type=Path, help="keep the table and what was wrong as JSON")
    p.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.job:
        return job(o.job[0], float(o.job[1]), int(o.job[2]))
    jobs: list[tuple[str, float, int]] = [("lives", o.lives, o.seed)] if o.lives else []
    for kind, (whole, each) in WHOLE.items():
        given = getattr(o, kind)
        left = math.ceil(whole * o.scale) if given is None else given
        jobs += [(kind, min(each, left - k), o.seed * 1000 + k // each) for k in range(0, left, each)]
    counts: dict[str, Counter[str]] = {}
    most: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    begun = time.monotonic()
    with ThreadPoolExecutor(o.n) as pool:
        for done in as_completed([pool.submit(sent, *j) for j in jobs]):
            kind, more, figures, said = done.result()
            counts.setdefault(kind, Counter()).update(more)
            for k, v in figures.items():
                figure = most.setdefault(kind, {})
                figure[k] = max(v, figure.get(k, 0.0))
            for text in said[: max(0, 10 - sum(w.startswith(kind) for w in wrong))]:
                print(text, flush=True)
            wrong += said
            if o.out:  # what is there is kept if this is cut
                o.out.write_text(json.dumps({"jobs": len(jobs), "counts": counts, "most": most, "wrong": wrong}, indent=1))
    print("".join(f"{title:>14}" for title in ("kind", "tried", *COLUMNS, "most s", "most MiB")))
    for kind, n in counts.items():
        ends = f"{most[kind]['seconds']:14.1f}{most[kind]['MiB']:14.0f}"
        print(f"{kind:>14}{n['tried']:14,}{''.join(f'{n[c]:14}' for c in COLUMNS)}{ends}")
    print(f"{len(jobs)} jobs, {len(wrong)} wrong answers, {time.monotonic() - begun:.0f} s, {torch.__version__}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
