"""Ways around planted faults: what is named agrees on the faulty device, and nothing is named where nothing helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import parity
from parity import tolerance
from parity.core.results import UNSEARCHED, Cause, Workaround
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.engine import findings, suite
from parity.engine.examine import examine
from parity.engine.findings import record_of
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.execution.detour import AROUND
from parity.findings.causes import gather
from parity.findings.workaround import CASES, WAYS, avoiding, best, tried, ways_around

CHANNELS = torch.arange(1.0, 65.0).reshape(1, 4, 4, 4).to(memory_format=torch.channels_last)
KERNEL = torch.ones(2, 4, 2, 2)
MATRIX = torch.arange(1.0, 7.0).reshape(2, 3) / 8
SMALL = torch.ones(3, dtype=torch.int8)
COUNT = torch.arange(1, 13)
NAN = torch.tensor([float("nan"), 1.0])


def doubled(call: Call) -> Any:
    """Every result is twice as large."""
    return call.run() * 2


def one_more(call: Call) -> Any:
    """Every result is larger by 1."""
    return call.run() + 1


def nothing(call: Call) -> Any:
    """No write."""
    return None


def raises(call: Call) -> Any:
    """An error that is no refusal."""
    raise RuntimeError("kernel launch failed: invalid argument 3")


def strided(call: Call) -> bool:
    """The first operand is not contiguous."""
    return not call.operands[0].is_contiguous()


def strided_target(call: Call) -> bool:
    """Written into a destination that is not contiguous."""
    return call.destination in ("given", "in place") and not call.outs[0].is_contiguous()


def of_dtype(dtype: torch.dtype) -> Callable[[Call], bool]:
    """The first operand has this dtype."""
    return lambda call: call.operands[0].dtype is dtype


def dense(t: Tensor) -> Tensor:
    """As the way "copy" spells it."""
    return t.clone(memory_format=torch.contiguous_format)


def into(fn: Callable[[Tensor], Any], like: Tensor) -> Tensor:
    """What a function left in a destination."""
    fn(like)
    return like


def gradient(fn: Callable[[Tensor], Tensor], x: Tensor, hooked: bool = False) -> Tensor:
    """Of a sum, which hands on an expanded gradient."""
    leaf = x.detach().requires_grad_()
    y = fn(leaf)
    if hooked:
        y.register_hook(lambda g: g.contiguous())  # type: ignore[no-untyped-call]
    return torch.autograd.grad(y.sum(), leaf)[0]


@dataclass(frozen=True)
class Planted:
    """A fault in an op, the way that is to be named ("" for none), and a call as it fails and as that way spells it. Both get
    what puts a tensor on the device."""

    op: str
    fault: Fault
    way: str
    fails: Callable[[Callable[[Tensor], Tensor]], Tensor]
    agrees: Callable[[Callable[[Tensor], Tensor]], Tensor]
    dtype: str = "float32"
    examples: int = 4


def fault(ops: str, effect: Any = doubled, when: Any = None, level: str = "kernel") -> Fault:
    return Fault("planted", tuple(ops.split()), effect, when or (lambda call: True), level=level)


PLANTED = {
    "strided": Planted(
        "exp", fault("exp", when=strided), "contiguous",
        lambda up: up(MATRIX).T.exp(), lambda up: up(MATRIX).T.contiguous().exp(),
    ),
    "strided sum": Planted(
        "sum", fault("sum", one_more, lambda c: c.operands[0].dim() > 0 and strided(c)), "contiguous",
        lambda up: up(MATRIX).T.sum(), lambda up: up(MATRIX).T.contiguous().sum(), examples=20,
    ),
    "channels last": Planted(
        "conv2d", fault("convolution", when=strided), "contiguous",
        lambda up: torch.conv2d(up(CHANNELS), up(KERNEL)), lambda up: torch.conv2d(up(CHANNELS).contiguous(), up(KERNEL)),
    ),
    "raises for strides": Planted(
        "tanh", fault("tanh", raises, strided), "contiguous",
        lambda up: up(MATRIX).T.tanh(), lambda up: up(MATRIX).T.contiguous().tanh(),
    ),
    "strided destination": Planted(
        "neg", fault("neg", nothing, strided_target), "contiguous",
        lambda up: into(lambda y: torch.neg(up(MATRIX), out=y), up(torch.zeros(3, 2)).T),
        lambda up: into(lambda y: y.copy_(torch.neg(up(MATRIX), out=y.contiguous())), up(torch.zeros(3, 2)).T),
    ),
    "offset": Planted(
        "exp", fault("exp", one_more, lambda c: c.operands[0].storage_offset() > 0), "copy",
        lambda up: up(MATRIX)[1].exp(), lambda up: dense(up(MATRIX)[1]).exp(), examples=16,
    ),
    "expanded gradient": Planted(
        "sigmoid", fault("sigmoid_backward", when=lambda c: c.operands[0].numel() > 1 and strided(c)), "contiguous gradient",
        lambda up: gradient(torch.sigmoid, up(MATRIX)), lambda up: gradient(torch.sigmoid, up(MATRIX), True),
    ),
    "in place": Planted(
        "add", fault("add", one_more, lambda c: c.destination == "in place"), "out of place",
        lambda up: up(MATRIX).add_(1), lambda up: into(lambda y: y.copy_(torch.add(y, 1)), up(MATRIX)),
    ),
    "out=": Planted(
        "add", fault("add", one_more, lambda c: c.destination == "given"), "out of place",
        lambda up: into(lambda y: torch.add(up(MATRIX), 1, out=y), up(MATRIX)),
        lambda up: into(lambda y: y.copy_(torch.add(up(MATRIX), 1)), up(MATRIX)),
    ),
    "bfloat16": Planted(
        "exp", fault("exp", when=of_dtype(torch.bfloat16)), "float32",
        lambda up: up(MATRIX.bfloat16()).exp(), lambda up: up(MATRIX.bfloat16()).float().exp().bfloat16(), "bfloat16",
    ),
    "float16": Planted(
        "mm", fault("mm", when=of_dtype(torch.float16)), "float32",
        lambda up: up(MATRIX.half()).mm(up(MATRIX.T.half())),
        lambda up: up(MATRIX.half()).float().mm(up(MATRIX.T.half()).float()).half(), "float16",
    ),
    "float16 softmax": Planted(
        "softmax", fault("_softmax", when=of_dtype(torch.float16)), "float32",
        lambda up: up(MATRIX.half()).softmax(0), lambda up: up(MATRIX.half()).float().softmax(0).half(), "float16",
    ),
    "int8": Planted(
        "add", fault("add", one_more, of_dtype(torch.int8)), "int64",
        lambda up: up(SMALL) + 1, lambda up: (up(SMALL).long() + 1).to(torch.int8), "int8",
    ),
    "always": Planted("exp", fault("exp"), "CPU", lambda up: up(MATRIX).exp(), lambda up: up(up(MATRIX).cpu().exp())),
    "large": Planted(
        "neg", fault("neg", when=lambda c: c.operands[0].numel() > 4), "CPU",
        lambda up: up(COUNT).neg(), lambda up: up(up(COUNT).cpu().neg()), "int64",
    ),
    "strided or large": Planted(
        "neg", fault("neg", when=lambda c: strided(c) or c.operands[0].numel() > 8), "CPU",
        lambda up: up(COUNT).contiguous().neg(), lambda up: up(up(COUNT).cpu().neg()), "int64",
    ),
    "NaN dropped": Planted(
        "maximum", fault("maximum", lambda c: torch.fmax(*c.operands[:2])), "CPU",
        lambda up: torch.maximum(up(NAN), up(torch.ones(2))), lambda up: up(torch.maximum(up(NAN).cpu(), torch.ones(2))),
        examples=16,
    ),
    "gradient": Planted(
        "sigmoid", fault("sigmoid_backward"), "CPU",
        lambda up: gradient(torch.sigmoid, up(MATRIX)),
        lambda up: gradient(lambda x: x.cpu().sigmoid().to(x.device), up(MATRIX)),
    ),
    "shape": Planted(
        "cumsum", fault("cumsum", lambda c: c.run().reshape(-1)), "CPU",
        lambda up: up(MATRIX).cumsum(0), lambda up: up(up(MATRIX).cpu().cumsum(0)),
    ),
    "downloads": Planted(
        "neg", fault("download", lambda c: c.run() * 2 if c.args[0].dtype is torch.int64 else c.run(), level="transfer"), "",
        lambda up: up(COUNT).neg(), lambda up: COUNT.neg().to(torch.int32), "int64",
    ),
}  # fmt: skip


def named(device: Device, op: str, dtype: str, examples: int, derived: bool = False) -> set[str]:
    """The lines that a run of one item prints of ways around its causes. derived: with derivatives, which take most of the
    time."""
    plan = RunPlan(device, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), RunOptions(examples=examples))
    row = suite.row(op) if derived else replace(suite.row(op), grad=())
    done = examine(suite.Item(row, dtype), plan, NoJournal())
    return {c.workaround for c in gather(map(record_of, done.findings))}


def test_each_way_can_be_tried() -> None:
    assert [*AROUND] == [w.name for w in WAYS]


@pytest.mark.parametrize("name", PLANTED)
def test_the_way_around_a_planted_fault_is_named_and_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cause has a line with the cheapest way, and that way spelled by hand agrees where the call itself does not."""
    monkeypatch.setattr(findings, "SHRINK_SECONDS", 0.2)  # causes need no least cases, which take most of the time
    monkeypatch.setattr(findings, "PLAIN_SECONDS", 0.2)
    p = PLANTED[name]
    device = resolve("sim", (p.fault,))
    said = named(device, p.op, p.dtype, p.examples, "gradient" in name)
    words = {w.name: w.words for w in WAYS}
    if p.way:
        assert said
        assert all(line.startswith(f"{words[p.way].format(call=p.op)} agrees (") for line in said)
    else:
        assert said == {""}
    with device.active():
        expected = p.agrees(Tensor.clone)
        wrong = outcome(lambda: device.download(p.fails(device.upload)))
        right = outcome(lambda: device.download(p.agrees(device.upload)))
    assert not same(wrong, expected)
    assert same(right, expected)


def outcome(run: Callable[[], Tensor]) -> Tensor | None:
    try:
        return run()
    except RuntimeError:
        return None


def same(got: Tensor | None, expected: Tensor) -> bool:
    return got is not None and got.shape == expected.shape and torch.allclose(got.double(), expected.double(), equal_nan=True)


@pytest.mark.parametrize(("op", "dtype"), [("exp", "bfloat16"), ("add", "float32")])
def test_a_healthy_device_needs_none(op: str, dtype: str) -> None:
    """No cause, and so no line."""
    assert named(resolve("sim"), op, dtype, 4) == set()


def test_a_way_that_fails_once_is_none_and_is_tried_no_more() -> None:
    """It is kept with what it failed in."""
    ways = avoiding(("non-contiguous operand",))
    asked: list[tuple[int, str]] = []

    def differs(case: int, way: Any) -> bool:
        asked.append((case, way.name if way else ""))
        return way is None or (way.name == "contiguous" and case == 2)

    found = tried(ways, (1, 2, 3), differs, 60.0)
    assert found == (Workaround("contiguous", 1, 2), Workaround("copy", 3, 3), Workaround("CPU", 3, 3))
    assert (3, "contiguous") not in asked
    assert best([found]) == Workaround("copy", 3, 3)


def test_what_does_not_fail_as_it_is_or_is_not_compared_says_nothing_of_a_way() -> None:
    """The first agrees by itself, and with the second nothing is compared that a way changed."""
    assert tried(avoiding(()), (1,), lambda case, way: False, 60.0) == ()
    assert tried(avoiding(()), (1,), lambda case, way: True if way is None else None, 60.0) == (Workaround("CPU", 0, 1),)


def test_tries_are_bounded_in_number_and_time() -> None:
    """No more than so many cases; none after the time."""
    (cpu,) = tried(avoiding(()), range(1000), lambda case, way: way is None, 60.0)
    assert cpu.cases == CASES
    assert tried(avoiding(()), range(1000), lambda case, way: way is None, -1.0) == ()


def test_a_way_counts_for_a_cause_only_if_all_its_findings_agree_with_it() -> None:
    """One finding in which it failed, or where it was not tried among others, is enough; one without tries says nothing."""
    copy, cpu = Workaround("copy", 3, 3), Workaround("CPU", 3, 3)
    assert best([(copy, cpu), (copy, cpu), ()]) == Workaround("copy", 6, 6)
    assert best([(copy, cpu), (Workaround("copy", 0, 1), cpu)]) == Workaround("CPU", 6, 6)
    assert best([(copy, cpu), (cpu,)]) == Workaround("CPU", 6, 6)
    assert best([(Workaround("of a later version", 1, 1),)]) is None
    assert best([()]) is None


@pytest.mark.parametrize(
    ("cause", "aspect"),
    [
        (Cause("torch.mm", "accepts", ("error in dtype",)), "refusal"),
        (Cause("cuda.matmul.allow_tf32", "flag"), "forward"),
        (Cause("aten::exp", "values", (UNSEARCHED,)), "forward"),
        (Cause("aten::exp", "values"), "transfer"),
    ],
)
def test_nothing_is_tried_where_no_other_call_can_help(cause: Cause, aspect: str) -> None:
    """What must be refused, flags, copies between devices, and causes that nobody looked for."""
    assert ways_around(cause, aspect, "float32") == ()


def test_only_ways_that_avoid_what_a_cause_needs_are_tried() -> None:
    """And the CPU, last."""
    assert [w.name for w in ways_around(Cause("aten::exp", "values"), "forward", "float32")] == ["CPU"]
    layouts = ways_around(Cause("aten::exp", "values", ("offset operand",)), "forward", "float16")
    assert [w.name for w in layouts] == ["contiguous", "copy", "CPU"]


# ------------------------------------------------------------------------------------------------------ people's own code


def located(fn: Callable[..., Any], *inputs: Any, planted: Fault) -> str:
    """The line that `locate` has of a way around."""
    text = str(parity.locate(fn, *inputs, device=resolve("sim", (planted,))))
    return next((line.strip() for line in text.splitlines() if line.startswith("  workaround: ")), "")


def test_locate_names_a_way_around_the_first_operator() -> None:
    """The cheapest one that agrees, tried with the operator's own operands."""
    net = torch.nn.Conv2d(4, 2, 2)
    line = located(net, CHANNELS, planted=fault("convolution", when=strided))
    assert line == "workaround: x.contiguous() before convolution_overrideable in conv2d agrees (1 of 1 call)"
    half = fault("tanh", when=of_dtype(torch.float16))
    assert located(lambda x: x.tanh().tanh(), MATRIX.half(), planted=half) == (
        "workaround: float32 around tanh agrees (2 of 2 calls)"
    )
    written = fault("add", one_more, lambda c: c.destination == "in place")
    assert located(lambda x: (x * 1).add_(1), MATRIX, planted=written) == (
        "workaround: y.copy_(add(x)) in place of the form that writes into y agrees (1 of 1 call)"
    )
    assert located(torch.exp, MATRIX, planted=fault("exp")) == (
        "workaround: exp on the CPU agrees (1 of 1 call); it copies operands and results"
    )


def test_assert_parity_says_it_behind_where_the_device_diverges() -> None:
    """A failing test shows the line that `locate` shows."""
    with pytest.raises(AssertionError) as raised:
        parity.assert_parity(torch.exp, MATRIX, device=resolve("sim", (fault("exp"),)))
    assert "\n  workaround: exp on the CPU agrees (1 of 1 call); it copies operands and results\n" in str(raised.value)


def test_locate_names_none_where_nothing_diverges_or_nothing_helps() -> None:
    """A healthy device, and one whose downloads are wrong."""
    assert located(torch.exp, MATRIX, planted=fault("sin")) == ""
    broken = fault("download", lambda c: c.run() * 2, level="transfer")
    assert located(torch.exp, MATRIX, planted=broken) == ""
