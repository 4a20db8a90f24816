"""What operands meet in a call: numbers and parameters of another kind, each other's memory, the operator before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parity import catalog
from parity.catalog.draw import Sizes
from parity.catalog.glue import layers
from parity.catalog.glue.into import of_neighbours
from parity.catalog.rows import followed
from parity.core.case import Case, TensorSpec
from parity.generation.generate import nth


def drawn(name: str, dtype: str = "float32", n: int = 400) -> list[Case]:
    cases = [nth(catalog.row(name), dtype, Sizes(), "1", k, mixes=False).case for k in range(n)]
    return [c for c in cases if not c.refused]


def operands(case: Case) -> list[TensorSpec]:
    return [v for v in (*case.args, *dict(case.kwargs).values()) if isinstance(v, TensorSpec)]


@pytest.mark.parametrize(("name", "argument"), [("add", "alpha"), ("addcmul", "value"), ("addmm", "beta"), ("addbmm", "alpha")])
def test_complex_numbers_are_multiplied_by_complex_ones(name: str, argument: str) -> None:
    factors = [dict(c.kwargs).get(argument) for c in drawn(name, "complex64")]
    assert sum(isinstance(f, complex) and f.imag != 0 for f in factors) > 20
    assert not any(isinstance(dict(c.kwargs).get(argument), complex) for c in drawn(name))


@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_train", "layer_norm", "group_norm", "instance_norm"])
def test_parameters_beside_half_types_may_be_wider(name: str) -> None:
    kinds = [{s.dtype for s in operands(c)} for c in drawn(name, "float16")]
    assert sum(k == {"float16", "float32"} for k in kinds) > 10
    assert all({s.dtype for s in operands(c)} == {"float32"} for c in drawn(name))


def test_no_bias_alone_is_wider() -> None:
    """torch refuses it."""
    named = [dict(c.kwargs) for c in drawn("layer_norm", "bfloat16")]
    alone = [b for n in named if isinstance(b := n.get("bias"), TensorSpec) and "weight" not in n]
    assert len(alone) > 20
    assert {b.dtype for b in alone} == {"bfloat16"}


def test_ends_of_whole_steps_are_cut_off_on_both_sides_of_0() -> None:
    """Cut off after the steps were counted, some of the numbers are others."""
    told = 0
    for case in drawn("linspace_whole", "int16"):
        _, start, stop, steps = case.args
        assert isinstance(start, (int, float))
        assert isinstance(stop, (int, float))
        assert isinstance(steps, int)
        if isinstance(start, float):
            late = torch.linspace(start, stop, steps).to(torch.int16)
            told += not torch.equal(torch.linspace(start, stop, steps, dtype=torch.int16), late)
    assert told > 50


@pytest.mark.parametrize("name", ["kl_div", "binary_cross_entropy", "cross_entropy"])
def test_what_is_certain_is_a_target_too(name: str) -> None:
    certain = [c for c in drawn(name) if (t := operands(c)[1]).dtype == "float32" and t.values.family == "index"]
    assert len(certain) > 10
    assert not any(operands(c)[1].grad for c in certain)


def test_attention_meets_nan_in_one_operand_alone() -> None:
    hit = set()
    for case in drawn("attention_unknown"):
        held = [s.values for s in operands(case)[:3]]
        marked = [k for k, v in enumerate(held) if v.specials]
        if [w for v in held for _, w in v.specials] == ["nan"]:
            hit.add(marked[0])
            assert not {"attn_mask", "is_causal"} & set(dict(case.kwargs))
    assert hit == {0, 1, 2}


def test_equal_scores_leave_float16_before_they_are_scaled() -> None:
    found = 0
    for case in drawn("scaled_dot_product_attention", "float16", 1000):
        query, key, *_ = (s.values for s in operands(case))
        if query.family == key.family == "inside" and query.params == key.params and query.params[0] == query.params[1]:
            width = operands(case)[0].shape[-1]
            product = query.params[0] ** 2 * width
            assert product > 65504 > product / width**0.5
            found += 1
    assert found > 20


@pytest.mark.parametrize("name", ["multi_head_attention", "multi_head_cross", "transformer_layer", "attention_packed"])
def test_batches_of_none_reach_composed_layers(name: str) -> None:
    assert any(operands(c)[0].numel == 0 for c in drawn(name))


@pytest.mark.parametrize(("word", "dim"), [("le", 0), ("sub", -1), ("mul", 1), ("cat", 0), ("maximum", -1)])
def test_parts_of_one_tensor_are_views_of_it(word: str, dim: int) -> None:
    x = torch.arange(24.0).view(4, 6) % 5
    n = x.shape[dim] - 1
    copies = x.narrow(dim, 1, n).clone(), x.narrow(dim, 0, n).clone()
    plain = torch.cat(copies, dim) if word == "cat" else getattr(torch, word)(*copies)
    assert torch.equal(of_neighbours(x, word, dim, 1), plain)


def test_parts_of_one_tensor_overlap_or_lie_apart() -> None:
    apart, cut = set(), set()
    for case in drawn("le_of_neighbours"):
        x, _, d, shift = case.args
        assert isinstance(x, TensorSpec)
        assert isinstance(shift, int)
        if isinstance(d, tuple):
            cut.add((len(d), shift))
            assert shift <= min(x.shape)
            continue
        assert isinstance(d, int)
        assert 0 < shift < x.shape[d]
        apart.add(2 * shift >= x.shape[d])
    assert apart == {False, True}
    assert cut >= {(2, 1), (3, 1), (3, 2)}


def test_parts_may_be_cut_out_along_every_dimension() -> None:
    x = torch.arange(24.0).view(2, 3, 4) % 5
    assert torch.equal(of_neighbours(x, "sub", (0, 1, 2), 1), x[1:, 2:, 3:] - x[:1, :1, :1])
    assert torch.equal(of_neighbours(x, "mul", (0, 1, 2), 2), x[:, 1:, 2:] * x[:, :2, :2])


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda x: torch.cat((x[..., -2:], x[..., :-2]), -1),
    "flip": lambda x: x[..., [4, 3, 2, 1, 0]],
    "turned": lambda x: x,
    "where": lambda x: x.clamp(min=0) + x.clamp(max=0) / 2,
    "select": lambda x: x,
    "upsample": lambda x: x.repeat_interleave(2, -1),
    "pad": lambda x: torch.cat((x[..., -1:], x, x[..., :1]), -1),
    "cat": lambda x: x.repeat(*(1,) * (x.dim() - 1), 2),
    "constant": lambda x: torch.cat((half := torch.full((*x.shape[:-1], 2), 0.5), x, half), -1),
}


@pytest.mark.parametrize("how", layers.OPERAND_FROM)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_the_operator_before_makes_what_its_word_says(how: str, shape: tuple[int, ...]) -> None:
    x = torch.linspace(-2, 3, 30)[: torch.Size(shape).numel()].view(shape)
    made = layers.OPERAND_FROM[how](x)
    assert torch.equal(made, MADE[how](x))
    assert (made.shape == x.shape) is (how in layers.ALIKE)
    weight = torch.linspace(-1, 1, 12).view(2, 3, 2)
    assert torch.equal(layers.conv1d_of(how, x, weight), torch.conv1d(made, weight))


def test_every_operator_before_is_drawn() -> None:
    assert set(followed.ALIKE) == set(layers.ALIKE)
    assert {c.args[0] for c in drawn("conv1d_of")} == set(layers.OPERAND_FROM)
    assert {c.args[0] for c in drawn("linear_of")} == set(layers.ALIKE)


def test_an_unknown_operator_before_is_refused() -> None:
    with pytest.raises(ValueError, match="no such step: 'spin'; one of roll, flip"):
        layers.linear_of("spin", torch.ones(2), torch.ones(1, 2))
