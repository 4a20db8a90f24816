"""Backward, backward of backward, and forward-mode: the derivatives of one case on both sides.

The second and the third are calls like any other: a program around the row's function, with the cotangents (or tangents) as
further operands, so that the oracle knows their truth and conditioning.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from parity.checks.further import not_derived
from parity.checks.gauge import GAUGES, Gauge, through
from parity.checks.trial import Lent, Result, Sides, Trial, agrees, compare, outcome_of, raised, values
from parity.core.case import Cotangent, OpClass, TensorSpec
from parity.core.results import DERIVATIVES, Aspect, Computed, Measure, Outcome, Raised, Status, Verdict
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Destination, Named
from parity.execution.inputs import Inputs, Operand, cut
from parity.execution.modes import Unwatched
from parity.judging.rules import rule_of
from parity.oracle.oracle import CaseOracle

make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual
LARGEST = 2048  # elements of a factored matrix: derivatives cost ten times as much as the factors, and their truth more
# torch's messages if a backend's kernel has no derivative beyond the first: it does not have the op in that aspect.
UNDERIVED = (
    "not infinitely differentiable", "Trying to use forward AD with", "is not implemented", "not differentiable",
    "does not support automatic differentiation",
)  # fmt: skip


def check(t: Trial, s: Sides) -> None:
    """Check the requested derivatives of a forward whose operands are leaves on both sides."""
    tracked = ex.differentiable(s.live)
    if not tracked:
        not_derived(t, *DERIVATIVES)
        return
    alike = [n for n, _ in tracked] == [n for n, _ in ex.differentiable(s.theirs)]
    if Aspect.BACKWARD in t.due:
        _backward(t, s, alike)
    if not alike:
        t.due -= {Aspect.DOUBLE, Aspect.TANGENT}
    if Aspect.DOUBLE in t.due:
        _double_backward(t, s, tracked)
    if Aspect.TANGENT in t.due:
        _tangents(t, s)


def check_through_gauge(t: Trial, s: Sides) -> None:
    """Check first and second derivatives of a factorization, of functions that do not depend on the device's choices."""
    gauge, views = GAUGES.get(t.program.row.judged.relation), [o.view for o in t.inputs.operands if o.spec.grad]
    leaves = any(x.is_floating_point() or x.is_complex() for x in views) and sum(x.numel() for x in views) <= LARGEST
    if gauge is None or not leaves or t.case.dtype not in t.program.row.grad or not _apart(gauge, s):
        t.due -= DERIVATIVES
        return
    t.due -= {Aspect.TANGENT}
    program = replace(t.program, function=through(gauge, t.program.function), inplace=None, out=False)
    t.mark("reference")
    live = ex.precisely(lambda: ex.forward(program, t.case, t.inputs, s.here, True), "run")
    if isinstance(live, Raised) or not (tracked := ex.differentiable(live)):
        not_derived(t, *DERIVATIVES)
        return
    t.mark("device")
    theirs = ex.attempt(lambda: ex.forward(program, t.case, t.inputs, s.there, True), "run")
    if isinstance(theirs, Raised):
        t.results.append(raised(Aspect.BACKWARD, s.reference, theirs))
        return
    # Factorizations are stable by norm, like solvers, so `class = "solver"` of the tables applies.
    row = replace(s.bench.row, rule=OpClass.SOLVER)
    bench = replace(s.bench, row=row, oracle=CaseOracle(program, t.case, t.inputs, None), bound=None)
    own, sides = replace(t, program=program), replace(s, bench=bench, live=live, theirs=theirs)
    alike = [n for n, _ in tracked] == [n for n, _ in ex.differentiable(theirs)]
    if Aspect.BACKWARD in t.due:
        _backward(own, sides, alike)
    if not alike:
        t.due -= {Aspect.DOUBLE}
    if Aspect.DOUBLE in t.due:
        _double_backward(own, sides, tracked)


def _apart(gauge: Gauge, s: Sides) -> bool:
    """Whether the derivatives are well defined, and both sides and the truth made the choices on which they depend alike."""
    if not isinstance(s.outcome, Computed):
        return False
    ours, theirs = ([x for _, x in results.tensors] for results in (s.reference, s.outcome))
    truths = [s.bench.oracle.truth(n) for n, _ in s.reference.tensors]
    meant = [x for x in truths if x is not None]
    if len(meant) != len(ours) or len(theirs) != len(ours):
        return False
    chosen = [gauge.chosen(results) for results in (ours, theirs, meant)]
    alike = all(torch.equal(a, b) and torch.equal(a.to(c.dtype), c) for a, b, c in zip(*chosen, strict=True))
    return alike and gauge.apart(s.bench.oracle.operands, meant)


def _fed(cotangent: Cotangent, outputs: Sequence[tuple[str, Tensor]]) -> list[Destination]:
    return [ex.cotangent(cotangent, x, i, values) for i, (_, x) in enumerate(outputs)]


def _cut(c: Destination, device: Device | None = None) -> Tensor:
    """The view of a cotangent, on a device or on the CPU."""
    base = device.upload(c.base) if device is not None and device.name != "cpu" else c.base
    return cut(base, c.layout, c.shape)


def cotangents(t: Trial, live: ex.Live) -> tuple[list[Destination], list[Tensor]]:
    """The cotangents of a forward's results, made once: (bases with layouts, their views on the CPU)."""
    if t.cotangents is None:
        fed = _fed(t.case.cotangent, ex.differentiable(live))
        t.cotangents = fed, [_cut(c) for c in fed]
    return t.cotangents


def _backward(t: Trial, s: Sides, alike: bool) -> None:
    fed, ours = cotangents(t, s.live)
    t.mark("reference")
    got = ex.precisely(lambda: ex.backward(s.live, ours), "backward")
    reference: Outcome = got if isinstance(got, Raised) else Computed(tuple((n, x.detach()) for n, x in got))
    s.bench.oracle.differentiate(ours)
    if isinstance(reference, Raised) or not got:  # no gradient for this dtype, or no output depends on a leaf (norm with p=0)
        not_derived(t, Aspect.BACKWARD)
        return
    if not alike:
        text = "other results require a gradient than on the reference"
        t.results.append(Result(Aspect.BACKWARD, Verdict(Status.MALFORMED, text, Measure("grad", problem="graph"))))
        return
    t.mark("device")

    began = 0.0

    def run() -> Named:
        nonlocal began
        upload = t.device.upload if t.device.name != "cpu" else lambda base: base
        t.fed += [Lent(f"cotangent[{i}]", c.base, upload(c.base)) for i, c in enumerate(fed)]
        began = time.perf_counter()
        return ex.backward(s.theirs, [cut(h.base, c.layout, c.shape) for h, c in zip(t.fed, fed)])

    raw = ex.attempt(run, "backward")
    outcome = outcome_of(t, raw, (Aspect.BACKWARD, began))
    t.mark("compare")

    def again() -> Named:
        return ex.backward(ex.forward(t.program, t.case, t.inputs, s.here, True), ours)

    t.results.append(compare(t, s.bench, Aspect.BACKWARD, reference, outcome, again))


# ------------------------------------------------------------------------------------------------- backward of backward


def _moderate(c: Cotangent) -> Cotangent:
    """The cotangent with ordinary numbers: in a derivative beyond the first it is multiplied with others, and products of
    extreme ones leave the range."""
    return c if c.values in ("ones", "normal", "zero") else replace(c, values="normal")


def _gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a function as a function of its arguments and of the cotangents `fed`."""

    def call(*args: Any, fed: tuple[Tensor, ...], **kwargs: Any) -> list[Tensor]:
        leaves: list[Tensor] = []
        _over((args, kwargs), lambda x: leaves.append(x) if x.requires_grad else None)
        outs = [x for _, x in ex.outputs(function(*args, **kwargs)) if x.requires_grad]
        cotangents = [c.to(x.dtype) for c, x in zip(fed, outs, strict=True)]
        return [g for g in ex.gradients(outs, leaves, cotangents, create=True) if g is not None]

    return call


def _over(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([_over(a, change) for a in tree])
    return {k: _over(v, change) for k, v in tree.items()} if isinstance(tree, dict) else tree


def _with(inputs: Inputs, fed: Sequence[Destination], grad: bool) -> Inputs:
    """The inputs with cotangents or tangents as further operands."""
    more = tuple(
        Operand(
            TensorSpec(str(c.base.dtype).removeprefix("torch."), c.shape, c.layout, grad=grad),
            c.base,
            cut(c.base, c.layout, c.shape),
        )
        for c in fed
    )
    return replace(inputs, operands=(*inputs.operands, *more), fed=len(more))


def _double_backward(t: Trial, s: Sides, tracked: Named) -> None:
    """Differentiate the gradients, contracted with random vectors, with respect to operands and cotangents."""
    inputs = _with(t.inputs, _fed(_moderate(t.case.cotangent), tracked), True)
    program = replace(t.program, function=_gradients(t.program.function), inplace=None, out=False)
    t.mark("reference")
    here = ex.place(inputs, t.cpu)

    def first(placed: ex.Placed) -> ex.Live:
        return ex.forward(program, t.case, inputs, placed, True)

    live = ex.precisely(lambda: first(here), "run")
    if isinstance(live, Raised) or not (again_tracked := ex.differentiable(live)):
        not_derived(t, Aspect.DOUBLE)  # torch has no second one here, or it is 0 everywhere
        return
    vectors = _fed(Cotangent("normal", "contiguous", t.case.cotangent.seed + 1), again_tracked)
    ours = [_cut(c) for c in vectors]
    got = ex.precisely(lambda: ex.backward(live, ours), "backward")
    if isinstance(got, Raised) or not got:
        not_derived(t, Aspect.DOUBLE)
        return
    oracle = CaseOracle(program, t.case, inputs, None)
    oracle.differentiate(ours)
    t.mark("device")

    def run() -> Named:
        theirs = first(ex.place(inputs, t.device))
        if [n for n, _ in ex.differentiable(theirs)] != [n for n, _ in again_tracked]:
            raise RuntimeError("other gradients require a gradient than on the reference")
        return ex.backward(theirs, [_cut(c, t.device) for c in vectors])

    outcome = outcome_of(t, _missing(ex.attempt(run, "backward")))
    t.mark("compare")
    reference = Computed(tuple((n, x.detach()) for n, x in got))
    row = s.bench.row
    bench = replace(s.bench, row=rule_of(row).differentiated(row), oracle=oracle, bound=None)
    result = compare(t, bench, Aspect.DOUBLE, reference, outcome, lambda: ex.backward(first(here), ours))
    t.results.append(_renamed(result, "grad[", "gradgrad["))


# --------------------------------------------------------------------------------------------------------- forward-mode


def _pushed(function: Callable[..., Any], moving: Sequence[bool]) -> Callable[..., Any]:
    """The tangents of a function's results by forward mode, as a function of its arguments and of the tangents `fed` of the
    moving ones."""

    def call(*args: Any, fed: tuple[Tensor, ...], **kwargs: Any) -> list[Tensor]:
        tangents, moves = iter(fed), iter(moving)

        def dual(x: Tensor) -> Tensor:
            return make_dual(x, next(tangents).to(x.dtype)) if next(moves) else x

        with forward_ad.dual_level():
            dual_args, dual_kwargs = _over((args, kwargs), dual)
            duals = [(x.dtype, unpack_dual(x).tangent) for _, x in ex.outputs(function(*dual_args, **dual_kwargs))]
        # torch's formulas give mixed dtypes the wider one, unless the layout makes torch copy the tangent into the result's.
        return [x.to(dtype) for dtype, x in duals if x is not None]

    return call


def _pulled(function: Callable[..., Any], moving: Sequence[bool]) -> Callable[..., Any]:
    """The same tangents by reverse mode, as the derivative of the gradient with respect to its cotangent; the oracle computes
    these.

    Forward mode under a dispatch mode reads through a null pointer in torch 2.13: its zero tensors have no memory, and `mul` by
    a number takes them for ordinary ones.
    """

    def call(*args: Any, fed: tuple[Tensor, ...], **kwargs: Any) -> list[Tensor]:
        moves, xs = iter(moving), list[Tensor]()

        def leaf(x: Tensor) -> Tensor:
            if not next(moves):
                return x
            xs.append(x.detach().requires_grad_())
            return xs[-1]

        again_args, again_kwargs = _over((args, kwargs), leaf)
        outs = [x for _, x in ex.outputs(function(*again_args, **again_kwargs)) if x.requires_grad]
        duals = [torch.zeros_like(x).requires_grad_() for x in outs]
        gradients = ex.gradients(outs, xs, duals, create=True)
        pairs = [(g, v.to(g.dtype)) for g, v in zip(gradients, fed, strict=True) if g is not None and g.requires_grad]
        tangents = torch.autograd.grad([g for g, _ in pairs], duals, [v for _, v in pairs], allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for g, x in zip(tangents, outs)]

    return call


def _tangents(t: Trial, s: Sides) -> None:
    """Check directional derivatives of all results along random tangents of the operands that may have a gradient."""
    if not _plain(t, s):
        t.due -= {Aspect.TANGENT}
        return
    moving = [o.spec.grad and (o.view.is_floating_point() or o.view.is_complex()) for o in t.inputs.operands]
    spread = Cotangent("normal", t.case.cotangent.layout, t.case.cotangent.seed + 2)
    fed = _fed(spread, [("", o.view) for o, m in zip(t.inputs.operands, moving) if m])
    inputs = _with(t.inputs, fed, False)
    program = replace(t.program, function=_pushed(t.program.function, moving), inplace=None, out=False)
    slow = replace(program, function=_pulled(t.program.function, moving))
    t.mark("reference")
    here = ex.place(inputs, t.cpu)

    def run(placed: ex.Placed) -> Named:
        return ex.forward(program, t.case, inputs, placed, False).outputs

    got = ex.precisely(lambda: run(here), "run")
    if isinstance(got, Raised) or not got or not _finite(got, {x.dtype for _, x in s.live.outputs}):
        not_derived(t, Aspect.TANGENT)
        return
    t.mark("device")
    outcome = outcome_of(t, _missing(ex.attempt(lambda: run(ex.place(inputs, t.device)), "run")))
    t.mark("compare")
    reference = Computed(tuple((n, x.detach()) for n, x in got))
    if agreed := agrees(t, Aspect.TANGENT, reference.tensors, outcome):
        t.results.append(_renamed(agreed, "out", "tangent"))
        return
    oracle, other = CaseOracle(slow, t.case, inputs, None), CaseOracle(program, t.case, inputs, None)
    with Unwatched():
        known = all(_same(oracle.truth(n), other.truth(n)) for n, _ in got)
    if not known:
        t.due -= {Aspect.TANGENT}
        return
    bench = replace(s.bench, oracle=oracle, bound=None)
    result = compare(t, bench, Aspect.TANGENT, reference, outcome, lambda: run(here))
    if result.verdict.status.is_finding:
        # torch's formulas for tangents may cancel where its gradients only choose (minimum: y + (x < y) (x - y)).
        pushed = replace(bench, oracle=other)
        result = compare(t, pushed, Aspect.TANGENT, reference, outcome, lambda: run(here))
    t.results.append(_renamed(result, "out", "tangent"))


def _same(pulled: Tensor | None, pushed: Tensor | None) -> bool:
    """Whether torch's two ways to a tangent agree in float64.

    The derivative of batch_norm's gradient omits a bias if there is no weight, or fails; then it is no truth.
    """
    if pulled is None or pushed is None or pulled.shape != pushed.shape:
        return False
    size = pushed.abs().nan_to_num(0.0, 0.0, 0.0)
    return torch.allclose(pulled, pushed, 1e-6, 1e-9 * float(size.max() if size.numel() else 0.0), equal_nan=True)


def _plain(t: Trial, s: Sides) -> bool:
    """Whether tangents are meaningful for this case.

    torch keeps zero tangents as tensors without memory. They swallow a NaN or Inf on one path and not on another, and lose
    their dtype in 0-d tensors and among mixed dtypes.
    """
    if t.program.row.forms.promotes and len({o.spec.dtype for o in t.inputs.operands}) > 1:
        return False
    given = [("", o.view) for o in t.inputs.operands]
    return _finite([*given, *s.live.outputs], None)


def _finite(named: Sequence[tuple[str, Tensor]], dtypes: set[torch.dtype] | None) -> bool:
    """Whether all numbers are finite, and of these dtypes if any are given."""
    for _, x in named:
        if dtypes is not None and x.dtype not in dtypes:
            return False
        y = x.detach()
        if (y.is_floating_point() or y.is_complex()) and bool((y - y).any()):  # Inf - Inf is NaN, which is not 0
            return False
    return True


def _missing(raw: Named | Raised) -> Named | Raised:
    """A missing derivative as a refusal: the device does not have the op in this aspect."""
    if isinstance(raw, Raised) and any(text in raw.message for text in UNDERIVED):
        return replace(raw, kind="refused")
    return raw


def _renamed(result: Result, old: str, new: str) -> Result:
    v = result.verdict
    measure = None if v.measure is None else _named(v.measure, old, new)
    measures = tuple(_named(m, old, new) for m in result.measures)
    return Result(result.aspect, replace(v, measure=measure), measures)


@functools.lru_cache(maxsize=1024)
def _named(m: Measure, old: str, new: str) -> Measure:
    """The measure with its tensor renamed; cached, because most measures are those of bit-identical results."""
    return replace(m, tensor=new + m.tensor.removeprefix(old)) if m.tensor.startswith(old) else m
