"""Since when a case gives another result: the same case in environments from the oldest to the newest, by bisection."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from parity.core.errors import UsageError

LISTED = re.compile(r"^Available versions: (.+)$", re.M)


@dataclass(frozen=True, slots=True)
class Bisected:
    """The first place whose answer differs from that of the oldest one, and the last place before it; both are the newest where
    none differs. answers: place -> answer of those that were asked; skipped: place -> why it could not be."""

    last: str
    first: str
    answers: Mapping[str, str]
    skipped: Mapping[str, str]

    @property
    def differs(self) -> bool:
        """Whether any answer does."""
        return self.answers[self.first] != self.answers[self.last]


def bisected(places: Sequence[str], answer: Callable[[str], str]) -> Bisected:
    """Ask as few places as possible. answer: what the case gives at a place; raises UsageError where it cannot be asked.

    Raises UsageError if fewer than two places can be asked.
    """
    left, answers, skipped = list(dict.fromkeys(places)), dict[str, str](), dict[str, str]()

    def asked(place: str) -> bool:
        try:
            answers[place] = answer(place)
        except UsageError as e:
            left.remove(place)
            skipped[place] = str(e)
        return place in answers

    while left and not asked(left[0]):
        pass
    while len(left) > 1 and not asked(left[-1]):
        pass
    if len(left) < 2:
        why = "".join(f"; {place}: {text}" for place, text in skipped.items())
        raise UsageError(f"a bisection needs two environments or more, and only {len(left)} can be asked{why}")
    low, high = left[0], left[-1]
    if answers[low] == answers[high]:
        return Bisected(high, high, answers, skipped)
    while (i := left.index(low)) + 1 < (j := left.index(high)):
        middle = left[(i + j) // 2]
        if asked(middle):
            low, high = (middle, high) if answers[middle] == answers[low] else (low, middle)
    return Bisected(low, high, answers, skipped)


def versions(requirement: str) -> list[str]:
    """What pip takes for each version of torch that a requirement allows, the oldest first: "torch>=2.10,<=2.15 --pre" and the
    like. Raises UsageError if the index cannot be asked, or has fewer than two."""
    words = shlex.split(requirement)
    name = next((w for w in words if w.startswith("torch")), "torch")
    options = [w for w in words if w != name]
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    here = "name environments that are here instead: --bisect OLD/bin/python NEW/bin/python"
    listed = LISTED.search(done.stdout)
    if done.returncode or listed is None:
        said = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise UsageError(f"cannot list the versions of torch ({said}); {here}")
    try:
        allowed = SpecifierSet(name.removeprefix("torch"), prereleases=True if "--pre" in options else None)
    except InvalidSpecifier:
        raise UsageError(f"'{name}' is not a requirement of torch; write it as pip does: 'torch>=2.10,<=2.15'") from None
    found = sorted(map(Version, allowed.filter(v.strip() for v in listed[1].split(","))))
    if len(found) < 2:
        raise UsageError(f"the index has {len(found)} versions of torch for '{name}'; allow more, or {here}")
    return [shlex.join([f"torch=={v}", *options]) for v in found]
