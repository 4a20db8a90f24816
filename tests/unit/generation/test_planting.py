"""What operands hold: special numbers where they meet, and cases without any."""

from __future__ import annotations

import math

import pytest
import torch

from parity import catalog
from parity.catalog.draw import Sizes
from parity.core.case import Case, TensorSpec, Values
from parity.core.dtypes import FACTS
from parity.execution import values
from parity.execution.inputs import build
from parity.generation.generate import search
from parity.generation.planting import aligned

SIZES = Sizes()


def tensors(case: Case) -> list[TensorSpec]:
    return [a for a in (*case.args, *dict(case.kwargs).values()) if isinstance(a, TensorSpec)]


def planted(case: Case) -> bool:
    return any(t.values.specials for t in tensors(case))


@pytest.mark.parametrize("name", ["hypot", "mul", "fmax"])
def test_special_numbers_meet_at_the_same_element(name: str) -> None:
    """Inf next to NaN, Inf next to 0, x next to -x: each somewhere in a few hundred cases, under broadcasting too."""
    met = set[tuple[str, str]]()
    for d in search(catalog.row(name), "float32", SIZES, "1", 1200):
        specs = tensors(d.case)
        if d.case.refused or len(specs) != 2 or not all(t.values.specials and t.numel < 64 for t in specs):
            continue
        x, y = (o.view for o in build(d.case).operands)
        shape = torch.broadcast_shapes(x.shape, y.shape)  # type: ignore[no-untyped-call]  # torch tells no type
        a, b = x.expand(shape), y.expand(shape)
        for p, q in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist()):
            if isinstance(p, float) and isinstance(q, float):
                met |= {(_kind(p), _kind(q))}
    wanted = {
        ("inf", "nan"),
        ("nan", "inf"),
        ("inf", "0"),
        ("0", "inf"),
        ("inf", "-inf"),
        ("0", "0"),
        ("0", "-0"),
        ("nan", "nan"),
    }
    assert wanted <= met


def _kind(x: float) -> str:
    sign = "-" if math.copysign(1, x) < 0 else ""
    return "nan" if math.isnan(x) else f"{sign}inf" if math.isinf(x) else f"{sign}0" if x == 0 else "finite"


@pytest.mark.parametrize("name, least", [("mm", 0.55), ("linear", 0.55), ("sum", 0.55), ("add", 0.4), ("sin", 0.4)])
def test_many_cases_hold_no_special_number(name: str, least: float) -> None:
    drawn = [d.case for d in search(catalog.row(name), "float32", SIZES, "1", 400)]
    share = sum(not planted(c) for c in drawn) / len(drawn)
    assert least < share < 0.9


def test_the_aligned_element_is_the_one_that_broadcasting_pairs() -> None:
    largest = (2, 3, 4)
    for shape in ((2, 3, 4), (1, 3, 4), (3, 1), (4,), (1,), (), (2, 1, 1)):
        index = torch.arange(math.prod(shape)).view(shape).expand(largest).reshape(-1)
        assert [aligned(k, largest, shape) for k in range(24)] == index.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("x", [1.0, -1.0, 4.0, 0.0, 3.0, 0.0625])
def test_the_numbers_beside_one_are_its_neighbours(dtype: str, x: float) -> None:
    up, down = (torch.tensor(float(w), dtype=getattr(torch, dtype)) for w in values.neighbours(x, FACTS[dtype]))
    at = torch.tensor(x, dtype=up.dtype)
    assert up == torch.nextafter(at, torch.tensor(math.inf, dtype=up.dtype))
    assert down == torch.nextafter(at, torch.tensor(-math.inf, dtype=up.dtype))


def test_edges_of_a_domain_are_drawn_from_both_sides() -> None:
    words = {
        w
        for d in search(catalog.row("acos"), "float32", SIZES, "1", 800)
        for t in tensors(d.case)
        for _, w in t.values.specials
    }
    assert {"1.0000001192092896", "0.9999999403953552", "1"} <= words


def test_values_do_not_repeat_where_an_index_of_16_bits_wraps() -> None:
    x = values.dense(TensorSpec("float32", (3 * 65536,), values=Values("normal")))
    assert not torch.equal(x[:65536], x[65536:131072])
    assert int((x[:65536] == x[65536:131072]).sum()) < 10


def test_ends_of_a_closed_domain_are_drawn_and_nothing_beyond() -> None:
    """Random numbers never meet them; what the dtype does not hold exactly might be rounded to a number outside. Where 0 is
    an end a number near it is planted, too."""
    found = dict[str, int]()
    for d in search(catalog.row("binary_cross_entropy"), "bfloat16", SIZES, "1", 400):
        for t in tensors(d.case):
            if t.values.family == "inside" and not d.case.refused:
                near_zero = {f"{2.0**20 * FACTS['bfloat16'].tiny:g}"} if t.values.params[0] == 0 else set()
                assert {w for _, w in t.values.specials} <= {f"{e:g}" for e in t.values.params} | near_zero
                for _, w in t.values.specials:
                    found[w] = found.get(w, 0) + 1
    assert min(found[w] for w in ("0", "1", "0.0625", "0.9375")) > 5
    narrow = [t for d in search(catalog.row("batch_norm"), "bfloat16", SIZES, "1", 400) for t in tensors(d.case)]
    assert not any(w.startswith("1.0039") for t in narrow for _, w in t.values.specials)
