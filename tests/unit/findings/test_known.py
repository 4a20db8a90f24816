"""The file of known findings: what it may hold, and what is said of a broken one."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from parity.core.errors import KnownError
from parity.core.results import Cause, Fingerprint, Record
from parity.engine import known_cases, own, suite
from parity.engine.journal import REPLAYING, SHRINKING
from parity.engine.options import RunOptions
from parity.findings import known_file
from parity.findings.extents import Extent, Measured
from parity.findings.known import Entry, Environment, Found, covers
from parity.store.rows import GROWN, SEEN, ItemRow

PATH = Path("parity-known.toml")
TEXT = """\
format = 1

[environment]
device = "mps"
torch = "2.13.0"
os = "macOS 15.5"

[[known]]
id = "_softmax-6ea5ad"
what = "aten::_softmax gives wrong values"
reason = "reported"
link = "https://example.org/1"
until = 2027-01-31
since = { torch = "2.13.0", os = "macOS 15.5", device = "mps" }
subject = "aten::_softmax"
symptom = "values"
properties = ["non-contiguous operand"]
ops = ["softmax"]
dtypes = ["float32"]
aspects = ["forward"]
status = "drift"
extent = [
    {dtype = "float32", "0 to 1" = 37.2, NaN = 0.0, "class Inf" = inf},
]
cases = ["forward: softmax(float32[2, 2].transpose(0, 1), dim=-1)"]
"""


def test_a_file_is_read_whole() -> None:
    held = known_file.parse(PATH, TEXT)
    (e,) = held.entries
    assert held.environment == Environment("mps", "2.13.0", "macOS 15.5")
    assert e.cause == Cause("aten::_softmax", "values", ("non-contiguous operand",))
    assert (e.until, e.since, e.line) == (date(2027, 1, 31), held.environment, 8)
    assert e.why == "reported; https://example.org/1; until 2027-01-31"
    assert e.extent == (Measured("float32", extent=(("0 to 1", 37.2), ("NaN", 0.0), ("class Inf", math.inf))),)
    assert not e.older
    assert [(x.id, text, case.op) for x, text, case in known_cases.cases_of(held.entries, "softmax", "float32")] == [
        (e.id, e.cases[0], "softmax")
    ]
    assert list(known_cases.cases_of(held.entries, "softmax", "float16")) == []


def test_the_first_format_is_read() -> None:
    """Of before entries said at which values they show."""
    text = TEXT.replace(TEXT[TEXT.index("extent") : TEXT.index("cases")], "")
    (e,), (now,) = (known_file.parse(PATH, t).entries for t in (text, TEXT))
    assert e.older
    assert replace(now, extent=None) == e


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 7", "parity-known.toml:1: format is '7', this parity reads 1"),
        ("[[known]]", "[[known", "parity-known.toml:8: this is no TOML"),
        ("status =", "statuss =", "known '_softmax-6ea5ad': unknown key 'statuss'; did you mean 'status'"),
        ('status = "drift"', "", "parity-known.toml:8: known '_softmax-6ea5ad': object missing required field 'status'"),
        (
            '"drift"',
            '"drifts"',
            "parity-known.toml:21: known '_softmax-6ea5ad': an entry stands for no status 'drifts'; allowed: drift, wrong",
        ),
        ('"drift"', '"agree"', "an entry stands for no status 'agree'; allowed: "),
        ('"drift"', '"crash"', "status holds 'crash'; with the symptom 'values' it can't be so"),
        (
            "2027-01-31",
            '"next year"',
            "parity-known.toml:13: known '_softmax-6ea5ad': 'until' holds 'next year', expected a day, like 2027",
        ),
        ("2027-01-31", "2027-01-31T10:00:00", "'until' holds '2027-01-31 10:00:00', expected a day"),
        (
            'dtypes = ["float32"]',
            'dtypes = ["flaot32"]',
            "parity-known.toml:19: known '_softmax-6ea5ad': unknown dtype 'flaot32'; allowed: float32",
        ),
        ('["forward"]', '["forwards"]', "unknown aspect 'forwards'; allowed: forward"),
        ('["softmax"]', '"softmax"', "'ops' holds 'softmax', expected 'array', got 'str'"),
        ('["softmax"]', "[]", "'ops' holds '[]', expected 'array' of length >= 1"),
        ("dim=-1)", "dim=-1", "'forward: softmax(float32[2, 2].transpose(0, 1), dim=-1' cannot be run: this is not a case id"),
        ("float32[2, 2]", "float32[200000, 200000]", "its operands take 149 GiB; at most 16 GiB are run again"),
        ('"values"', '"vlaues"', "parity-known.toml:16: known '_softmax-6ea5ad': unknown symptom 'vlaues'; allowed: values"),
        ('subject = "aten::_softmax"', "", "object missing required field 'subject'"),
        ('reason = "reported"', 'reason = " "', "'reason' holds ' ', expected a text"),
        (
            'reason = "reported"',
            'reason = "\\u001b[2J"\nwhat2 = 1',
            "parity-known.toml:12: known '_softmax-6ea5ad': unknown key 'what2'",
        ),
        ("device = ", "devise = ", "parity-known.toml:3: unknown field 'devise'; did you mean 'device'?"),
        ('device = "mps"\ntorch', "device = 3\ntorch", "'environment.device' holds '3', expected 'str', got 'int'"),
        ("[[known]]", "[known]", ", expected 'array', got 'object'"),
        (
            "since = {",
            "since = { on = 3,",
            "parity-known.toml:14: known '_softmax-6ea5ad': unknown field 'on'; did you mean 'os'?",
        ),
        (
            "status =",
            'by-chance = "yes"\nstatus =',
            "parity-known.toml:21: known '_softmax-6ea5ad': 'by_chance' holds 'yes', expected 'bool'",
        ),
        (
            "status =",
            'members = [{ subject = "aten::exp" }]\nstatus =',
            "\"{'subject': 'aten::exp'}\", object missing required field 'symptom'",
        ),
        ('"class Inf" = inf', '"class Imf" = inf', "extent holds {'dtype': 'float32'"),
        ('dtype = "float32", ', "", "nobody writes this by hand: parity known add makes it"),
        ("37.2", '"37.2"', "extent holds {'dtype': 'float32'"),
        ("extent = [", "extent = [3,", "extent holds 3"),
        ("format = 1", "format = " + "9" * 5000, "restore the file from your repository"),
        ("format = 1", "format = 1\nx = " + "[" * 5000, ""),
    ],
)
def test_a_broken_file_is_told_with_place_value_and_remedy(old: str, new: str, said: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(KnownError) as e:
        known_file.parse(PATH, TEXT.replace(old, new, 1))
    assert said in str(e.value)
    assert str(e.value).startswith("parity-known.toml:")
    assert e.value.exit_code == 2
    assert str(e.value).isprintable()


def test_an_entry_that_stands_twice_is_refused() -> None:
    entry = TEXT[TEXT.index("[[known]]") :]
    with pytest.raises(KnownError, match="'_softmax-6ea5ad' stands twice, first in line 8; drop one of the two"):
        known_file.parse(PATH, TEXT + entry)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(KnownError, match="parity known add RUN"):
        known_file.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(KnownError, match="it is not text"):
        known_file.read(tmp_path / "bytes.toml")
    with pytest.raises(KnownError, match=r"bytes.toml is not a file of known findings"):
        known_file.read(tmp_path)  # of a folder, the file is named
    with pytest.raises(KnownError, match="not an ordinary file"):
        known_file.read(Path("/dev/null"))


def test_texts_of_the_file_are_made_printable() -> None:
    (e,) = known_file.parse(PATH, TEXT.replace('"reported"', '"\\u001b[2J"')).entries
    assert e.reason == "\\x1b[2J"


@pytest.mark.parametrize(
    ("seen", "status", "is_covered"),
    [
        ("wrong", "drift", True), ("drift", "wrong", False), ("wrong", "unstable", True), ("wrong", "error", False),
        ("error", "wrong", False), ("crash", "hang", True), ("unsupported", "fallback", False), ("error", "error", True),
        ("wrong", "agree", False), ("drift", "marginal", True), ("error", "marginal", False),
    ],
)  # fmt: skip
def test_an_entry_stands_for_its_class_and_for_better_ones_of_its_kind(seen: str, status: str, is_covered: bool) -> None:
    assert covers(seen, status) is is_covered


def entry(*properties: str, members: tuple[Cause, ...] = (), subject: str = "aten::exp") -> Entry:
    return Entry("e", "r", ("exp",), "wrong", Cause(subject, "values", properties), members)


def test_a_cause_that_needs_more_is_the_same_and_one_that_needs_less_is_not() -> None:
    assert entry().same_cause(Cause("aten::exp", "values", ("NaN",)))
    assert not entry("NaN").same_cause(Cause("aten::exp", "values"))
    assert not entry("NaN").same_cause(Cause("aten::exp", "values", ("Inf",)))
    assert not entry().same_cause(Cause("aten::exp", "metadata"))
    assert not entry().same_cause(Cause("aten::cos", "values"))


def test_an_error_whose_words_name_the_check_is_one_in_whatever_function_says_it() -> None:
    """As the causes of a run are joined; words that anybody says are not."""
    words = "raises: RuntimeError in backward: expected scalar type T but found T"
    e, other = (replace(entry(), cause=Cause("torch.instance_norm", s)) for s in (words, "raises: RuntimeError: out of memory"))
    assert e.same_cause(Cause("torch.batch_norm", words, ("offset operand",)))
    assert not e.same_cause(Cause("torch.batch_norm", words.replace("scalar", "layout")))
    assert not other.same_cause(Cause("torch.batch_norm", "raises: RuntimeError: out of memory"))


def test_which_rare_values_a_cause_needs_is_left_to_the_extent() -> None:
    """Where it was measured; plain values are another cause, and so is every other property."""
    e = replace(
        entry("extreme values"), extent=(Measured("float32", extent=(("class huge", math.inf), ("class NaN", math.inf))),)
    )
    other = Cause("aten::exp", "values", ("NaN or Inf",))
    assert e.same_cause(other)
    assert not e.same_cause(other, whatever_values=False)
    assert not replace(e, extent=None).same_cause(other)
    assert not e.same_cause(Cause("aten::exp", "values"))
    assert not e.same_cause(Cause("aten::exp", "values", ("offset operand",)))
    strided = replace(entry("extreme values", "offset operand"), extent=e.extent)
    assert not strided.same_cause(other)


def test_joined_causes_are_those_of_the_operators_that_they_name() -> None:
    members = tuple(Cause(f"aten::{op}", "values", ("offset operand",)) for op in ("exp", "cos", "tanh"))
    joined = entry("offset operand", members=members, subject="several operators")
    assert joined.same_cause(Cause("aten::cos", "values", ("offset operand",)))
    assert not joined.same_cause(Cause("aten::erf", "values", ("offset operand",)))
    assert not joined.same_cause(Cause("aten::cos", "values"))


LARGE = replace(
    entry(),
    ops=("layer_norm", "native_layer_norm"),
    shows=("values in out[1]", "values in grad[0]"),
    extent=(
        Measured("float32", "native_layer_norm", "out[1]", (("0 to 1", 3e7),)),
        Measured("float32", "native_layer_norm", "grad[0]", (("0 to 1", 1e4), ("NaN", 0.0))),
    ),
)


@pytest.mark.parametrize(
    ("tensor", "extent", "said"),
    [
        ("grad[0]", (("0 to 1", 9e4),), ""),
        ("grad[0]", (("0 to 1", 5e5),), "5e+05 times the budget at values 0 to 1, was 1e+04"),
        ("grad[0]", (("class NaN", math.inf),), "NaN or Inf differs at values NaN"),
        ("out[1]", (("0 to 1", 4e8),), ""),
        ("grad[1]", (("0 to 1", 3.0),), "now in grad[1] of native_layer_norm"),
    ],
)
def test_an_error_is_compared_with_those_of_its_own_tensor(tensor: str, extent: Extent, said: str) -> None:
    """Whatever others are; an entry of an older file has one extent for all."""
    found = Found("native_layer_norm", "float32", "wrong", "backward", "", tensor, extent, pinned=True)
    assert str(LARGE.excess(found)) == said
    state = LARGE.sighting(found, date(2026, 1, 1), LARGE.excess(found))
    assert (state.state, state.fails) == ((GROWN, True) if said else (SEEN, False))
    older = replace(LARGE, extent=(Measured("float32", extent=(("0 to 1", 3e7),)),))
    assert not older.excess(found)


@pytest.mark.parametrize(
    ("known", "new", "fails"),
    [
        ({"0 to 1": 9.0}, {"huge": 90.0}, False),
        ({"0 to 1": 9.0, "huge": 0.0}, {"0 to 1": 2.0, "huge": 90.0}, False),
        ({"0 to 1": 9.0}, {"0 to 1": 9e3}, True),
        ({"class huge": math.inf, "NaN": 0.0}, {"tiny": 9e3, "class Inf": math.inf}, False),
        ({"class huge": math.inf, "NaN": 0.0}, {"class NaN": math.inf}, True),
        ({"class huge": math.inf}, {"0 to 1": 2.0}, True),
        ({"huge": 9.0}, {"huge": 9.0, "class NaN": math.inf}, True),
        ({"0 to 1": 9.0}, {"0 to 1": 9.0, "class 0 to 1": math.inf}, True),
        ({"0 to 1": 9.0}, {"0 to 1": 9.0, "class above 1": math.inf}, True),
        ({"0 to 1": 9.0, "zero": 9.0}, {"0 to 1": 9.0, "class zero": math.inf}, True),
        ({"0 to 1": 9.0, "huge": 9.0}, {"0 to 1": 9.0, "class huge": math.inf}, False),
        ({"0 to 1": 9.0, "-1 to 0": 0.0}, {"-1 to 0": 9.0}, True),
        ({"class NaN": math.inf, "integers": 0.0, "tiny": 0.0}, {"integers": 9.0}, True),
        ({"class NaN": math.inf, "integers": 0.0, "tiny": 0.0}, {"tiny": 9.0}, True),
        ({"0 to 1": 9.0, "Inf": 9.0}, {"class Inf": math.inf}, False),  # what was wrong there anyway
        ({"0 to 1": 9.0, "Inf": 0.0}, {"0 to 1": 9.0, "class Inf": math.inf}, True),
        ({"0 to 1": 9.0}, {"class Inf": math.inf}, False),
        ({"Inf": 9.0}, {"class Inf": math.inf}, True),
        ({"0 to 1": 9e4}, {"0 to 1": 3e6, "tiny": 5e9}, False),  # no rounding explains either
        ({"0 to 1": 9e4, "-1 to 0": 0.0}, {"-1 to 0": 9.0}, True),
        ({"0 to 1": 9e4}, {"class 0 to 1": math.inf}, True),
        ({"0 to 1": 4e3}, {"0 to 1": 3e6}, True),
        ({"huge": 9e4}, {"tiny": 3e6}, False),
        ({"huge": 9e4}, {"0 to 1": 9.0}, True),
        ({"huge": 9e4, "0 to 1": 2.0}, {"0 to 1": 9e4}, True),
    ],
)
def test_exploration_fails_where_it_goes_beyond_all_that_is_known(
    known: dict[str, float], new: dict[str, float], fails: bool
) -> None:
    """Another seed meets other values, and with them other errors; whether plain values and NaN agree is no chance."""
    e = replace(LARGE, extent=(Measured("float32", "layer_norm", "out", tuple(known.items())),))
    x = Found("layer_norm", "float32", "wrong", "forward", "", "out", tuple(new.items()), pinned=False)
    assert e.sighting(x, date(2026, 1, 1), e.excess(x)).fails is fails
    if e.excess(x):
        assert e.sighting(x, date(2026, 1, 1), e.excess(x), strict=True).fails
        assert e.sighting(replace(x, pinned=True), date(2026, 1, 1), e.excess(x)).fails


@pytest.mark.parametrize(
    ("known", "new", "fails"),
    [
        (("float16", 1.5), ("float32", 6e3), False),  # 0.07 % in both
        (("float16", 1.5), ("float32", 1e6), True),
        (("float32", 5e5), ("float16", 900.0), False),  # 3 % and 44 %
        (("float32", 5e5), ("float16", 2e3), False),  # nor does any rounding explain either
        (("float32", 4e3), ("float16", 20.0), True),
        (("float32", 4.0), ("float16", 15.0), False),
        (("float32", 4.0), ("float16", 30.0), True),
        (("int64", 4.0), ("int32", 60.0), False),
        (("int64", math.inf), ("int32", math.inf), False),
        (("float32", 44.0), ("int64", math.inf), True),  # how far whole numbers are off says nothing of rounded ones
        (("float32", 5e5), ("int64", math.inf), True),
        (("float32", 2e6), ("int64", math.inf), False),  # 16 times as much would have nothing to do with the truth
        (("int64", math.inf), ("float32", 5e6), True),
        (("int64", 12.0), ("float32", 100.0), False),  # exp of whole numbers is rounded to float32
        (("int64", 12.0), ("float32", 5e5), True),
        (("int64", 12.0), ("int32", 5e5), True),
    ],
)
def test_the_error_of_a_known_cause_in_another_dtype_is_as_large_relative_to_its_results(
    known: tuple[str, float], new: tuple[str, float], fails: bool
) -> None:
    """Which dtypes show a cause is chance of the seed, so that exploration alone does not fail for one."""
    e = replace(LARGE, dtypes=known[:1], extent=(Measured(known[0], "layer_norm", "out", (("0 to 1", known[1]),)),))
    x = Found("layer_norm", new[0], "wrong", "forward", "", "out", (("0 to 1", new[1]),), pinned=False)
    seen = e.sighting(x, date(2026, 1, 1), e.excess(x))
    assert (seen.state, seen.fails) == (GROWN, fails)
    assert e.sighting(replace(x, pinned=True), date(2026, 1, 1), e.excess(x)).fails


@pytest.mark.parametrize(("subjects", "fails"), [((), False), (("aten::exp", "aten::cos"), True)])
def test_exploration_compares_with_other_ops_of_the_same_kernel_alone(subjects: tuple[str, ...], fails: bool) -> None:
    """How large another operator's error is says nothing of this one's."""
    errors = {"exp": (("0 to 1", 5.0),), "cos": (("0 to 1", 1e6),)}
    e = entry(members=tuple(Cause(s, "values", ()) for s in subjects))
    e = replace(e, ops=("exp", "cos"), extent=tuple(Measured("float32", op, "out", x) for op, x in errors.items()))
    x = Found("exp", "float32", "wrong", "forward", "", "out", (("0 to 1", 1e6),), pinned=False)
    assert e.sighting(x, date(2026, 1, 1), e.excess(x)).fails is fails


HUGE: Extent = (("class huge", math.inf), ("NaN", 0.0), ("tiny", 0.0))


@pytest.mark.parametrize(
    ("dtype", "tensor", "also", "new", "fails"),
    [
        ("float32", "grad[0]", ("class tiny", math.inf), ("tiny", 2e5), False),
        ("float16", "out", ("class NaN", math.inf), ("class NaN", math.inf), False),
        ("float16", "out", ("class Inf", math.inf), ("class NaN", math.inf), True),
        ("float32", "grad[0]", ("0 to 1", 2e5), ("0 to 1", 2e5), True),
    ],
)
def test_at_which_rare_values_a_cause_shows_is_that_of_all_its_tensors_and_dtypes(
    dtype: str, tensor: str, also: tuple[str, float], new: tuple[str, float], fails: bool
) -> None:
    """One that squares its operands loses large ones in one tensor, and tiny ones in another. Plain values are not rare."""
    known_ones = [("float32", "out", (*HUGE, ("0 to 1", 0.0))), (dtype, tensor, (also,))]
    e = replace(LARGE, extent=tuple(Measured(d, "layer_norm", t, x) for d, t, x in known_ones))
    x = Found("layer_norm", "float32", "wrong", "forward", "", "out", (new,), pinned=False)
    assert e.sighting(x, date(2026, 1, 1), e.excess(x)).fails is fails
    alone = replace(e, extent=(e.extent or ())[:1])
    assert alone.sighting(x, date(2026, 1, 1), alone.excess(x)).fails


@pytest.mark.parametrize(("elsewhere", "new", "fails"), [(3e5, 5e6, False), (40.0, 600.0, False), (40.0, 5e4, True)])
def test_errors_of_whole_numbers_contain_none_of_rounded_ones(elsewhere: float, new: float, fails: bool) -> None:
    """Of a tensor in which no rounded ones are known, a pinned case fails for them; by exploration those of other tensors say
    how large they may be."""
    known_ones = [("int64", "out", ("0 to 1", math.inf)), ("float32", "grad[0]", ("0 to 1", elsewhere))]
    extent = tuple(Measured(d, "layer_norm", t, (x,)) for d, t, x in known_ones)
    e = replace(LARGE, dtypes=("int64", "float32"), extent=extent)
    x = Found("layer_norm", "float32", "wrong", "forward", "", "out", (("0 to 1", new),))
    assert [e.sighting(y, date(2026, 1, 1), e.excess(y)).fails for y in (replace(x, pinned=p) for p in (True, False))] == [
        True, fails
    ]  # fmt: skip
    assert not e.excess(replace(x, dtype="int64"))


@pytest.mark.parametrize(("new", "fails"), [(("0 to 1", 5e6), True), (("class 0 to 1", math.inf), False)])
def test_a_sum_that_overflows_in_one_dtype_accepts_no_error_in_another(new: tuple[str, float], fails: bool) -> None:
    """Results may be anything where NaN or Inf stood in their place, in the same dtype alone."""
    e = replace(LARGE, extent=(Measured("float16", "layer_norm", "out", (("class 0 to 1", math.inf),)),))
    x = Found("layer_norm", "float32", "wrong", "forward", "", "out", (new,), pinned=False)
    assert e.sighting(x, date(2026, 1, 1), e.excess(x)).fails is fails
    assert not e.sighting(replace(x, dtype="float16"), date(2026, 1, 1), e.excess(replace(x, dtype="float16"))).fails


@pytest.mark.parametrize(
    ("known", "new", "fails"),
    [
        (("grad[0]",), "out", True), (("tangent[0]", "gradgrad[1]"), "base[out]", True), (("grad[0]",), "gradgrad[0]", False),
        (("out",), "grad[0]", False), (("grad[0]", "out[1]"), "out[0]", False),
    ],
)  # fmt: skip
def test_an_error_of_derivatives_alone_is_none_of_the_results(known: tuple[str, ...], new: str, fails: bool) -> None:
    """These show in derivatives, and not the other way round; which of several tensors shows a cause is chance."""
    e = replace(LARGE, extent=tuple(Measured("float32", "layer_norm", t, (("0 to 1", 9e4),)) for t in known))
    x = Found("layer_norm", "float32", "wrong", "forward", "", new, (("0 to 1", 9e4),), pinned=False)
    seen = e.sighting(x, date(2026, 1, 1), e.excess(x))
    assert (seen.state, seen.fails) == (GROWN, fails)


@pytest.mark.parametrize("known", [("0 to 1", 4e8), ("class 0 to 1", math.inf), ("0 to 1", 4e4)])
def test_results_that_had_nothing_to_do_with_the_truth_lost_no_nan_if_they_kept_it(known: tuple[str, float]) -> None:
    """Which shows by exploration alone: no pinned case holds one. Where nobody saw whether they keep it, they may lose it."""
    seen = {}
    for kept in ((("NaN", 0.0),), (("NaN", 0.0), ("class NaN", math.inf)), ()):
        e = replace(LARGE, extent=(Measured("float32", "layer_norm", "out", (known, *kept)),))
        x = Found("layer_norm", "float32", "wrong", "forward", "", "out", (known, ("class NaN", math.inf)), pinned=False)
        seen[kept] = e.sighting(x, date(2026, 1, 1), e.excess(x)).fails
    assert [*seen.values()] == [True, False, False]


@pytest.mark.parametrize(("plain", "integers", "fails"), [(1024.0, 1e7, False), (1000.0, 1e7, True), (1024.0, 3e3, True)])
def test_an_error_of_which_the_picture_shows_no_more_may_be_as_large_as_the_worst(
    plain: float, integers: float, fails: bool
) -> None:
    """It is no loss of precision of just that size."""
    e = replace(LARGE, extent=(Measured("float32", "layer_norm", "out", (("0 to 1", plain), ("integers", integers))),))
    x = Found("layer_norm", "float32", "wrong", "forward", "", "out", (("0 to 1", 1e6),), pinned=False)
    assert e.sighting(x, date(2026, 1, 1), e.excess(x)).fails is fails


def test_nan_in_one_tensor_accepts_no_error_in_another() -> None:
    e = replace(LARGE, extent=(Measured("float32", "layer_norm", "out", (("class 0 to 1", math.inf),)),))
    x = Found("layer_norm", "float32", "wrong", "backward", "", "grad[0]", (("0 to 1", 1e6),), pinned=False)
    assert e.sighting(x, date(2026, 1, 1), e.excess(x)).fails


def test_another_environment_is_told_and_a_build_is_none() -> None:
    held = known_file.parse(PATH, TEXT)
    here = Fingerprint("0", "2.13.0+cpu", "", "3.11", "macOS 15.5 (24F74)", "arm64", "mps:0", "Apple M1")
    assert held.warnings(here) == ()
    there = Fingerprint("0", "2.14.0", "", "3.11", "Linux 6.8.0-41-generic", "x86_64", "cuda:0", "H200")
    (text,) = held.warnings(there)
    for part in ("device mps, and this is cuda", "torch 2.13.0, and this is 2.14.0", "OS macOS 15.5, and this is Linux 6.8"):
        assert part in text
    sim = Fingerprint("0", "2.13.0", "", "3.11", "macOS 15.5", "arm64", "sim:mps", "simulated")
    assert "device mps, and this is sim:mps" in held.warnings(sim)[0]


def test_the_last_day_counts() -> None:
    (e,) = known_file.parse(PATH, TEXT).entries
    assert not e.expired(date(2027, 1, 31))
    assert e.expired(date(2027, 2, 1))


@pytest.mark.parametrize(("error", "state"), [(90.0, SEEN), (1e5, GROWN)])
def test_an_own_function_is_known_up_to_the_error_that_it_had(error: float, state: str) -> None:
    known_one = entry()
    known_one = replace(known_one, ops=("m.py:net",), extent=(Measured("float32", extent=(("anywhere", 40.0),)),))
    found = Record("m.py:net", "m.py:net", "float32", "forward", "wrong", extent=(("anywhere", error),))
    (seen,) = own.sightings([known_one], ItemRow("m.py:net", "float32"), [found], date(2026, 1, 1))
    assert (seen.state, seen.fails) == (state, state == GROWN)


def test_a_death_counts_as_of_a_pinned_case_below_their_number_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(known_cases, "known_death", lambda _, death, pinned, *more: seen.append(pinned))
    (file := tmp_path / "known.toml").write_text("format = 1\n")
    row = {"item": "exp-float32", "case": "", "how": "crash", "signal": "SIGABRT", "stage": "device", "blame": ""}
    least = suite.profile("quick").pinned
    for ordinal in (least - 1, least, REPLAYING, SHRINKING):
        known_cases.of_death(row | {"ordinal": ordinal}, RunOptions(known=str(file), profile="quick"))
    assert seen == [True, False, True, False]
