"""Cases from their text, as tests of the oracle, the judge and the checks need them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity import catalog, tolerance
from parity.catalog.row import Row
from parity.checks.check import Settings, check, failing, quiet
from parity.checks.trial import Result
from parity.core.notation import parse
from parity.core.results import Verdict
from parity.devices import resolve
from parity.devices.base import Device
from parity.execution import execute
from parity.execution.execute import Live
from parity.execution.inputs import Inputs, build
from parity.judging.bench import Bench
from parity.judging.judge import judge
from parity.judging.relations import Bound
from parity.judging.sameness import bits
from parity.oracle.oracle import CaseOracle
from parity.oracle.protocol import Oracle

CPU = resolve("cpu")
DEFAULT = Settings()
tables = functools.cache(tolerance.load)


class Prepared(NamedTuple):
    """A case that is ready to be judged. results: what the CPU computes, by name."""

    bench: Bench
    results: dict[str, Tensor]
    inputs: Inputs


def oracle_for(
    text: str, computes: torch.dtype | None = torch.float32, cotangents: Sequence[Tensor] = (), inputs: Inputs | None = None
) -> CaseOracle:
    """The oracle of a case; with cotangents also of its gradients. inputs: operands to use instead of the drawn ones."""
    case = parse(text)
    oracle = CaseOracle(execute.program(catalog.row(case.op)), case, inputs or build(case), computes)
    if cotangents:
        oracle.differentiate(cotangents)
    return oracle


def bench_for(
    row: str | Row, oracle: Oracle, device: str = "cpu", bound: Bound | None = None, always_use_oracle: bool = True
) -> Bench:
    """A bench with the tables of a device, at which every result is judged by its whole budget unless said otherwise."""
    known = catalog.row(row) if isinstance(row, str) else row
    return Bench(known, tables(device), oracle, bound, always_use_oracle, whole=always_use_oracle)


def on_the_cpu(text: str, grad: bool = False) -> tuple[Live, Inputs]:
    """The CPU's forward call of a case, and its operands."""
    case = parse(text)
    inputs = build(case)
    return execute.forward(execute.program(catalog.row(case.op)), case, inputs, execute.place(inputs, CPU), grad), inputs


@functools.lru_cache(maxsize=64)
def prepared(text: str, device: str = "cpu", always_use_oracle: bool = True) -> Prepared:
    """A case that is ready to be judged. Tests share it, so they must not write into its operands and results."""
    live, inputs = on_the_cpu(text)
    results = dict(live.outputs)
    oracle = oracle_for(text, live.outputs[0][1].dtype, inputs=inputs)
    return Prepared(bench_for(parse(text).op, oracle, device, always_use_oracle=always_use_oracle), results, inputs)


def verdict_on(text: str, change: Callable[[Tensor], Tensor], device: str = "cpu", reference: bool = True) -> Verdict:
    """The verdict on results that are `change(the CPU's)`. reference: whether the judge sees the CPU's as well."""
    bench, results, _ = prepared(text, device)
    return judge(bench, {n: change(t.clone()) for n, t in results.items()}, results if reference else None, "forward")[0]


def checked(device: Device, text: str, settings: Settings = DEFAULT) -> dict[str, Result]:
    """The results of checking a case on a device, by aspect."""
    case = parse(text)
    with device.active():
        results, _ = check(catalog.row(case.op), case, device, CPU, tables(device.name), settings, quiet, [])
    return {str(r.aspect): r for r in results}


def faulty_aspects(device: Device, text: str, settings: Settings = DEFAULT) -> set[str]:
    """The aspects with a finding."""
    return {str(r.aspect) for r in failing(list(checked(device, text, settings).values()))}


def ulp_distance(a: Tensor, b: Tensor) -> npt.NDArray[np.int64]:
    """Distance in representable numbers per real element; undefined where either is NaN."""
    x, y = (bits(t).reshape(-1).numpy().astype(np.int64) for t in (a, b))
    mask = np.int64((1 << (8 * (a.element_size() // (2 if a.is_complex() else 1)) - 1)) - 1)
    x, y = np.where(x < 0, -(x & mask), x), np.where(y < 0, -(y & mask), y)
    with np.errstate(over="ignore"):
        return np.asarray(np.abs(x - y), dtype=np.int64)
