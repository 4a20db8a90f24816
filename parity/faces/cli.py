"""The command line. Every command ends with an exit code that speaks:

0 nothing to report, 1 findings or regressions, 2 usage, 3 nothing was compared, 4 device absent or unusable.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

from parity.core import processes, project
from parity.core.child import Given, Job
from parity.core.errors import OutputError, ParityError, UsageError
from parity.core.results import Json
from parity.core.status import Conclusion
from parity.core.version import __version__
from parity.engine.journal import ALLOWED, NOTES
from parity.engine.reading import HANG_AFTER
from parity.faces import commandline
from parity.faces.commands.groups import Mistake
from parity.faces.files import check_outputs, in_words
from parity.faces.running import INTERRUPTED as INTERRUPTED
from parity.report import output


def main(argv: Sequence[str] | None = None, take: Callable[[Json], None] | None = None) -> int:
    """Run a command; the exit code. A user's mistake is one sentence on standard error. take: gets the answer of --json, which
    is printed by default."""
    with processes.restored(processes.DEADLY, HANG_AFTER, project.FILE):
        given = [*(sys.argv[1:] if argv is None else argv)]
        try:
            os.environ[project.FILE] = project.search()
            options = commandline.asked(given)
        except ParityError as e:  # of an installed package, or of settings
            print(f"parity: {e}", file=sys.stderr)
            return _refused(given, str(e), e.exit_code, take)
        except Mistake as e:
            if not commandline.wants_json(given):
                raise
            return _refused(given, e.said, UsageError.exit_code, take)
        with output.patient(), processes.isolated():
            try:
                if not options.json:
                    return _done(options)
                with output.aside():
                    code = _done(options)
                _answer(options, code, take)
                return code
            except OSError as e:
                return _unprinted(e)


def _done(options: argparse.Namespace) -> int:
    """Run a command; its exit code. What kept it from answering is said, and left in `options.error`."""
    try:
        check_outputs(options)
        code: int = commandline.COMMANDS[options.command].run(options)
        sys.stdout.flush()
        return code
    except ParityError as e:
        options.error, code = str(e), e.exit_code
    except Mistake as e:  # some commands read a part of their line only here
        if not options.json:
            raise
        options.error = e.said
        return UsageError.exit_code
    except SystemExit as e:
        options.error = f"a file of yours called sys.exit({e.code!r}); nothing was compared"
        code = UsageError.exit_code
    except KeyboardInterrupt:
        options.error, code = "interrupted", INTERRUPTED
    print(f"parity: {options.error}", file=sys.stderr)
    return code


def _refused(given: Sequence[str], why: str, code: int, take: Callable[[Json], None] | None) -> int:
    """Answer a command line that is wrong, where --json asks for an answer; the exit code."""
    if commandline.wants_json(given):
        none = argparse.Namespace(command=commandline.answering(given), verdict=None, error=why, answer=None)
        with output.patient():
            try:
                _answer(none, code, take)
            except OSError as e:
                return _unprinted(e)
    return code


def _answer(options: argparse.Namespace, code: int, take: Callable[[Json], None] | None) -> None:
    """Print what --json asks for, or give it to `take`."""
    from parity.report import answers  # few ask for it

    verdict = options.verdict or Conclusion.of(code)
    made = answers.Answer(1, options.command, __version__, code, verdict, options.error, options.answer)
    answer: Json = answers.tree(made)
    if take is not None:
        take(answer)
    else:
        output.document(json.dumps(answer, indent=1) + "\n")
        sys.stdout.flush()


def _unprinted(e: OSError) -> int:
    """Say why the output could not be written; the exit code."""
    print(f"parity: {in_words(e)}", file=sys.stderr)
    sys.stdout = output.nowhere()
    return OutputError.exit_code


def job(given: Given) -> Job:
    """A command in a process of its own: its exit code, and its answer where that is asked for as JSON. given: its arguments,
    and the seconds that one operator may take where it writes a journal, None where it writes none."""
    argv, allowed = given.asked
    answers: list[Json] = []
    if allowed is not None:
        os.environ |= {NOTES: str(given.journal), ALLOWED: str(allowed)}
    try:
        code = main(argv, answers.append)
    except SystemExit as e:  # argparse's
        code = e.code if isinstance(e.code, int) else 1
    yield {"code": code, "answer": answers[0] if answers else None}
