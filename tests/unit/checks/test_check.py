"""The sentence itself: one case, executed twice, compared and judged in all its aspects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from spoiled import Spoiled
from torch import Tensor
from torch.overrides import TorchFunctionMode

from parity import catalog, tolerance
from parity.catalog.draw import Arguments, Draw, Sizes
from parity.catalog.row import OUT, Row
from parity.checks.check import Result, Settings, check, failing, quiet
from parity.checks.trial import SELDOM
from parity.core.case import OpClass
from parity.core.errors import CaseError
from parity.core.notation import parse
from parity.core.results import MISSING, OTHER_SIGNATURE, Aspect, Measure, Status, Verdict, times_the_budget
from parity.devices import resolve
from parity.devices.base import Device
from parity.execution import execute
from parity.execution.inputs import build
from parity.generation.generate import search
from parity.judging.judge import judge
from parity.oracle.oracle import CaseOracle

CPU = resolve("cpu")
TABLES = tolerance.load("cpu")


def checked(text: str, device: Device | None = None, row: Row | None = None, **settings: Any) -> dict[Aspect, Result]:
    case = parse(text)
    results, _ = check(row or catalog.row(case.op), case, device or Spoiled(), CPU, TABLES, Settings(**settings), quiet, [])
    return {r.aspect: r for r in results}


def statuses(results: dict[Aspect, Result]) -> dict[str, str]:
    return {str(a): str(r.verdict.status) for a, r in results.items()}


def test_a_case_is_checked_in_every_aspect_that_its_op_has() -> None:
    assert statuses(checked("exp(float32[3])")) == dict.fromkeys(("forward", "backward", "out=", "in-place"), "agree")
    assert statuses(checked("exp(int32[3])")) == dict.fromkeys(("forward", "out=", "in-place"), "agree")  # both refuse exp_
    assert statuses(checked("copy_(float32[3], float32[3])"))["in-place"] == "agree"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TypeError("exp() got an unexpected argument"), f"{OTHER_SIGNATURE}: exp() got an unexpected argument"),
        (AttributeError("module 'torch' has no attribute 'x'"), f"{MISSING}: module 'torch' has no attribute 'x'"),
        (RuntimeError("exp was removed"), "the reference refuses: exp was removed"),
    ],
)
def test_why_nobody_ran_it_tells_what_is_different_in_this_torch(error: Exception, words: str) -> None:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise error

    row = replace(catalog.row("exp"), call=f"{__name__}.raises")
    execute.program.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "attribute", lambda path: raises)
        (result,) = checked("exp(float32[3])", row=row).values()
    assert (result.verdict.status, result.verdict.reason) == (Status.VOID, words)


@pytest.mark.parametrize(
    ("place", "does", "why"),
    [
        (
            "torch.inner",
            "from torch.utils import hypot_of_old",
            "ImportError: cannot import name 'hypot_of_old' from 'torch.utils'",
        ),
        ("torch.inner", "import torch; torch.hypot_of_old", "AttributeError: module 'torch' has no attribute 'hypot_of_old'"),
        ("parity.rows", "from torch.utils import hypot_of_old", ""),
        ("torch.inner", "import no_such_package", ""),
        ("torch.inner", "().hypot_of_old", ""),
    ],
)
def test_a_torch_that_lacks_a_part_of_itself_fails_on_its_side(
    monkeypatch: pytest.MonkeyPatch, place: str, does: str, why: str
) -> None:
    """Only if code of torch looked for it in torch; all else is a mistake of parity, of a row or of the installation."""

    def breaks(t: Any) -> None:
        exec(does, {"__name__": place})

    monkeypatch.setattr("parity.checks.check._aspects", breaks)
    with pytest.raises(CaseError if why else (ImportError, AttributeError)) as e:
        checked("exp(float32[3])")
    assert not why or str(e.value) == f"{MISSING} what it needs itself: {why}"


def test_equal_bits_ask_for_no_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in cases whose errors are measured; where they are off, or the whole budget is asked for, the truth is computed."""
    asked: list[CaseOracle] = []
    truth = CaseOracle._compute_truth

    def computed(oracle: CaseOracle) -> Any:
        asked.append(oracle)
        return truth(oracle)

    monkeypatch.setattr(CaseOracle, "_compute_truth", computed)
    text = "exp(float32[3].normal(seed=1))"
    assert set(statuses(checked(text, always_use_oracle=True, more=SELDOM)).values()) == {"agree"}
    assert not asked
    assert statuses(checked(text, Spoiled(lambda t: t * 1.5), always_use_oracle=True))["forward"] == "wrong"
    assert asked
    asked.clear()
    checked(text, whole=True)
    assert asked


def test_the_judge_calls_nothing_under_the_modes_of_the_devices_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No function of the oracle or of the comparison is seen by a mode, and the modes are in force again after."""
    seen: list[bool] = []
    judging = False

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(judging)
            return func(*args, **(kwargs or {}))

    def judged(*asked: Any) -> Any:
        nonlocal judging
        judging = True
        answer = judge(*asked)
        judging = False
        return answer

    monkeypatch.setattr("parity.checks.trial.judge", judged)
    with Seeing():
        results = checked("softmax(float32[3,4].uniform(), -1)", always_use_oracle=True)
        before = len(seen)
        torch.ones(1)
        assert len(seen) > before > 0
    assert results[Aspect.BACKWARD].verdict.status is Status.AGREE
    assert not any(seen)


def test_the_stages_are_marked_before_they_begin() -> None:
    marks: list[str] = []
    case = parse("neg(int32[2])")
    check(catalog.row("neg"), case, Spoiled(), CPU, TABLES, Settings(), marks.append, [])
    assert marks[:3] == ["reference", "device", "compare"]


def test_a_finding_in_one_aspect_leaves_the_others_alone() -> None:
    def spoil(t: Tensor) -> Tensor:
        return t + 1 if t.shape == (8,) else t  # the stepped destination, and nothing else, has 8 elements

    results = checked('exp(float32[4]).into("stepped")', Spoiled(spoil))
    assert {str(r.aspect): r.verdict.reason for r in failing(list(results.values()))} == {
        "out=": "written outside its destination"
    }


def test_a_silent_no_op_in_place_is_found() -> None:
    case = "exp(float32[4].flat(1, 1).normal(seed=2))"
    untouched = build(parse(case)).operands[0].base
    assert checked(case)[Aspect.INPLACE].verdict.status is Status.AGREE
    results = checked(case, Spoiled(lambda t: untouched.clone() if t.shape == (6,) else t))
    assert results[Aspect.INPLACE].verdict.reason == "nothing was written"


def test_a_wrong_gradient_is_found_where_forward_is_right() -> None:
    calls: list[int] = []

    def second(t: Tensor) -> Tensor:
        calls.append(1)
        return t * 2 if len(calls) == 2 else t

    results = checked("exp(float32[4])", Spoiled(second))
    assert statuses(results)["forward"] == "agree"
    assert statuses(results)["backward"] == "wrong"
    assert results[Aspect.BACKWARD].key == ("backward", "grad[0]", "value")


def test_two_calls_that_differ_are_unstable_where_one_is_outside_the_budget() -> None:
    calls: list[int] = []

    def now_and_then(t: Tensor) -> Tensor:
        calls.append(1)
        return t * 2 if len(calls) == 2 else t

    results = checked("neg(int32[2].of(1, 2))", Spoiled(now_and_then), repeat=True)
    assert statuses(results)["repeat"] == "unstable"


def test_two_equal_calls_leave_no_trace() -> None:
    assert Aspect.REPEAT not in checked("exp(float32[4])", repeat=True)


def test_a_device_that_refuses_is_unsupported_and_one_that_breaks_an_error() -> None:
    class Broken(Spoiled):
        def upload(self, t: Tensor) -> Tensor:
            raise RuntimeError("the driver fell over")

    result = checked("exp(float32[4])", Broken())[Aspect.FORWARD]
    assert result.verdict.status is Status.ERROR
    assert result.verdict.reason == "RuntimeError in upload: the driver fell over"


def test_a_case_that_the_reference_refuses_says_nothing() -> None:
    assert statuses(checked("view(float32[3], (2,))")) == {"forward": "void"}


def _unary(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(draw.shape()),))


COUNT = [0]


def unsteady(x: Tensor) -> Tensor:
    """What a kernel does that reads memory which nobody wrote."""
    y = x.clone()
    if x.dtype is torch.float64:
        return y
    COUNT[0] += 1
    y[0] = COUNT[0]
    return y


def spent(x: Tensor) -> Tensor:
    """Works once on each side, each time with another result."""
    y = unsteady(x)
    if COUNT[0] > 2:
        raise RuntimeError("no memory left")
    return y


def steady(x: Tensor) -> Tensor:
    return x.clone()


def as_half_pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.to(torch.float16).reshape(-1, 2))


def odd(name: str, **more: object) -> Row:
    return Row(name=name, family="odd", rule=OpClass.COMPOSITE, call=f"{__name__}.{name}", signature=_unary, **more)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("name", ["unsteady", "spent"])
def test_a_reference_that_differs_from_itself_accuses_nobody(name: str) -> None:
    """Nor one that raises when it is asked again."""
    COUNT[0] = 0
    result = checked(f"{name}(float32[4])", row=odd(name))[Aspect.FORWARD]
    assert result.verdict.status is Status.VOID
    assert result.verdict.reason.startswith("the reference is unstable")


class Other(Spoiled):
    """A device with kernels of its own."""

    name = "other"
    torch_device = torch.device("meta")

    def upload(self, t: Tensor) -> Tensor:
        """A copy."""
        return t.detach().clone()


def halved(x: Tensor) -> Tensor:
    """A kernel of the CPU that is wrong in every dtype that it is used in."""
    return x.clone() if x.dtype is torch.float64 else x * 0.5


@pytest.mark.parametrize(("device", "status"), [(Spoiled, Status.VOID), (Other, Status.WRONG)])
def test_where_the_cpu_errs_only_a_device_with_kernels_of_its_own_is_accused(device: type[Spoiled], status: Status) -> None:
    """Batch norm's gradient with strided statistics reads freed memory on the CPU: another error in every call."""
    result = checked("halved(float32[4])", device(lambda t: t * 3.0), row=odd("halved"))[Aspect.FORWARD]
    assert result.verdict.status is status
    assert ("computes with its kernels" in result.verdict.reason) is (status is Status.VOID)


def test_a_steady_reference_still_accuses() -> None:
    result = checked("steady(float32[4])", Spoiled(lambda t: t + 1), row=odd("steady"))[Aspect.FORWARD]
    assert result.verdict.status is Status.WRONG


def test_a_result_in_a_dtype_without_facts_is_compared_forward_only() -> None:
    row = odd("as_half_pairs", forms=OUT, grad=("float32",))
    assert statuses(checked("as_half_pairs(float32[4])", row=row)) == {"forward": "agree"}


def swapped_ties(t: Tensor) -> Tensor:
    """An unstable sort: where the values 0 and 1 stand for a tie, the other one."""
    return t.flip(-1) if t.dtype is torch.int64 else t


@pytest.mark.parametrize("text", ["sort(float32[2].of(1.0, 1.0))", "topk(float32[2].of(1.0, 1.0), 2)"])
def test_the_order_of_ties_is_free_in_every_aspect_and_gradients_follow_it(text: str) -> None:
    results = checked(text, Spoiled(swapped_ties), always_use_oracle=True)
    assert set(statuses(results).values()) == {"agree"}
    assert Aspect.BACKWARD not in results  # the gradient flows to the element that was chosen
    assert Aspect.BACKWARD in checked(text, always_use_oracle=True)


def test_a_wrong_index_is_found_through_a_destination_too() -> None:
    row = replace(catalog.row("sort"), forms=OUT)
    assert statuses(checked('sort(float32[3].of(3.0, 1.0, 2.0)).into("offset")', row=row))["out="] == "agree"

    def flipped(t: Tensor) -> Tensor:
        return torch.cat((t[:3], t[3:6].flip(0), t[6:])) if t.shape == (7,) and t.dtype is torch.int64 else swapped_ties(t)

    results = checked('sort(float32[3].of(3.0, 1.0, 2.0)).into("offset")', Spoiled(flipped), row=row)
    assert statuses(results)["forward"] == "wrong"
    assert statuses(results)["out="] == "wrong"


def misplaced(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """A sort of the CPU whose indices stand in the opposite order."""
    values, index = torch.sort(x, dim)
    return values, index.flip(dim)


WRONG_ITSELF = "the reference is wrong itself: the input at the indices is not the sorted values"


@pytest.mark.parametrize(
    ("spoil", "status", "reason"),
    [
        (lambda t: t, Status.AGREE, "equals the reference, which is wrong itself"),
        (torch.zeros_like, Status.VOID, WRONG_ITSELF),
        (swapped_ties, Status.VOID, WRONG_ITSELF),  # the right order
    ],
)
def test_a_reference_that_breaks_the_relation_itself_accuses_nobody(
    spoil: Callable[[Tensor], Tensor], status: Status, reason: str
) -> None:
    row = replace(catalog.row("sort"), call=f"{__name__}.misplaced", grad=())
    verdict = checked("sort(float32[3].of(3.0, 1.0, 2.0))", Spoiled(spoil), row=row, whole=True)[Aspect.FORWARD].verdict
    assert (verdict.status, verdict.reason) == (status, reason)


def test_the_digest_of_the_inputs_is_told_when_asked_for() -> None:
    case = parse("exp(float32[3])")
    assert len(check(catalog.row("exp"), case, Spoiled(), CPU, TABLES, Settings(always_use_oracle=True), quiet, [])[1]) == 12


@pytest.mark.parametrize("name", ["add", "softmax", "conv2d", "layer_norm", "index_select", "sort", "svd"])
def test_the_cpu_agrees_with_itself(name: str) -> None:
    for drawn in search(catalog.row(name), "float32", Sizes(), "self", 12):
        results, _ = check(
            catalog.row(name), drawn.case, CPU, CPU, TABLES, Settings(always_use_oracle=True, repeat=True), quiet, []
        )
        assert {str(r.verdict.status) for r in results} <= {"agree", "void"}


def test_a_finding_is_the_same_where_another_tensor_is_worse() -> None:
    """So that shrinking need not keep which one is the worst; a tensor that is not outside is none of it."""
    outside = [Measure(f"grad[{k}]", share, measured=True, problem="value") for k, share in enumerate((3.0, 9.0, 0.5))]
    more = ": more than a coarser rounding explains"
    verdict = Verdict(Status.WRONG, times_the_budget(9.0, more), outside[1], excess=more)
    result = Result(Aspect.BACKWARD, verdict, tuple(outside))
    told = result.about(("backward", "grad[0]", "value"))
    assert told is not None
    assert told.verdict.tensor == "grad[0]"
    assert told.verdict.reason == "3 times the budget: more than a coarser rounding explains"
    assert told.key == ("backward", "grad[0]", "value")
    assert result.about(result.key) is result
    for key in (("backward", "grad[2]", "value"), ("backward", "grad[0]", "class"), ("forward", "grad[0]", "value")):
        assert result.about(key) is None


def test_a_result_is_about_another_tensor_only_where_that_is_outside_too() -> None:
    def about(share: float) -> Result | None:
        both = Measure("out[0]", 9.0, problem="value"), Measure("out[1]", share, problem="value")
        return Result(Aspect.FORWARD, Verdict(Status.WRONG, "", both[0]), both).about(("forward", "out[1]", "value"))

    assert about(1.0) is None
    found = about(1.5)
    assert found is not None
    assert found.verdict.tensor == "out[1]"


@pytest.mark.parametrize("text", ["exp(float32[3])", "topk(float32[5].normal(seed=1), 2)"])
def test_results_that_cannot_be_fetched_are_an_error_and_no_more(text: str) -> None:
    def raises(t: Tensor) -> Tensor:
        raise RuntimeError("device-side assert triggered")

    found = checked(text, Spoiled(raises), held=1)
    assert set(statuses(found).values()) == {"error"}
    assert Aspect.FORWARD in found
    assert Aspect.BACKWARD not in found
