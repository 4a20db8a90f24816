"""The catalog keeps its word: names, paths, dtypes, gradients and destinations are what the installed torch has."""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from subprocess import run
from sys import executable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import catalog
from parity.catalog import entries
from parity.catalog.draw import Arguments, Draw, Sizes
from parity.catalog.row import OWN, Counts, Forms, Quirk, Row
from parity.catalog.rows.attention import LONG
from parity.catalog.rows.contractions import STACKS
from parity.catalog.signatures import unary
from parity.checks.gauge import GAUGES, through
from parity.core.case import ERROR_KINDS, TORCH_DATA, Arg, Case, OpClass, Slice, TensorSpec, Word
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import UsageError
from parity.execution import values
from parity.generation.generate import decode
from parity.judging.laws import LAWS
from parity.judging.relations import RELATIONS

CASES = 4
ROWS = tuple(catalog.ROWS.values())
NO_DERIVATIVE = "not differentiable when"  # of a complete Q, or of R alone: results whose forward alone is compared


@dataclass
class Tally:
    """Counts per aspect: how many cases ran, how many were refused, and the texts of the refusals."""

    ran: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def note(self, aspect: str, run: Callable[[], Any], what: object) -> Any:
        """Run and count; None where it was refused."""
        try:
            result = run()
        except Exception as e:
            if NO_DERIVATIVE in str(e):
                return None
            self.refused[aspect] = self.refused.get(aspect, 0) + 1
            self.texts.append(f"{aspect} {what}: {type(e).__name__}: {' '.join(str(e).split())[:200]}")
            return None
        self.ran[aspect] = self.ran.get(aspect, 0) + 1
        return result


def resolve(path: str) -> Any:
    """What a dotted path names: the longest importable module, then attributes."""
    if path.startswith("parity."):
        module, name = path.rsplit(".", 1)
        return getattr(import_module(module), name)
    first, *rest = path.split(".")
    return functools.reduce(getattr, rest, import_module(first))


def realise(arg: Arg, tensors: list[Tensor], leaves: bool = False) -> Any:
    """An argument as torch takes it; every tensor is also appended to `tensors`."""
    if isinstance(arg, TensorSpec):
        made = values.dense(replace(arg, values=replace(arg.values, specials=())), len(tensors))
        if leaves and arg.grad and (made.is_floating_point() or made.is_complex()):
            made.requires_grad_()
        tensors.append(made)
        return made
    if isinstance(arg, tuple):
        return tuple(realise(a, tensors, leaves) for a in arg)
    if isinstance(arg, Word):
        return getattr(torch, arg.name)
    if isinstance(arg, Slice):
        return slice(arg.start, arg.stop, arg.step)
    return arg


def built(case: Case, leaves: bool = False) -> tuple[list[Any], dict[str, Any], list[Tensor]]:
    """Arguments of a case, and its tensors in order."""
    tensors: list[Tensor] = []
    args = [realise(a, tensors, leaves) for a in case.args]
    return args, {k: realise(v, tensors, leaves) for k, v in case.kwargs}, tensors


def flat(result: Any) -> list[Tensor]:
    """All tensors of a result."""
    if isinstance(result, Tensor):
        return [result]
    return [t for r in result for t in flat(r)] if isinstance(result, (tuple, list)) else []


def probe(row: Row, dtype: str, count: int, seed: str, tally: Tally, grad: bool | None = None) -> None:
    """Draw cases and try every aspect that the row declares: without layouts, and so without other dtypes, which torch takes
    by the layout."""
    rng = random.Random(f"{seed}:{row.name}:{dtype}")
    function = resolve(row.call)
    for ordinal in range(count):
        case = decode(row, dtype, (lambda n: 0) if ordinal == 0 else lambda n: rng.randrange(n), Sizes(), mixes=False)
        if case.refused:
            continue  # drawn to be refused
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _probe_case(row, case, function, tally, dtype in row.grad if grad is None else grad)


def _probe_case(row: Row, case: Case, function: Callable[..., Any], tally: Tally, grad: bool) -> None:
    args, kwargs, _ = built(case)
    result = tally.note("forward", lambda: function(*args, **kwargs), (case.args, case.kwargs))
    if result is None and not row.forms.mutates:
        return
    outs = [args[0]] if row.forms.mutates else flat(result)
    if grad and any(t.is_floating_point() or t.is_complex() for t in outs):
        tally.note("backward", lambda: _backward(row, case, function), (case.args, case.kwargs))
    if row.forms.out and outs:
        empties = [torch.empty_like(t) for t in outs]
        target: Any = empties[0] if isinstance(result, Tensor) else tuple(empties)
        tally.note("out=", lambda: function(*args, **kwargs, out=target), (case.args, case.kwargs))
    if row.forms.inplace and len(outs) == 1 and isinstance(args[0], Tensor):
        first = args[0]
        if outs[0].shape == first.shape and torch.can_cast(outs[0].dtype, first.dtype):
            method = resolve(row.forms.inplace)
            tally.note("in-place", lambda: method(first.clone(), *args[1:], **kwargs), (case.args, case.kwargs))


def _backward(row: Row, case: Case, function: Callable[..., Any]) -> Any:
    args, kwargs, tensors = built(case, leaves=True)
    if row.forms.mutates:
        original = args[0]
        args[0] = original.clone()
        function(*args, **kwargs)
        outs = [args[0]]
    else:
        gauge = GAUGES.get(row.judged.relation)  # torch refuses gradients of what a choice has an influence on
        call = function if gauge is None else through(gauge, function)
        outs = [t for t in flat(call(*args, **kwargs)) if t.requires_grad]
    leaves = [t for t in tensors if t.requires_grad]
    if not leaves or not any(t.requires_grad for t in outs):
        return ()
    outs = [t for t in outs if t.requires_grad]
    return torch.autograd.grad(outs, leaves, [torch.ones_like(t) for t in outs], allow_unused=True)


@functools.cache
def op_db_names() -> frozenset[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    return frozenset(f"{o.name}:{o.variant_test_name}" if o.variant_test_name else o.name for o in op_db)


def draws(row: Row, count: int, seed: str = "draws") -> list[tuple[str, Arguments]]:
    rng = random.Random(f"{seed}:{row.name}")
    return [(d, row.signature(Draw(rng.randrange, d, Sizes()))) for d in row.dtypes for _ in range(count)]


def operands(arg: Arg) -> list[TensorSpec]:
    if isinstance(arg, TensorSpec):
        return [arg]
    return [s for a in arg for s in operands(a)] if isinstance(arg, tuple) else []


def specs(call: Arguments) -> list[TensorSpec]:
    return [s for a in (*call.args, *(v for _, v in call.kwargs)) for s in operands(a)]


@pytest.mark.cold
def test_loading_the_catalog_does_not_load_torch() -> None:
    script = "import sys, parity.catalog; assert len(parity.catalog.ROWS) > 300; assert 'torch' not in sys.modules"
    assert run([executable, "-c", script], check=False).returncode == 0


def test_names_are_unique_and_families_contiguous() -> None:
    names = [r.name for module in catalog.MODULES for r in module.ROWS]
    assert len(names) == len(set(names)) == len(catalog.ROWS)
    seen = [family for family, _ in itertools.groupby(r.family for module in catalog.MODULES for r in module.ROWS)]
    assert sorted(seen) == sorted(catalog.FAMILIES)


def of_family(family: str) -> list[Row]:
    return [r for r in catalog.ROWS.values() if r.family == family]


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_dotted_paths_resolve(family: str) -> None:
    for row in of_family(family):
        for path in (row.call, row.forms.inplace, row.judged.oracle if "." in row.judged.oracle else ""):
            assert not path or callable(resolve(path)), f"{row.name}: {path}"


def test_rows_use_known_words() -> None:
    for row in ROWS:
        assert row.judged.relation in ("", *RELATIONS), f"{row.name}: relation {row.judged.relation}"
        assert row.judged.oracle in ("wide", "exact") or "." in row.judged.oracle, f"{row.name}: oracle {row.judged.oracle}"
        assert row.dtypes, f"{row.name}: no dtypes"
        assert set(row.dtypes) <= set(DEFAULT), f"{row.name}: dtypes {row.dtypes}"
        assert len(set(row.dtypes)) == len(row.dtypes), f"{row.name}: a dtype twice"
        assert all(FACTS[d].is_inexact for d in row.grad), f"{row.name}: grad {row.grad}"
        assert (row.rule is OpClass.RANDOM) == (row.judged.relation == "random"), f"{row.name}: {row.judged.relation}"


def test_a_star_stands_for_the_name_of_the_row() -> None:
    row = catalog.row("mm")
    plain = replace(
        row, name="relu", call="torch.nn.functional.*", forms=Forms(inplace="torch.Tensor.*_"), counts=Counts(("*", "other"))
    )
    assert (plain.call, plain.forms.inplace) == ("torch.nn.functional.relu", "torch.Tensor.relu_")
    assert plain.counts.opinfo == ("nn.functional.relu", "other")
    assert replace(row, name="fill", call="torch.Tensor.fill_", counts=OWN).counts.opinfo == ("fill_",)
    assert not [r.name for r in ROWS if "*" in (r.call + r.forms.inplace + "".join(r.counts.opinfo))]


def test_rows_use_known_words_for_their_oddities() -> None:
    for row in ROWS:
        assert row.draws.on_cpu in ("", "either", "indices", "rest", "all"), f"{row.name}: on_cpu {row.draws.on_cpu}"
        assert row.refuses.fits in ("", "always", "filled", "never"), f"{row.name}: fits {row.refuses.fits}"
        assert row.refuses.raises_on in ("", "singular", "indefinite"), f"{row.name}: raises_on {row.refuses.raises_on}"
        assert set(row.refuses.takes) <= {"int", "complex"}, f"{row.name}: takes {row.refuses.takes}"
        assert all(w.word in ERROR_KINDS for w in row.refuses.wrong), f"{row.name}: wrong {row.refuses.wrong}"
        assert row.judged.law in ("", *LAWS), f"{row.name}: law {row.judged.law}"


def unusual(rows: Iterable[Row], least: int = 5) -> list[str]:
    """The fields of the parts that fewer rows than `least` use."""
    plain, rows = Row("plain", unary(), family="", rule=OpClass.EXACT), tuple(rows)
    return [
        f"{part.name}.{f.name}"
        for part in fields(Row)
        if is_dataclass(default := getattr(plain, part.name))
        for f in fields(default)
        if sum(getattr(getattr(r, part.name), f.name) != getattr(default, f.name) for r in rows) < least
    ]


def test_what_only_a_few_rows_need_is_a_quirk() -> None:
    rows = (*ROWS, *(r for source in TORCH_DATA for r in entries.rows(source)))
    assert not unusual(rows)
    assert unusual(r for r in rows if not r.draws.packed) == ["draws.packed"]
    assert {q for r in rows for q in r.quirks} == set(Quirk)
    assert not [r.name for r in rows if len(set(r.quirks)) < len(r.quirks)]


def test_opinfo_names_exist() -> None:
    missing = [f"{r.name}: {o}" for r in ROWS for o in r.counts.opinfo if o not in op_db_names()]
    assert missing == []


def test_an_opinfo_entry_is_covered_by_one_row() -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for row in ROWS:
        for name in row.counts.opinfo:
            owners[name].append(row.name)
    assert {o: names for o, names in owners.items() if len(names) > 1} == {}


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_drawn_cases_are_legal(family: str) -> None:
    """At most 2 % of a family's cases and 10 % of an aspect of a row may be refused by the CPU."""
    torch.manual_seed(0)
    ran = refused = 0
    for row in of_family(family):
        tally = Tally()
        for dtype in row.dtypes:
            probe(row, dtype, CASES, "legal", tally)
        for aspect in {*tally.ran, *tally.refused}:
            bad, good = tally.refused.get(aspect, 0), tally.ran.get(aspect, 0)
            ran, refused = ran + good, refused + bad
            assert bad <= 0.1 * (good + bad), f"{row.name} {aspect}: {bad} of {good + bad} refused, such as {tally.texts[0]}"
    assert ran
    assert refused <= 0.02 * (ran + refused), f"{family}: {refused} of {ran + refused} refused"


def test_declared_gradients_work_in_every_dtype() -> None:
    for row in ROWS:
        for dtype in row.grad:
            assert dtype in row.dtypes, f"{row.name}: gradient in {dtype}, which the row does not take"
            tally = Tally()
            probe(row, dtype, 3, "gradients", tally)
            assert tally.ran.get("backward"), f"{row.name} {dtype}: no backward ran; {tally.texts[:1]}"


def test_the_first_case_is_small_and_short() -> None:
    for row in ROWS:
        for dtype in row.dtypes:
            call = row.signature(Draw(lambda n: 0, dtype, Sizes()))
            assert all(s.numel <= 4096 for s in specs(call)), f"{row.name} {dtype}: {specs(call)}"
            assert len(call.kwargs) <= 3, f"{row.name} {dtype}: {call.kwargs}"


def test_drawing_is_a_function_of_the_picks() -> None:
    for row in ROWS:
        assert draws(row, 2) == draws(row, 2), row.name


def test_sizes_stay_within_reach() -> None:
    # The longest stack of the least products with a sum in them; keys of attention whose widths have kernels of their own.
    most = max(2 * max(STACKS), 64 * max(LONG))
    for row in ROWS:
        for dtype, call in draws(row, 4):
            assert all(s.numel <= most for s in specs(call)), f"{row.name} {dtype}: {specs(call)}"


def test_limits_of_integer_operands_are_whole_and_in_range() -> None:
    assert Draw(lambda n: 0, "int8", Sizes()).between((2,), -360, 8.5).values.params == (-128, 8)
    assert Draw(lambda n: 0, "uint8", Sizes()).inside((2,), -1, 300).values.params == (0, 255)
    assert Draw(lambda n: 0, "float16", Sizes()).between((2,), 0.5, 9).values.params == (0.5, 9)


def test_an_op_that_writes_takes_a_tensor_first() -> None:
    for row in ROWS:
        if row.forms.mutates or row.forms.inplace:
            for dtype, call in draws(row, 3):
                assert isinstance(call.args[0], TensorSpec), f"{row.name} {dtype}: {call.args}"


def test_the_main_dtype_is_drawn() -> None:
    for row in ROWS:
        for dtype, call in draws(row, 2):
            assert any(s.dtype == dtype for s in specs(call)), f"{row.name} {dtype}: {specs(call)}"


def test_an_unknown_row_gets_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match=r"unknown op 'layernorm'; did you mean 'layer_norm'"):
        catalog.row("layernorm")


def test_the_probe_sees_a_row_that_lies() -> None:
    """A detector is proved by a planted fault: a dtype and a gradient that the CPU does not have."""
    tally = Tally()
    probe(replace(catalog.row("mm"), dtypes=("bool",)), "bool", 3, "lie", tally)
    assert tally.refused == {"forward": 3}
    tally = Tally()
    probe(catalog.row("slice_scatter"), "complex64", 8, "lie", tally, grad=True)
    assert tally.refused.get("backward")
