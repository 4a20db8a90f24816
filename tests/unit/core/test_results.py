"""What a status says of itself."""

from __future__ import annotations

import pickle

import pytest

from parity.core.results import BY_SEVERITY, COMPARED, FINDINGS, SILENT, Status, times_the_budget


def test_every_status_has_a_letter_a_meaning_and_a_severity_of_its_own() -> None:
    assert all(len(s.letter) == 1 and s.meaning for s in Status)
    assert len({s.severity for s in Status}) == len(Status)


def test_findings_are_worse_than_all_other_statuses() -> None:
    assert set(BY_SEVERITY[: len(FINDINGS)]) == FINDINGS
    assert BY_SEVERITY[0].is_death
    assert BY_SEVERITY[-2:] == (Status.AGREE, Status.VOID)


def test_what_was_neither_compared_nor_fails_is_a_skip() -> None:
    assert {Status.UNSUPPORTED, Status.FALLBACK, Status.VOID} == SILENT
    assert not SILENT & (COMPARED | FINDINGS)


@pytest.mark.parametrize("s", Status)
def test_a_status_is_its_word(s: Status) -> None:
    assert Status(str(s)) is s
    assert pickle.loads(pickle.dumps(s)) is s
    assert f"{s}" == s.value


@pytest.mark.parametrize(("share", "said"), [(2.4, "2.4"), (2.24e7, "2.24e+07"), (1.43e44, "over a billion")])
def test_a_number_without_meaning_is_not_told(share: float, said: str) -> None:
    """Where the truth is zero the budget is next to nothing."""
    assert times_the_budget(share, ": garbage") == f"{said} times the budget: garbage"
