"""What comes before a call: each word finds a device whose caches or memory give it away, and says nothing on a healthy one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import faulty_aspects
from torch.utils._pytree import tree_leaves

from parity import catalog
from parity.catalog.draw import Sizes
from parity.checks import history
from parity.core.case import HISTORIES, Case
from parity.core.notation import parse
from parity.devices import Call, Fault, resolve
from parity.generation.generate import nth, search


def same_shapes(call: Call) -> bool:
    return any(s.shapes == call.outline.shapes for s in call.seen)


def exponent_of_the_first(call: Call) -> Any:
    call.args[1] = next(s for s in call.seen if s.shapes == call.outline.shapes).scalars[0]
    return call.run()


def result_of_the_first(call: Call) -> Any:
    """A graph that holds its operand's values as constants."""
    key = call.outline.shapes, call.outline.strides
    if key not in call.state:
        call.state[key] = torch.empty_like(call.operands[0]).copy_(call.operands[0])
    call.args[0] = call.state[key]
    return call.run()


def sizes_of_the_last(call: Call) -> Any:
    """A launch that keeps the grid of the smaller call before it."""
    result = call.run()
    done = call.state.get("done")
    call.state["done"] = result.numel()
    if done is not None and done < result.numel():
        result = result.clone()
        result.view(-1)[done:] = 0
    return result


def stays_large(call: Call) -> Any:
    """A scratch buffer of a larger call that is taken whole."""
    seen = max((s.shapes[0][0] for s in call.seen if s.shapes and s.shapes[0]), default=0)
    return call.run() * (1 if seen <= call.args[0].shape[0] else 2)


def left_over(call: Call) -> Any:
    """A kernel that reads memory which nobody wrote, when NaN was put there."""
    filled = [k for k, name in enumerate(call.history) if name.startswith("fill_")]
    return call.run() * (float("nan") if filled and len(call.history) - filled[-1] < 12 else 1)


def strides_of_the_first(call: Call) -> Any:
    """A kernel that was built for the layout of the first call."""
    first = next(s for s in call.seen if s.shapes == call.outline.shapes)
    x = call.args[0]
    call.args[0] = x if first.strides == call.outline.strides else x.flip(0)
    return call.run()


def dtype_of_the_first(call: Call) -> Any:
    """A graph whose key has no dtype: the numbers pass through that of the first call."""
    first = next(s for s in call.seen if s.shapes == call.outline.shapes)
    return call.run().to(first.dtypes[0])


def shrank_after_growing(call: Call) -> Any:
    """A buffer that grew and was cut again, and is then believed to be as large as it was."""
    sizes = [s.shapes[0][0] for s in call.seen if s.shapes and s.shapes[0]]
    own = call.args[0].shape[0]
    grown = [k for k, n in enumerate(sizes) if n > own]
    return call.run() * (2 if grown and min(sizes[grown[0] :]) < own else 1)


def forgets(state_of: Any) -> Any:
    """A cache whose key is missing one thing: what the first call with such operands had stays."""

    def effect(call: Call) -> Any:
        key, own = call.outline.shapes[:2], state_of(call)
        return call.run() * (1 if call.state.setdefault(key, own) == own else 2)

    return effect


def is_out_or_in_place(call: Call) -> bool:
    return "out" in call.kwargs or call.op.endswith("_")


def op_of_the_first(call: Call) -> Any:
    """A graph that two ops share."""
    key = call.outline.shapes
    return call.run() * (1 if call.state.setdefault(key, call.op) == call.op else 2)


FAULTS = {
    "other_presence": Fault("bias", ("linear",), forgets(lambda c: len(c.operands)), level="function"),
    "sibling": Fault("op", ("softmax", "log_softmax"), op_of_the_first, level="function"),
    "larger_smaller": Fault("grown", ("pow",), shrank_after_growing),
    "other_grad": Fault("grad", ("pow",), forgets(lambda c: torch.is_grad_enabled()), level="function"),
    "destination": Fault("destination", ("pow", "pow_"), forgets(is_out_or_in_place), level="function"),
    "other_scalar": Fault("scalar", ("pow",), exponent_of_the_first, same_shapes),
    "other_values": Fault("values", ("pow",), result_of_the_first),
    "smaller": Fault("smaller", ("pow",), sizes_of_the_last),
    "larger": Fault("larger", ("pow",), stays_large),
    "garbage": Fault("garbage", ("pow",), left_over),
    "other_layout": Fault("layout", ("pow",), strides_of_the_first, same_shapes),
    "other_dtype": Fault("dtype", ("pow",), dtype_of_the_first, same_shapes),
}
CASE = "pow(float32[8].positive(seed=2), 3)"
CASES = {"other_presence": "linear(float32[4, 3], float32[2, 3], float32[2])", "sibling": "softmax(float32[4, 3], dim=1)"}


@pytest.mark.parametrize("word", HISTORIES)
def test_each_word_finds_a_fault_of_its_own_kind(word: str) -> None:
    fault = FAULTS[word]
    assert "forward" in faulty_aspects(resolve("sim", (fault,)), f'{CASES.get(word, CASE)}.under("no_grad").after("{word}")')
    quiet = Fault("quiet", fault.ops, fault.effect, lambda c: False)
    assert not faulty_aspects(resolve("sim", (quiet,)), f'{CASES.get(word, CASE)}.after("{word}")')


@pytest.mark.parametrize("word", HISTORIES)
def test_the_first_call_alone_is_right(word: str) -> None:
    assert "forward" not in faulty_aspects(resolve("sim", (FAULTS[word],)), CASES.get(word, CASE))


@pytest.mark.parametrize("word", ["larger_smaller", "other_grad", "other_presence", "destination", "sibling"])
def test_no_single_change_of_values_or_sizes_finds_these(word: str) -> None:
    """Otherwise the word would not be needed."""
    text = f'{CASES.get(word, CASE)}.under("no_grad")'
    for other in ("other_scalar", "other_values", "smaller", "larger", "other_layout", "other_dtype", "garbage"):
        assert "forward" not in faulty_aspects(resolve("sim", (FAULTS[word],)), f'{text}.after("{other}")'), other


def test_each_number_of_a_call_with_many_has_its_turn() -> None:
    """Four of them are changed in one case; which ones, the seeds say."""
    call = "conv2d(float32[1, 2, 5, 5].uniform(seed={}), float32[2, 2, 3, 3], stride=(1, 1), padding=(1, 1), dilation=(1, 1))"
    changed = set()
    for seed in range(6):
        before = [s for _, s in steps(f'{call.format(seed)}.after("other_scalar")')]
        flat = [tree_leaves(s) for s in before]
        changed |= {k for s in flat for k, (x, y) in enumerate(zip(s, flat[-1])) if x != y}
    assert len(changed) == 6


def steps(text: str, device_name: str = "sim") -> list[tuple[Any, ...]]:
    """The operands' shapes and numbers of all calls that come before, in the words of the device."""
    seen: list[tuple[Any, ...]] = []

    def noted(call: Call) -> Any:
        seen.append((call.outline.shapes, call.outline.scalars))
        return call.run()

    case = parse(text)
    device = resolve(device_name, (Fault("noted", (case.op,), noted, level="function"),))
    faulty_aspects(device, f'{text}.under("no_grad")')
    return seen


def test_a_smaller_call_is_the_same_call_with_halved_sizes() -> None:
    assert steps('softmax(float32[8, 5], dim=1).after("smaller")')[0][0] == ((4, 2),)
    assert steps('index_select(float32[8], 0, int64[4].index(0, 8)).after("smaller")')[0][0] == ((4,), (2,))


def test_a_smaller_call_needs_no_graph_of_its_own_where_graphs_are_kept() -> None:
    """It is that of the first pinned case, of any row with one."""
    pinned = nth(catalog.row("softmax"), "float32", Sizes(), "pinned", 0, mixes=False).case
    for after in ("smaller", "larger_smaller"):
        shapes = [s for s, _ in steps(f'softmax(float32[8, 5], dim=1).after("{after}")', "sim:mps")]
        assert shapes[-2:] == [tuple(s.shape for s in pinned.operands()), ((8, 5),)]


def test_a_smaller_pool_is_one_that_the_row_draws() -> None:
    """Halved, its dilated window would step over the whole input, and the CPU's kernel read outside it."""
    text = 'max_pool2d(float32[2, 5, 4, 4], 2, stride=1, padding=1, dilation=3, return_indices=True).after("smaller")'
    assert steps(text)[0] == (((1, 1, 2, 2),), (2, None, 0, 1, False, False))


def test_before_a_larger_call_comes_the_call_itself() -> None:
    shapes = [s for s, _ in steps('softmax(float32[4, 3], dim=1).after("larger")')]
    assert shapes[:3] == [((4, 3),), ((8, 6),), ((4, 3),)]


def test_where_the_sizes_are_arguments_the_row_draws_the_smaller_call() -> None:
    assert steps('reshape(float32[6], (2, 3)).after("smaller")')[0][0] != ((6,),)


def test_one_number_after_the_other_is_changed_as_far_as_the_cpu_takes_it() -> None:
    """k = 4 of 3 is refused, so 2; dim = 2 is, and so is dim = 0 with 2 elements; then the flag."""
    before = [s for _, s in steps('topk(float32[2, 3], 3, dim=1, largest=False).after("other_scalar")')]
    assert before[:3] == [(2, 1, False), (3, 1, True), (3, 1, False)]


def test_a_long_transform_is_not_made_along_each_of_many_rows_before() -> None:
    """Of 65,536 elements that would take 34 GB."""
    before = [s for _, s in steps('fft.fft(complex64[4096, 1], n=4096, dim=0).after("other_scalar")')]
    assert len(before) > 1
    assert all(0 in s and not {1, -1} & {*s} for s in before)


def test_a_number_that_is_printed_alike_comes_before() -> None:
    """A cache whose key holds six decimals of a number, or its float16, mistakes the one for the other."""
    before = [s[0] for _, s in steps('clamp(float32[3], min=0.25).after("other_scalar")')]
    assert before[:3] == [0.625, 0.25 + 2.0**-22, 0.25]
    assert f"{before[1]:.6f}" == f"{before[2]:.6f}"


def test_words_are_changed_as_numbers_are() -> None:
    """A graph that is kept without its reduction or its formula."""
    before = [s for _, s in steps('gelu(float32[3], approximate="tanh").after("other_scalar")')]
    assert before[:2] == [("none",), ("tanh",)]
    before = [s[-1] for _, s in steps('l1_loss(float32[3], float32[3], reduction="sum").after("other_scalar")')]
    assert before[0] == "mean"
    assert before[-1] == "sum"


def test_other_layouts_and_dtypes_hold_the_same_numbers() -> None:
    def told(text: str) -> list[tuple[Any, ...]]:
        seen: list[tuple[Any, ...]] = []

        def noted(call: Call) -> Any:
            x = call.args[0]
            seen.append((x.dtype, x.stride(), x.flatten().tolist()))
            return call.run()

        assert not faulty_aspects(resolve("sim", (Fault("noted", ("abs",), noted),)), text)
        return seen

    numbers = 'abs(float32[2, 3]{}.integers(seed=5)).under("no_grad").after("{}")'
    turned, plain = told(numbers.format("", "other_layout"))[:2]
    dense, own = told(numbers.format(".transpose(0, 1)", "other_layout"))[:2]
    half, single = told(numbers.format("", "other_dtype"))[:2]
    assert [x[1] for x in (turned, plain, dense, own)] == [(1, 2), (3, 1), (3, 1), (1, 2)]
    assert [x[0] for x in (half, single)] == [torch.float16, torch.float32]
    assert turned[2] == plain[2] == dense[2] == own[2] == half[2] == single[2]


def test_a_recurrent_layer_keeps_its_counts() -> None:
    """torch believes them, and reads outside its weights where they are wrong."""
    lstm = (
        "lstm(float32[2, 2, 4], (float32[1, 2, 4], float32[1, 2, 4]), "
        "(float32[16, 4], float32[16, 4], float32[16], float32[16]), True, 1, False, False, False)"
    )
    for word in HISTORIES:
        assert not faulty_aspects(resolve("sim"), f'{lstm}.after("{word}")')


@pytest.mark.parametrize("name", ["lstm", "logcumsumexp_kernel", "native_batch_norm", "index_put_kernel"])
def test_kernels_without_checks_get_no_foreign_arguments(name: str) -> None:
    row = catalog.row(name)
    assert row.refuses.unchecked
    assert not {d.case.into for d in search(row, "float32", Sizes(), "1", 200)} & {"empty", "float16", "bfloat16"}


@pytest.mark.parametrize("name", ["add", "hardtanh", "conv2d", "foreach_add", "setitem"])
def test_public_functions_check_theirs(name: str) -> None:
    assert not catalog.row(name).refuses.unchecked


def test_every_word_is_drawn() -> None:
    drawn = {d.case.after for d in search(catalog.row("add"), "float32", Sizes(), "1", 400)}
    assert drawn == {"", *HISTORIES}


def test_a_larger_call_may_have_as_many_elements_as_are_allowed() -> None:
    def twice(size: int) -> Case | None:
        t = SimpleNamespace(program=SimpleNamespace(row=catalog.row("exp")), case=parse(f"exp(float32[{size}])"))
        return history._resized(t, lambda d: 2 * d)  # type: ignore[arg-type]

    assert [twice(size) is not None for size in (history.LARGEST // 2, history.LARGEST // 2 + 1)] == [True, False]


def test_a_destination_of_one_result_is_a_tensor_and_of_several_a_tuple() -> None:
    x = torch.tensor([[3.0, 1.0]])
    one, several = history._into(torch.exp, [x]), history._into(torch.max, [x[:, 0], torch.zeros(1, dtype=torch.int64)])
    assert torch.equal(one(x), x.exp())
    assert [t.tolist() for t in several(x, 1)] == [[3.0], [0]]


def test_siblings_are_the_ops_after_the_row_in_its_family_and_then_those_before() -> None:
    order = [*catalog.ROWS].index
    names = [r.name for r in history._family("exp")]
    after = [n for n in names if order(n) > order("exp")]
    assert "exp" not in names
    assert names == [*sorted(after, key=order), *sorted({*names} - {*after}, key=order)]
    assert after
    assert len(after) < len(names)
