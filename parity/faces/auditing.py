"""Lists what a user's model needs and MPS does not have, for `parity audit FILE.py:function`, and a test of it for pytest."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from parity.comparing.models import functions
from parity.core import outputs
from parity.core.errors import NothingCompared, ParityError, UsageError
from parity.core.status import Conclusion
from parity.findings import causes
from parity.history.environments import operator_table
from parity.locating.auditing import audit
from parity.locating.needs import Needs
from parity.report import answers as answers_report
from parity.report import needs as needs_report
from parity.report.output import last_line
from parity.report.words import listed
from parity.store import run_file
from parity.store.rows import is_named
from parity.zoo import BUGS

ANSWERED = ("unsupported_op", "fallback")  # kinds of bugs that say no more than the operator table of a torch
TEST = '''\
"""{models} needs no operator and no dtype that MPS does not have: asked on the CPU, so that it runs on any machine.

Written by: {command}
"""

{path}import pytest

import parity
from parity.comparing.models import functions

MAKES = functions({place}{given})


@pytest.mark.parametrize("name", MAKES)
def test_runs_on_mps(name):
    model, inputs, kwargs = MAKES[name]()
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
    of = str(o.torch or "")
    if of and not Path(of).expanduser().exists() and shutil.which(of) is None:
        what = "a Python, the folder of a virtual environment, a wheel of torch for any system, or a native_functions.yaml"
        raise UsageError(f"there is no {of}; name {what}")
    table = operator_table(of) if of else None
    runs = [(str(path), run_file.read(path)) for path in o.run]
    gathered = [(path, causes.gather(r.records, r.deaths)) for path, r in runs]
    bugs = {b.fault.id: b for b in BUGS if not b.fault.scaled and b.kind not in ANSWERED}
    answers, code, began = [], 0, time.monotonic()
    # A model by its name needs no memory then; a file has its own way to build one.
    place = torch.device("meta") if o.shapes and is_named(o.model) else contextlib.nullcontext()
    for name, make in functions(o.model, given=o.input).items():
        try:
            with place:
                fn, inputs, kwargs = make()
            faults = [] if o.shapes else [b.fault for b in bugs.values()]  # their conditions may read values
            found = audit(fn, *inputs, backward=not o.no_backward, table=table, faults=faults, shapes=o.shapes, **kwargs)
        except ParityError as e:
            print(f"{name}: not audited: {str(e).removeprefix(name).lstrip(': ')}", file=sys.stderr, flush=True)
            code = max(code, e.exit_code)
            continue
        concerns = [c for _, some in gathered for c in needs_report.concerns(some, found)]
        answers.append((name, found, concerns))
        print(f"{name}: {make.said}\n" if make.said else "", end="")
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
        outputs.write(o.output, answers_report.text(o.answer) + "\n")
    return code


def _is_missing(found: Needs, concerns: Sequence[needs_report.Concern]) -> bool:
    """Whether something that the function needs is missing on MPS, or computed wrongly in ordinary calls."""
    return bool(found.missing or found.held or found.mixed) or any(c.weight == needs_report.ORDINARY for c in concerns)


def _write_test(o: argparse.Namespace) -> int:
    if o.output.exists():
        raise UsageError(f"{o.output} is there already; remove it, or name another file with -o")
    made = functions(o.model, given=o.input)
    file, _, function = o.model.partition(":")
    place = repr(o.model)
    if not is_named(o.model):
        there = Path(os.path.relpath(Path(file).resolve(), o.output.parent.resolve())).as_posix()
        place = f"str(Path(__file__).parent / {there!r})" + (f" + {':' + function!r}" if function else "")
    words = [o.model, *(word for i in o.input for word in ("--input", i)), "-o", str(o.output)]
    text = TEST.format(
        models=", ".join(made),
        path="" if is_named(o.model) else "from pathlib import Path\n\n",
        command=f"parity audit {shlex.join(words)}" + (" --no-backward" if o.no_backward else ""),
        place=place,
        given=f", given={tuple(o.input)!r}" if o.input else "",
        options=", backward=False" if o.no_backward else "",
    )
    outputs.write(o.output, text)
    print(f"wrote {o.output}; run it with: python -m pytest {o.output}")
    return 0
