"""What a probe found out about a device."""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY, SUSPECT, UNUSABLE = "healthy", "suspect", "unusable"


@dataclass(frozen=True, slots=True)
class Health:
    """verdict: healthy, suspect (computes, but not what it should) or unusable. reasons: a sentence each, none if healthy.

    dtypes: those that could be uploaded, added and downloaded. facts: what else was measured.
    """

    verdict: str
    reasons: tuple[str, ...]
    dtypes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
