"""Causes: from one finding, and of a run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import tf32
import torch

from parity import tolerance
from parity.catalog import entries
from parity.checks import deciding
from parity.checks.following import _runs_on_the_cpu
from parity.checks.operators import OperatorCall, StridedOperand, compared
from parity.checks.trial import Result
from parity.core import notation
from parity.core.backends import xpu
from parity.core.case import Case
from parity.core.devices import Backend
from parity.core.results import UNSEARCHED, Aspect, Cause, Fingerprint, Measure, Record, Status, Verdict
from parity.devices import Call, Fault, resolve
from parity.engine import findings, suite
from parity.engine.examine import examine
from parity.engine.journal import LOCATING, SHRINKING, NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.findings import cause_search, known_entries
from parity.findings.causes import OPERATORS, Gathered, gather
from parity.findings.known import Entry, Found
from parity.findings.weights import weight
from parity.findings.wording import skeleton
from parity.generation import shrink
from parity.report.causes import amount, count_text, sentence
from parity.store.rows import Death, Header, Run


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause follows from a small case as well as from the least one, for which most of the tries are; what shows a finding
    again, elsewhere and another way has tests of its own. No limit of time for causes, so that a busy machine says the same."""
    monkeypatch.setattr(shrink, "WALK_TRIES", 100)
    monkeypatch.setattr(shrink, "PICK_TRIES", 20)
    monkeypatch.setattr(findings, "AGAIN", 1)
    for name in ("_with_rare_values", "_ways"):
        monkeypatch.setattr(findings, name, lambda *_: ())
    for name in ("CAUSE_SECONDS", "FINDING_SECONDS"):
        monkeypatch.setattr(findings, name, math.inf)


def causes(*faults: Fault, ops: tuple[str, ...], dtypes: tuple[str, ...] = ("float32",), **more: Any) -> tuple[Gathered, ...]:
    """The causes that some ops show on a device with these faults."""
    return gather(recorded(*faults, ops=ops, dtypes=dtypes, **more))


def recorded(*faults: Fault, ops: tuple[str, ...], dtypes: tuple[str, ...] = ("float32",), **more: Any) -> list[Record]:
    """What some ops show on a device with these faults."""
    options = RunOptions(**{"examples": 10, "power": 0, **more})
    plan = RunPlan(resolve("sim", faults), resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)
    return [r for i in suite.select(ops, dtypes=dtypes) for r in examine(i, plan, NoJournal()).records]


def larger(call: Call) -> Any:
    return call.run() * 1.01


def higher(call: Call) -> Any:
    return call.run() + 0.01


@pytest.mark.slow
def test_two_wrong_kernels_are_two_causes_whatever_shows_them() -> None:
    """exp 1 % too large and _softmax 0.01 too large, in ops that call them, in their passes and dtypes."""
    faults = Fault("exp", ("exp",), larger), Fault("softmax", ("_softmax",), higher)
    made = gather(
        [
            *recorded(*faults, ops=("exp", "log_softmax", "sigmoid"), dtypes=("float32", "float16", "int64")),
            *recorded(*faults, ops=("softmax",)),  # the derivatives of one dtype take as long as all the others together
        ]
    )
    assert {(c.cause.subject, c.cause.symptom, c.weight) for c in made} == {
        ("aten::exp", "values", "A"), ("aten::_softmax", "values", "A"),
    }  # fmt: skip
    assert sum(len(c.records) for c in made) > 10
    assert "exp" in made[0].ops + made[1].ops


@pytest.mark.slow
def test_a_cause_has_the_same_id_with_another_seed_and_is_read_back() -> None:
    """The id is made of facts alone."""
    fault = Fault("strided", ("exp",), larger, lambda c: not c.args[0].is_contiguous())
    ids = [{c.cause.id for c in causes(fault, ops=("exp",), seed=s)} for s in ("0", "1")]
    assert ids[0] == ids[1] == {Cause("aten::exp", "values", ("non-contiguous operand",)).id}


@pytest.mark.slow
def test_operators_that_misread_the_same_layout_are_one_cause() -> None:
    """From three operators on."""
    fault = Fault("strided", ("exp", "cos", "tanh", "erf"), larger, lambda c: not c.args[0].is_contiguous())
    (one,) = causes(fault, ops=("exp", "cos", "tanh", "erf"))
    assert one.cause.id == Cause(OPERATORS, "values", ("non-contiguous operand",)).id
    assert set(one.cause.properties) <= {"non-contiguous operand", "offset operand"}
    assert set(one.ops) == {"exp", "cos", "tanh", "erf"}
    assert {c.cause.subject for c in causes(fault, ops=("exp", "cos"))} == {"aten::exp", "aten::cos"}


def test_a_function_that_is_wrong_above_its_operators_is_named_itself() -> None:
    """The public function, with what its least case needs."""
    fault = Fault("above", ("softmax",), higher, lambda c: not c.args[0].is_contiguous(), level="function")
    made = causes(fault, ops=("softmax",))
    assert {c.cause.subject for c in made} == {"torch.nn.functional.softmax"} or {c.cause.subject for c in made} == {
        "torch.softmax"
    }
    assert {c.cause.properties for c in made} == {("non-contiguous operand",)}


def test_an_error_is_named_by_its_operator_and_its_words() -> None:
    """Numbers and shapes of the message do not matter."""

    def refuse(call: Call) -> Any:
        raise RuntimeError(f"bad size {tuple(call.args[0].shape)} at 0x7f{call.args[0].numel()}")

    (one,) = causes(Fault("raise", ("exp",), refuse), ops=("exp",), dtypes=("float32", "float16"))
    assert one.cause.subject == "aten::exp"
    assert one.cause.symptom == "raises: RuntimeError in run: bad size at N"
    assert one.weight == "R"


def test_equal_errors_of_several_operators_are_one_cause() -> None:
    """The words say more than the operator."""

    def refuse(call: Call) -> Any:
        raise RuntimeError(f"kernel {len(call.op)} expected Half, got Float")

    (one,) = causes(Fault("raise", ("exp", "cos"), refuse), ops=("exp", "cos"))
    assert one.cause == Cause(OPERATORS, "raises: RuntimeError in run: kernel N expected T, got T")


@pytest.mark.slow
def test_a_flag_that_explains_a_finding_is_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of matrices in TF32, which a flag turns on: forward, backward, and inside other functions; not another bug."""

    @contextlib.contextmanager
    def off() -> Iterator[None]:
        tf32.in_force[0] = False
        yield
        tf32.in_force[0] = True

    flags = (SimpleNamespace(name="the.flag", without=off), SimpleNamespace(name="another", without=contextlib.nullcontext))
    for flag in flags:
        flag.in_force, flag.dtypes = lambda: True, ()
    monkeypatch.setattr("parity.devices.base.backend_of", lambda _: Backend(name="sim", flags=flags))  # type: ignore[arg-type]
    made = causes(*tf32.FAULTS, Fault("exp", ("exp",), larger), ops=("mm", "linear", "bmm", "addmm", "exp"))
    assert {c.cause.subject for c in made} == {"the.flag", "aten::exp"}
    flagged = next(c for c in made if c.cause.subject == "the.flag")
    assert set(flagged.ops) == {"mm", "linear", "bmm", "addmm"}
    assert {"forward", "backward"} <= {r.aspect for r in flagged.records}


def test_without_shrinking_nothing_is_tried() -> None:
    """Findings of one op are kept together, because nothing else is known of them."""
    (one,) = causes(Fault("exp", ("exp",), larger), ops=("exp",), skip=("shrink",))
    assert one.cause == Cause("torch.exp", "values", (UNSEARCHED,))


@pytest.mark.parametrize(
    ("case", "aspect", "status", "expected"),
    [
        ("softmax(float32[2, 3], -1)", "forward", Status.WRONG, "A"),
        ("softmax(float32[2, 3], -1)", "backward", Status.DRIFT, "A"),
        ("softmax(float32[2, 3].transpose(0, 1), -1)", "forward", Status.WRONG, "B"),
        ("softmax(float16[2, 3], -1)", "forward", Status.WRONG, "B"),
        ("add(float32[2], float32[2], alpha=2)", "forward", Status.WRONG, "B"),
        ('softmax(float32[2, 3].at(0, "nan"), -1)', "forward", Status.WRONG, "C"),
        ('softmax(float32[2, 3], -1).into("columns")', "out=", Status.WRONG, "C"),
        ('softmax(float32[2, 3], -1).cotangent("nonfinite", "contiguous", 0)', "backward", Status.WRONG, "C"),
        ("softmax(float32[2, 3], -1)", "double backward", Status.WRONG, "C"),
        ('softmax(float32[2, 3], -1).after("smaller")', "forward", Status.WRONG, "C"),
        ("softmax(float32[2, 3], -1)", "forward", Status.ERROR, "R"),
        ("softmax(float32[2, 3], -1)", "forward", Status.CRASH, "A"),
        ("no case", "forward", Status.WRONG, "C"),
    ],
)
def test_the_weight_follows_from_the_least_case(case: str, aspect: str, status: Status, expected: str) -> None:
    assert weight(Record(case, "softmax", "float32", aspect, status, shrunk=case)) == expected


@pytest.mark.parametrize(("share", "expected"), [(1.9, "C"), (2.1, "A")])
def test_drift_by_a_hair_is_of_little_weight(share: float, expected: str) -> None:
    """Of less than twice the budget."""
    case = "softmax(float32[2, 3], -1)"
    near = Record(case, "softmax", "float32", "forward", "drift", shrunk=case, measures=(Measure("out", share),))
    assert weight(near) == expected
    assert weight(replace(near, status="wrong")) == "A"


def test_a_setting_is_no_operators_fault() -> None:
    """It has a class of its own, after the faults."""
    case = "mm(float32[2, 3], float32[3, 2])"
    flag = Record(case, "mm", "float32", "forward", "wrong", shrunk=case, cause=Cause("torch.backends.x", "flag"))
    rare = replace(flag, shrunk='mm(float32[2, 3].at(0, "nan"), float32[3, 2])', cause=Cause("aten::mm", "values"))
    assert [c.weight for c in gather([flag, rare])] == ["C", "S"]


@pytest.mark.parametrize(("kernels", "expected"), [(2, 1), (1, 1)])
def test_what_deterministic_algorithms_refuse_is_one_cause(kernels: int, expected: int) -> None:
    """Whatever they say: operators that write by indices are one other operator then. One alone keeps its name."""
    records = [
        found(f"op{k}", Cause(f"aten::op{k}", f"raises: RuntimeError in run: words {'ab'[k]}", ("under deterministic",)))
        for k in range(kernels)
    ]
    made = gather(records)
    assert len(made) == expected
    assert (made[0].cause.subject == OPERATORS) is (kernels > 1)


def test_a_copy_that_the_least_case_is_without_is_no_cause() -> None:
    """Shrinking has taken it away; an error is kept by its words."""
    copied = Cause("a copy", "values", ("non-contiguous operand",))
    lost = replace(found("addmv", copied), case="addmv(float32[2].neg())", shrunk="addmv(float32[2])")
    (one,) = gather([lost])
    assert one.cause.subject == "torch.addmv"
    (one,) = gather([replace(lost, case=lost.shrunk)])
    assert one.cause == copied
    (one,) = gather([replace(lost, status="error", reason="RuntimeError in run: must lie in a row")])
    assert one.cause.symptom == "raises: RuntimeError in run: must lie in a row"


def test_a_helper_that_ran_most_operators_is_not_named() -> None:
    """Where the function of torch that the op is for is known."""
    wrong = Result(Aspect.FORWARD, Verdict(Status.WRONG, "far outside"))
    assert cause_search.unlocated(entries.row("embedding_bag"), wrong, (), "torch.cat").subject.endswith(".embedding_bag")
    assert cause_search.unlocated(entries.row("coo_mm"), wrong, (), "torch.mm").subject == "torch.mm"


def test_the_heaviest_come_first_and_then_what_most_ops_show() -> None:
    """By class, then by ops."""

    def one(subject: str, symptom: str, op: str, case: str) -> Record:
        return Record(case, op, "float32", "forward", "wrong", shrunk=case, cause=Cause(subject, symptom))

    records = [
        one("aten::exp", "values", "exp", "exp(float32[2])"), one("aten::exp", "operands", "exp", "exp(float32[3])"),
        one("aten::sort", "metadata", "sort", "sort(float32[2])"),
        one("aten::abs", "values", "abs", 'abs(float32[2].at(0, "nan"))'),
        one("aten::exp", "values", "log", "log(float32[2])"),
    ]  # fmt: skip
    made = gather(records, [Death("sin", "float32", "sin(float32[2])", "", "crash", "SIGABRT 12", "device")])
    assert [c.weight for c in made] == ["A", "A", "A", "A", "C"]
    assert made[0].cause.symptom == "values"
    assert made[0].ops == ("exp", "log")


def test_deaths_with_equal_words_are_one_cause() -> None:
    """Numbers in the driver's message do not count."""
    deaths = [
        Death("sin", "float32", f"sin(float32[{k}])", "", "crash", f"CUDA error 7{k}: misaligned", "device") for k in (3, 2)
    ]
    (one,) = gather([], deaths)
    assert len(one.deaths) == 2


@pytest.mark.parametrize(
    ("message", "causes"), [("CUDA error: misaligned", 2), (f"{xpu.ERRORS[0].texts[0].example}", 2), ("a check of size", 1)]
)
def test_deaths_by_what_any_kernel_may_end_with_are_apart(message: str, causes: int) -> None:
    """On each backend in its own words."""
    deaths = [Death(op, "float32", f"{op}(float32[2])", "", "crash", message, "device") for op in ("sin", "exp")]
    assert len(gather([], deaths)) == causes


def test_errors_that_differ_in_the_names_they_list_are_one_cause() -> None:
    """As fused optimizers refuse tensors of two dtypes, one of them without a message; what says something else stays apart."""
    said = {
        "fused_adagrad": "params, grads, and state_sums must have same dtype, device, and layout",
        "fused_adam": "params, grads, exp_avgs, and exp_avg_sqs must have same dtype, device, and layout",
        "fused_adamw": "params, grads, exp_avgs, exp_avg_sqs, and max_exp_avg_sqs must have same dtype, device, and layout",
        "fused_sgd": "Expected at::native::check_fast_path_restrictions({params, grads}) to be true, but got false. (Could",
        "addcmul": "Expected at::native::check_sizes({params, grads}) to be true, but got false. (Could this",
        "lerp": "weight must be on the CPU",
    }
    made = gather(
        Record(f"{op}(float32[2])", op, "float32", "forward", "error", shrunk=f"{op}(float32[2])",
               cause=Cause(f"aten::_{op}_", f"raises: {skeleton(f'RuntimeError in run: {text}')}"))
        for op, text in said.items()
    )  # fmt: skip
    assert {frozenset(c.ops) for c in made} == {
        frozenset(said) - {"addcmul", "lerp"},
        frozenset(["addcmul"]),
        frozenset(["lerp"]),
    }


@pytest.mark.slow
def test_a_number_in_place_of_a_tensor_does_not_hide_the_operator() -> None:
    """Products with numbers, in place and into destinations, too."""
    made = causes(Fault("mul", ("mul",), larger), ops=("mul", "optim.SGD"), seed="1", examples=3)
    assert {c.cause.subject.replace("_foreach_", "") for c in made} == {"aten::mul"}
    assert {c.cause.symptom for c in made} == {"values"}


def test_an_error_of_a_backward_pass_is_not_filed_under_a_wrong_forward() -> None:
    """Two faults of one op, one of them in its derivative."""

    def refuse(call: Call) -> Any:
        raise RuntimeError("no derivative today")

    made = causes(Fault("tanh", ("tanh",), larger), Fault("back", ("tanh_backward",), refuse), ops=("tanh",))
    assert any("no derivative today" in c.cause.symptom for c in made)
    assert any(c.cause.subject == "aten::tanh" and c.cause.symptom == "values" for c in made)


def test_a_flaky_error_in_a_backward_pass_does_not_end_the_process() -> None:
    """The rerun raises where the finding was a wrong value."""
    calls = [0]

    def flaky(call: Call) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise RuntimeError("now and then")
        return call.run() * 1.01

    assert causes(Fault("flaky", ("tanh_backward",), flaky), ops=("tanh",))


def test_deaths_by_a_bare_signal_are_told_apart_by_their_op() -> None:
    """The signal's name says nothing about what was wrong."""
    deaths = [Death(op, "float32", f"{op}(float32[2])", "", "crash", "SIGSEGV", "device") for op in ("floor", "sort", "floor")]
    made = gather([], deaths)
    assert sorted(len(c.deaths) for c in made) == [1, 2]
    assert all(c.cause.id[0].isalpha() for c in made)


def test_operators_that_refuse_the_same_layout_in_other_words_are_two_causes() -> None:
    """Each check has words of its own."""

    def refuse(call: Call) -> Any:
        raise RuntimeError(f"{'view size' if 'tanh' in call.op else 'input'} must be contiguous")

    fault = Fault("strided", ("exp", "cos", "tanh", "erf"), refuse, lambda c: not c.args[0].is_contiguous())
    made = causes(fault, ops=("exp", "cos", "tanh", "erf"))
    assert {frozenset(c.ops) for c in made} == {frozenset(["tanh"]), frozenset(["exp", "cos", "erf"])}


def found(op: str, cause: Cause | None, reason: str = "", status: str = "wrong") -> Record:
    """A finding with a least case."""
    return Record(f"{op}(float32[2])", op, "float32", "forward", status, reason=reason, shrunk=f"{op}(float32[2])", cause=cause)


def test_one_kernel_is_one_cause_whatever_it_is_called_by() -> None:
    """The names of batch norm's kernel, cuDNN's too; the derivative and layer norm are other kernels."""
    names = ("aten::_native_batch_norm_legit", "aten::native_batch_norm", "torch.nn.functional.batch_norm",
             "aten::_batch_norm_with_update", "aten::cudnn_batch_norm", "aten::native_batch_norm_backward",
             "aten::native_layer_norm", "torch.linalg.eig", "aten::linalg_eig", "aten::_linalg_eigh")  # fmt: skip
    made = gather(found(f"op{k}", Cause(name, "values")) for k, name in enumerate(names))
    assert sorted(len(c.ops) for c in made) == [1, 1, 1, 2, 5]
    assert {c.cause.kernel for c in made} == {
        "batch_norm", "batch_norm_backward", "layer_norm", "linalg_eig", "linalg_eigh",
    }  # fmt: skip
    more = ("torch.nn.functional.conv_transpose1d", "torch.nn.functional.conv_transpose3d", "torch.conv2d", "aten::mkl_conv2d",
            "aten::cudnn_convolution_transpose", "aten::cudnn_convolution", "aten::_embedding_bag_forward_only",
            "aten::_embedding_bag", "aten::_embedding_bag_backward")  # fmt: skip
    made = gather(found(f"op{k}", Cause(name, "values")) for k, name in enumerate(more))
    assert sorted((c.cause.kernel, len(c.ops)) for c in made) == [
        ("convolution", 2), ("convolution_transpose", 3), ("embedding_bag", 2), ("embedding_bag_backward", 1), ("mkl_conv2d", 1)
    ]  # fmt: skip


def test_layouts_join_operators_of_elements_and_no_other_kernels() -> None:
    """Each of the others reads its operands by itself."""
    strided = ("non-contiguous operand",)
    alike = [found(op, Cause(f"aten::{op}", "values", strided)) for op in ("exp", "cos", "mul", "tanh")]
    others = [found(op, Cause(f"aten::{op}", "values", strided)) for op in ("mm", "max_pool2d_with_indices", "sort", "cumsum")]
    assert sorted(len(c.ops) for c in gather([*alike, *others])) == [1, 1, 1, 1, 4]


def raised(op: str, words: str, *properties: str, subject: str = "") -> Record:
    """An error that was looked into."""
    reason = f"RuntimeError in {words}"
    return found(op, Cause(subject or f"aten::{op}", f"raises: {skeleton(reason)}", properties), reason, "error")


@pytest.mark.parametrize("p", ["NaN or Inf", "extreme values", "half types"])
def test_numbers_join_operators_of_elements_and_no_other_kernels(p: str) -> None:
    """The former share the code that handles them; a sort, a norm and a padding do not."""

    def of(*ops: str) -> tuple[Gathered, ...]:
        return gather(found(op, Cause(f"aten::{op}", "values", (p,))) for op in ops)

    shared = ("exp", "atan", "signbit")
    assert [c.cause.subject for c in of(*shared)] == [OPERATORS]
    made = of(*shared, "sort", "linalg_vector_norm", "replication_pad3d_backward")
    assert {c.ops for c in made} == {shared, ("sort",), ("linalg_vector_norm",), ("replication_pad3d_backward",)}


def test_a_kernel_that_is_wrong_in_several_ways_is_one_cause() -> None:
    """Attention of each library: another shape, nothing written, other numbers; another kernel stays apart."""
    names = "aten::_scaled_dot_product_cudnn_attention", "torch.nn.functional.scaled_dot_product_attention"
    made = gather(
        [
            *(found(f"op{k}", Cause(names[k % 2], word)) for k, word in enumerate(("metadata", "memory", "values"))),
            found("op3", Cause("aten::_scaled_dot_product_efficient_attention", "metadata")),
            found("sort", Cause("aten::sort", "metadata")),
        ]
    )
    assert {(c.cause.kernel, c.cause.symptom, len(c.ops)) for c in made} == {
        ("scaled_dot_product_attention", "values", 4), ("sort", "metadata", 1),
    }  # fmt: skip


@pytest.mark.parametrize(("view", "expected"), [(".neg()", 1), ("", 2)])
def test_copies_of_lazy_views_are_one_cause_in_whatever_strides(view: str, expected: int) -> None:
    """Copies of what is not lazy are another one."""
    properties = ("lazy conj or neg operand",), ("non-contiguous operand",)
    cases = "op0(float32[2].neg())", f"op1(float32[2]{view})"
    made = gather(replace(found(f"op{k}", Cause("a copy", "values", properties[k])), shrunk=cases[k]) for k in (0, 1))
    assert len(made) == expected
    assert sum(len(c.records) for c in made) == 2


def test_drift_of_a_function_is_that_of_the_one_operator_that_differs_in_it() -> None:
    """That of the singular values is that of their gradient's; not what is wrong, nor where two operators differ."""
    alone, own = Cause("aten::_linalg_svd", "values"), Cause("torch.linalg.svdvals", "values")
    drift = found("svdvals", own, status="drift")
    assert [c.cause.subject for c in gather([found("svdvals", alone), drift])] == ["aten::_linalg_svd"]
    assert len(gather([found("svdvals", alone), replace(drift, op="matrix_norm")])) == 2
    kernels = [Cause("aten::tri", "values"), Cause("torch.linalg.norm", "values")]
    assert len(gather([found("norm", c) for c in kernels])) == 2, "it is wrong, not drift"
    others = [found("norm", Cause(f"aten::{name}", "values")) for name in ("tri", "mm")]
    assert len(gather([*others, found("norm", kernels[1], status="drift")])) == 3


def test_the_errors_of_one_kernel_are_one_cause() -> None:
    """Batch norm's checks, with what instance norm says in the same words; another kernel's are another cause."""
    made = gather(
        [
            raised("batch_norm", "run: expected 2 to 5 dimensions", subject="aten::cudnn_batch_norm"),
            raised("batch_norm", "backward: tensor has no place", subject="torch.nn.functional.batch_norm"),
            raised("instance_norm", "backward: tensor has no place"),
            raised("sort", "run: no more than 8 dimensions"),
        ]
    )
    assert {(c.cause.kernel, c.cause.symptom.partition(":")[0], c.ops) for c in made} == {
        ("batch_norm", "raises", ("batch_norm", "instance_norm")), ("sort", "raises", ("sort",)),
    }  # fmt: skip
    assert len({m.symptom for m in made[0].members}) == 2
    entry = Entry("id", "reason", ("batch_norm",), "error", made[0].cause, made[0].members)
    known = [
        Cause("aten::batch_norm", f"raises: {skeleton(f'RuntimeError in {t}')}")
        for t in ("backward: tensor has no place", "run: x")
    ]
    assert [entry.same_cause(c) for c in known] == [True, False]


def test_what_a_least_case_holds_is_needed() -> None:
    """NaN that shrinking left, and an operand on the CPU or without elements; not where another finding has none."""

    def one(op: str, case: str, symptom: str = "values") -> Record:
        return replace(found(op, Cause(f"aten::{op}", symptom)), shrunk=case.format(op))

    special, plain, near = '{}(float32[2].at(0, "nan"))', "{}(float32[2])", "{}(float32[2].on_cpu())"
    made = gather([*(one(op, special) for op in ("sin", "cos", "erf", "exp")), one("exp", plain)])
    assert {frozenset(c.ops) for c in made} == {frozenset(["sin", "cos", "erf"]), frozenset(["exp"])}
    words = "raises: RuntimeError in run: {} cannot be there"
    made = gather(
        [*(one(op, near, words.format(op)) for op in ("lerp", "addcmul", "mul")), one("exp", plain, words.format("x"))]
    )
    assert {frozenset(c.ops) for c in made} == {frozenset(["lerp", "addcmul", "mul"]), frozenset(["exp"])}
    invalid, nothing = "raises: AcceleratorError in run: CUDA error: invalid argument", "{}(float32[0, 1])"
    made = gather([*(one(op, nothing, invalid) for op in ("roll", "flip", "sort")), one("exp", plain, invalid)])
    assert {frozenset(c.ops) for c in made} == {frozenset(["roll", "flip", "sort"]), frozenset(["exp"])}


def test_what_nobody_looked_into_is_no_cause() -> None:
    """It is kept by operator, after all causes, and the count says so; the words of an operator's own check are enough."""
    made = gather(
        [
            found("exp", None), found("exp", Cause("aten::exp", "metadata", (UNSEARCHED,))),
            found("sort", Cause("aten::sort", "values")),
            raised("mean", "run: kernel expects 2 dimensions", UNSEARCHED),
        ]
    )  # fmt: skip
    assert [(c.ops, c.searched) for c in made] == [(("sort",), True), (("mean",), True), (("exp",), False)]
    assert count_text(made) == "2 causes (A 1, R 1), and 1 operator not looked into"
    assert count_text(made[2:]) == "1 operator not looked into"


def test_errors_that_nobody_looked_into_are_known_by_their_words() -> None:
    """Of a run that was cut: an entry of two errors accepts these, and no third one of the kernel."""
    reasons = [
        f"RuntimeError in run: {x}" for x in ("no more than 8 dimensions", "this type has no kernel", "the grid is wrong")
    ]
    errors = [replace(found("sort", None, words, "error"), case="sort(float32[2])") for words in reasons]
    (c,) = gather(errors[:2])
    run = Run(Header(Fingerprint("0", "2.13.0", "", "3", "Linux", "x86_64", "sim", "")))
    entries = known_entries.of_cause(c, run, "reason")
    alike = [[e.same_cause(Cause("aten::sort", f"raises: {skeleton(words)}")) for e in entries] for words in reasons]
    assert alike == [[True, False], [False, True], [False, False]]


def test_each_fault_of_a_cause_is_known_in_its_own_dtypes() -> None:
    """One kernel's errors, and its wrong values and shapes, are one cause; what is known of one accepts no other one, and no
    more than it would by itself."""
    run = Run(Header(Fingerprint("0", "2.13.0", "", "3", "Linux", "x86_64", "sim", "")))
    half, dims = (
        raised("sort", f"run: sort {x}", subject="aten::sort") for x in ("has no kernel for 'Half'", "of 9 dimensions")
    )
    values, shapes = (
        found("exp", Cause("aten::exp", x), status=s) for x, s in (("values", "wrong"), ("metadata", "malformed"))
    )
    for one, other in (replace(half, dtype="float16"), dims), (replace(shapes, dtype="float16"), values):
        (c,) = gather([one, other])
        entries = known_entries.of_cause(c, run, "reason")
        assert [e.dtypes for e in sorted(entries, key=lambda e: e.dtypes)] == [("float16",), ("float32",)]
        for r in one, other:
            (alone,) = gather([r])
            (by_itself,) = known_entries.of_cause(alone, run, "reason")
            assert [e.id for e in entries if r.dtype in e.dtypes] == [by_itself.id]
        assert one.cause is not None
        assert not any(e.same_cause(one.cause) and not e.excess(Found.of(replace(one, dtype="float32"))) for e in entries)


def test_an_error_that_nobody_looked_into_is_one_with_its_op_s_equal_error() -> None:
    """In another dtype; of another op, or in other words, it stays by itself, and is named by what most of it is."""
    words, others = "run: view size is not compatible with", "run: the size of tensor a must match the size of tensor b"
    known = raised("lstm", words, subject="aten::_cudnn_rnn")
    same = replace(found("lstm", None, f"RuntimeError in {words}", "error"), dtype="float16")
    assert [(c.searched, c.dtypes) for c in gather([known, same])] == [(True, ("float32", "float16"))]
    other, more = replace(same, reason=f"RuntimeError in {others}"), replace(same, op="gru")
    assert [c.searched for c in gather([known, other, more])] == [True, False, False]
    wrong = [replace(found("lstm", None, "2 times the budget"), dtype=dtype) for dtype in ("float32", "bfloat16")]
    assert [c.cause.symptom for c in gather([*wrong, other])] == ["values"]
    assert [(len(c.records), c.cause.symptom.partition(":")[0]) for c in gather([known, same, *wrong])] == [
        (2, "raises"), (2, "values"),
    ]  # fmt: skip


@pytest.mark.parametrize(("problem", "expected"), [("zero", 1), ("value", 1), ("beside", 2)])
def test_what_is_wrong_everywhere_is_no_fault_of_strided_destinations(problem: str, expected: int) -> None:
    """A zero of the wrong sign in one, where no element is written outside of it."""
    plain = found("neg", Cause("torch.neg", "values"))
    strided = replace(found("neg", Cause("torch.neg", "memory", ("strided destination",))), aspect="out=")
    made = gather([plain, replace(strided, measures=(Measure("base[out]", problem=problem),))])
    assert len(made) == expected
    assert sentence(made[0].cause, made[0].members) == "torch.neg gives wrong values"
    assert len(gather([replace(strided, measures=(Measure("base[out]", problem=problem),))])) == 1


def test_words_that_any_operator_may_say_do_not_join_kernels() -> None:
    """A view that cannot be made is named by torch in the same words wherever it is needed."""
    words = "view size is not compatible with input tensor's size and stride (at least one dimension spans across two)"
    made = gather(
        [
            raised("gru", f"run: {words}", subject="aten::_cudnn_rnn"),
            raised("lstm", f"run: {words}", subject="aten::_cudnn_rnn"),
            raised("channel_shuffle", f"run: {words}", "non-contiguous operand"),
            raised("channel_shuffle", f"backward: {words}", "expanded_last cotangent"),
        ]
    )
    assert {c.ops for c in made} == {("gru", "lstm"), ("channel_shuffle",)}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.t().view(6),
        lambda x: x + torch.ones(5),
        lambda x: x.expand(7, 3),
        lambda x: x.reshape(5),
        lambda x: x @ x,
        lambda x: torch.index_put(x, (torch.zeros(2, dtype=torch.int64),), torch.ones(5)),
        lambda x: getattr(x, "nothing" + str(x.dim())),
        lambda x: x.exp(*range(3)),
    ],
)
def test_the_words_of_torch_s_own_checks_are_known(wrong: Callable[[torch.Tensor], Any]) -> None:
    """As this torch says them."""
    with pytest.raises((RuntimeError, AttributeError, TypeError)) as e:
        wrong(torch.ones(2, 3))
    assert not Cause("aten::x", f"raises: {skeleton(f'{type(e.value).__name__} in run: {e.value}')}").says_all


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        ("invalid argument", False),
        ("CUDA error: invalid argument", False),
        ("Internal error.", False),
        ("unspecified launch failure", False),
        ("kernel launch failed: invalid argument 3", False),
        ("invalid argument 'source' of index_add", True),
        ("no such kernel", True),
    ],
)
def test_what_a_driver_says_of_any_kernel_names_no_check(words: str, is_named: bool) -> None:
    one, other = (Cause(f"aten::{op}", f"raises: {skeleton(f'RuntimeError in run: {words}')}") for op in ("exp", "sort"))
    assert one.says_all is is_named
    assert (one.id == other.id) is is_named


def test_an_error_has_the_same_id_whoever_raises_it_and_whether_it_was_looked_into() -> None:
    """The words of an operator's own check say all; of two seeds, one may meet it in one operator and the other in three."""
    words = "RuntimeError in run: kernel expects 2 dimensions"
    one = raised("mean", words.partition(" in ")[2])
    many = [raised(op, words.partition(" in ")[2], "half types") for op in ("mm", "bmm")]
    unseen = found("sort", None, words, "error")
    ids = [tuple(c.cause.id for c in gather(some)) for some in ([one], many, [unseen], [one, *many, unseen])]
    assert len(set(ids)) == len(ids[0]) == 1
    assert gather([one, unseen])[0].cause.subject == "aten::mean"


def test_a_finding_that_nobody_looked_into_is_named_by_its_function() -> None:
    """Rows that call one function in several ways are one."""
    (one,) = gather(found(op, None) for op in ("attention_packed", "attention_turned", "scaled_dot_product_attention"))
    assert one.cause.subject == "torch.nn.functional.scaled_dot_product_attention"


def test_deaths_by_an_error_of_any_kernel_are_told_apart_by_their_function() -> None:
    """Where the error was noticed does not matter."""
    words = (
        "the device computes nothing any more after AcceleratorError in {}: CUDA error: misaligned address Search for `x' in"
    )
    deaths = [
        Death(op, "float32", f"{op}(float32[2])", "", "crash", words.format(stage), "device")
        for op, stage in (("attention_packed", "download"), ("attention_turned", "run"), ("instance_norm", "download"))
    ]
    assert {c.ops for c in gather([], deaths)} == {("attention_packed", "attention_turned"), ("instance_norm",)}


def died(op: str, after: str = "", case: str = "", signal: str = "") -> Death:
    """A death by the call that `found` shows, or by another one."""
    lost = f"the device computes nothing any more after {after}"
    return Death(op, "float32", case or f"{op}(float32[2])", "", "crash", signal or lost, "device")


def test_a_death_by_the_call_of_a_finding_has_that_one_s_cause() -> None:
    """In whatever words it ended; the same id as without it, and as heavy as the heavier of both, unless it was an experiment
    with the call that ended it. Another call stays apart. A death by a finding that nobody looked into has the cause of its
    kernel's wrong results."""
    error = raised("put", "run: put needs equal dtypes")
    (alone,) = gather([error])
    (one,) = gather([error], [died("put", f"looking for the cause of {error.reason}")])
    assert (one.cause, one.weight, len(one.deaths)) == (alone.cause, "R", 1)
    assert sentence(one.cause, one.members) == f"{sentence(alone.cause)}, and ends the process"
    assert amount(one) == "1 kind and 1 death"
    (heavy,) = gather([error], [died("put", signal="SIGSEGV")])
    assert heavy.weight == "A"
    assert len(gather([error], [died("put", signal="SIGSEGV", case="put(float32[3])")])) == 2
    unseen = replace(found("turned", None), op="attention_turned", case="attention_turned(float32[2])")
    known = found("packed", Cause("aten::_scaled_dot_product_cudnn_attention", "values"))
    nan = died("attention_turned", "looking for the cause of nan where the truth is 0")
    made = gather([unseen, known], [nan])
    assert [(c.searched, len(c.deaths)) for c in made] == [(True, 1), (False, 0)]
    assert [len(c.deaths) for c in gather([unseen], [nan])] == [1, 0]


def test_a_death_in_the_words_of_another_one_of_its_op_has_its_cause() -> None:
    """Whichever call it came by; other words, and another op of the same kernel, stay apart."""
    error, call = raised("pool", "run: the pool is broken"), "pool(float32[3])"
    both = [died("pool", signal="SIGSEGV", case=call), died("pool", signal="SIGSEGV")]
    assert [(len(c.records), len(c.deaths)) for c in gather([error], both)] == [(1, 2)]
    assert len(gather([error], [died("pool", signal="SIGABRT", case=call), died("pool", signal="SIGSEGV")])) == 2
    packed, turned = (died(f"attention_{how}", signal="SIGSEGV") for how in ("packed", "turned"))
    assert len(gather([raised("attention_packed", "run: no kernel")], [packed, turned])) == 2


def test_a_death_by_a_call_of_two_findings_has_the_same_cause_whichever_was_stored_first() -> None:
    two = [found("put", Cause("aten::put", "values")), replace(found("put", Cause("aten::copy_", "values")), aspect="out=")]
    ids = {next(c.cause.id for c in gather(records, [died("put")]) if c.deaths) for records in (two, two[::-1])}
    assert len(ids) == 1


def test_a_death_in_a_cause_of_findings_is_known_by_its_own_words() -> None:
    """Its entry is none of the findings'."""
    run = Run(Header(Fingerprint("0", "2.13.0", "", "3", "Linux", "x86_64", "sim", "")))
    (one,) = gather([raised("put", "run: put needs equal dtypes")], [died("put", signal="SIGSEGV")])
    entries = known_entries.of_cause(one, run, "reason")
    assert [(e.status, e.dies) for e in entries] == [("error", False), ("crash", True)]
    assert entries[1].cause == Cause("crash: SIGSEGV in Tensor_put", "dies")
    assert known_entries.named(one, [one.cause.id, entries[1].id]) == (one,)
    (alone,) = known_entries.named(one, [entries[1].id])  # who accepts a death accepts no wrong result
    assert (alone.cause.id, alone.records) == (entries[1].id, ())
    assert known_entries.named(one, ["another"]) == ()


@pytest.mark.parametrize(("least", "is_known"), [("exp(float32[3])", True), ("exp(float32[7])", False)])
def test_a_death_of_a_call_that_is_known_in_older_words_gets_no_second_entry(least: str, is_known: bool) -> None:
    run = Run(Header(Fingerprint("0", "2.13.0", "", "3", "Linux", "x86_64", "sim", "")))
    (c,) = gather([], [Death("exp", "float32", least, "", "hang", "ended by parity after 20 s", "device", shrunk=least)])
    (new,) = known_entries.of_cause(c, run, "known")
    older = replace(new, id="older", cause=Cause("hang: ended by parity after N s", "dies"), cases=("exp(float32[3])",))
    assert [*known_entries.added({"older": older}, [new])] == ["older" if is_known else new.id]


def test_a_death_by_a_call_that_must_be_refused_is_one_with_what_computes_it() -> None:
    """Of the same op, in whatever case, for the same reason of a refusal; by another reason it is another one."""
    accepted = replace(
        found("topk", Cause("torch.topk", "accepts: NotImplementedError: '...' not implemented for '...'")),
        case='topk(int64[3]).refused("dtype")', status="malformed", aspect="refusal",
    )  # fmt: skip
    words = "a case that could not be built"
    made = gather([accepted], [died("topk", words, 'topk(int64[2]).refused("dtype")')])
    assert [(len(c.records), len(c.deaths)) for c in made] == [(1, 1)]
    assert len(gather([accepted], [died("topk", words, 'topk(int64[2]).refused("shape")')])) == 2


def test_what_was_tried_when_the_device_was_found_dead_is_no_word_of_a_death() -> None:
    """The function is, where no error says more."""
    tried = (
        "a call that is to be refused (shape)", "a case that could not be built", "looking for the cause of nan where it is 0",
        "looking for the cause of 0.5 where the truth is nan",
    )  # fmt: skip
    (one,) = gather([], [died("sort", words, f"sort(float32[{k}])") for k, words in enumerate(tried)])
    assert sentence(one.cause) == "the device computes nothing any more in sort"
    assert one.cause.id.startswith("device-lost-in-sort-")
    assert len(gather([], [died("sort", tried[0]), died("topk", tried[0])])) == 2
    (said,) = gather([], [died("sort", "looking for the cause of RuntimeError in run: no more than 8 dimensions")])
    assert sentence(said.cause) == "the device computes nothing any more (no more than N dimensions)"


def test_a_hang_is_told_by_its_function_and_a_long_message_ends_with_a_word() -> None:
    (one,) = gather([], [Death("sort", "float32", "sort(float32[3])", "", "hang", "ended by parity after 9.5 s", "device")])
    assert sentence(one.cause) == "the device hangs in sort"
    assert one.cause.id.startswith("hang-in-sort-")
    long = "expected " + "a first operand of the same kind as the second one, " * 4
    (cut,) = gather([raised("sort", f"run: {long}")])
    assert sentence(cut.cause).endswith("second one, a first operand ...)")


def test_of_what_comes_and_goes_no_experiment_says_anything() -> None:
    """A setting that seemed to explain it, and an error in some of its calls: one cause of its op. The setting of others, and
    what comes and goes by itself, stay as they are."""
    setting = Cause("torch.backends.x", "flag")
    both = found("sort", setting), raised("sort", "run: no success", subject="torch.topk")
    restless = [replace(r, by_chance=True) for r in both]
    made = gather([*restless, found("conv", setting)])
    assert {(c.cause.subject, c.cause.symptom, c.ops, c.weight) for c in made} == {
        ("torch.sort", "values", ("sort",), "A"), (setting.subject, "flag", ("conv",), "S"),
    }  # fmt: skip
    assert [c.cause for c in gather([restless[1]])] == [restless[1].cause]


def test_what_python_says_of_a_result_is_no_check_of_empty_operands() -> None:
    """A kernel that returned nothing is no launch that was refused."""
    empty = [raised(op, "run: CUDA error: invalid argument", "empty operand") for op in ("exp", "cos")]
    none = found("mul", Cause("aten::mul", "raises: AttributeError in run: '...' object has no attribute", ("empty operand",)))
    assert sorted(len(c.ops) for c in gather([*empty, none])) == [1, 2]


def test_a_special_value_does_not_hide_a_layout() -> None:
    """Taking the layout away would leave a difference that the special value makes."""

    def spread(call: Call) -> Any:
        return call.run() * (1.01 if not call.args[0].is_contiguous() else 1.0) + (1.0 if call.args[0].isnan().any() else 0.0)

    device = resolve("sim", (Fault("exp", ("exp",), spread),))
    call = _call(torch.ops.aten.exp.default, torch.tensor([[1.0, float("nan")], [2.0, 3.0]]).t())
    assert deciding.properties(compared(call, device), device) == ("non-contiguous operand",)


@pytest.mark.parametrize(
    ("when", "operand", "words"),
    [
        (lambda x: bool(x.isnan().any()), torch.tensor([1.0, float("nan")]), ("NaN or Inf",)),
        (lambda x: bool((x.abs() > 1e30).any()), torch.tensor([1e38, 2e38]), ("extreme values",)),
        (lambda x: x.numel() == 0, torch.empty(0, 2), ("empty operand",)),
        (lambda x: x.dtype == torch.float16, torch.ones(3, dtype=torch.float16), ("half types",)),
        (lambda x: True, torch.ones(3), ()),
    ],
)
def test_what_a_refusal_needs_is_found(
    when: Callable[[torch.Tensor], bool], operand: torch.Tensor, words: tuple[str, ...]
) -> None:
    """Each kind of property, with an operator that raises."""

    def refuse(call: Call) -> Any:
        raise RuntimeError("no")

    device = resolve("sim", (Fault("sin", ("sin",), refuse, lambda c: when(c.args[0])),))
    assert deciding.properties(compared(_call(torch.ops.aten.sin.default, operand), device), device) == words


def _call(operator: Any, *operands: torch.Tensor) -> OperatorCall:
    flat = [x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).clone() for x in operands]
    laid = [
        StridedOperand(base, tuple(x.shape), x.stride(), 0, False, False, k) for k, (base, x) in enumerate(zip(flat, operands))
    ]
    return OperatorCall(operator, tuple(laid), {})


@pytest.mark.slow
def test_values_of_one_kind_are_one_cause_from_three_operators_on() -> None:
    """Two are distinguished."""

    def spread(call: Call) -> Any:
        return call.run() * 1.01

    def of(*ops: str) -> tuple[Gathered, ...]:
        return causes(Fault("nan", ops, spread, lambda c: bool(c.args[0].isnan().any())), ops=ops, examples=40)

    (one,) = of("relu", "floor", "erf", "cos")
    assert one.cause == Cause(OPERATORS, "values", ("NaN or Inf",))
    assert len(of("erf", "cos")) == 2


def test_an_operator_that_is_wrong_anyway_is_one_cause() -> None:
    """What decides in one of its findings says nothing new."""
    records = [
        Record("a", "exp", "float32", "forward", "wrong", shrunk="a", cause=Cause("aten::exp", "values", p))
        for p in ((), ("NaN or Inf",), ("half types",))
    ]
    assert [g.cause for g in gather(records)] == [Cause("aten::exp", "values")]
    (one,) = gather(records[1:])  # what each of them needs is kept
    assert one.cause == Cause("aten::exp", "values")
    assert one.members == tuple(r.cause for r in records[1:])
    near = replace(records[0], status="drift", measures=(Measure("out", 1.5),))
    three = zip(records, ("sin", "cos", "erf"))
    others = [replace(r, op=op, cause=Cause(f"aten::{op}", "values", ("NaN or Inf",))) for r, op in three]
    assert len(gather([near, *others, records[1]])) == 2  # which explains no lost NaN
    later = replace(records[1], cause=Cause("aten::exp", "values", ("earlier calls",)))
    made = gather([later, *others, records[1]])  # what it shares with others stays with what it alone is wrong by
    assert [c.cause.subject for c in made] == [OPERATORS, "aten::exp"]
    assert len(made[1].records) == 2


def test_the_function_is_named_if_no_operator_differs_alone() -> None:
    """Not the row that called it."""

    def shifted(call: Call) -> Any:
        return call.run() + 0.01

    (one,) = causes(
        Fault("f", ("torch.nn.functional.scaled_dot_product_attention",), shifted, level="function"), ops=("attention_banned",)
    )
    assert one.cause.subject == "torch.nn.functional.scaled_dot_product_attention"


def test_a_finding_without_experiments_still_has_its_symptom() -> None:
    """The process died while they were made."""
    options = RunOptions(examples=10, power=0)
    there = resolve("sim", (Fault("exp", ("exp",), larger),))
    plan = RunPlan(there, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)
    (item,) = suite.select(("exp",), dtypes=("float32",))
    for dead in ({SHRINKING}, {SHRINKING, LOCATING}, {0, LOCATING}):
        subjects = {f.cause.subject for f in examine(item, plan, NoJournal(), frozenset(dead)).findings if f.cause}
        assert subjects == ({"aten::exp"} if LOCATING not in dead else {"torch.exp"})


def test_destinations_of_several_dtypes_do_not_hide_the_layout() -> None:
    """The indices of a pooling are int64: with another dtype torch refuses the call, which decides nothing."""

    def dense(call: Call) -> Any:
        result = call.run()
        for out in call.outs:
            if not out.is_contiguous():
                out.fill_(7)
        return result

    def when(c: Call) -> bool:  # of an operand in channels_last the results are so, too
        return c.operands[0].is_contiguous() and any(not o.is_contiguous() for o in c.outs)

    made = causes(Fault("pool", ("max_pool2d_with_indices",), dense, when), ops=("max_pool2d_with_indices",), examples=30)
    assert {(c.cause.symptom, c.cause.properties) for c in made} == {("memory", ("strided destination",))}


def test_wrong_values_of_a_view_are_those_of_the_copy_that_read_it() -> None:
    """A view computes nothing."""
    aten = torch.ops.aten
    views = [OperatorCall(op, (), {}, "values", 9.0) for op in (aten._neg_view.default, aten._conj.default, aten.t.default)]
    assert all(v.is_copy for v in (*views, OperatorCall(aten.clone.default, (), {})))
    assert not OperatorCall(aten.t.default, (), {}, "metadata", 9.0).is_copy
    assert not OperatorCall(aten.exp.default, (), {}, "values", 9.0).is_copy


def test_an_operator_that_only_the_device_has_is_named_although_it_may_draw_numbers() -> None:
    """torch tags `_cudnn_rnn` so, because it can drop out."""
    assert not _runs_on_the_cpu(torch.ops.aten._cudnn_rnn.default)
    assert _runs_on_the_cpu(torch.ops.aten.native_dropout.default)


@pytest.mark.slow
def test_three_faults_at_once_are_three_causes() -> None:
    """A kernel below another function, destinations that are written as if dense, and a wrong derivative of a composite."""

    def dense(call: Call) -> Any:
        result = call.run()
        for out in call.outs:
            call.memory(out)[: out.numel()].copy_(out.clone().reshape(-1))
        return result

    def strided_destination(call: Call) -> bool:
        return bool(call.outs) and not call.outs[0].is_contiguous() and call.args[0].is_contiguous()

    def first_larger(call: Call) -> Any:
        first, *rest = call.run()
        return (None if first is None else first * 1.01, *rest)

    faults = (
        Fault("softmax", ("_softmax",), higher),
        Fault("dense", ("exp", "cos", "tanh", "erf"), dense, strided_destination),
        Fault("norm", ("native_layer_norm_backward",), first_larger),
    )
    made = causes(*faults, ops=("exp", "cos", "tanh", "erf", "layer_norm", "attention_banned"), examples=16)
    assert {(c.cause.subject, c.cause.symptom) for c in made} == {
        ("aten::_softmax", "values"),
        (OPERATORS, "memory"),
        ("aten::native_layer_norm_backward", "values"),
    }


def test_a_copy_that_loses_a_lazy_bit_is_named_by_it_in_any_layout() -> None:
    """Strides are needed as well, but what is lost is the bit; one that misreads strides is named by these."""

    x = torch.tensor([1 + 2j, 3 - 1j, 2j, 1j])
    call = OperatorCall(torch.ops.aten.clone.default, (StridedOperand(x, (2, 2), (1, 2), 0, True, False, 0),), {})

    def words(differs: Callable[[StridedOperand], bool]) -> tuple[str, ...]:
        return tuple(deciding._layouts(call, lambda changed: differs(changed.operands[0])))

    assert words(lambda o: o.conj and o.strides != (2, 1)) == ("lazy conj or neg operand",)
    assert words(lambda o: o.conj) == ("lazy conj or neg operand",)
    assert words(lambda o: o.strides != (2, 1)) == ("non-contiguous operand",)


def test_a_flag_explains_nothing_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in every second call agrees without any flag now and then; a flag for another dtype is not asked."""
    asked: list[str] = []

    def flag(name: str, *dtypes: str) -> SimpleNamespace:
        @contextlib.contextmanager
        def off() -> Iterator[None]:
            asked.append(name)
            yield

        return SimpleNamespace(name=name, in_force=lambda: True, without=off, dtypes=dtypes)

    backend = Backend(name="sim", flags=(flag("half", "float16"), flag("any")))  # type: ignore[arg-type]
    monkeypatch.setattr("parity.devices.base.backend_of", lambda _: backend)
    device = resolve("sim")
    case = notation.parse("exp(float32[2])")
    outcomes = [True, False, False]  # as it is, without the flag, as it is again
    assert not cause_search._explaining_flag(case, Aspect.FORWARD, device, lambda _c, _a: outcomes.pop(0))
    assert asked == ["any"]
    outcomes = [True, False, True, False]
    assert cause_search._explaining_flag(case, Aspect.FORWARD, device, lambda _c, _a: outcomes.pop(0)) == "any"


def test_what_a_case_needs_around_its_operator_is_named() -> None:
    """A destination of another dtype and deterministic algorithms, each where the finding goes without it."""
    values, error = Cause("aten::glu", "values"), Cause("aten::index_add", "raises: IndexError in run: no")
    into, fixed = notation.parse('glu(float32[4]).into("float16")'), notation.parse('exp(float32[4]).under("deterministic")')
    for needed in (True, False):

        def again(_case: Case, _aspect: Aspect, gone: bool = needed) -> bool:
            return not gone

        made = cause_search._of_the_route(values, into, Aspect.OUT, again)
        assert made.properties == (("destination of another dtype",) if needed else ())
        made = cause_search._of_the_route(error, fixed, Aspect.FORWARD, again)
        assert made.properties == (("under deterministic",) if needed else ())


def test_calls_that_must_be_refused_are_one_cause_by_what_the_cpu_says() -> None:
    """Whichever function says it; older entries of known findings, which have no words, still hold it."""
    said = ("linalg.cholesky: The factorization could not be completed", "cholesky: The factorization could not be completed",
            '"mode_cpu" not implemented for \'ComplexFloat\'')  # fmt: skip
    results = [
        Result(Aspect.REFUSAL, Verdict(Status.MALFORMED, f"computed what the CPU refuses: _LinAlgError: {s}")) for s in said
    ]
    symptoms = [cause_search.symptom_of(r) for r in results]
    assert symptoms[0] == symptoms[1] == "accepts: _LinAlgError: The factorization could not be completed"
    made = gather(found(f"op{k}", Cause(f"torch.f{k}", s), status="malformed") for k, s in enumerate(symptoms))
    assert sorted(len(c.ops) for c in made) == [1, 2]
    held = Entry("e", "r", ("op0",), "malformed", Cause("torch.f0", "accepts"))
    assert held.same_cause(Cause("torch.f0", symptoms[0]))
    assert not held.same_cause(Cause("torch.f0", "values"))
