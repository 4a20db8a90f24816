"""Case ids: text and back."""

from __future__ import annotations

import pytest

from parity import catalog
from parity.catalog.draw import Sizes
from parity.core.case import Cotangent, TensorSpec
from parity.core.errors import CaseError
from parity.core.notation import case_text, parse
from parity.generation.generate import search


def test_a_case_reads_as_the_call_that_it_is() -> None:
    case = parse('softmax(float16[1, 3].flat(1, 0).at(2, "nan"), dim=-1).cotangent("normal", "expanded", 3).into("rows")')
    x = case.args[0]
    assert isinstance(x, TensorSpec)
    assert (case.op, case.dtype, x.shape, x.layout) == ("softmax", "float16", (1, 3), (("flat", 1, 0),))
    assert x.values.specials == ((2, "nan"),)
    assert case.kwargs == (("dim", -1),)
    assert case.cotangent == Cotangent("normal", "expanded", 3)
    assert case.into == "rows"


@pytest.mark.parametrize(
    "text",
    [
        "add(float32[()], float32[2, 3].transpose(0, 1).frozen(), alpha=0.5)",
        "add(float32[2], inf)",
        "add(float32[2], -inf)",
        "add(complex64[2], complex(1.0, -2.0))",
        "sum(float16[2].of(0.1, nan), (0,), dtype=float32)",
        "getitem(float32[4, 4], (slice(None, 3, 2), ..., None))",
        "where(bool[3], float32[3].on_cpu(), 2)",
        'full((2,), 1).as_dtype("int8")',
        'cat((int8[2].index(0, 4, seed=7), int8[2].between(-1, 3)), 0).into("stepped")',
        "linalg.svd(float32[3, 3].conditioned(seed=9))",
        'op("opinfo:special.zeta", "float32")(3, float32[2].sample(3, 0))',
        "einsum('ij,jk->ik', float32[1, 1], float32[1, 1])",
        'sin(float32[3]).after("garbage").history(add(float32[2], 1), cos(float32[()]).under("no_grad").history(exp(int8[1])))',
        'exp(int8[2]).history(op("opinfo:exp", "float32")(0, float32[2].sample(0, 0)))',
    ],
)
def test_what_is_written_is_read_back_as_it_stands(text: str) -> None:
    assert case_text(parse(text)) == text


def test_drawn_cases_of_every_row_survive_the_round_trip() -> None:
    for row in catalog.ROWS.values():
        for drawn in search(row, row.dtypes[0], Sizes(), "notation", 4):
            text = case_text(drawn.case)
            assert parse(text) == drawn.case, text
            assert case_text(parse(text)) == text


@pytest.mark.parametrize(
    "text, said",
    [
        ("add(float32[2]", "this is not a case id"),
        ("add", "expected an op with its arguments"),
        ("add(float33[2])", "unknown dtype 'float33'"),
        ("add(float32[-1])", "a shape of sizes"),
        ("add(float32[2].twist(1, 2).flat(x, 1))", "expected a plain number"),
        ("add(float32[2].transpose(0, 1))", "does not fit a tensor of rank 1"),
        ("add(float32[2].of(1))", "needs the 2 elements"),
        ('add(float32[2]).into("sideways")', ".into() of one of contiguous"),
        ('add(float32[2]).cotangent("many", "contiguous", 1)', "layout word"),
        ("add(__import__('os').getcwd())", "cannot read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(CaseError) as caught:
        parse(text)
    assert said in str(caught.value)
