"""The command line. Every command ends with an exit code that speaks:

0 nothing to report, 1 findings or regressions, 2 usage, 3 nothing was compared, 4 device absent or unusable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from parity.core import processes, project
from parity.core.child import Given, Job
from parity.core.errors import OutputError, ParityError, UsageError
from parity.engine.journal import ALLOWED, NOTES
from parity.engine.options import HANG_AFTER
from parity.faces import commandline, old_names
from parity.faces.commands.groups import Mistake
from parity.faces.files import check_outputs, in_words
from parity.faces.running import INTERRUPTED as INTERRUPTED
from parity.report import output


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. A user's mistake is one sentence on standard error."""
    with processes.restored(processes.DEADLY, HANG_AFTER, project.FILE):
        given, warnings = old_names.renamed(sys.argv[1:] if argv is None else argv)
        try:
            os.environ[project.FILE] = project.search()
            options = commandline.asked(given)
        except ParityError as e:  # of an installed package, or of settings
            print(f"parity: {e}", file=sys.stderr)
            return e.exit_code
        print("".join(f"{w}\n" for w in warnings), end="", file=sys.stderr)
        with output.patient(), processes.isolated():
            try:
                check_outputs(options)
                code: int = commandline.COMMANDS[options.command].run(options)
                sys.stdout.flush()
            except ParityError as e:
                print(f"parity: {e}", file=sys.stderr)
                return e.exit_code
            except Mistake:  # some commands read a part of their line only here
                raise
            except SystemExit as e:
                print(f"parity: a file of yours called sys.exit({e.code!r}); nothing was compared", file=sys.stderr)
                return UsageError.exit_code
            except KeyboardInterrupt:
                print("parity: interrupted", file=sys.stderr)
                return INTERRUPTED
            except OSError as e:
                print(f"parity: {in_words(e)}", file=sys.stderr)
                sys.stdout = output.nowhere()
                return OutputError.exit_code
        return code


def job(given: Given) -> Job:
    """A command in a process of its own: its exit code. given: its arguments, and the seconds that one operator may take where
    it writes a journal, None where it writes none."""
    argv, allowed = given.asked
    if allowed is not None:
        os.environ |= {NOTES: str(given.journal), ALLOWED: str(allowed)}
    try:
        code = main(argv)
    except SystemExit as e:  # argparse's
        code = e.code if isinstance(e.code, int) else 1
    yield {"code": code}
