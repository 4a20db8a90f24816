"""Classes that are made swiftly are the frozen dataclasses that they were."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from parity.swift import swift


@swift
@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict, init=False, compare=False)


def test_it_is_made_by_place_by_name_and_by_default() -> None:
    assert Point(1) == Point(x=1, y=2, names=[])
    assert Point(1, 3, ["a"]).names == ["a"]
    assert Point(1).names is not Point(1).names
    assert Point(1).seen == {}
    made: Any = Point
    wrongs: tuple[tuple[Any, ...], ...] = ((), (1, 2, [], {}))
    for wrong in wrongs:
        with pytest.raises(TypeError):
            made(*wrong)


def test_it_is_frozen_copied_hashed_and_pickled_as_before() -> None:
    one = Point(1, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 4  # type: ignore[misc]  # what it refuses is the point
    one.seen["a"] = 1
    assert dataclasses.replace(one, y=5) == Point(1, 5)
    assert dataclasses.replace(one).seen == {}
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == f"{Point.__qualname__}(x=1, y=3, names=[], seen={{'a': 1}})"


def test_what_it_would_make_otherwise_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class After:
        x: int

        def __post_init__(self) -> None: ...

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        x: int

    @dataclass(frozen=True)
    class Slotless:
        x: int

    odd: tuple[type[Any], ...] = (After, Named, Slotless)
    for cls in odd:
        with pytest.raises(TypeError, match="cannot be made swiftly"):
            swift(cls)
