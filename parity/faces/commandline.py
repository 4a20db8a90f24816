"""The parser of the command line: the commands of the command line, each of which is a module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from parity.core import extensions, version
from parity.core.errors import UsageError
from parity.faces import manual
from parity.faces.commands import audit, diff, doctor, explain, known, locate, merge, prove, replay, report, run, train, upgrade
from parity.faces.commands.groups import EVERYWHERE, EXIT_CODES, Parser, fill

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
