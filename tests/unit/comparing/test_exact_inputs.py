"""What both sides are given is exact: a function is judged as sharply as the row of its operator, whatever moves its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from parity import Call, Comparison, Fault, ParityFailure, assert_parity, compare
from parity.comparing.comparison import Request
from parity.comparing.function import compared
from parity.devices import Device, resolve
from parity.devices.sim import honest

Function = Callable[..., Tensor]
# Name -> (function, its inputs, largest error of one element that may go unreported, of the largest). They were 6 to 59 %.
SHARP: dict[str, tuple[Function, Callable[[], tuple[Tensor, ...]], float]] = {
    "var": (lambda x: x.var(-1), lambda: (torch.randn(8, 200) + 100,), 0.015),
    "std": (lambda x: x.std(-1), lambda: (torch.randn(8, 200) + 10,), 0.015),
    "sin": (torch.sin, lambda: (torch.randn(64) * 20,), 0.01),
    "difference": (torch.sub, lambda: (torch.randn(64) + 50, torch.randn(64) + 50), 0.01),
    "log": (torch.log, lambda: (1 + torch.randn(64) * 0.05,), 0.01),
    "mse_loss": (F.mse_loss, lambda: (torch.randn(64) + 50, torch.randn(64) + 50), 0.015),
}
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "bare": lambda x: x,
    "clone": torch.clone,
    "turned": lambda x: x.flip(-1).flip(-1),
    "times one": lambda x: x * 1.0,
    "halved and doubled": lambda x: x / 2 * 2,
}


def limit(found: Comparison, name: str = "out") -> float:
    """The smallest error of one element that would be reported, over the largest element."""
    known = found.limits[name]
    return float(np.quantile(known.reported_above, 0.95, method="higher") / known.size.max())


def asked(name: str, move: Callable[[Tensor], Tensor] = MOVES["bare"], device: Device | str = "sim") -> Comparison:
    """The comparison of a function in bfloat16, its inputs moved first."""
    f, make, _ = SHARP[name]
    torch.manual_seed(1)
    xs = [x.bfloat16().requires_grad_() for x in make()]
    return assert_parity(lambda *xs: f(*map(move, xs)), *xs, device=device, detail=True)


@pytest.mark.parametrize("name", SHARP)
def test_one_operator_in_bfloat16_is_judged_sharply(name: str) -> None:
    assert limit(asked(name)) < SHARP[name][2]


@pytest.mark.parametrize("move", MOVES)
def test_exact_moves_hand_on_exact_numbers(move: str) -> None:
    assert limit(asked("sin", MOVES[move])) < SHARP["sin"][2]


def test_what_a_kernel_hands_on_in_a_half_type_may_move() -> None:
    """Numbers around 100 that a kernel made are off by a quarter each, and so is the sine of them by as much."""
    torch.manual_seed(1)
    x = (torch.randn(64) * 20).bfloat16()
    found = assert_parity(lambda x: torch.sin(x * 5.1), x, device="sim", detail=True)
    assert limit(found) > 0.2


def test_numbers_of_a_kernel_may_move_behind_a_copy_in_a_list() -> None:
    x = torch.linspace(0.1, 3.0, 64)
    alone, copied = (limit(assert_parity(f, x, device="sim", detail=True)) for f in (
        lambda x: torch.exp(torch.sin(x) * 9.7), lambda x: torch.exp(torch.stack([torch.sin(x) * 9.7])),
    ))  # fmt: skip
    assert copied > 0.7 * alone


def test_an_empty_result_is_no_error_of_ours() -> None:
    x = torch.randn(4)
    assert compare(lambda x: (x * 2, x[:0]), (x * 2, x[:0]), (x * 2, x[:0]), x).agrees


@pytest.mark.parametrize("name", ["var", "mse_loss"])
def test_an_honest_device_agrees(name: str) -> None:
    assert asked(name, device=resolve("sim", tuple(honest.FAULTS))).agrees


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_norm_without_an_epsilon_has_that_of_the_dtype_in_which_it_computes(dtype: torch.dtype) -> None:
    """The epsilon of a half type itself is larger than the squares of these numbers."""
    x = (torch.linspace(0.5, 1.0, 64).view(2, 32) / 64).to(dtype)
    found = assert_parity(lambda x: F.rms_norm(x, (32,)), x, device="sim", detail=True)
    assert limit(found) < 0.015


def scaled(factor: float) -> Device:
    return resolve("sim", (Fault("scaled", ("var",), lambda call: call.run() * factor),))


@pytest.mark.parametrize("factor", [1.02, 1.5])
def test_a_variance_that_is_too_large_is_found(factor: float) -> None:
    assert asked("var", device=scaled(1.0)).agrees
    with pytest.raises(ParityFailure, match="in out"):
        asked("var", device=scaled(factor))


BUDGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "var": lambda x: (x * 1.1).var(-1),
    "std": lambda x: (x * 1.1).std(-1),
    "prod": lambda x: (x * 0.11).prod(-1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", BUDGETS)
def test_the_budget_does_not_depend_on_what_the_device_gave(op: str, dtype: torch.dtype) -> None:
    """A kernel hands on what it rounded, so that the budget comes of samples. One element is off, by little and by much."""
    torch.manual_seed(1)
    x, budgets = (torch.randn(8, 200) + 10).to(dtype)[:, : 20 if op == "prod" else 200], set()
    for by in (0.25, 4.0, 2.0**20):

        def effect(call: Call, by: float = by) -> Tensor:
            out: Tensor = call.run()
            out[0] *= 1.0 + by
            return out

        device = resolve("sim", (Fault("off", (op,), effect),))
        measure = compared(Request(BUDGETS[op], (x,), device=device)).comparison.verdicts[0][1].measure
        assert measure is not None
        assert measure.share is not None
        assert measure.share > 1.0
        assert measure.index == (0,)
        budgets.add(f"{abs(float(measure.device) - float(measure.truth)) / measure.share:.5g}")
    assert len(budgets) == 1, budgets


PLANTED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "a little": ("sum", lambda out: out * (1.0 + 2.0 * (torch.arange(8) == 3))),
    "twice": ("sum", lambda out: out * 2.0),
    "nothing but zeros": ("sum", torch.zeros_like),
    "another sign": ("sum", torch.neg),
    "another order": ("sum", lambda out: out.roll(1)),
    "NaN elsewhere": ("sum", lambda out: (out * 3.0).index_fill(0, torch.tensor(5), torch.nan)),
    "before it": ("exp", lambda out: out * 1.5),
    "far before it": ("mul", lambda out: out + 1.0),
}


@pytest.mark.parametrize(("dtype", "backward"), [(torch.float16, False), (torch.bfloat16, True), (torch.float32, False)])
def test_very_different_faults_meet_one_budget(dtype: torch.dtype, backward: bool) -> None:
    """All terms that the report names, at the element that is judged worst by each fault."""
    torch.manual_seed(2)
    x, found = (torch.randn(8, 40) / 8).to(dtype).requires_grad_(backward), dict[tuple[int, ...], set[str]]()
    for op, change in PLANTED.values():

        def effect(call: Call, change: Callable[[Tensor], Tensor] = change) -> Tensor:
            return change(call.run()).to(dtype)

        device = resolve("sim", (Fault("off", (op,), effect, level="kernel"),))
        verdicts = dict(compared(Request(lambda x: (x * 0.73).exp().sum(-1), (x,), device=device)).comparison.verdicts)
        v = verdicts["out"]
        assert v.status.is_finding
        assert v.measure is not None
        assert v.measure.index is not None
        terms = {n: f"{size:.6g}" for n, size in v.measure.budget if "together" not in n}
        found.setdefault(v.measure.index, set()).add(str(terms))
    assert len(PLANTED) > len(found)
    assert all(len(budgets) == 1 for budgets in found.values()), found


def lowered(call: Call) -> Tensor:
    """A mean of large numbers that is cut off in place of rounded."""
    x, *rest = call.args
    whole: Tensor = torch.mean(x.float(), *rest)
    return (whole.contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32).bfloat16()


def test_a_factor_of_a_gradient_that_takes_a_mean_from_each_element_is_found() -> None:
    """The mean of numbers around 100 is rounded by a fifth of what is left of them, up or down for a whole row, which is no
    common factor: 16 % went unreported. A device that rounds all means down is no finding."""
    f, make, _ = SHARP["var"]
    torch.manual_seed(1)
    x = make()[0].bfloat16().requires_grad_()
    cut = Fault("cut", ("mean",), lowered, level="kernel")
    assert compared(Request(f, (x,), device=resolve("sim", (cut,)))).comparison.agrees
    off = Fault("off", ("mul",), lambda c: c.run() * 1.05 if c.args[0].dim() > 1 else c.run(), level="kernel")
    found = compared(Request(f, (x,), device=resolve("sim", (off,)))).comparison
    assert [n for n, _ in found.findings] == ["grad[x]"]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_check_of_the_range_keeps_its_inputs_moved(seed: int) -> None:
    """A number at the end of the range is moved out of it in half of all samples. Rows that cancel show it."""

    def checked(x: Tensor) -> Tensor:
        if float(x.abs().max()) > 1:
            raise ValueError("out of range")
        return x.sum(-1)

    x = torch.rand(2000, 6, generator=torch.Generator().manual_seed(seed)) * 0.9
    x = torch.cat([x, -x.roll(1, 1) * (1 + 1e-6)], 1)
    x[0, 0] = 1.0
    assert assert_parity(checked, x, device=resolve("sim", tuple(honest.FAULTS)), backward=False).agrees
    with pytest.raises(ParityFailure):
        assert_parity(checked, x, device=resolve("sim", (Fault("off", ("sum",), lambda c: c.run() + 1e-4),)), backward=False)


# Functions whose results cancel what moves alike on the way: an honest device was accused of its roundings.
CANCELLING: dict[str, tuple[str, Function]] = {
    "sums in two orders": ("sum", lambda x, y: x.sum(-1) - x.flip(-1).sum(-1)),
    "running sums": ("cumsum", lambda x, y: x.cumsum(-1).diff(dim=-1)),
    "a complex product": ("mul", lambda x, y: torch.view_as_real(torch.complex(x, y) * torch.complex(y, x))),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_is_off_by_the_roundings_of_what_was_larger(name: str) -> None:
    operator, function = CANCELLING[name]

    def off(call: Call) -> Tensor:
        out: Tensor = call.run()
        return out + 1e-4 * call.args[0][:, 0] if operator == "sum" else out * 1.001

    faulty = resolve("sim", (Fault("off", (operator,), off, level="kernel"),))
    for seed in (100, 101, 102):
        g = torch.Generator().manual_seed(seed)
        x, y = torch.randn(8, 12, generator=g), torch.randn(8, 12, generator=g)
        assert assert_parity(function, x, y, device=resolve("sim", tuple(honest.FAULTS)), backward=False).agrees, seed
        with pytest.raises(ParityFailure):
            assert_parity(function, x, y, device=faulty, backward=False)


def test_what_an_operator_writes_and_does_not_return_is_rounded_too() -> None:
    """As those on lists of tensors, and many of a person's own."""

    def listed(x: Tensor) -> Tensor:
        y = x.clone()
        torch._foreach_mul_([y], 37.123)
        return y.sin()

    x = (torch.randn(400, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    assert assert_parity(listed, x, device=resolve("sim", tuple(honest.FAULTS)), backward=False).agrees
    with pytest.raises(ParityFailure):
        assert_parity(listed, x, device=resolve("sim", (Fault("off", ("sin",), lambda c: c.run() * 1.5),)), backward=False)


# Functions of float64 that compute a part in float32, which rounds as float32 does: an honest device was 1e7 budgets off there.
COARSER: dict[str, tuple[str, Function]] = {
    "an operator": ("sin", lambda x: x.float().sin().double()),
    "a sum": ("mm", lambda x: (x.float() @ x.float()).double()),
    "a gradient": ("exp", lambda x: x.float().exp().sum(-1)),
}


@pytest.mark.parametrize("name", COARSER)
def test_a_step_coarser_than_the_inputs_rounds_as_its_own_dtype(name: str) -> None:
    """And hides no more: a kernel that is off by a thousandth is found."""
    op, f = COARSER[name]
    torch.manual_seed(0)
    x = torch.randn(32, 32, dtype=torch.float64, requires_grad=True)
    assert_parity(f, x, device=resolve("sim", tuple(honest.FAULTS)))
    off = Fault("off", ops=(op,), effect=lambda call: call.run() * 1.001, level="kernel")
    with pytest.raises(ParityFailure):
        assert_parity(f, x, device=resolve("sim", (off,)))


def test_steps_of_float64_stay_as_sharp() -> None:
    """A function of float64 without a coarser step is judged by float64's roundings alone."""
    torch.manual_seed(0)
    x = torch.randn(32, 32, dtype=torch.float64)
    assert limit(assert_parity(lambda x: (x @ x).softmax(-1), x, device="sim", detail=True)) < 1e-12


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_steps_of_a_layer_that_is_one_kernel_on_the_cpu_round_as_it_does(factor: float) -> None:
    """Others compute an LSTM step by step, with its state in bfloat16: the simulated device was 35 budgets off."""
    torch.manual_seed(0)
    weights = [(torch.rand(68, n) * 2 - 1).bfloat16().requires_grad_() for n in (16, 17, 16, 17)]
    steps = 5 if factor == 1.0 else 2  # a fault shows in the first two, in half of the time
    x, h, state = torch.randn(steps, 16).bfloat16(), *(torch.rand(2, 1, 17).mul(2).sub(1).bfloat16() for _ in range(2))

    def both_ways(x: Tensor, h: Tensor, state: Tensor, *weights: Tensor) -> Tensor:
        return torch.lstm(x, torch.tensor([1] * steps), (h, state), weights, False, 1, 0.0, False, True)[0]

    def effect(call: Call) -> tuple[Tensor, ...]:
        out, *rest = call.run()
        return (out * factor, *rest)

    for faults in ((), honest.FAULTS):
        device = resolve("sim", (Fault("off", ("_thnn_fused_lstm_cell",), effect, level="kernel"), *faults))
        if factor == 1.0:
            assert assert_parity(both_ways, x, h, state, *weights, device=device).agrees
            continue
        with pytest.raises(ParityFailure, match="in out"):
            assert_parity(both_ways, x, h, state, *weights, device=device)


LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "equals": lambda c: c == 2,
    "differs from": lambda c: c[4:] != 2,
    "is no less than": lambda c: c.ge(2),
    "floor": torch.floor,
    "integer": lambda c: c.int(),
    "copy": lambda c: c.flip(0).clone().to(torch.float64).float() == 2,
    "one more": lambda c: c + 1 == 3,
    "a multiple": lambda c: (c * 3).floor(),
    "of a product": lambda c: F.one_hot(c.long(), 4).to(c.dtype) @ torch.arange(4.0, device=c.device).to(c.dtype) == 2,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_labels_in_floating_numbers_stay_labels(name: str, dtype: torch.dtype, factor: float) -> None:
    """A label that moved by a roundoff was none, so that any error of the elements with labels went unreported."""
    x, labels = torch.randn(32, 6).to(dtype).requires_grad_(), (torch.arange(36) % 4).to(dtype)
    labels = labels if name == "differs from" else labels[4:]

    def function(x: Tensor, labels: Tensor) -> Tensor:
        return x.exp() * LABELS[name](labels)[:, None]

    off = Fault("exp", ("exp",), lambda call: call.run() * factor, level="kernel")
    device = resolve("sim", (off, *honest.FAULTS))
    if factor == 1.0:
        assert assert_parity(function, x, labels, device=device).agrees
        return
    with pytest.raises(ParityFailure, match="in out"):
        assert_parity(function, x, labels, device=device)


def test_what_rounding_decides_may_jump() -> None:
    """Of quotients near a whole number, which no kernel makes exactly."""
    found = assert_parity(
        lambda x, c: x * torch.floor(c / 0.1)[:, None], torch.randn(30, 6), torch.arange(30) * 0.1,
        device=resolve("sim", tuple(honest.FAULTS)),
    )  # fmt: skip
    assert "differs from the CPU" in str(found)


QUOTIENTS: dict[str, Function] = {
    "floor": lambda x, y: torch.floor(x / y),
    "part": lambda x, y: x - torch.floor(x / y) * y,
    "more": lambda x, y: torch.trunc(x / y * 1.0 + 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("whole", ["all", "some"])
def test_quotients_that_are_whole_on_all_sides_stay_whole(name: str, dtype: torch.dtype, whole: str) -> None:
    """Arithmetic rounds alike everywhere: one more or less is no rounding of 6 / 3."""
    x, y = (torch.arange(64.0) % n + 1 for n in (9, 7))
    x, y = (x * y if whole == "all" else torch.arange(64.0)).to(dtype), y.to(dtype)
    assert assert_parity(QUOTIENTS[name], x, y, device=resolve("sim", tuple(honest.FAULTS))).agrees

    def off(call: Call) -> Tensor:
        out: Tensor = call.run()
        out[14] += 1.0  # of 6 / 1, or 14 / 1
        return out

    device = resolve("sim", (Fault("off", ("trunc" if name == "more" else "floor",), off, level="kernel"),))
    with pytest.raises(ParityFailure, match=r"\[14\]"):
        assert_parity(QUOTIENTS[name], x, y, device=device)


@pytest.mark.parametrize("below", [True, False])
def test_a_number_that_a_function_made_whole_may_lie_on_either_side(below: bool) -> None:
    """No side promises that exp(0) is not an ULP below 1."""
    ulp = Fault(
        "ulp", ("exp",), lambda c: torch.where(c.args[0] == 0, 1 - 2.0**-24, c.run()) if below else c.run(), level="kernel"
    )
    x = torch.linspace(-1.0, 1.0, 65)
    assert assert_parity(lambda x: torch.floor(torch.exp(x)), x, device=resolve("sim", (ulp,)), backward=False).agrees


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("wrong", [True, False])
def test_numbers_that_happen_to_be_whole_may_lie_on_either_side(scale: float, wrong: bool) -> None:
    """On the CPU and in float64, log gives back every one that exp was given; another exp, an ULP away, does not. Halves of
    whole numbers are exact on all sides."""

    def function(x: Tensor) -> Tensor:
        return torch.floor(x.exp().log() if scale == 1.0 else (x * scale) + (x * scale))

    off = Fault(
        "off", ("floor",), lambda c: c.run() + (20.0 if scale == 1.0 else 1.0) * (c.args[0].round() == 2.0), level="kernel"
    )
    x = torch.arange(4000.0) % 10 - 5
    device = resolve("sim", (*((off,) if wrong else ()), *honest.FAULTS))
    if not wrong:
        assert assert_parity(function, x, device=device).agrees
        return
    with pytest.raises(ParityFailure, match="in out"):
        assert_parity(function, x, device=device)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_losses_of_labels_are_judged_sharply(factor: float) -> None:
    x, y, labels = torch.randn(32, 6).requires_grad_(), torch.randn(32, 6), torch.ones(32).index_fill(0, torch.arange(16), -1)
    off = Fault("where", ("where",), lambda call: call.run() * factor, level="kernel")
    device = resolve("sim", (off, *honest.FAULTS))
    for loss, inputs in ((F.cosine_embedding_loss, (x, y, labels)), (F.hinge_embedding_loss, (x, labels[:, None].clone()))):
        if factor == 1.0:
            assert assert_parity(loss, *inputs, device=device).agrees
            continue
        with pytest.raises(ParityFailure, match="in out"):
            assert_parity(loss, *inputs, device=device)


@pytest.mark.parametrize("faults", [honest.FAULTS, (Fault("off", ("sigmoid_backward",), lambda call: call.run() * 1.5),)])
def test_numbers_next_to_an_infinite_sum_may_move(faults: Sequence[Fault]) -> None:
    """An Inf less what its sum may lose would be NaN, and with it all that follows: no movement of anything was known."""
    torch.manual_seed(0)
    x, w, v = torch.rand(4, 32) + 0.1, torch.randn(32, 24), torch.randn(24, 32)
    w[3, 5] = -torch.inf
    leaves = [t.half().requires_grad_(t is v) for t in (x, w, v)]

    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        h = torch.sigmoid(x @ w) @ v
        return torch.sigmoid(h @ w) @ v

    if faults is honest.FAULTS:
        assert assert_parity(function, *leaves, device=resolve("sim", faults)).agrees
        return
    with pytest.raises(ParityFailure, match=r"in grad\["):
        assert_parity(function, *leaves, device=resolve("sim", faults))


@pytest.mark.parametrize(
    "f", [lambda x, w: x.half().float().sin(), lambda x, w: x.T.bfloat16().T.float() @ w.bfloat16().float()]
)
def test_a_cast_of_what_was_given_is_exact(f: Function) -> None:
    """Both sides round it alike, and a kernel of float32 behind it is judged as one."""
    torch.manual_seed(1)
    x, w = torch.randn(100, 30), torch.randn(30, 40)
    found = assert_parity(f, x, w, device=resolve("sim", tuple(honest.FAULTS)), detail=True)
    assert found.share < 1.0
    assert found.limits["out"].factor < 1e-4
    off = Fault("off", ("sin", "mm"), lambda call: call.run() * 1.0001, level="kernel")
    with pytest.raises(ParityFailure, match="in out"):
        assert_parity(f, x, w, device=resolve("sim", (off,)))


def test_a_cast_of_what_was_written_is_none_of_what_was_given() -> None:
    torch.manual_seed(1)
    sound = resolve("sim", tuple(honest.FAULTS))
    assert assert_parity(lambda x: x.sin_().half().float().exp(), torch.randn(64), device=sound).share < 1.0


# Small elements next to a large diagonal, and those of columns that complete a basis.
BY_NORM: dict[str, tuple[str, Callable[..., Any], Callable[[], Tensor]]] = {
    "pinv": ("_linalg_svd", torch.linalg.pinv, lambda: torch.randn(64, 64) * 0.3 + 65 * torch.eye(64)),
    "qr": ("linalg_qr", lambda x: torch.linalg.qr(x, "complete").Q, lambda: torch.randn(8, 52, 2)),
}


@pytest.mark.parametrize("name", BY_NORM)
@pytest.mark.parametrize("roundoffs", [2.0, 2000.0])
def test_what_a_factorization_gives_is_off_by_its_norm(name: str, roundoffs: float) -> None:
    operator, f, make = BY_NORM[name]

    def off(call: Call) -> Any:
        result = call.run()
        shape = result if isinstance(result, Tensor) else result[0]
        torch.manual_seed(2)
        by = roundoffs * 2.0**-24 * float(shape.abs().max()) * torch.randn(shape.shape)
        return shape + by if isinstance(result, Tensor) else (shape + by, *result[1:])

    torch.manual_seed(1)
    x, device = make(), resolve("sim", (Fault("off", (operator,), off, level="kernel"),))
    if roundoffs < 16.0:
        assert_parity(f, x, device=device)
        return
    with pytest.raises(ParityFailure, match="in out"):
        assert_parity(f, x, device=device)
