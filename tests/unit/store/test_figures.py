"""The figures of each case: what is packed comes back, and what is impossible is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parity.core.results import Aspect, Measure, Status
from parity.store.figures import LARGEST, LEAST, Collected, Figures, by_item, key_of, ratio_code, size, time_code, unpacked

FORWARD, BACKWARD = str(Aspect.FORWARD), str(Aspect.DOUBLE)


def measured(share: float | None, own: float | None = None, tensor: str = "out", screen: str = "") -> Measure:
    return Measure(tensor, share, own, measured=not screen, screen=screen)


def packed(*cases: tuple[str, str, Status, tuple[Measure, ...]]) -> Figures:
    """Of cases by text, aspect, status and measures."""
    made = Collected()
    for text, aspect, status, measures in cases:
        made.add(text, "00", [(aspect, status, measures)], {FORWARD: 1e-3})
    return made.packed("exp", "float32", True)


def test_a_code_keeps_a_ratio_to_a_sixteenth_of_a_factor_of_two() -> None:
    for power in (-6.9, -3.2, 0.0, 1.55, 8.4):
        assert abs((ratio_code(2.0**power) - ratio_code(1.0)) / 8 - power) <= 1 / 16
    assert (ratio_code(0.0), ratio_code(2.0**-9), ratio_code(math.inf), ratio_code(1e300)) == (1, 1, LARGEST, LARGEST)
    assert (time_code(0.0), time_code(1e9)) == (1, 255)


def test_the_ratio_of_the_device_and_of_the_reference_come_back() -> None:
    f = packed(
        ("a", FORWARD, Status.AGREE, (measured(0.5, 0.25),)),
        ("b", FORWARD, Status.AGREE, (Measure("out", screen="bit-equal"),)),
        ("c", FORWARD, Status.UNSUPPORTED, ()),
        ("d", FORWARD, Status.AGREE, (measured(0.9, 0.8, screen="truth"),)),
        ("e", FORWARD, Status.WRONG, (measured(math.inf),)),
        ("f", FORWARD, Status.AGREE, (measured(0.0, 0.0),)),
    )
    u = unpacked(f)
    assert u.ranks(FORWARD) == {key_of(t, "00"): k for k, t in enumerate("abdef")}
    pairs = u.ratios[FORWARD]["out"]
    assert [tuple(pairs[2 * k : 2 * k + 2]) for k in range(5)] == [
        (ratio_code(0.5), ratio_code(0.25)), (0, 0), (ratio_code(0.9) + LEAST, ratio_code(0.8)), (LARGEST, 0), (0, 0),
    ]  # fmt: skip
    assert u.seconds[FORWARD] == bytes([time_code(1e-3)] * 6)
    assert size(f) == u.size == 6


def test_an_aspect_that_no_case_was_compared_in_has_no_case() -> None:
    u = unpacked(packed(("a", FORWARD, Status.AGREE, (measured(0.5),)), ("b", BACKWARD, Status.UNSUPPORTED, ())))
    assert u.ranks(BACKWARD) == {}
    assert list(u.ranks(FORWARD).values()) == [0]


def test_rows_of_one_item_are_read_as_one() -> None:
    """One of each round of a run; a tensor that only one of them has, too."""
    one = packed(("a", FORWARD, Status.AGREE, (measured(0.5),)), ("b", FORWARD, Status.VOID, ()))
    two = packed(("c", FORWARD, Status.AGREE, (measured(0.25, tensor="grad[0]"),)), ("d", FORWARD, Status.VOID, ()))
    u = by_item([one, two])["exp", "float32"]
    assert u.ranks(FORWARD) == {key_of("a", "00"): 0, key_of("c", "00"): 1}
    assert u.ratios[FORWARD] == {"out": bytes((ratio_code(0.5), 0, 0, 0)), "grad[0]": bytes((0, 0, ratio_code(0.25), 0))}
    assert u.places == {key_of(text, "00"): place for place, text in enumerate("abcd")}
    assert len(u.seconds[FORWARD]) == u.size == 4


@pytest.mark.parametrize(
    "change",
    [{"keys": "AAA"}, {"keys": "no base"}, {"keys": ""}, {"ratios": {"forward out": "AAAA"}}, {"seconds": {"forward": "AA"}},
     {"compared": {"forward": "/w"}}, {"compared": {"forward": "AAAA"}}],
)  # fmt: skip
def test_what_is_impossible_is_refused(change: dict[str, str]) -> None:
    whole = packed(*((t, FORWARD, Status.AGREE, (measured(0.5),)) for t in "abc"))
    unpacked(whole)
    with pytest.raises(ValueError, match="'"):
        unpacked(replace(whole, **change))  # type: ignore[arg-type]


def test_a_tensor_whose_name_has_spaces_comes_back_under_its_aspect() -> None:
    """As the copies of a transfer have."""
    name = "copy to the device[0]"
    u = unpacked(packed(("a", str(Aspect.TRANSFER), Status.WRONG, (measured(3.0, 0.0, tensor=name),))))
    assert {a: set(t) for a, t in u.ratios.items()} == {Aspect.TRANSFER: {name}}
