"""What few cases had: features that reported bugs need are drawn, and a device that gets them wrong is reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity import catalog, tolerance
from parity.catalog.draw import Arguments, Sizes
from parity.checks.check import Settings, check, quiet
from parity.core.case import HISTORIES, Case, TensorSpec
from parity.core.notation import parse
from parity.core.results import Status
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.execution.inputs import build
from parity.generation import error_inputs
from parity.generation.calls import AFTER, FRACTIONS, history
from parity.generation.generate import search

CPU, TABLES, SIZES = resolve("cpu"), tolerance.load("sim"), Sizes()


def statuses(text: str, *faults: Fault) -> list[Status]:
    case, device = parse(text), resolve("sim", faults)
    with device.active():
        return [r.verdict.status for r in check(catalog.row(case.op), case, device, CPU, TABLES, Settings(), quiet, [])[0]]


def squares(call: Call) -> Any:
    """The squares of both parts leave the range of float32."""
    x = call.args[0]
    return torch.view_as_real(x.resolve_conj()).square().sum(-1).sqrt() if x.is_complex() else call.run()


def reads_on(call: Call) -> Any:
    """The last bag goes on to the end of the indices."""
    call.args[2] = torch.cat((call.args[2][:-1], torch.full_like(call.args[2][:1], call.args[1].numel())))
    return call.run()


def left_out(call: Call) -> None:
    """Nothing is written into float64."""
    if call.outs[0].dtype != torch.float64:
        call.run()


def first_only(call: Call) -> Any:
    """Of a stack, only the first matrix says that it has no factor."""
    call.run()
    call.outs[1].view(-1)[1:] = 0
    return call.outs


def swallowed(call: Call) -> Any:
    """A NaN among the scores counts for nothing."""
    result, weights = call.run()
    return result.nan_to_num(0.5), weights


NAN = Fault("nan", ("_scaled_dot_product_attention_math_for_mps",), swallowed)
BAG = "embedding_bag(int64[3].index(0, 4), float32[4, 3].frozen(), offsets=int64[2].inside(1, 1), mode='sum', "


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("attention_unknown(float32[1, 2, 64].at(0, 'nan'), float32[1, 16, 64], float32[1, 16, 64]).under('no_grad')", NAN),
        ("abs_complex(complex64[4].huge())", Fault("modulus", ("abs",), squares)),
        ("abs_complex(complex64[4].tiny())", Fault("modulus", ("abs",), squares)),
        (
            BAG + "include_last_offset=True, early=True)",
            Fault("bags", ("_embedding_bag", "_embedding_bag_forward_only"), reads_on),
        ),
        (
            "copy_(float64[3].on_cpu().frozen(), float32[3].frozen()).as_dtype('float32')",
            Fault("download", ("download",), left_out, level="transfer"),
        ),
        (
            "cholesky(float32[2, 2, 2].spd().at(7, 'nan').frozen()).refused('value')",
            Fault("first", ("linalg_cholesky_ex",), first_only),
        ),
    ],
)
def test_a_device_that_gets_it_wrong_is_told(text: str, fault: Fault) -> None:
    assert any(s.is_finding for s in statuses(text, fault))
    assert {*statuses(text)} == {Status.AGREE}


def drawn(name: str, dtype: str = "float32", count: int = 150, seed: str = "3") -> list[Case]:
    return [d.case for d in search(catalog.row(name), dtype, SIZES, seed, count)]


def shapes(case: Case) -> list[tuple[int, ...]]:
    return [s.shape for s in case.operands()]


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("solve", lambda c: len(shapes(c)[0]) > 2 and shapes(c)[1] == shapes(c)[0][:-1]),
        ("scaled_dot_product_attention", lambda c: len({math.prod(s[:-2]) for s in shapes(c)[:3]}) > 1 and len(c.kwargs) < 2),
        ("svd", lambda c: c.operands()[0].values.family == "half_rank" and c.operands()[0].numel > 1),
        ("copy_", lambda c: c.operands()[0].on_cpu and c.operands()[0].dtype == "float64"),
        ("copy_", lambda c: c.operands()[1].on_cpu and c.operands()[1].dtype == "float64"),
        ("to", lambda c: "uint16" in str(c.args)),
        ("mse_loss", lambda c: c.numel == 0 and not c.kwargs),
        ("attention_unknown", lambda c: dict(c.kwargs).get("enable_gqa")),
    ],
)
def test_it_is_drawn(name: str, has: Callable[[Case], bool]) -> None:
    assert any(has(c) for seed in "34" for c in drawn(name, seed=seed))


def test_half_of_the_rank() -> None:
    case = parse("svd(float32[6, 9].half_rank())")
    assert torch.linalg.matrix_rank(build(case).operands[0].view.double()) == 3


def test_every_matrix_without_a_factor_is_refused() -> None:
    """All of a stack, its last one by a pivot, and its last one by a NaN."""
    row = catalog.row("cholesky")
    ways = [
        make() for word, make in error_inputs.forbidden_calls(row, parse("cholesky(float32[2, 3, 3].spd())")) if word == "value"
    ]
    assert len(ways) == 3
    for case in ways:
        with pytest.raises(RuntimeError, match="positive-definite"):
            torch.linalg.cholesky(build(case).operands[0].view)


@pytest.mark.parametrize(
    ("name", "args", "never"),
    [
        ("relu", (TensorSpec("float32", (2,)),), ("other_scalar", "other_presence")),
        ("copy_", (TensorSpec("float32", (2,)), TensorSpec("float32", (2,))), ("destination", "other_scalar")),
        ("lstm", (TensorSpec("float32", (2,)), 2), ("other_scalar", "destination", "sibling")),
    ],
)
def test_a_history_that_would_change_nothing_gives_way(name: str, args: tuple[Any, ...], never: tuple[str, ...]) -> None:
    row, call = catalog.row(name), Arguments(args)
    specs = [a for a in args if isinstance(a, TensorSpec)]
    words = [history(row, call, specs, lambda n, k=k: k) for k in range(len(AFTER))]  # type: ignore[misc]  # bound early
    assert words.count("") == AFTER.count("")
    assert not {*words} & {*never}
    assert {*words} <= {"", *HISTORIES}


def test_a_call_with_a_fraction_often_follows_one_with_another() -> None:
    row, specs = catalog.row("clamp"), [TensorSpec("float32", (2,))]
    words = {
        x: [history(row, Arguments((*specs, x)), specs, lambda n, k=k: k) for k in range(len(AFTER))]  # type: ignore[misc]
        for x in (2, 0.5)
    }
    assert words[0.5].count("other_scalar") == words[2].count("other_scalar") + FRACTIONS


def test_a_plain_operand_may_be_conjugated_alone() -> None:
    assert any(c.operands()[0].layout == (("conj",),) for c in drawn("imag", "complex64"))


def test_a_row_may_ask_for_more_cases() -> None:
    quick = suite.profile("quick")
    of = {n: quick.examples(suite.row(n), "float32") for n in ("scaled_dot_product_attention", "attention_packed")}
    assert of["scaled_dot_product_attention"] == 3 * of["attention_packed"]
