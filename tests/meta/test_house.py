"""The house grows only where somebody says why."""

from __future__ import annotations

import ast

import house
import pytest


@pytest.mark.parametrize("name", list(house.limits()))
def test_a_figure_of_the_house_gets_no_worse(name: str) -> None:
    limit = house.limits()[name]
    now, counted = house.figure(name)
    more = "\n  ".join(["", *counted]) if now > limit["limit"] else ""
    assert now <= limit["limit"], f"{name}: {now}, and house.toml allows {limit['limit']}{more}"
    assert now == limit["limit"], f"{name} is better than house.toml says: python tests/meta/house.py --write"


@pytest.mark.parametrize("name", list(house.limits()))
def test_a_limit_above_the_lowest_says_why(name: str) -> None:
    limit = house.limits()[name]
    assert limit["limit"] == limit["lowest"] or limit.get("why", "").strip(), f"{name} was raised: say why beside it"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("A = {Status.CRASH, Status.HANG}", True),
        ('A = ("crash", "hang")', True),
        ("A = frozenset({Status.CRASH} | {Status.HANG, Status.OOM})", True),
        ('A = ("crash", "train")', False),
        ("A = (Status.CRASH,)", False),
    ],
)
def test_literal_lists_of_statuses_are_seen(text: str, counts: bool) -> None:
    assert any(house._is_list(n) for n in ast.walk(ast.parse(text))) is counts


def test_arguments_are_counted_without_self() -> None:
    f = ast.parse("def f(self, a, b, /, c, *, d, **e): ...").body[0]
    assert isinstance(f, ast.FunctionDef)
    assert house._arguments(f) == 4
