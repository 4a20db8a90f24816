"""The command line: its parser, and the commands, each of which is a module. Every command ends with an exit code that speaks:

0 nothing to report, 1 findings or regressions, 2 usage, 3 nothing was compared, 4 device absent or unusable.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from parity.core import extensions, processes, project, version
from parity.core.child import Given, Job
from parity.core.errors import OutputError, ParityError, UsageError
from parity.core.results import Json
from parity.core.status import Conclusion
from parity.core.version import __version__
from parity.engine.journal import ALLOWED, NOTES
from parity.engine.reading import HANG_AFTER
from parity.faces import manual
from parity.faces.commands import audit, diff, doctor, explain, known, locate, merge, prove, replay, report, run, train, upgrade
from parity.faces.commands.groups import EVERYWHERE, EXIT_CODES, Mistake, Parser, fill
from parity.faces.files import check_outputs, in_words
from parity.faces.running import INTERRUPTED as INTERRUPTED
from parity.report import output

# Each has HELP, in a few words, ABOUT, `add(parser)` and `run(options)`; it may have USAGE, MORE after the options, and
# SETTINGS, the keys of [tool.parity] that fill in what no option gives.
COMMANDS: dict[str, ModuleType] = {
    "help": manual, "run": run, "report": report, "diff": diff, "upgrade": upgrade, "merge": merge, "replay":
    replay, "explain": explain, "known": known, "locate": locate, "train": train, "audit": audit, "doctor": doctor,
    "prove": prove,
}  # fmt: skip
VERBOSE = ("-v", "--verbose")
JSON = "--json"
MORE_HELP = f"""\
parity help             the manual: its chapters by question
parity COMMAND --help   the options of a command
{EVERYWHERE}

{EXIT_CODES}"""


def add(name: str, module: ModuleType) -> None:
    """Add a command of a file outside of the package. Raises UsageError for a name that is taken."""
    if name in COMMANDS:
        raise UsageError(f"there is a command '{name}' already; name yours otherwise")
    COMMANDS[name] = module
    extensions.note("command", name)


def _options(words: Sequence[str]) -> Sequence[str]:
    """The words among which options stand: those before `--`."""
    return words[: words.index("--")] if "--" in words else words


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for its answer as JSON."""
    return JSON in _options(words)


def answering(words: Sequence[str]) -> str:
    """The command that answers a command line, "parity" if there is none that does."""
    from parity.report.answers import ANSWERS, NONE  # few ask for it

    command = next((w for w in words if not w.startswith("-")), "")
    return command if command in ANSWERS else NONE


class _Version(argparse.Action):
    """Prints the version, for which it asks git only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"parity {version.described()}")
        parser.exit()


class _Front(Parser):
    """The parser of all commands, with its help under the questions of the manual."""

    def format_help(self) -> str:
        """The page that `parity --help` prints."""
        return f"{self.format_usage()}\n{self.description}\n\n{manual.by_question(self)}\n\n{self.epilog}\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What was asked for, and what no argument takes. -v and --json may be anywhere."""
        words = [*(sys.argv[1:] if args is None else args)]
        mine = _options(words)
        plain = [w for w in mine if w not in (*VERBOSE, JSON)] + words[len(mine) :]
        o, more = super().parse_known_args(plain, namespace)
        o.verbose, o.json = any(w in mine for w in VERBOSE), wants_json(words)
        return o, more

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What was asked for. Ends the process for words that the command does not take."""
        o, more = self.parse_known_args(args, namespace)
        takes = getattr(o, "rest", "") and (o.rest_options or not any(w.startswith("-") for w in more))
        if more and not takes:
            self.prog += f" {o.command}"
            self.error(f"unrecognized arguments: {' '.join(more)}")
        if more:
            setattr(o, o.rest, [*getattr(o, o.rest), *more])
        return o


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of all commands; what was asked for is `command` of its result, a key of `COMMANDS`. command: the one that was
    typed, because the proof is loaded for nobody else, and what installed packages add only for a command that is not parity's.
    Raises UsageError for a package that cannot be imported."""
    if command not in COMMANDS:
        extensions.load()
    about = "Does a PyTorch device compute the right thing?"
    made = _Front(prog="parity", description=about, epilog=MORE_HELP)
    made.add_argument("--version", action=_Version, nargs=0, help="show the version and its commit, and exit")
    made.add_argument(*VERBOSE, action="store_true", help="leave nothing out")
    made.add_argument(JSON, action="store_true", help="print the answer as JSON")
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, module in COMMANDS.items():
        plain = argparse.RawDescriptionHelpFormatter if "\n" in module.ABOUT else argparse.HelpFormatter
        one = commands.add_parser(name, help=module.HELP, description=module.ABOUT, formatter_class=plain)
        one.usage, one.epilog = getattr(module, "USAGE", None), getattr(module, "MORE", "") + EVERYWHERE
        if module is not prove or command == name:
            module.add(one)
    return made


def asked(argv: Sequence[str]) -> argparse.Namespace:
    """What these words ask for. With --json the command leaves its answer in `answer`, a class of `report.answers`, its verdict
    in `verdict` where the exit code does not say it, and in `error` why there is none."""
    made = parser(*argv[:1])
    o = made.parse_args(argv)
    o.argv, o.answer, o.verdict, o.error = [*argv], None, None, ""
    if o.json:
        from parity.report.answers import ANSWERS

        if o.command not in ANSWERS:
            made.error(f"{o.command} takes no {JSON}; these do: {', '.join(ANSWERS)}")
    fill(o, getattr(COMMANDS[o.command], "SETTINGS", ()))
    return o


def main(argv: Sequence[str] | None = None, take: Callable[[Json], None] | None = None) -> int:
    """Run a command; the exit code. A user's mistake is one sentence on standard error. take: gets the answer of --json, which
    is printed by default."""
    with processes.restored(processes.DEADLY, HANG_AFTER, project.FILE):
        given = [*(sys.argv[1:] if argv is None else argv)]
        try:
            os.environ[project.FILE] = project.search()
            options = asked(given)
        except ParityError as e:  # of an installed package, or of settings
            print(f"parity: {e}", file=sys.stderr)
            return _refused(given, str(e), e.exit_code, take)
        except Mistake as e:
            if not wants_json(given):
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
        code: int = COMMANDS[options.command].run(options)
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
    if wants_json(given):
        none = argparse.Namespace(command=answering(given), verdict=None, error=why, answer=None)
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
