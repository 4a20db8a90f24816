"""Names that commands and options had in the version before. They work in this one, with a warning that tells the new name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Old:
    """A command, or one with a certain option, and what replaces it. option: "" for the command whatever its options."""

    command: str
    option: str
    now: str
    now_option: str = ""

    def applies(self, argv: Sequence[str]) -> bool:
        """Whether somebody typed it."""
        return argv[:1] == [self.command] and (not self.option or any(map(self._is_option, argv[1:])))

    def replaced(self, argv: Sequence[str]) -> Iterator[str]:
        """What is to be typed."""
        yield from self.now.split()
        for word in argv[1:]:
            if not self._is_option(word):
                yield word
            elif self.now_option:
                option, *value = self.now_option.split()
                yield option + word.removeprefix(self.option)
                yield from value

    def _is_option(self, word: str) -> bool:
        return bool(self.option) and word.partition("=")[0] == self.option

    def __str__(self) -> str:
        then, now = f"{self.command} {self.option}".strip(), f"{self.now} {self.now_option}".strip()
        return f"'parity {then}' is now 'parity {now}'"


OLD = (
    Old("zoo", "", "prove zoo"),
    Old("coverage", "", "prove coverage"),
    Old("trace", "", "prove trace"),
    Old("first", "", "doctor --archive"),
    Old("run", "--count", "prove counts"),
    Old("run", "--reach", "run", "--study reach"),
    Old("audit", "--reach", "prove reach"),
    Old("audit", "--wheel", "audit", "--torch"),
)
MODULES = {"parity.zoo.honest": "'--faults parity.zoo.honest' is now '--device sim:honest', with MPS's limits 'sim:mps:honest'"}


def renamed(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what is to be done, in words of this version, a warning for each old name among what was typed)."""
    given, warnings = [*argv], list[str]()
    for old in OLD:
        if old.applies(given):
            given = [*old.replaced(given)]
            warnings.append(str(old))
    warnings += [now for module, now in MODULES.items() if any(w.rpartition("=")[2] == module for w in given)]
    return given, [f"parity: {w}; the old name works in this version only" for w in warnings]
