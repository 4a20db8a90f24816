"""Files that a command is to read or write: refusals in one sentence, before anything is run."""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path

from parity.core import outputs
from parity.core.errors import UsageError, brief

WRITTEN, READ = (
    ("output", "junit_xml", "capture"),
    ("before", "after", "runs", "run", "subject", "asked", "against", "known", "setup", "faults", "wheel"),
)  # of commands
REPORTS = ("report", "diff", "audit", "locate")  # commands that write no run file
RUN = b'{"parity_run"'
HEAD = 1 << 16  # bytes that show what a file is
# How everything begins that parity writes, and pytest's XML.
OURS = re.compile(
    b"|".join(
        (
            rb'\s*\{\s*"parity',  # run files, and reports for programs
            rb'\s*\{\s*"\$schema": "[^"]*",\s*"title": "A [a-z ]*of parity',
            rb"<\?xml[^>]*>\s*<testsuites?\b[^>]* name=\"(parity|pytest)",
            rb"<!doctype html>.*<title>parity",
            rb"(\*\*[^\n]*\*\*\n\n)?(changed|same fingerprint): [^\n]*\ncompared: ",  # diffs
            rb"\*\*parity on |### Describe the bug\n.*parity's notation",
            rb".*^((PASS|FAIL|INCONCLUSIVE)  no finding[^\n]*\n\Z"  # causes, none of them or some
            rb"|[ABCSR]: (ordinary|the same with|rare calls|settings|errors and) )",
            rb"[Ff]our letters[^\n]*: forward, backward|\d+ runs side by side\n",
            rb"::\w+ title=parity",
            rb'""".*\n(Ends with 1 where the device and the CPU differ|Written by: parity)',  # scripts of findings, tests
            rb"PK\x03\x04.{26}first\.json",
        )
    ),
    re.DOTALL | re.MULTILINE,
)


def check_outputs(given: argparse.Namespace) -> None:
    """Refuse, before anything is run, to write where that cannot be done or would destroy something: two outputs in one file,
    the command's own input, a file that parity did not write."""
    named = [(f"--{name.replace('_', '-')}", Path(path)) for name in WRITTEN for path in _each(given, name)]
    files = [one for name in READ for one in _each(given, name)]
    for k, (option, path) in enumerate(named):
        check_output(path, option, [*files, *(other for _, other in (*named[:k], *named[k + 1 :]))])
        if getattr(given, "command", "") in REPORTS and path.is_file() and _is_run(path):
            raise UsageError(f"{path} is a run file, and {option} would overwrite its rows; name another file, or remove it")


def _is_run(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(len(RUN)) == RUN


def _each(given: argparse.Namespace, name: str) -> list[Path | str]:
    """The files that an option or argument names."""
    value = getattr(given, name, None) or ()
    return [*value] if isinstance(value, (list, tuple)) else [value]


def check_output(path: Path, option: str, others: Iterable[Path | str] = ()) -> None:
    """`check_outputs` of one file. others: what the command reads and writes besides."""
    outputs.refuse(path, option)
    if any(_same(path, x) for x in others):
        raise UsageError(f"{path} is named twice, and {option} would overwrite it; name another file with {option}")
    if path.is_file() and path.stat().st_size and not _is_ours(path):
        raise UsageError(f"{path} is no report of parity, and {option} would overwrite it; name another file, or remove it")


def _same(a: Path, b: Path | str) -> bool:
    hard = os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)
    return hard or os.path.realpath(a) == os.path.realpath(b)


def _is_ours(path: Path) -> bool:
    """Whether parity wrote a file, or pytest its XML."""
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        capture = content[8:24] == b'{"__metadata__":' and content.find(b'"parity capture ') > 0
        return capture or OURS.match(content[:HEAD]) is not None


def located(faults: str) -> str:
    """Faults by a name that holds in another directory too: a file's full path, a module's name as it is."""
    path = Path(faults)
    return str(path.absolute()) if path.is_file() or path.suffix == ".py" else faults


def in_words(e: OSError, remedy: str = "free the disk or name another place", verb: str = "read or write") -> str:
    """What the system refused, and what to do."""
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return f"the system lets this process open no more files ({e.strerror}); raise the limit: ulimit -n 1024"
    if e.errno in (errno.ENOMEM, errno.EAGAIN):
        return f"the system has no room for another process ({e.strerror}); take fewer workers: -n 1"
    return brief(f"cannot {verb} {e.filename or 'the standard output'}: {e.strerror or e}; {remedy}")
