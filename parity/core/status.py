"""The statuses of checks and what each says of itself, and what a command concludes from them."""

from __future__ import annotations

from collections.abc import Collection
from enum import Flag, StrEnum, auto

from parity.core.errors import UsageError

# The errors that are put into results which agree, to measure the judge's power, and what it makes of each.
ERRORS = ("every element by half", "one element by 5 %", "every element by 1 %", "one NaN or Inf")
SEEN, PROVED, BLIND = "seen", "proved", "blind"


class Says(Flag):
    """What a status says of a check.

    FINDING: it fails a run by default. COMPARED: device and reference were compared. DIFFERS: the results of the one call
    differ. RAISED: the device raised. ABSENT: the device has no kernel of its own for the call. DIED: the process ended or
    hung. DOUBTFUL: the call may have broken the device for all later ones, which is asked whether it still answers.
    """

    FINDING = auto()
    COMPARED = auto()
    DIFFERS = auto()
    RAISED = auto()
    ABSENT = auto()
    DIED = auto()
    DOUBTFUL = auto()


class Status(StrEnum):
    """The result of a check. Every report uses these words, in this order.

    Each says of itself its letter in a matrix, its severity (the worst that occurred stands for several), what follows from it
    (`Says`), and its meaning in words.
    """

    letter: str
    severity: int
    meaning: str
    is_finding: bool  # whether it fails a run by default
    is_comparison: bool  # whether device and reference were compared
    differs: bool
    raised: bool
    is_absence: bool
    is_death: bool
    is_doubtful: bool

    AGREE = "agree", ".", 1, Says.COMPARED, "inside the tolerance"
    DRIFT = "drift", "D", 7, Says.FINDING | Says.COMPARED | Says.DIFFERS, "precision worse than the budget allows"
    MARGINAL = (
        *("marginal", "m", 4, Says.COMPARED | Says.DIFFERS),
        "a drift of few elements, at most twice a budget that is an estimate, in few cases of the op",
    )
    WRONG = (
        *("wrong", "W", 11, Says.FINDING | Says.COMPARED | Says.DIFFERS),
        "no rounding explains it; NaN or Inf where there is none; a write missing or outside its target",
    )
    MALFORMED = (
        *("malformed", "M", 10, Says.FINDING | Says.COMPARED | Says.DIFFERS),
        "wrong shape, dtype or aliasing, or computed what must be refused",
    )
    UNSUPPORTED = (
        *("unsupported", "u", 2, Says.ABSENT | Says.RAISED),
        "the device refuses the op or the dtype, in the words it has for that",
    )
    ERROR = "error", "E", 6, Says.FINDING | Says.RAISED | Says.DOUBTFUL, "the device raised where the reference ran"
    FALLBACK = "fallback", "f", 3, Says.ABSENT, "ran on the CPU without being asked to"
    UNSTABLE = (
        *("unstable", "N", 9, Says.FINDING | Says.COMPARED),
        "two equal runs differ, and one of them is outside the tolerance",
    )
    NOT_REPRODUCED = (
        *("not reproduced", "R", 8, Says.FINDING | Says.COMPARED),
        "a finding far outside the tolerance that was never reproduced",
    )
    CRASH = "crash", "X", 14, Says.FINDING | Says.DIED, "the process died"
    HANG = "hang", "X", 13, Says.FINDING | Says.DIED, "did not come back within its time"
    KILLED = (
        *("killed", "X", 12, Says.FINDING | Says.DIED),
        "the process was killed from outside, by a person or for its memory, and the case with it",
    )
    OOM = "oom", "O", 5, Says.FINDING | Says.RAISED, "the device ran out of memory"
    VOID = "void", "v", 0, Says.DOUBTFUL, "neither the reference nor the oracle could run it: says nothing"

    def __new__(cls, word: str, letter: str = "", severity: int = 0, says: Says = Says(0), meaning: str = "") -> Status:  # noqa: B008
        """A status whose value is its word. The defaults are never used: `Status(word)` finds one of those above."""
        self = str.__new__(cls, word)
        self._value_ = word
        self.letter, self.severity, self.meaning = letter, severity, meaning
        self.is_finding, self.is_comparison = Says.FINDING in says, Says.COMPARED in says
        self.differs, self.raised, self.is_absence = Says.DIFFERS in says, Says.RAISED in says, Says.ABSENT in says
        self.is_death, self.is_doubtful = Says.DIED in says, Says.DOUBTFUL in says
        return self


FINDINGS = frozenset(s for s in Status if s.is_finding)
COMPARED = frozenset(s for s in Status if s.is_comparison)
SILENT = frozenset(Status) - FINDINGS - COMPARED
DEATHS = tuple(s for s in Status if s.is_death)
BY_SEVERITY = tuple(sorted(Status, key=lambda s: -s.severity))  # the worst first


class Conclusion(StrEnum):
    """What a command says of the device, the first word of its last line."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"

    @classmethod
    def of(cls, code: int) -> Conclusion:
        """That of a command that ends with this exit code."""
        return {0: cls.PASS, 1: cls.FAIL}.get(code, cls.INCONCLUSIVE)

    @classmethod
    def of_run(cls, fails: bool, whole: bool) -> Conclusion:
        """That of what was found. whole: whether nothing keeps a run without findings from being a success."""
        return cls.FAIL if fails else cls.PASS if whole else cls.INCONCLUSIVE


def statuses(words: Collection[str], option: str, also: Collection[str] = ()) -> tuple[Status, ...]:
    """The statuses with these names, for an option that lists which statuses fail a run. also: other words that it takes.
    Raises UsageError, naming the option, for an unknown word and for `agree`."""
    known = [*(str(s) for s in Status if s is not Status.AGREE), *also]
    for w in words:
        if w == Status.AGREE:
            raise UsageError(f"'{w}' for {option}: agreement is no failure; allowed: {', '.join(known)}")
        if w not in known:
            raise UsageError(f"unknown status '{w}' for {option}; allowed: {', '.join(known)}")
    return tuple(Status(w) for w in words if w not in also)
