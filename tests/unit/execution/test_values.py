"""What stands in a tensor: the same bits everywhere."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from parity.core.case import TensorSpec, Values
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError
from parity.core.notation import parse
from parity.execution import values
from parity.execution.inputs import build, raw_bytes

# Digests of all pools of a dtype. They may change only together with the meaning of every stored case.
POOLS = {
    "float32": "4c5e80314063",
    "float16": "8cc4a8791b9a",
    "bfloat16": "6b913e1132e2",
    "complex64": "040765e93ccf",
    "float64": "ee6987bbce7a",
    "int8": "05f7c40bc053",
    "int16": "d8dc3b12769d",
    "int32": "a31966358e96",
    "int64": "4d2c2ce5fb90",
    "uint8": "4dfe81d6900c",
    "bool": "6416080e5822",
}
MATRICES = {
    "conditioned": "a00db2f94025",
    "spd": "ad7140b99fa3",
    "symmetric": "3737d7f1d4b7",
    "lower": "b09363bbfeb9",
    "upper": "2092e641d57e",
    "full_rank": "a00db2f94025",
}


def families(dtype: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values.families(Values("any"), dtype)))


@pytest.mark.parametrize("dtype", POOLS)
def test_the_bits_of_every_family_are_pinned(dtype: str) -> None:
    h = hashlib.blake2b(digest_size=6)
    for family in families(dtype):
        h.update(raw_bytes(values.pool(family, dtype)))
    h.update(raw_bytes(values.pool("between", dtype, 0, 1)))
    assert h.hexdigest() == POOLS[dtype]


@pytest.mark.parametrize("kind", MATRICES)
def test_the_bits_of_matrices_are_pinned(kind: str) -> None:
    h = hashlib.blake2b(digest_size=6)
    for dtype in ("float32", "float16", "complex64"):
        h.update(raw_bytes(build(parse(f"inv({dtype}[2, 5, 5].{kind}(seed=3))")).operands[0].view))
    assert h.hexdigest() == MATRICES[kind]


def test_values_do_not_depend_on_the_random_state_of_torch() -> None:
    spec = TensorSpec("float32", (5, 7), values=Values("normal", (), 12))
    torch.manual_seed(1)
    a = values.dense(spec)
    torch.manual_seed(2)
    assert torch.equal(a, values.dense(spec))


@pytest.mark.parametrize("dtype", [d for d in POOLS if FACTS[d].kind == "float"])
def test_every_family_is_finite_and_inside_the_dtype(dtype: str) -> None:
    for family in families(dtype):
        made = values.pool(family, dtype)
        assert made.dtype is getattr(torch, dtype)
        assert bool(torch.isfinite(made).all()), family


def test_masks_are_even_all_alike_few_and_many() -> None:
    """What nothing and everything is chosen by, too: kernels that count or pack take other ways there."""
    share = {f: float(values.pool(f, "bool").float().mean()) for f in families("bool")}
    assert share == pytest.approx({"uniform": 0.5, "constant": share["constant"], "few": 0.125, "many": 0.875}, abs=0.01)
    drawn = [values.dense(TensorSpec("bool", (9,), values=Values("constant", (), seed))) for seed in range(0, 4096, 64)]
    kinds = {(bool(x.any()), bool(x.all())) for x in drawn}
    assert {(False, False), (True, True)} <= kinds


def test_a_nan_may_carry_a_sign() -> None:
    for dtype in ("float32", "float16"):
        x = values.dense(TensorSpec(dtype, (2,), values=Values("uniform", (), 0, ((0, "-nan"), (1, "nan")))))
        assert bool(x.isnan().all())
        assert torch.signbit(x).tolist() == [True, False]


def test_seeds_and_positions_give_different_operands() -> None:
    one = values.dense(TensorSpec("float32", (64,), values=Values("uniform", (), 1)))
    other = values.dense(TensorSpec("float32", (64,), values=Values("uniform", (), 2)))
    assert not torch.equal(one, other)
    assert not torch.equal(one, values.dense(TensorSpec("float32", (64,), values=Values("uniform", (), 1)), position=1))


def test_between_stays_between_and_index_inside_its_size() -> None:
    x = values.dense(TensorSpec("float16", (500,), values=Values("between", (-1, 3))))
    assert -1 <= float(x.min()) < -0.5
    assert 2.5 < float(x.max()) <= 3
    i = values.dense(TensorSpec("int64", (500,), values=Values("index", (0, 7))))
    assert set(i.tolist()) == set(range(7))


def test_unique_indices_do_not_repeat_along_their_dim() -> None:
    i = values.dense(TensorSpec("int64", (4, 9), values=Values("unique", (11, 1))))
    assert all(len(set(row.tolist())) == 9 for row in i)
    assert int(i.min()) >= 0
    assert int(i.max()) < 11


def test_specials_stand_where_they_were_planted() -> None:
    x = build(parse('exp(float32[3].at(0, "nan").at(1, "-inf").at(5, "-0.0"))')).operands[0].view
    assert math.isnan(x[0])
    assert float(x[1]) == -math.inf
    assert math.copysign(1, float(x[2])) == -1


def test_the_largest_integers_are_exact() -> None:
    x = build(parse('neg(int64[2].at(0, "max").at(1, "2**53+1"))')).operands[0].view
    assert x.tolist() == [2**63 - 1, 2**53 + 1]


def test_matrices_have_the_property_of_their_name() -> None:
    def made(kind: str) -> torch.Tensor:
        return build(parse(f"inv(complex64[3, 6, 6].{kind}(seed=5))")).operands[0].view.to(torch.complex128)

    assert bool((torch.linalg.cond(made("conditioned")) < 100).all())
    assert torch.equal(made("symmetric"), made("symmetric").mH)
    assert bool((torch.linalg.eigvalsh(made("spd")) > 0).all())
    assert torch.equal(made("lower"), made("lower").tril())
    assert torch.equal(made("upper"), made("upper").triu())
    assert torch.linalg.matrix_rank(made("full_rank")).tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "text, said",
    [
        ("exp(float32[2].unifrom())", "uniform"),
        ("exp(int8[2].normal())", "unknown value family 'normal' for int8"),
        ("inv(float32[2].spd())", "need a matrix"),
        ('exp(float32[2].at(0, "big"))', "unknown special value 'big'"),
        ("take(int64[5].unique(3, 0))", "5 different values asked"),
    ],
)
def test_values_that_cannot_be_made_are_refused(text: str, said: str) -> None:
    with pytest.raises(CaseError) as caught:
        build(parse(text))
    assert said in str(caught.value)


@pytest.mark.parametrize("n", [values.POOL + 1, 2 * values.PERIOD, (1 << 19) + 77])
@pytest.mark.parametrize("seed", [0, 8, 4095])
def test_many_values_are_those_of_few_continued(seed: int, n: int) -> None:
    """They are copied in whole periods, which must not show."""
    source = torch.arange(values.POOL)
    start = values.begin(seed, 1)
    assert torch.equal(values.window(source, n, seed, 1), source[torch.arange(start, start + n) % values.PERIOD])
