from __future__ import annotations

import re
from pathlib import Path

import pytest

from parity import tolerance
from parity.core.case import OpClass
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import TableError
from parity.engine import suite
from parity.tolerance import load

RULE = """format = 1
[[rule]]
class = "*"
dtype = "*"
pass = "*"
scale = 16
output_ulp = 1
source = "measured"
"""
EXCEPTION = """
[[exception]]
op = "softmax"
dtype = "float16"
pass = "*"
scale = 40
output_ulp = 2
reason = "cancels"
link = "https://example.org/1"
"""
OPS = ("softmax", "exp", "nn.functional.softmax")
ELEMENTWISE, COMPOSITE, EXACT = OpClass.ELEMENTWISE, OpClass.COMPOSITE, OpClass.EXACT


def tables(tmp_path: Path, device: str = "mps", **files: str) -> tolerance.Tables:
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return load(device, folder, OPS)


# ---------------------------------------------------------------------------------------------------- the shipped tables


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:0", "sim", "sim:mps", "xpu"])
def test_every_class_dtype_and_pass_has_numbers_on_every_device(device: str) -> None:
    shipped = load(device)
    for rule in OpClass:
        for dtype in FACTS:
            for pass_ in ("forward", "backward"):
                found = shipped.find("anything", rule, dtype, pass_)
                assert found.origin
                if FACTS[dtype].is_inexact and not (rule is EXACT and pass_ == "forward"):
                    assert found.scale > 0
                else:
                    assert (found.scale, found.output_ulp) == (0, 0)


@pytest.mark.parametrize(
    "device, files",
    [
        ("cpu", ("default",)),
        ("mps", ("default", "mps")),
        ("cuda:1", ("default", "cuda")),
        ("sim", ("default", "sim")),
        ("sim:mps", ("default", "mps", "sim")),
        ("sim:mps:honest", ("default", "mps", "sim")),
    ],
)
def test_a_device_reads_the_default_table_and_its_own(device: str, files: tuple[str, ...]) -> None:
    assert load(device).files == tuple(f"tolerances/{f}.toml" for f in files)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("device", ["cpu", "mps", "cuda", "xpu", "sim", "sim:mps"])
def test_shipped_tables_name_ops_that_parity_has(device: str, fast: bool) -> None:
    assert tolerance.load(device, known_ops={r.name for r in suite.rows("all")}, fast=fast).files


def test_each_device_has_its_own_ulp_bounds() -> None:
    bounds = {d: load(d).find("exp", ELEMENTWISE, "float32", "forward").ulp for d in ("sim", "mps", "cuda", "sim:mps")}
    assert bounds == {"sim": 5, "mps": 4, "cuda": 2, "sim:mps": 4}


def test_the_default_bound_is_never_tighter_than_a_devices() -> None:
    default = load("cpu")
    for device in ("mps", "cuda"):
        own = load(device)
        for e in (e for e in own._entries if e.kind == "ulp"):
            theirs = own.find(e.subject, ELEMENTWISE, e.dtypes[0], "forward").ulp
            ours = default.find(e.subject, ELEMENTWISE, e.dtypes[0], "forward").ulp
            assert theirs is not None
            assert ours is not None
            assert ours >= theirs, e.words


def test_only_mps_flushes_and_only_what_its_gpu_flushes() -> None:
    for device in ("mps", "sim:mps"):  # the simulated one is judged as what it plays
        assert [d for d in DEFAULT if load(device).flushes(d)] == ["float32", "bfloat16", "complex64"]
    assert not any(load(device).flushes(d) for device in ("cpu", "cuda", "sim") for d in DEFAULT)


def test_half_types_are_bound_to_one_ulp() -> None:
    assert load("mps").find("sin", ELEMENTWISE, "bfloat16", "forward").ulp == 1


def test_ulp_bounds_are_for_the_forward_pass_of_listed_elementwise_functions() -> None:
    shipped = load("mps")
    assert shipped.find("exp", ELEMENTWISE, "float32", "backward").ulp is None
    assert shipped.find("gelu", ELEMENTWISE, "float32", "forward").ulp is None
    assert shipped.find("exp", ELEMENTWISE, "complex64", "forward").ulp is None
    assert shipped.find("exp", COMPOSITE, "float32", "forward").ulp is None


def test_a_row_may_go_by_another_name_in_the_ulp_tables() -> None:
    assert load("mps").find("opinfo:exp", ELEMENTWISE, "float32", "forward", "exp").ulp == 4


def test_gradients_are_judged_as_composites() -> None:
    found = load("mps").find("cat", EXACT, "float16", "backward")
    assert (found.rule, found.scale, found.output_ulp) == ("composite", 16, 1.5)
    assert found.origin == "tolerances/default.toml: composite float16 backward"


def test_the_origin_names_the_rows_that_gave_the_numbers() -> None:
    found = load("mps").find("exp", ELEMENTWISE, "float32", "forward")
    assert found.origin == "tolerances/mps.toml: ulp exp float32; tolerances/default.toml: elementwise float32 forward"


# ------------------------------------------------------------------------------------------------------------ which wins


def rule(scale: float, class_: str = "*", dtype: str = "*", pass_: str = "*") -> str:
    return (
        f'[[rule]]\nclass = "{class_}"\ndtype = "{dtype}"\npass = "{pass_}"\n'
        f'scale = {scale}\noutput_ulp = 1\nsource = "measured"\n'
    )


@pytest.mark.parametrize(
    "weaker, stronger",
    [
        (rule(1), rule(2)),
        (rule(1), rule(2, pass_="backward")),
        (rule(1, pass_="backward"), rule(2, "composite")),
        (rule(1, pass_="backward"), rule(2, "gradient")),
        (rule(1, "composite", pass_="backward"), rule(2, dtype="float16")),
    ],
)
def test_the_more_specific_row_wins_wherever_it_stands(tmp_path: Path, weaker: str, stronger: str) -> None:
    orders = [weaker + stronger] if weaker == rule(1) and stronger == rule(2) else [weaker + stronger, stronger + weaker]
    for text in orders:
        assert tables(tmp_path, default=RULE + text).find("softmax", COMPOSITE, "float16", "backward").scale == 2


def test_a_devices_table_beats_the_default_and_an_exception_beats_both(tmp_path: Path) -> None:
    got = tables(tmp_path, default=RULE + rule(3, "composite", "float16", "forward"), mps="format = 1\n" + rule(2))
    assert got.find("softmax", COMPOSITE, "float16", "forward").scale == 2
    got = tables(tmp_path, default=RULE + EXCEPTION)
    found = got.find("softmax", COMPOSITE, "float16", "forward")
    assert (found.scale, found.output_ulp, found.reason) == (40, 2, "cancels (https://example.org/1)")
    assert found.origin == "mine/default.toml: exception softmax float16 forward"
    assert got.find("opinfo:softmax", COMPOSITE, "float16", "forward").scale == 40


def test_a_gradient_row_is_not_about_the_forward_pass(tmp_path: Path) -> None:
    got = tables(tmp_path, default=RULE + rule(9, "gradient"))
    assert got.find("softmax", COMPOSITE, "float32", "forward").scale == 16
    assert got.find("softmax", COMPOSITE, "float32", "backward").scale == 9


ULP = '\n[[ulp]]\nfunction = ["exp", "softmax"]\nfloat32 = 4\nhalf = 1\nfloat16 = 2\nsource = "chapter 8"\n'


def test_a_dtype_named_in_a_ulp_row_beats_half(tmp_path: Path) -> None:
    got = tables(tmp_path, default=RULE + ULP)
    assert [got.find("exp", ELEMENTWISE, d, "forward").ulp for d in ("float32", "float16", "bfloat16")] == [4, 2, 1]


def test_an_exception_with_a_pair_takes_the_place_of_the_ulp_bound(tmp_path: Path) -> None:
    got = tables(tmp_path, default=RULE + ULP + EXCEPTION)
    assert got.find("softmax", ELEMENTWISE, "float16", "forward").ulp is None


def test_an_exception_with_ulp_alone_keeps_the_rules_scale(tmp_path: Path) -> None:
    text = EXCEPTION.replace("scale = 40\noutput_ulp = 2", "ulp = 7")
    found = tables(tmp_path, default=RULE + ULP + text).find("softmax", ELEMENTWISE, "float16", "forward")
    assert (found.ulp, found.scale) == (7, 16)


def test_explain_tells_every_row_and_why_it_was_beaten(tmp_path: Path) -> None:
    other = EXCEPTION.replace("float16", "float32")
    got = tables(tmp_path, default=RULE + EXCEPTION + other, mps="format = 1\n" + rule(2, dtype="float16"))
    told = [(t.row, t.place, t.verdict, t.why) for t in got.explain("softmax", COMPOSITE, "float16", "forward")]
    assert told == [
        ("exception softmax float16 any pass", "mine/default.toml:10", "applies", "gives scale 40, output_ulp 2"),
        ("any class float16 any pass", "mine/mps.toml:2", "beaten", "by mine/default.toml:10: an exception"),
        ("any class any dtype any pass", "mine/default.toml:2", "beaten", "by mine/default.toml:10: an exception"),
        ("exception softmax float32 any pass", "mine/default.toml:19", "elsewhere", "is not about float16 forward"),
    ]


def test_the_second_look_is_remembered(tmp_path: Path) -> None:
    got = tables(tmp_path, default=RULE)
    first = got.find("softmax", COMPOSITE, "float32", "forward")
    assert got.find("softmax", COMPOSITE, "float32", "forward") is first


def test_a_zero_is_a_number(tmp_path: Path) -> None:
    zero = EXCEPTION.replace("scale = 40\noutput_ulp = 2", "scale = 0\noutput_ulp = 0\nulp = 0")
    found = tables(tmp_path, default=RULE + zero).find("softmax", ELEMENTWISE, "float16", "forward")
    assert (found.scale, found.output_ulp, found.ulp) == (0, 0, 0)


@pytest.mark.parametrize("row", [rule(0, dtype="int32"), rule(0, "exact", "float32", "forward"), rule(0, "selection")])
def test_what_is_not_rounded_may_have_a_scale_of_zero(tmp_path: Path, row: str) -> None:
    assert tables(tmp_path, default=RULE + row)


def test_no_rule_at_all_is_an_error_when_asked(tmp_path: Path) -> None:
    got = tables(tmp_path, default="format = 1\n")
    with pytest.raises(TableError) as e:
        got.find("softmax", COMPOSITE, "float32", "forward")
    assert str(e.value) == (
        "mine/default.toml: no rule covers composite float32 forward (op 'softmax'); "
        'add a [[rule]] with class = "composite" or class = "*"'
    )


# ------------------------------------------------------------------------------------------------------ what is refused

BAD = {
    "unknown op": (EXCEPTION.replace('"softmax"', '"sofmax"'), "11: unknown op 'sofmax'; did you mean 'softmax'?"),
    "pattern": (EXCEPTION.replace('"softmax"', '"soft*"'), "11: op 'soft*' is a pattern; name one op per row"),
    "dtype": (
        EXCEPTION.replace("float16", "flaot16"),
        "12: unknown dtype 'flaot16'; did you mean 'float16' or 'bfloat16' or 'float64'?",
    ),
    "no dtype": (EXCEPTION.replace('"float16"', "[]"), "12: dtype is an empty list; name a dtype"),
    "dtype is a number": (EXCEPTION.replace('"float16"', "16"), "12: dtype is 16; write a name in quotes"),
    "pass": (EXCEPTION.replace('"*"', '"both"'), "13: unknown pass 'both'; known: *, backward, forward"),
    "half a pair": (
        EXCEPTION.replace("output_ulp = 2", ""),
        "14: half a pair: 'scale' without 'output_ulp'; give both or neither",
    ),
    "other half": (EXCEPTION.replace("scale = 40", ""), "15: half a pair: 'output_ulp' without 'scale'; give both or neither"),
    "no numbers": (
        EXCEPTION.replace("scale = 40\noutput_ulp = 2", ""),
        "10: [[exception]] without a number; give one of scale, output_ulp, ulp",
    ),
    "no reason": (
        EXCEPTION.replace('reason = "cancels"', ""),
        "10: [[exception]] has no 'reason'; it needs op, dtype, pass, reason, link",
    ),
    "empty reason": (EXCEPTION.replace('"cancels"', '" "'), "16: reason is ' '; write a text that says something"),
    "no link": (
        EXCEPTION.replace('link = "https://example.org/1"', ""),
        "10: [[exception]] has no 'link'; it needs op, dtype, pass, reason, link",
    ),
    "link": (
        EXCEPTION.replace("https://", "see "),
        "17: link is 'see example.org/1'; give the http(s) address of the issue or document",
    ),
    "negative": (EXCEPTION.replace("40", "-1"), "14: scale is -1; write a number that is 0 or more"),
    "nan": (EXCEPTION.replace("40", "nan"), "14: scale is nan; write a number that is 0 or more"),
    "inf": (EXCEPTION.replace("40", "inf"), "14: scale is inf; write a number that is 0 or more"),
    "anything": (
        EXCEPTION.replace("40", "1e308"),
        "14: scale is 1e+308; write one of at most 1,000,000, because more would accept anything",
    ),
    "no rounding": (
        rule(0, "composite", "float16"),
        "13: scale is 0 for composite in float16, so that no rounding at all would be allowed; write a number above 0; 0 is "
        'for int and bool dtypes, or class = "exact"',
    ),
    "no rounding of an op": (
        EXCEPTION.replace("40", "0"),
        "14: scale is 0 for float16, so that no rounding at all would be allowed; write a number above 0; 0 is for int and "
        "bool dtypes, or with output_ulp = 0 as well, which asks for equality",
    ),
    "text": (EXCEPTION.replace("40", '"40"'), "14: scale is '40'; write a number that is 0 or more"),
    "bool": (EXCEPTION.replace("40", "true"), "14: scale is True; write a number that is 0 or more"),
    "class": (rule(1, "composit"), "10: unknown class 'composit'; did you mean 'composite' or 'decomposition'?"),
    "source": (
        rule(1).replace('source = "measured"', ""),
        "9: [[rule]] has no 'source'; it needs class, dtype, pass, scale, output_ulp, source",
    ),
    "key": (
        rule(1).replace("scale", "scales"),
        "13: unknown key of [[rule]] 'scales'; did you mean 'scale' or 'class' or 'source'?",
    ),
    "section": ("[[rules]]\n", "9: unknown key or section 'rules'; did you mean 'rule' or 'ulp'?"),
    "function": (ULP.replace('"exp"', '"xep"'), "11: unknown function 'xep'; did you mean 'exp'?"),
    "no bound": (
        '[[ulp]]\nfunction = "exp"\nsource = "x"\n',
        "9: [[ulp]] without a number; give one of half, float32, float16, bfloat16, float64",
    ),
    "toml": (
        "[[rule\n",
        "9: this is no TOML: Expected ']]' at the end of an array declaration (at line 9, column 7); mend the line",
    ),
    "policy": ("[policy]\nflushes = []\n", "10: unknown policy 'flushes'; did you mean 'flushes_subnormals'?"),
    "policy dtype": (
        '[policy]\nflushes_subnormals = ["float23"]\n',
        "10: unknown dtype 'float23'; did you mean 'float32' or 'float64' or 'float16'?",
    ),
    "policy value": (
        "[policy]\nflushes_subnormals = true\n",
        '10: flushes_subnormals is True; write a list of dtypes, like ["float32"]',
    ),
}


@pytest.mark.parametrize("text, message", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_trusted_is_refused_with_file_line_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TableError) as e:
        tables(tmp_path, default=RULE + text)
    assert str(e.value) == f"mine/default.toml:{message}"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "mine/mps.toml:1: format is None, this parity reads 1; write 'format = 1' on top, or upgrade parity"),
        ("\nformat = 2\n", "mine/mps.toml:2: format is 2, this parity reads 1; write 'format = 1' on top, or upgrade parity"),
        (
            "format = true\n",
            "mine/mps.toml:1: format is True, this parity reads 1; write 'format = 1' on top, or upgrade parity",
        ),
        ("format = 1\nulp = 3\n", "mine/mps.toml:2: 'ulp' is not a list of rows; head each row with [[ulp]]"),
        ("format = 1\npolicy = 3\n", "mine/mps.toml:2: policy is 3; write a section [policy]"),
    ],
)
def test_the_frame_of_a_table_is_checked(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TableError) as e:
        tables(tmp_path, default=RULE, mps=text)
    assert str(e.value) == message


def test_a_folder_without_a_default_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError) as e:
        load("mps", tmp_path / "mine")
    assert str(e.value) == "mine/default.toml is missing; a folder of tables needs one: copy parity's and edit it"


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TableError, match=r"default.toml:1: cannot be read: .*; it must be a UTF-8 text file"):
        load("cpu", tmp_path)


def test_fast_functions_have_a_table_of_their_own() -> None:
    precise, fast = (tolerance.load("mps", fast=f) for f in (False, True))
    of = ("log", OpClass.ELEMENTWISE, "float32", "forward", "log")
    assert (precise.find(*of).ulp, precise.find(*of).absolute) == (4, 0)
    assert (fast.find(*of).ulp, fast.find(*of).absolute) == (3, 4.8e-7)
    assert fast.find("pow", OpClass.ELEMENTWISE, "float32", "forward", "pow").ulp == 16


def test_special_values_are_promised_by_class_and_by_op() -> None:
    tables = tolerance.load("cpu")
    assert tables.special("exp", OpClass.ELEMENTWISE, "signed_zero") == "kept"
    assert tables.special("opinfo:nn.functional.relu", OpClass.EXACT, "signed_zero") == "any"
    assert tables.special("softmax", OpClass.COMPOSITE, "signed_zero") == "any"
    assert tables.special("conv2d", OpClass.CONTRACTION, "nonfinite_spread") == "any"
    assert tables.special("mm", OpClass.CONTRACTION, "nonfinite_spread") == "kept"
    assert tables.special("optim.ASGD", OpClass.COMPOSITE, "nonfinite_spread") == "any"
    assert tables.special("optim.Adam", OpClass.COMPOSITE, "nonfinite_spread") == "kept"
    cuda = tolerance.load("cuda")
    assert cuda.flushes("float32", "index_add", OpClass.CONTRACTION)
    assert not cuda.flushes("float16", "index_add", OpClass.CONTRACTION)
    assert not cuda.flushes("float32", "mm", OpClass.CONTRACTION)


@pytest.mark.parametrize("line, said", [
    ('value = "sign"\npolicy = "any"\nclass = "exact"\nreason = "r"', "value of [[special]] is 'sign'"),
    ('value = "signed_zero"\npolicy = "may"\nclass = "exact"\nreason = "r"', "policy of [[special]] is 'may'"),
    ('value = "signed_zero"\npolicy = "any"\nreason = "r"', "needs a reason and either"),
    ('value = "signed_zero"\npolicy = "any"\nclass = "exact"', "needs a reason and either"),
    ('value = "signed_zero"\npolicy = "any"\nop = "reluu"\nreason = "r"', "unknown op 'reluu'"),
    ('value = "signed_zero"\npolicy = "any"\nclass = "*"\nreason = "r"', "default.toml:5: unknown class '*'"),
    ('value = "signed_zero"\npolicy = "any"\nclass = []\nreason = "r"', "class is an empty list"),
    ('value = "signed_zero"\npolicy = "any"\nclass = "exact"\nreason = 3', "reason is 3"),
    ('value = ["signed_zero"]\npolicy = "any"\nclass = "exact"\nreason = "r"', "value of [[special]] is ['signed_zero']"),
    (
        'value = "at_nan"\npolicy = "any"\nclass = "exact"\nreason = "r"\n[[special]]\nvalue = "sign"',
        "default.toml:8: value of [[special]] is 'sign'",
    ),
])  # fmt: skip
def test_a_policy_that_cannot_be_trusted_is_refused(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "default.toml").write_text(f"format = 1\n[[special]]\n{line}\n")
    with pytest.raises(TableError, match=re.escape(said)):
        tolerance.load("cpu", tmp_path, {"relu"})


@pytest.mark.parametrize("line", ["special = 3", "special = [3]", "rule = 3", "rule = [3]"])
def test_a_section_that_is_no_list_of_rows_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "default.toml").write_text(f"format = 1\n{line}\n")
    with pytest.raises(TableError, match=r"default.toml:2: '\w+' is not a list of rows; head each row with \[\["):
        tolerance.load("cpu", tmp_path, {"relu"})
