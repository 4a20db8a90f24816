"""`parity help`: the chapters of the manual, and the commands and options as the parsers have them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from parity.core.errors import UsageError, near
from parity.core.project import PACKAGE
from parity.faces.commands.groups import EVERYWHERE

FOLDER = PACKAGE / "manual"
CONTENTS = "README"  # the page that lists the chapters by question; a name that the web shows for the folder
REFERENCE = "reference"
WIDTH = 110  # of the reference
EXAMPLES = 2  # under each question of `parity --help`
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(?:#[^)\s]*)?\)")
ABOUT = "Print the manual: its chapters by question, or one of them. It is the same text as parity/manual on the web."


HELP = "the manual: its chapters by question, or one of them"
SCHEMAS = {f"schema-{name}": name for name in ("run", "report", "answer")}  # what is printed for programs
SHELLS = {f"completion-{shell}": shell for shell in ("bash", "zsh", "fish")}


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    how = (
        "a chapter, or a command for the chapter that explains it; reference: all commands with their options; schema-run, "
        "schema-report, schema-answer: the JSON schema of run files, of reports, of what --json prints; completion-bash, "
        "completion-zsh, completion-fish: what a shell reads to complete commands and options"
    )
    to.add_argument("chapter", nargs="?", default="", metavar="CHAPTER", help=how)


def run(o: argparse.Namespace) -> int:
    """Print what was asked for."""
    from parity.faces import commandline

    if o.chapter in SHELLS:
        import shtab  # for those who ask for it

        print(shtab.complete(commandline.parser("prove"), shell=SHELLS[o.chapter]))
        return 0
    if o.chapter in SCHEMAS:
        from parity.report import schema

        print(schema.text(SCHEMAS[o.chapter]), end="")
        return 0
    print(reference(commandline.parser("prove")) if o.chapter == REFERENCE else page(o.chapter or CONTENTS), end="")
    return 0


# ------------------------------------------------------------------------------------------------------- the chapters


def chapters() -> dict[str, Path]:
    """The file of each chapter, in the order of the contents."""
    return {p.stem: p for _, paths in sections() for p in paths}


def sections() -> Iterator[tuple[str, list[Path]]]:
    """(question, files of its chapters), as the contents have them."""
    for part in re.split(r"^## ", _text(FOLDER / f"{CONTENTS}.md"), flags=re.M)[1:]:
        yield part.partition("\n")[0], [FOLDER / name for name in re.findall(r"^- \[\w+\]\((\w+\.md)\)", part, re.M)]


def page(name: str) -> str:
    """The contents, a chapter, or the chapter of a command, as a terminal shows it. Raises UsageError for any other name."""
    found = chapters()
    path = FOLDER / f"{CONTENTS}.md" if name == CONTENTS else found.get(name) or homes().get(name)
    if path is None:
        hint = near(name, [*found, *homes(), REFERENCE, *SCHEMAS, *SHELLS])
        raise UsageError(f"the manual has no chapter '{name}'; {hint} parity help lists them".replace("  ", " "))
    return LINK.sub(_shown, _text(path))


def homes() -> dict[str, Path]:
    """The chapter of each command: the first one that begins with it."""
    found: dict[str, Path] = {}
    for path in chapters().values():
        for line in examples(path):
            found.setdefault(line.split()[1], path)
    return found


def examples(path: Path) -> list[str]:
    """The commands of parity with which a chapter begins."""
    first = re.search(r"^```sh\n(.*?)^```", _text(path), re.M | re.S)
    lines = first[1].splitlines() if first else []
    return [re.sub(r"\s+#.*", "", line) for line in lines if line.startswith("parity ")]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _shown(link: re.Match[str]) -> str:
    """A link in words: to a chapter its command, to the web its address, to a file of the repository its text alone."""
    text, target = link.groups()
    if target.startswith("http"):
        return f"{text} ({target})"
    if not target.endswith(".md") or "/" in target:
        return text
    command = f"`parity help {target.removesuffix('.md')}`"
    return command if text == target.removesuffix(".md") else f"{text} ({command})"


# ------------------------------------------------------------------------------------------------------- the commands


def subcommands(parser: argparse.ArgumentParser) -> list[tuple[str, str, argparse.ArgumentParser]]:
    """(name, help in a few words, parser) of the commands of a parser, or of the actions of a command."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [(c.dest, c.help or "", a.choices[c.dest]) for a in below for c in a._choices_actions]


def by_question(parser: argparse.ArgumentParser) -> str:
    """The commands of a parser under the questions of the manual, with two examples each."""
    helps = {name: text for name, text, _ in subcommands(parser)}
    texts = []
    for question, paths in sections():
        shown = {name: path for name, path in homes().items() if path in paths}
        lines = [f"  {name:<10}{helps.get(name, '')}" for name in shown]
        lines += [f"    $ {next(x for x in examples(p) if x.split()[1] == name)}" for name, p in [*shown.items()][:EXAMPLES]]
        texts += ["\n".join([question, *lines])] if shown else []
    if others := [f"  {name:<10}{text}" for name, text in helps.items() if name not in ("help", *homes())]:
        texts.append("\n".join(["What did installed packages add?", *others]))
    return "\n\n".join(texts)


def reference(parser: argparse.ArgumentParser) -> str:
    """All commands with their options, each with its help in words."""
    return "\n".join((*_described(parser, "parity"), f"{EVERYWHERE}\n"))


def _described(parser: argparse.ArgumentParser, above: str) -> Iterator[str]:
    for name, text, one in subcommands(parser):
        page = argparse.HelpFormatter(name, max_help_position=28, width=WIDTH)
        page.start_section(f"{above} {name} ({text})")
        page.add_arguments(a for a in one._actions if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction))
        page.end_section()
        yield page.format_help()
        yield from _described(one, f"{above} {name}")
