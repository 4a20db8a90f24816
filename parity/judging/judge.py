"""Measures and tolerances -> verdicts: agree, drift, wrong or malformed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parity.core.dtypes import FACTS
from parity.core.observer import TooLongError
from parity.core.results import Measure, Status, Verdict, left_unjudged
from parity.execution.inputs import apply
from parity.judging.bench import Bench
from parity.judging.destination import EXACT, Part, equal, form, inner, stray, written, written_outside
from parity.judging.exact import exactly, unfamiliar, where_the_reference_errs
from parity.judging.measures import facts_of
from parity.judging.numeric import by_oracle
from parity.judging.relations import RELATIONS, Bound, Problem, Relation, Unjudged
from parity.judging.rules import rule_of, rule_of_pass
from parity.judging.sameness import bit_equal, same_bits, same_bytes, same_values
from parity.oracle.yardstick import DESTINATION

FORM = "only the form is promised"
TOO_LONG = "not judged: to see what roundings do to it takes too many operators"


def judge(
    bench: Bench,
    device: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    pass_: str,
    parts: Mapping[str, Part] | None = None,
) -> tuple[Verdict, tuple[Measure, ...]]:
    """The verdict over all tensors of one aspect, and a measure of each. The worst tensor decides.

    reference: None if the reference refused the dtype; then the truth alone decides.
    """
    if bench.bits_suffice and reference is not None and (sizes := _identical(device, reference)):
        return agreed(sizes)
    if reference is not None and set(device) != set(reference):
        odd = sorted(set(device) ^ set(reference))
        where = "is missing on the device" if odd[0] in reference else "exists on the device only"
        return Verdict(Status.MALFORMED, f"{odd[0]} {where}", Measure(odd[0], problem="missing")), ()
    related = _Related()
    relation = RELATIONS.get(bench.row.judged.relation) if pass_ == "forward" else None
    if relation is not None and bench.bound is not None:
        answer = _related(bench, bench.bound, relation, device, reference, parts)
        if isinstance(answer, Verdict):
            return answer, ()
        related = answer
    verdicts = [*related.verdicts]
    for name, x in device.items():
        ref = None if reference is None else reference[name]
        part = None if parts is None else parts.get(name)
        if inner(name) in related.covered:
            bad = None if part is None else form(name, x, part.before) or stray(name, x, part)
            verdicts.append(bad or _by_relation(bench, name, x, part, related))
        elif part is not None:
            verdicts.append(_part(bench, name, x, ref, part, pass_))
        else:
            verdicts.append(_tensor(bench, name, x, ref, name, pass_))
    if not verdicts:
        return Verdict(Status.VOID, "the op returned no tensor"), ()
    return max(verdicts, key=_badness), tuple(v.measure for v in verdicts if v.measure is not None)


@dataclass(frozen=True, slots=True)
class _Related:
    """The answer of a relation. covered: names of the results that it judges; verdicts: its findings; unjudged: the matrices of
    these results that it does not judge."""

    covered: frozenset[str] = frozenset()
    verdicts: tuple[Verdict, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()


def _related(
    bench: Bench,
    bound: Bound,
    relation: Relation,
    device: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    parts: Mapping[str, Part] | None,
) -> _Related | Verdict:
    """Check what must hold between results and operands. Returns a verdict if that settles the whole comparison."""
    malformed = [v for n, x in device.items() if (v := form(n, x, None if reference is None else reference[n])) is not None]
    if malformed:
        return malformed[0]
    bound = replace(bound, vanishes=rule_of(bench.row).vanishing(bench.row, bench.tables, bound.args))
    results = written(device, parts)
    if reference is not None:
        broken = [p for p in relation.problems(bound, written(reference, parts)) if isinstance(p, Problem)]
        if broken and all(same_values(x, reference[n]) for n, x in device.items()):
            return Verdict(Status.AGREE, "equals the reference, which is wrong itself", Measure(next(iter(device))))
        if broken:
            return Verdict(Status.VOID, f"the reference is wrong itself: {broken[0].what}", Measure(broken[0].name))
    problems = relation.problems(bound, results)
    verdicts = [
        Verdict(Status.WRONG if p.ratio is None else Status.DRIFT, p.what, Measure(p.name, p.ratio, problem="relation"), EXACT)
        for p in problems
        if isinstance(p, Problem)
    ]
    unjudged = tuple(p for p in problems if isinstance(p, Unjudged))
    return _Related(relation.covers(bound, results), tuple(verdicts), unjudged)


def _by_relation(bench: Bench, name: str, x: Tensor, part: Part | None, related: _Related) -> Verdict:
    """The verdict on a result that a relation covers and has no finding for."""
    total = x.numel() if part is None else math.prod(part.shape)
    if rule_of(bench.row).form_only:
        return Verdict(Status.AGREE, FORM, Measure(name, screen="form"), EXACT)
    count, why = 0, ""
    for u in related.unjudged:
        if u.name == inner(name):
            each = total // max(1, u.where.numel())
            count, why = max(count, int(u.where.sum()) * each), u.why
    m = Measure(name, screen="relation", total=total, unjudged=count, why=why)
    if total and count == total:
        return Verdict(Status.VOID, left_unjudged(m), m)
    return Verdict(Status.AGREE, f"by relation; {left_unjudged(m)}" if count else "by relation", m, EXACT)


def _identical(device: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[tuple[str, int], ...]:
    """(name, number of elements) of all results if both sides have the same bits under the same names; else ()."""
    if len(device) != len(reference):
        return ()
    sizes = []
    for name, x in device.items():
        r = reference.get(name)
        if r is None or x.dtype is not r.dtype or x.shape != r.shape or x.layout is not torch.strided:
            return ()
        same = same_bytes(x, r)
        if same is None:
            same = not (x.is_quantized or (x.element_size() > 8 and not x.is_complex())) and bit_equal(x, r)
        if not same:
            return ()
        sizes.append((name, x.numel()))
    return tuple(sizes)


@functools.lru_cache(maxsize=4096)
def agreed(sizes: tuple[tuple[str, int], ...]) -> tuple[Verdict, tuple[Measure, ...]]:
    """Cached AGREE verdict for bit-identical results; most results are."""
    measures = tuple(Measure(name, screen="bit-equal", total=total) for name, total in sizes)
    return Verdict(Status.AGREE, "", measures[0], EXACT), measures


def _badness(v: Verdict) -> tuple[bool, int, bool, float]:
    """A wrong shape or dtype is the worst: no value can be compared with it. What may be marginal is the least drift."""
    error_ratio = v.measure.share if v.measure is not None and v.measure.share is not None else -1.0
    return v.status is Status.MALFORMED, v.status.severity, not v.near, error_ratio


def _part(bench: Bench, name: str, device: Tensor, reference: Tensor | None, part: Part, pass_: str) -> Verdict:
    """The verdict on a whole destination: nothing outside of the view may change, and the view must hold the result."""
    if (bad := form(name, device, part.before)) is not None:
        return bad
    if bench.bits_suffice and reference is not None and reference.shape == device.shape and bit_equal(device, reference):
        return Verdict(Status.AGREE, "", Measure(name, screen="bit-equal", total=device.numel()), EXACT)
    astray = reference is not None and stray(name, reference, part) is not None
    if astray and reference is not None:
        astray = torch.equal(written_outside(device, part), written_outside(reference, part))
        if astray and rule_of(bench.row).has_values and _nearly(device, reference):
            same = Measure(name, screen="reference", total=device.numel())
            return Verdict(Status.AGREE, "the reference writes outside its destination too", same, EXACT)
        # A reference that writes outside its destination excuses only the same writes; otherwise the truth decides alone.
        reference = reference if astray else None
    if not astray and (bad := stray(name, device, part)) is not None:
        return bad
    if not rule_of(bench.row).has_values:
        return Verdict(Status.AGREE, FORM, Measure(name, screen="form"), EXACT)
    mine = apply(device, part.layout, part.shape)
    theirs = None if reference is None else apply(reference, part.layout, part.shape)
    verdict = _tensor(bench, name, mine, theirs, inner(name), pass_)
    if verdict.status is not Status.AGREE and bool(equal(mine, apply(part.before, part.layout, part.shape)).all()):
        return replace(verdict, status=Status.WRONG, reason="nothing was written", excess=None)
    return verdict


def _nearly(device: Tensor, reference: Tensor) -> bool:
    """Whether two destinations hold the same numbers up to a few roundings."""
    if not (device.is_floating_point() or device.is_complex()):
        return same_values(device, reference)
    f = torch.finfo(device.dtype)
    return torch.allclose(device, reference, DESTINATION * f.eps, DESTINATION * f.smallest_normal * f.eps, equal_nan=True)


def _tensor(bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth_name: str, pass_: str) -> Verdict:
    """The verdict on one tensor by value."""
    if (bad := form(name, device, reference)) is not None:
        return bad
    if device.layout is not torch.strided or device.is_quantized:
        return Verdict(Status.VOID, f"parity does not judge {str(device.layout).removeprefix('torch.')} results", Measure(name))
    if str(device.dtype).removeprefix("torch.") not in FACTS:
        return unfamiliar(bench, name, device, reference)
    row, f = bench.row, facts_of(device)
    exact = not f.is_inexact or rule_of_pass(row, pass_).exact
    if exact and reference is not None:
        verdict = exactly(bench, name, device, reference)
        right = verdict.status.is_finding and f.is_inexact and row.judged.oracle != "exact"
        return where_the_reference_errs(bench, name, device, reference, truth_name) or verdict if right else verdict
    if bench.bits_suffice and reference is not None and bit_equal(device, reference):
        return Verdict(Status.AGREE, "", Measure(name, screen="bit-equal", total=device.numel()), EXACT)
    known = None if bench.limits is not None else bench.verdicts.get((truth_name, pass_))
    if known is not None and same_bits(device, known[0]) and same_bits(reference, known[1]):
        verdict = known[2]
        return verdict if verdict.measure is None else replace(verdict, measure=replace(verdict.measure, tensor=name))
    try:
        verdict = by_oracle(bench, name, device, reference, truth_name, pass_, exact)
    except TooLongError:
        verdict = Verdict(Status.VOID, TOO_LONG, Measure(name))
    bench.verdicts[truth_name, pass_] = device, reference, verdict
    return verdict
