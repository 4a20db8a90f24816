"""The reductions of shrinking, each by a case that only it makes less, and the walk along all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from parity import catalog
from parity.catalog import opinfo
from parity.catalog.draw import Sizes
from parity.catalog.samples import torch_version
from parity.core import notation
from parity.core.case import Case, TensorSpec
from parity.core.errors import CaseError
from parity.core.notation import case_text, parse
from parity.core.results import Aspect
from parity.devices import resolve
from parity.engine import suite
from parity.execution import execute, inputs
from parity.generation import generate, reductions, shrink
from parity.generation.shrink import plainest
from parity.report.script import standalone


def pinned(name: str, dtype: str, index: int, *tails: str) -> str:
    """The text of a case of an OpInfo row: its operands' shapes with what follows them."""
    sample = opinfo.samples(name, dtype)[index]
    given = ", ".join(f"{tail.replace('@', f'.sample({index}, {k})')}" for k, tail in enumerate(tails))
    return f"op(\"opinfo:{name}\", \"{dtype}\")({index}, {given}, torch='{torch_version()}', digest='{sample.digest}')"


def first(case: Case, k: int = 0) -> TensorSpec:
    return case.operands()[k]


def enough(case: Case, n: int) -> bool:
    found = case.operands()
    return bool(found) and found[0].numel >= n


def takes(case: Case, *words: str) -> bool:
    return all(word in case_text(case) for word in words)


def divides_not(case: Case) -> bool:
    """As a pool whose windows overlap: neither the size nor the number can sink alone."""
    if len(case.args) < 2 or not isinstance(case.args[1], int) or len(first(case).shape) != 2:
        return False
    n, k = first(case).shape[-1], case.args[1]
    return k > 1 and n > k and n % k != 0


def dim_fits(case: Case) -> bool:
    dim, rank = dict(case.kwargs).get("dim"), len(first(case).shape)
    return isinstance(dim, int) and -rank <= dim < rank


def index_fits(case: Case) -> bool:
    found = case.operands()
    return len(found) == 2 and found[0].numel >= found[1].values.params[1]


def agree_in_rows(case: Case) -> bool:
    if len(case.operands()) < 2 or any(len(s.shape) < 2 for s in case.operands()):
        return False
    x, y = case.operands()
    return x.shape[0] == y.shape[1] and x.shape[0] >= 2


def gates(case: Case) -> bool:
    if len(case.operands()) < 2 or any(len(s.shape) < 1 for s in case.operands()):
        return False
    x, w = case.operands()
    return w.shape[0] == 4 * x.shape[0]


@pytest.mark.parametrize(
    "text, fails, least",
    [
        (
            'exp(float32[4].flat(3, 1).normal(seed=5).at(2, "nan")).cotangent("normal", "offset", 9).into("rows")',
            lambda c: enough(c, 2),
            "exp(float32[2])",
        ),
        (
            'exp(float32[4].large(seed=5).at(2, "nan").at(3, "inf"))',
            lambda c: takes(c, '"inf"'),
            'exp(float32[()].at(0, "inf"))',
        ),
        ("exp(float32[4, 4].step(-1, 2, 1).transpose(0, 1))", lambda c: takes(c, ".step"), "exp(float32[1].step(-1, 2, 0))"),
        ("exp(float32[4].flat(3, 1))", lambda c: takes(c, ".flat"), "exp(float32[()].flat(1, 0))"),
        (
            "cat((float32[3], float32[2], float32[3], float32[2], int16[3]), 0)",
            lambda c: takes(c, "cat(("),
            "cat((float32[()],))",
        ),
        ("f((float32[3], float32[2]), (int8[3], int8[2]))", lambda c: takes(c, "), ("), "f((float32[()],), (float32[()],))"),
        ("var(float32[3, 2], dim=-2, keepdim=True)", dim_fits, "var(float32[1], dim=0)"),
        ("pool(float32[5, 9], 6)", divides_not, "pool(float32[1, 3], 2)"),
        ("mm(float32[5, 7], float32[3, 5])", agree_in_rows, "mm(float32[2, 1], float32[1, 2])"),
        ("lstm(float32[5], float32[20])", gates, "lstm(float32[1], float32[4])"),
        ("conv(float16[65600])", lambda c: enough(c, 65537), "conv(float16[65537])"),
        ("take(float32[9, 1], int64[2].index(0, 9))", index_fits, "take(float32[()], int64[()].index(0, 1))"),
        ("pad(float32[2], (3, 3), value=2.5)", lambda c: takes(c, "("), "pad(float32[()])"),
    ],
)
def test_nothing_is_left_that_is_not_needed(text: str, fails: Callable[[Case], bool], least: str) -> None:
    case = parse(text)
    assert fails(case)
    assert case_text(shrink.walk(case, lambda c: bool(c.operands()) and fails(c))) == least


def test_a_sample_is_cut_to_its_leading_corner() -> None:
    text = pinned("addmm", "float32", 0, "float32[2, 1]@", "float32[2, 2].transpose(0, 1)@", 'float32[2, 1]@.at(3, "nan")')
    case = parse(text)
    assert case_text(case) == text
    whole = opinfo.samples("addmm", "float32")[0].tensors
    views = [o.view for o in inputs.build(case).operands]
    assert torch.equal(views[0], whole[0][:2, :1])
    assert torch.equal(views[1], whole[1][:2, :2])
    assert views[1].stride() == (1, 2)
    assert torch.equal(views[2][:1], whole[2][:1, :1])
    assert views[2][1].isnan()  # the special number of place 3 of the whole
    assert standalone(case, "forward", "cpu", "title") is not None


@pytest.mark.parametrize("shape", ["float32[3, 3]", "float32[2]", "float16[2, 2]"])
def test_more_than_a_corner_is_refused(shape: str) -> None:
    text = pinned("addmm", "float32", 0, "float32[2, 1]@", f"{shape}@", "float32[2, 1]@")
    if shape == "float32[3, 3]":
        text = text.replace(shape, "float32[300, 3]")
    with pytest.raises(CaseError, match="a case may hold a leading corner of it, no more"):
        inputs.build(parse(text))


def test_a_case_of_opinfo_sinks_to_a_corner_that_still_runs() -> None:
    """The CPU refuses an index beyond the rows that are left, so that the index is set to 0."""
    row = suite.row("opinfo:nn.functional.embedding")
    drawn = generate.Drawn(generate.nth(row, "float32", Sizes(), "0", 0).case, ())

    def fails(case: Case) -> bool:
        table, at = (o.view for o in inputs.build(case).operands)
        try:
            return torch.nn.functional.embedding(at, table).numel() > 0
        except IndexError:
            return False

    least = shrink.shrink(row, "float32", Sizes(), drawn, fails)
    assert least is not None
    assert least.numel == 2, case_text(least)
    assert parse(case_text(least)) == least


def test_a_number_of_note_takes_the_place_of_many_elements() -> None:
    def fails(case: Case) -> bool:
        found = inputs.build(case).operands[0].view
        return found.numel() > 2 and bool((found == 127).any())

    case = parse("sort(int8[3000].full())")
    assert case_text(shrink.walk(case, fails)) == 'sort(int8[3].at(0, "max"))'


def test_a_case_without_picks_is_shrunk_too() -> None:
    row = catalog.row("add")
    simplest = generate.Drawn(parse("add(float32[3, 3], float32[3, 3])"), ())
    least = shrink.shrink(row, "float32", Sizes(), simplest, lambda c: len(c.operands()) == 2)
    assert least is not None
    assert case_text(least) == "add(float32[()], float32[()])"


def test_shrinking_ends_within_its_tries_and_comes_to_the_same_again() -> None:
    row = catalog.row("addmm")
    drawn = generate.nth(row, "float32", Sizes(), "1", 7)
    asked: list[list[str]] = [[], []]

    def least(into: list[str]) -> Case | None:
        def fails(case: Case) -> bool:
            into.append(case_text(case))
            return len(case.operands()) == 3 and case.numel >= 5

        return shrink.shrink(row, "float32", Sizes(), drawn, fails)

    one, two = least(asked[0]), least(asked[1])
    assert one == two
    assert asked[0] == asked[1]
    assert len(asked[0]) <= 1 + 2 * shrink.WALK_TRIES + shrink.PICK_TRIES
    assert len(set(asked[0])) == len(asked[0])


def test_reductions_that_undo_each_other_come_to_an_end() -> None:
    """One makes a number less and a size more, another the other way round; each answer is remembered, so no limit of tries
    or of time would end the walk."""
    one, two = parse("add(float32[2], 1)"), parse("add(float32[3], 0)")
    turns = (lambda case: iter((two if case == one else one,)),)
    assert shrink.walk(one, lambda case: True, turns) in (one, two)


def test_the_tries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "WALK_TRIES", 60)
    monkeypatch.setattr(shrink, "PICK_TRIES", 20)
    row = catalog.row("cat")
    drawn = generate.nth(row, "float32", Sizes(), "1", 9)
    texts = set[str]()

    def fails(case: Case) -> bool:
        texts.add(case_text(case))
        return case == drawn.case

    assert shrink.shrink(row, "float32", Sizes(), drawn, fails) == drawn.case
    assert 100 < len(texts) <= 1 + 2 * 60 + 20


def test_what_makes_an_op_random_and_what_names_the_sample_stay() -> None:
    case = parse("dropout(float32[3], p=0.0, training=False)")
    found = [c for lesser in reductions.PASSES for c in lesser(case)]
    assert found
    assert all(dict(c.kwargs) == dict(case.kwargs) for c in found)
    told = parse(pinned("clamp", "float32", 3, "float32[5, 10, 5]@", "float32[5, 10, 5]@"))
    for c in (c for lesser in reductions.PASSES for c in lesser(told)):
        assert c.args[0] == told.args[0]
        assert c.kwargs == told.kwargs


@pytest.mark.parametrize("size", [2, 3, 7, 64, 65537])
def test_the_steps_down_are_few_and_reach_every_size(size: int) -> None:
    down = reductions.lesser(size)
    assert down[0] == 1
    assert size - 1 in down
    assert all(0 < n < size for n in down)
    assert len(down) <= size.bit_length() + 3


def test_a_reduced_case_that_cannot_be_run_is_passed_over() -> None:
    """Reductions may leave arguments that no longer belong together; what they raise ends nothing."""

    def fails(case: Case) -> bool:
        if case != drawn.case:
            raise RuntimeError("shape '[1, 1, 2, 1]' is invalid for input of size 4")
        return True

    row = catalog.row("add")
    drawn = next(d for d in generate.search(row, "float32", Sizes(), "0", 20) if d.picks and not d.case.refused)
    assert shrink.shrink(row, "float32", Sizes(), drawn, fails) == drawn.case


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "lstm_cell", "lstm_packed"])
def test_the_sizes_of_a_recurrent_call_sink_together(name: str) -> None:
    """A kernel that is wrong at any size is reported at sizes of 1; each call on the way there is one that torch takes."""
    row, cpu = catalog.row(name), resolve("cpu")

    def fails(case: Case) -> bool:
        built = inputs.build(case)
        live = execute.forward(execute.program(row), case, built, execute.place(built, cpu), False)
        return not case.refused and bool(live.outputs[0][1].numel())

    drawn = [generate.nth(row, "float32", Sizes(), "together", k) for k in range(1, 12)]
    for one in [d for d in drawn if not d.case.refused][:6]:
        found = shrink.shrink(row, "float32", Sizes(), one, fails)
        assert found is not None
        gates = {"lstm": 4, "gru": 3, "rnn": 1}[name.partition("_")[0]]
        assert {d for s in found.operands() for d in s.shape} <= {1, gates}
        assert not [s for s in found.operands() if s.layout]


def test_the_kernel_that_drops_the_last_feature_keeps_its_two() -> None:
    """What is needed stays: a size of 2, two directions."""
    row = catalog.row("lstm")

    def fails(case: Case) -> bool:
        return first(case).shape[-1] >= 2 and case.args[-2] is True

    one = next(d for k in range(1, 60) if fails((d := generate.nth(row, "float32", Sizes(), "two", k)).case))
    found = shrink.shrink(row, "float32", Sizes(), one, fails)
    assert found is not None
    assert first(found).shape == (1, 1, 2)
    assert [s.shape for s in found.operands()[3:]] == [(4, 2), (4, 1)] * 2


FULL = (
    'add(float32[2, 3].transpose(0, 1).step(-1, 2, 0).uniform(seed=7).at(0, "nan").at(1, "inf").frozen(), '
    'float32[()].on_cpu(), alpha=2).cotangent("normal", "stepped", 3).into("transposed").under("inference").after("larger")'
)


@pytest.mark.parametrize(
    ("needs", "aspect", "expected"),
    [
        (lambda _: True, Aspect.FORWARD, "add(float32[2, 3], float32[()])"),
        (lambda c: ".at(1" in c, Aspect.FORWARD, 'add(float32[2, 3].at(1, "inf"), float32[()])'),
        (lambda c: "step(" in c, Aspect.FORWARD, "add(float32[2, 3].step(-1, 2, 0), float32[()])"),
        (lambda c: "normal" in c, Aspect.BACKWARD, 'add(float32[2, 3], float32[()]).cotangent("normal", "contiguous", 0)'),
        (lambda c: "into" in c, Aspect.OUT, 'add(float32[2, 3], float32[()]).into("transposed")'),
        (lambda c: "alpha" in c and "on_cpu" in c, Aspect.FORWARD, "add(float32[2, 3], float32[()].on_cpu(), alpha=2)"),
    ],
)
def test_what_a_finding_does_not_need_is_gone(needs: Callable[[str], bool], aspect: Aspect, expected: str) -> None:
    """One thing after another, as long as it shows."""
    case = notation.parse(FULL)
    assert notation.case_text(plainest(case, aspect, lambda c: needs(notation.case_text(c)))) == expected


def test_a_case_that_never_fails_again_stays() -> None:
    """Also where the time is over."""
    case = notation.parse(FULL)
    tried = list[Case]()

    def fails(c: Case) -> bool:
        tried.append(c)
        return False

    assert plainest(case, Aspect.FORWARD, fails) == case
    assert len(set(tried)) > 8
