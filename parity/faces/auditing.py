"""Lists what a user's model needs and MPS does not have, for `parity audit FILE.py:function`, and a test of it for pytest."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from parity.comparing.models import functions
from parity.core.errors import NothingCompared, OutputError, ParityError, UsageError
from parity.core.status import Conclusion
from parity.findings import causes
from parity.history.environments import operator_table
from parity.locating.auditing import audit
from parity.locating.needs import Needs
from parity.report import answers as answers_report
from parity.report import needs as needs_report
from parity.report.last_line import last_line
from parity.report.words import listed
from parity.store import run_file
from parity.zoo import BUGS

ANSWERED = ("unsupported_op", "fallback")  # kinds of bugs that say no more than the operator table of a torch
TEST = '''\
"""{models} needs no operator and no dtype that MPS does not have: asked on the CPU, so that it runs on any machine.

Written by: {command}
"""

import sys
from pathlib import Path

import pytest
import torch

import parity
from parity.comparing.models import as_call

sys.path.insert(0, str(Path(__file__).parent / {folder!r}))
import {module}  # noqa: E402  # found by the line before


@pytest.mark.parametrize("make", [{makes}])
def test_runs_on_mps(make):
    torch.manual_seed(0)
    model, inputs, kwargs = as_call(make())
    found = parity.audit(model, *inputs{options}, **kwargs)
    if not found.complete:
        pytest.fail(str(found), pytrace=False)
'''


def run(o: argparse.Namespace) -> int:
    """Print the answers: 0 where MPS has all, 1 where something is missing or a run's findings of class A concern it, 2 where a
    function cannot be run, 3 where not all was seen. Raises UsageError for a file without such functions."""
    if o.test:
        return _write_test(o)
    torch.autograd.set_multithreading_enabled(False)  # the simulated device needs the backward pass on the calling thread
    place = str(o.torch or "")
    if place and not Path(place).expanduser().exists() and shutil.which(place) is None:
        what = "a Python, the folder of a virtual environment, a wheel of torch for any system, or a native_functions.yaml"
        raise UsageError(f"there is no {place}; name {what}")
    table = operator_table(place) if place else None
    runs = [(str(path), run_file.read(path)) for path in o.run]
    gathered = [(path, causes.gather(r.records, r.deaths)) for path, r in runs]
    bugs = {b.fault.id: b for b in BUGS if not b.fault.scaled and b.kind not in ANSWERED}
    answers, code, began = [], 0, time.monotonic()
    for name, make in functions(o.model).items():
        try:
            fn, inputs, kwargs = make()
            faults = [] if o.shapes else [b.fault for b in bugs.values()]  # their conditions may read values
            found = audit(fn, *inputs, backward=not o.no_backward, table=table, faults=faults, shapes=o.shapes, **kwargs)
        except ParityError as e:
            print(f"{name}: not audited: {str(e).removeprefix(name).lstrip(': ')}", file=sys.stderr, flush=True)
            code = max(code, e.exit_code)
            continue
        concerns = [c for _, some in gathered for c in needs_report.concerns(some, found)]
        answers.append((name, found, concerns))
        print(needs_report.render(name, found, bugs, concerns, ", ".join(path for path, _ in runs), o.verbose), flush=True)
        code = max(code, 1 if _is_missing(found, concerns) else NothingCompared.exit_code if found.broken else 0)
    missing = [name for name, found, concerns in answers if _is_missing(found, concerns)]
    said = f"MPS {'is missing what' if missing else 'has all that'} {listed(missing or [n for n, _, _ in answers])} needs"
    said = "not every function was seen to its end" if code and not missing else said
    o.verdict = verdict = Conclusion.FAIL if missing else Conclusion.of(code)
    following = f"parity locate {shlex.quote(o.model)}" if verdict is Conclusion.PASS else ""
    print(last_line(verdict, said, time.monotonic() - began, following=following), flush=True)
    o.answer = needs_report.answer(answers, bugs)
    if o.output:
        _write(o.output, answers_report.text(o.answer) + "\n")
    return code


def _is_missing(found: Needs, concerns: Sequence[needs_report.Concern]) -> bool:
    """Whether something that the function needs is missing on MPS, or computed wrongly in ordinary calls."""
    return bool(found.missing or found.held or found.mixed) or any(c.weight == needs_report.ORDINARY for c in concerns)


def _write_test(o: argparse.Namespace) -> int:
    """Write the test: 0."""
    if o.output.exists():
        raise UsageError(f"{o.output} is there already; remove it, or name another file with -o")
    made = functions(o.model)
    file = Path(o.model.partition(":")[0])
    names = [name.rpartition(":")[2] for name in made]
    text = TEST.format(
        models=", ".join(made),
        command=f"parity audit {o.model} -o {o.output}" + (" --no-backward" if o.no_backward else ""),
        folder=Path(os.path.relpath(file.parent.resolve(), o.output.parent.resolve())).as_posix(),
        module=file.stem,
        makes=", ".join(f"{file.stem}.{n}" for n in names),
        options=", backward=False" if o.no_backward else "",
    )
    _write(o.output, text)
    print(f"wrote {o.output}; run it with: python -m pytest {o.output}")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another with -o") from None
