"""The result of probing a device."""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY, SUSPECT, UNUSABLE = "healthy", "suspect", "unusable"


@dataclass(frozen=True, slots=True)
class Health:
    """verdict: healthy, suspect (computes, but wrongly) or unusable. reasons: a sentence each, none if healthy.

    dtypes: those that could be uploaded, added and downloaded. facts: other measurements.
    """

    verdict: str
    reasons: tuple[str, ...]
    dtypes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
