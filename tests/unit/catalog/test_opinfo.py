from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch_lists

from parity.catalog import opinfo, opinfo_rules
from parity.catalog import samples as samples_of_torch
from parity.catalog.draw import Arguments, Draw, Sizes
from parity.catalog.entries import assemble, sample_tensor
from parity.catalog.opinfo import ENTRIES, OUT_OF_REACH, callables, rows, samples
from parity.catalog.row import Row
from parity.catalog.samples import torch_version
from parity.core.case import OpClass, TensorSpec
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import CaseError

BY_NAME = {row.name: row for row in rows()}
# One of each kind: lists of tensors, factories, scalars, modules and slices as arguments, variants, relations, refusals.
SELECTION = (
    "add", "abs", "cat", "stack", "einsum", "block_diag", "arange", "zeros", "full_like", "eye", "linspace",
    "half", "where", "__getitem__", "index_put", "scatter", "nn.functional.conv2d",
    "nn.functional.interpolate:nearest-exact", "nn.functional.max_pool2d", "nn.functional.embedding_bag",
    "nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward",
    "nn.functional.batch_norm", "nn.functional.triplet_margin_with_distance_loss",
    "nn.functional.linear_cross_entropy:chunked", "nn.functional.dropout", "sort", "topk", "unique", "linalg.svd",
    "linalg.eigh", "linalg.lstsq", "linalg.lu_factor", "empty", "resize_", "normal:in_place", "zero_", "stft",
    "masked.sum", "_chunk_cat", "slice", "meshgrid:list_of_tensors", "broadcast_tensors", "histogramdd",
    "split:list_args", "grid_sampler_3d",
)  # fmt: skip


def drawn(row: Row, dtype: str, seed: int | None = None) -> Arguments:
    rng = random.Random(seed)
    return row.signature(Draw((lambda n: 0) if seed is None else rng.randrange, dtype, Sizes()))


def specs(call: Arguments) -> list[TensorSpec]:
    return [a for a in call.args if isinstance(a, TensorSpec)]


def index_of(call: Arguments) -> int:
    assert isinstance(call.args[0], int)
    return call.args[0]


def words(call: Arguments) -> dict[str, Any]:
    return dict(call.kwargs)


# ------------------------------------------------------------------------------------------------- the list and the rows


def test_the_list_is_that_of_the_installed_torch() -> None:
    stored = samples_of_torch.stored(opinfo.NAMES)
    if stored["torch"] != torch_version():
        pytest.skip(f"the list is of torch {stored['torch']}, this is {torch_version()}")
    made = torch_lists.text(torch_lists.of_opinfo())
    assert made == opinfo.NAMES.read_text(encoding="utf-8"), "regenerate it: python tests/meta/torch_lists.py opinfo"


def test_every_entry_is_a_row_or_out_of_reach_with_a_reason() -> None:
    assert {name.removeprefix("opinfo:") for name in BY_NAME} | set(OUT_OF_REACH) == set(ENTRIES)
    assert not {f"opinfo:{name}" for name in OUT_OF_REACH} & set(BY_NAME)
    assert all(OUT_OF_REACH.values())
    assert len(BY_NAME) > 670


@pytest.mark.parametrize(
    "names",
    [
        *(words.split() for words in opinfo_rules.RULES.values()),
        *(words.split() for _, words in opinfo_rules.RELATIONS.values()),
        opinfo.MUTATES,
        opinfo_rules.DTYPE_BOUND,
        list(opinfo_rules.ULP_NAMES),
        list(OUT_OF_REACH),
    ],
)
def test_every_name_in_the_tables_is_an_entry_and_stands_once(names: list[str]) -> None:
    known = set(ENTRIES) | {name.partition(":")[0] for name in ENTRIES}
    assert [name for name in names if name not in known] == []
    assert sorted(names) == sorted(set(names))


def test_no_entry_has_two_rules() -> None:
    tables = [words.split() for words in opinfo_rules.RULES.values()]
    tables += [words.split() for _, words in opinfo_rules.RELATIONS.values()]
    every = [name for names in tables for name in names]
    assert sorted(every) == sorted(set(every))


@pytest.mark.parametrize(
    "name, rule, relation, ulp, oracle",
    [
        ("add", OpClass.ELEMENTWISE, "", "add", "wide"),
        ("true_divide", OpClass.ELEMENTWISE, "", "div", "wide"),
        ("div:no_rounding_mode", OpClass.ELEMENTWISE, "", "div", "wide"),
        ("div:floor_rounding", OpClass.ELEMENTWISE, "", "div:floor_rounding", "wide"),
        ("special.ndtr", OpClass.ELEMENTWISE, "", "ndtr", "wide"),
        ("transpose", OpClass.EXACT, "", "transpose", "wide"),
        ("half", OpClass.EXACT, "", "half", "exact"),
        ("max:reduction_with_dim", OpClass.SELECTION, "max_dim", "max:reduction_with_dim", "wide"),
        ("max:binary", OpClass.EXACT, "", "max:binary", "wide"),
        ("nn.functional.linear", OpClass.CONTRACTION, "", "linear", "wide"),
        ("nn.functional.interpolate:bicubic", OpClass.COMPOSITE, "", "nn.functional.interpolate:bicubic", "wide"),
        ("softmax", OpClass.COMPOSITE, "", "softmax", "wide"),
        ("linalg.lstsq:grad_oriented", OpClass.SOLVER, "lstsq", "linalg.lstsq:grad_oriented", "exact"),
        ("nn.functional.dropout", OpClass.RANDOM, "random", "dropout", "wide"),
        ("empty", OpClass.METADATA, "uninitialised", "empty", "wide"),
    ],
)
def test_rows_are_judged_by_the_rule_of_their_name(name: str, rule: OpClass, relation: str, ulp: str, oracle: str) -> None:
    row = BY_NAME[f"opinfo:{name}"]
    assert (row.rule, row.judged.relation, row.judged.ulp, row.judged.oracle, row.family) == (
        rule,
        relation,
        ulp,
        oracle,
        "opinfo",
    )


def test_rows_cover_only_dtypes_of_the_suite() -> None:
    for row in BY_NAME.values():
        assert row.dtypes
        assert set(row.dtypes) <= set(DEFAULT)
        assert all(FACTS[d].is_inexact for d in row.grad)


@pytest.mark.cold
def test_neither_torch_nor_opinfo_is_imported_for_the_rows() -> None:
    code = "import sys; from parity.catalog import opinfo; opinfo.rows(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_flags_can_be_set_before_opinfo_freezes_them() -> None:
    code = (
        "import torch\nfrom parity.catalog import opinfo\n"
        "def first():\n    torch.backends.cudnn.allow_tf32 = False\n"
        "first()\nopinfo.callables('add')\nassert not torch.backends.cudnn.allow_tf32\n"
        "try:\n    torch.backends.cudnn.allow_tf32 = True\n"
        "except RuntimeError:\n    pass\nelse:\n    raise AssertionError\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ------------------------------------------------------------------------------------------------------------- samples


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, dtype", [(name, BY_NAME[f"opinfo:{name}"].dtypes[0]) for name in SELECTION])
def test_a_drawn_call_is_assembled_and_runs(name: str, dtype: str) -> None:
    row = BY_NAME[f"opinfo:{name}"]
    fn, inplace, out = callables(row.name)
    assert (inplace is not None, out) == (ENTRIES[name].inplace, ENTRIES[name].out)
    for seed in (None, 1, 2):
        call = drawn(row, dtype, seed)
        index, operands = index_of(call), specs(call)
        tensors = [sample_tensor(row.name, dtype, index, k).clone() for k in range(len(operands))]
        assert [(s.dtype, s.shape) for s in operands] == [(str(t.dtype)[6:], tuple(t.shape)) for t in tensors]
        assert [s.values.params for s in operands] == [(index, k) for k in range(len(operands))]
        args, kwargs = assemble(row.name, dtype, index, tensors, **words(call))
        assert [id(t) for t in opinfo.tensors_of((args, kwargs))] == [id(t) for t in tensors]
        fn(*args, **kwargs)


def test_the_simplest_draw_is_the_first_sample() -> None:
    assert index_of(drawn(BY_NAME["opinfo:add"], "float32")) == 0


def test_samples_are_the_same_whatever_was_seeded_and_leave_the_generators_alone() -> None:
    opinfo.samples.cache_clear()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]  # the state may be of another shape, by its type
    first = {k: s.digest for k, s in samples("addmm", "float32").items()}
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()  # type: ignore[index]  # the state may be of another shape, by its type
    opinfo.samples.cache_clear()
    torch.manual_seed(4)
    assert {k: s.digest for k, s in samples("addmm", "float32").items()} == first


def test_many_samples_are_thinned_evenly_and_keep_their_indices() -> None:
    kept = list(samples("unique", "float32"))
    assert len(kept) == opinfo.KEPT
    assert kept[0] == 0
    assert kept[-1] > 500


def test_large_samples_and_dropout_are_left_out() -> None:
    assert all(sum(t.numel() for t in s.tensors) <= opinfo.LARGEST for s in samples("grid_sampler_3d", "float32").values())
    attention = samples("nn.functional.scaled_dot_product_attention", "float32").values()
    assert not any(s.kwargs.get("dropout_p") for s in attention)
    heads = samples("nn.functional.multi_head_attention_forward", "float32").values()
    assert not any(s.kwargs["training"] for s in heads)


def test_only_tensors_that_the_sample_means_to_require_a_gradient() -> None:
    call = drawn(BY_NAME["opinfo:nn.functional.binary_cross_entropy_with_logits"], "float32", 3)
    assert specs(call)[0].grad
    norm = [specs(drawn(BY_NAME["opinfo:nn.functional.batch_norm"], "float32", k)) for k in range(8)]
    assert any(not s.grad for operands in norm for s in operands)  # running statistics


def test_a_tensor_that_stands_twice_has_two_positions() -> None:
    x = torch.ones(2)
    assert [id(t) for t in opinfo.tensors_of(([x, {"k": x}], 3))] == [id(x), id(x)]


def test_a_sample_that_names_the_cpu_names_the_device_instead() -> None:
    call = drawn(BY_NAME["opinfo:zeros"], "float32")
    args, kwargs = assemble("opinfo:zeros", "float32", index_of(call), [], **words(call), device="meta")
    assert torch.zeros(*args, **kwargs).device.type == "meta"


@pytest.mark.parametrize("word", ["cuda", "cuda:0", torch.device("cuda", 0)])
def test_a_sample_that_names_an_accelerator_runs_where_its_operands_lie(monkeypatch: pytest.MonkeyPatch, word: Any) -> None:
    """On a machine with a GPU some samples of factories ask for it by name: for the reference that is the CPU."""
    x = torch.ones(3)
    sample = samples_of_torch.Sample((x, (3,)), {"device": word}, (x,), (False,), "d")
    monkeypatch.setattr(opinfo, "samples", lambda key, dtype: {0: sample})
    for device in ("cpu", "meta"):
        args, kwargs = assemble("opinfo:new_ones", "float32", 0, [x], torch_version(), "d", device)
        assert callables("opinfo:new_ones")[0](*args, **kwargs).device.type == device


def test_words_that_are_no_devices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    sample = samples_of_torch.Sample((x,), {"reduction": "mean"}, (x,), (False,), "d")
    monkeypatch.setattr(opinfo, "samples", lambda key, dtype: {0: sample})
    assert assemble("opinfo:nn.functional.l1_loss", "float32", 0, [x], torch_version(), "d")[1] == {"reduction": "mean"}


# ------------------------------------------------------------------------------------------------------------- refusals


def refusal(**changed: Any) -> str:
    known: dict[str, Any] = {"op": "opinfo:neg", "dtype": "float32", "index": 0, "tensors": [torch.ones(20, 20)]}
    known |= {"torch": torch_version(), "digest": samples("neg", "float32")[0].digest} | changed
    with pytest.raises(CaseError) as e:
        assemble(**known)
    return str(e.value)


def test_another_torch_is_refused_saying_both() -> None:
    assert refusal(torch="2.9.1") == (
        f"the case was drawn from the samples of torch 2.9.1, this is torch {torch_version()}; install that one, or draw anew"
    )


def test_another_digest_is_refused_saying_both() -> None:
    mine = samples("neg", "float32")[0].digest
    assert refusal(digest="01234567") == (
        f"sample 0 of opinfo:neg in float32 has digest {mine} here and 01234567 in the case: "
        "other values on another machine; replay it where it was found, or draw anew"
    )


def test_a_missing_sample_tensor_or_entry_is_refused() -> None:
    count = len(samples("neg", "float32"))
    assert refusal(index=99) == (
        f"opinfo:neg has no sample 99 in float32 here (it has {count}, up to {count - 1}); draw the case anew"
    )
    assert refusal(tensors=[]) == "sample 0 of opinfo:neg in float32 takes 1 tensors, the case has 0"
    assert refusal(op="opinfo:neq") == (f"torch {torch_version()} has no OpInfo 'neq'; did you mean 'ne' or 'eq' or 'neg'?")
    with pytest.raises(CaseError) as e:
        sample_tensor("opinfo:neg", "float32", 0, 5)
    assert str(e.value) == "sample 0 of opinfo:neg in float32 has 1 tensors, none at 5; draw the case anew"


def test_a_dtype_that_the_entry_cannot_make_is_a_case_error() -> None:
    with pytest.raises(CaseError, match=r"^OpInfo 'linalg.qr' cannot make its samples in bool: .+"):
        samples("linalg.qr", "bool")


@pytest.mark.filterwarnings("ignore")
def test_an_entry_with_only_sparse_samples_has_none_to_take() -> None:
    with pytest.raises(CaseError) as e:
        samples("sparse.sampled_addmm", "float32")
    assert str(e.value) == (
        "OpInfo 'sparse.sampled_addmm' has no sample in float32 that parity can take; choose another dtype or op"
    )
