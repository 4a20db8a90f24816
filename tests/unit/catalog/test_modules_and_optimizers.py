"""torch's own modules and optimizers as rows: what is listed, that cases are repeatable, and that planted faults are found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity import tolerance
from parity.catalog import entries, module_entries, opinfo_rules, optimizer_entries
from parity.catalog.draw import Sizes
from parity.catalog.samples import not_imported, stored, torch_version
from parity.checks.check import Settings, check, quiet
from parity.core.case import Case
from parity.core.notation import case_text, parse
from parity.core.results import FINDINGS
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.generation.generate import nth
from parity.report import script

CPU = resolve("cpu")
TABLES = tolerance.load("sim")
SIZES = Sizes()


def results(op: str, faults: tuple[Fault, ...] = (), cases: int = 6, until: str = "") -> dict[str, str]:
    """Name of each result that is a finding -> status, in the first cases of a row in float32 on a simulated device; no
    further than a case that has a finding with `until` in its name."""
    row, device, found = suite.row(op), resolve("sim", faults), dict[str, str]()
    torch.autograd.set_multithreading_enabled(False)
    compared = 0
    for k in range(cases):
        case = nth(row, "float32", SIZES, "0", k).case
        with device.active():
            checked, _ = check(row, case, device, CPU, TABLES, Settings(), quiet, [])
        compared += sum(r.verdict.status == "agree" for r in checked)
        failing = [r.verdict for r in checked if r.verdict.status in FINDINGS]
        found |= {v.measure.tensor if v.measure else "": str(v.status) for v in failing}
        if until and any(until in tensor for tensor in found):
            break
    assert compared or found
    return found


# ---------------------------------------------------------------------------------------------------------------- the lists


def test_every_module_and_optimizer_of_torch_has_rows() -> None:
    if stored(module_entries.NAMES)["torch"] != torch_version():
        pytest.skip("the lists are of another torch")
    modules = {module_entries.module_of(key) for key in module_entries.ENTRIES}
    assert modules == set(module_entries.database())
    assert len(modules) == 114
    listed = {optimizer_entries.optimizer_of(key) for key in optimizer_entries.ENTRIES}
    assert listed == set(optimizer_entries.database())
    assert len(listed) == 15
    assert all(e.dtypes for e in module_entries.ENTRIES.values())
    assert all(e.dtypes for e in optimizer_entries.ENTRIES.values())


def test_modes_are_those_that_torch_tests() -> None:
    differ = {name for name, info in module_entries.database().items() if info.train_and_eval_differ}
    both = {module_entries.module_of(k) for k in module_entries.ENTRIES if k.endswith(":eval")}
    assert both == differ == {module_entries.module_of(k) for k in module_entries.ENTRIES if k.endswith(":train")}


def test_facts_name_modules_and_functions_that_exist() -> None:
    known = {module_entries.module_of(key) for key in module_entries.ENTRIES}
    named = {
        *opinfo_rules.FUNCTION_OF,
        *opinfo_rules.PACKED_MODULES,
        *opinfo_rules.PACKED_BY_PARITY,
        *opinfo_rules.PADDED,
        *opinfo_rules.UNEXPANDED,
    }
    assert named <= known
    assert {f"opinfo:{e}" for e in opinfo_rules.CALLS} <= {r.name for r in entries.rows("opinfo")}


def test_patterns_find_modules_by_their_names() -> None:
    assert {i.row.name for i in suite.select(["nn.LSTM"], source="modules")} == {
        "modules:nn.LSTM:train",
        "modules:nn.LSTM:eval",
        "modules:nn.LSTM:state",
    }
    assert {i.row.name for i in suite.select(["SGD:*"], source="optimizers")} > {"optimizers:SGD:foreach"}


# ---------------------------------------------------------------------------------------------------------------- cases


@pytest.mark.parametrize("op", ["modules:nn.LSTM:train", "modules:nn.LazyConv2d", "optimizers:Adam:capturable"])
def test_a_case_is_read_back_and_made_again(op: str) -> None:
    row = suite.row(op)
    case = nth(row, "float32", SIZES, "7", 3).case
    assert parse(case_text(case)) == case
    before = {k: s.digest for k, s in entries.samples(op, "float32").items()}
    module_entries.samples.cache_clear()
    optimizer_entries.samples.cache_clear()
    torch.manual_seed(99)
    assert {k: s.digest for k, s in entries.samples(op, "float32").items()} == before


def test_recurrent_layers_take_packed_sequences_and_encoders_padding() -> None:
    assert any(s.kwargs.get("lengths") for s in entries.samples("modules:nn.LSTM:eval", "float32").values())
    padded = entries.samples("modules:nn.TransformerEncoder:eval", "float32")
    assert any(s.kwargs.get("padded") for s in padded.values())


def test_statistics_and_weights_are_no_constants() -> None:
    """A running mean of 0 and a weight of 1 would hide a device that ignores them."""
    for sample in entries.samples("modules:nn.BatchNorm2d:eval", "float32").values():
        state = sample.args[3]
        assert all(torch.unique(t).numel() > 1 for t in state.values() if t.is_floating_point())


def test_pooled_samples_have_no_ties() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        for sample in entries.samples("modules:nn.MaxPool3d", dtype).values():
            assert torch.unique(sample.tensors[0]).numel() == sample.tensors[0].numel()


# What torch refuses, by implementation: numbers that are tensors in its list of kernels without `capturable`.
REFUSED = {("Adam:foreach", "tensor"), ("AdamW:foreach", "tensor")}
# Options of no kernel: how a step is made, where and how often a search for a step ends, and what a sample sets itself.
NO_NUMBER = {
    *("params", "foreach", "fused", "capturable", "differentiable", "max_iter", "max_eval", "tolerance_grad"),
    *("tolerance_change", "ns_coefficients"),
}


@pytest.mark.parametrize("key", ["SGD:fused", "Adam:foreach", "AdamW:capturable", "RMSprop", "ASGD:differentiable", "LBFGS"])
def test_every_option_of_an_optimizer_is_set_and_tensors_where_it_takes_them(key: str) -> None:
    """In every implementation, in a sample that the CPU takes."""
    takes = inspect.signature(getattr(torch.optim, optimizer_entries.optimizer_of(key))).parameters
    given = [s.args[3] for s in optimizer_entries.samples(key, "float32").values()]
    plain = {n for n, p in takes.items() if any(n in o and not torch.is_tensor(o[n]) and o[n] != p.default for o in given)}
    assert plain >= set(takes) - NO_NUMBER
    tensors = {n for o in given for n, v in o.items() if any(map(torch.is_tensor, v if isinstance(v, tuple) else (v,)))}
    wanted = {n for n, p in takes.items() if n != "params" and "Tensor" in str(p.annotation)}
    assert tensors == (set() if (key, "tensor") in REFUSED else wanted)


def test_fused_steps_are_scaled_and_skipped() -> None:
    """As a gradient scaler asks for."""
    kinds = {s.args[4] for s in optimizer_entries.samples("Adagrad:fused", "float32").values()}
    assert kinds == {"", *optimizer_entries.SCALED}


# -------------------------------------------------------------------------------------------------------------- faults


def _scaled(which: int, factor: float) -> Callable[[Call], Any]:
    def effect(call: Call) -> Any:
        result = call.run()
        (result[which] if isinstance(result, (tuple, list)) else result).mul_(factor)
        return result

    return effect


def _variance(call: Call) -> Any:
    result = call.run()
    call.args[4].mul_(1.02)
    return result


def _recurrent_weights(call: Call) -> Any:
    x, hidden, *rest = call.run()
    return x, [w * 1.01 for w in hidden], *rest


def _in_place(call: Call) -> Any:
    result = call.run()
    for out in call.outs or ():
        out.mul_(1.01)
    return result


def _minimizes(call: Call) -> Any:
    call.kwargs["maximize"] = False
    return call.run()


def _never_skips(call: Call) -> Any:
    call.kwargs["found_inf"] = None
    return call.run()


def _of_another_rate(call: Call) -> Any:
    call.kwargs["lr"] = call.kwargs["lr"] * 1.25
    return call.run()


def _rate_is_a_tensor(call: Call) -> bool:
    return torch.is_tensor(call.kwargs.get("lr"))


def _half(call: Call) -> Any:
    call.outs[0].copy_(call.args[0].half())


def has_statistics(call: Call) -> bool:
    """Whether batch_norm got running statistics, and updates them."""
    return call.args[4] is not None and bool(call.args[5])


def _has_the_weight(call: Call) -> bool:
    """Whether the copied tensor has as many elements as the weight of Linear(10, 8)."""
    return bool(call.args[0].numel() == 80)


def _asks_to_maximize(call: Call) -> bool:
    return bool(call.kwargs.get("maximize"))


VARIANCE = Fault("variance", ("native_batch_norm",), _variance, when=has_statistics)
LSTM = Fault("lstm", ("lstm_mps_backward",), _recurrent_weights)
PRECISION = Fault("precision", ("upload",), _half, level="transfer", when=_has_the_weight)
MAXIMIZE = Fault("maximize", ("_fused_adam_",), _minimizes, when=_asks_to_maximize)
# Row, fault, and part of the name of a tensor that it spoils.
FAULTS = {
    "variance": ("modules:nn.BatchNorm2d:train", VARIANCE, "running_var"),
    "lstm": ("modules:nn.LSTM:train", LSTM, "grad["),
    "gelu": ("modules:nn.GELU", Fault("gelu", ("gelu",), _scaled(0, 1.001)), "out"),
    "amsgrad": ("optimizers:Adam", Fault("amsgrad", ("maximum",), _in_place), "max_exp_avg_sq"),
    "maximize": ("optimizers:Adam:fused", MAXIMIZE, "exp_avg"),
    "skips": ("optimizers:Adam:fused", Fault("skips", ("_fused_adam_",), _never_skips), "exp_avg"),
    "rate": ("optimizers:SGD:fused", Fault("rate", ("_fused_sgd_",), _of_another_rate, when=_rate_is_a_tensor), "param"),
    "native rate": ("fused_adagrad", Fault("rate", ("_fused_adagrad_",), _of_another_rate, when=_rate_is_a_tensor), "out"),
    "precision": ("modules:nn.Linear:state", PRECISION, "moved"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_the_tensor_that_it_spoils(name: str) -> None:
    op, fault, where = FAULTS[name]
    found = results(op, (fault,), cases=16, until=where)
    assert any(where in tensor for tensor in found), found


@pytest.mark.parametrize("op", dict.fromkeys(op for op, _, _ in FAULTS.values()))
def test_a_healthy_device_is_not_accused(op: str) -> None:
    assert results(op) == {}


# -------------------------------------------------------------------------------------------------------------- scripts


def written(case: Case) -> str:
    text = script.standalone(case, "forward", "sim", "title")
    assert text is not None
    return text


@pytest.mark.parametrize("op", ["modules:nn.BatchNorm2d:eval", "optimizers:AdamW:foreach", "modules:nn.GRU:state"])
def test_a_finding_has_a_script_of_torch_alone(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs, on the CPU next to the CPU, and agrees."""
    text = written(nth(suite.row(op), "float32", SIZES, "pinned", 0).case)
    assert "parity" not in "".join(line for line in text.splitlines() if line.startswith(("import", "from")))
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__", "sys": __import__("sys")})
    assert ended.value.code in (0, 2), capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "to_do"),
    [
        (ModuleNotFoundError("No module named 'expecttest'", name="expecttest"), "pip install numpy expecttest"),
        (ModuleNotFoundError("No module named 'torch.gone'", name="torch.gone"), "this torch fails in itself"),
        (ImportError("cannot import name 'x' from 'torch._dynamo'", name="torch._dynamo"), "this torch fails in itself"),
    ],
)
def test_only_for_a_missing_package_it_is_said_what_to_install(error: Exception, to_do: str) -> None:
    assert str(not_imported("torch's OpInfos", error)).endswith(to_do)
