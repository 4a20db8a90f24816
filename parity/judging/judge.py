"""Measures, tolerance -> verdict: agree, drift, wrong or malformed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parity.dtypes import FACTS
from parity.inputs import apply
from parity.judging.bench import Bench
from parity.judging.destination import EXACT, Part, beside, equal, form, inner, stray, written
from parity.judging.exact import exactly, unfamiliar, where_the_reference_errs
from parity.judging.limits import left_unjudged
from parity.judging.measures import bit_equal, facts_of, same_bits, same_bytes, same_values
from parity.judging.numeric import by_oracle
from parity.judging.promises import vanishing
from parity.judging.relations import RELATIONS, Bound, Problem, Relation, Unjudged
from parity.vocabulary import Measure, OpClass, Status, Verdict

ROUNDINGS = 32.0  # what a destination may be off by that the reference misses too, in units of 2 u
UNVALUED = (OpClass.RANDOM, OpClass.METADATA)  # whose destinations are held to their form
FORM = "only the form is promised"


def judge(
    bench: Bench,
    device: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    pass_: str,
    parts: Mapping[str, Part] | None = None,
) -> tuple[Verdict, tuple[Measure, ...]]:
    """The verdict over all tensors of one aspect, and a measure of each. The worst tensor gives the verdict.

    reference: None where the reference refused the dtype; the truth alone judges then.
    """
    if not bench.insist and reference is not None and (sizes := _identical(device, reference)):
        return agreed(sizes)
    if reference is not None and set(device) != set(reference):
        odd = sorted(set(device) ^ set(reference))
        where = "is missing on the device" if odd[0] in reference else "exists on the device only"
        return Verdict(Status.MALFORMED, f"{odd[0]} {where}", Measure(odd[0], problem="missing")), ()
    found = _Related()
    relation = RELATIONS.get(bench.row.relation) if pass_ == "forward" else None
    if relation is not None and bench.bound is not None:
        related = _related(bench, bench.bound, relation, device, reference, parts)
        if isinstance(related, Verdict):
            return related, ()
        found = related
    verdicts = [*found.verdicts]
    for name, x in device.items():
        ref = None if reference is None else reference[name]
        part = None if parts is None else parts.get(name)
        if inner(name) in found.covered:
            bad = None if part is None else form(name, x, part.before) or stray(name, x, part)
            verdicts.append(bad or _by_relation(bench, name, x, part, found))
        elif part is not None:
            verdicts.append(_part(bench, name, x, ref, part, pass_))
        else:
            verdicts.append(_tensor(bench, name, x, ref, name, pass_))
    if not verdicts:
        return Verdict(Status.VOID, "the op returned no tensor"), ()
    return max(verdicts, key=_badness), tuple(v.measure for v in verdicts if v.measure is not None)


@dataclass(frozen=True, slots=True)
class _Related:
    """What a relation said. covered: names of the results that it judges; verdicts: what is wrong; unjudged: of which matrices
    of these results it says nothing."""

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
    """What must hold between results and operands; a verdict where that ends the matter."""
    malformed = [v for n, x in device.items() if (v := form(n, x, None if reference is None else reference[n])) is not None]
    if malformed:
        return malformed[0]
    bound = replace(bound, vanishes=vanishing(bench.row, bench.tables, bound.args))
    results = written(device, parts)
    if reference is not None:
        broken = [p for p in relation.problems(bound, written(reference, parts)) if isinstance(p, Problem)]
        if broken and all(same_values(x, reference[n]) for n, x in device.items()):
            return Verdict(Status.AGREE, "equals the reference, which is wrong itself", Measure(next(iter(device))))
        if broken:
            return Verdict(Status.VOID, f"the reference is wrong itself: {broken[0].what}", Measure(broken[0].name))
    said = relation.problems(bound, results)
    verdicts = [
        Verdict(Status.WRONG if p.ratio is None else Status.DRIFT, p.what, Measure(p.name, p.ratio, problem="relation"), EXACT)
        for p in said
        if isinstance(p, Problem)
    ]
    left = tuple(p for p in said if isinstance(p, Unjudged))
    return _Related(relation.covers(bound, results), tuple(verdicts), left)


def _by_relation(bench: Bench, name: str, x: Tensor, part: Part | None, found: _Related) -> Verdict:
    """A result that a relation judges, where nothing is wrong with it."""
    total = x.numel() if part is None else math.prod(part.shape)
    if bench.row.rule is OpClass.METADATA:
        return Verdict(Status.AGREE, FORM, Measure(name, screen="form"), EXACT)
    count, why = 0, ""
    for u in found.unjudged:
        if u.name == inner(name):
            each = total // max(1, u.where.numel())
            count, why = max(count, int(u.where.sum()) * each), u.why
    m = Measure(name, screen="relation", total=total, unjudged=count, why=why)
    if total and count == total:
        return Verdict(Status.VOID, left_unjudged(m), m)
    return Verdict(Status.AGREE, f"by relation; {left_unjudged(m)}" if count else "by relation", m, EXACT)


def _identical(device: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[tuple[str, int], ...]:
    """(name, number of elements) of all results, if both sides gave the same bits under the same names; else nothing."""
    if len(device) != len(reference):
        return ()
    sizes = []
    for name, x in device.items():
        r = reference.get(name)
        if r is None or x.dtype is not r.dtype or x.shape != r.shape or x.layout is not torch.strided:
            return ()
        odd = not same_bytes(x, r) and (x.is_quantized or (x.element_size() > 8 and not x.is_complex()) or not bit_equal(x, r))
        if odd:
            return ()
        sizes.append((name, x.numel()))
    return tuple(sizes)


@functools.lru_cache(maxsize=4096)
def agreed(sizes: tuple[tuple[str, int], ...]) -> tuple[Verdict, tuple[Measure, ...]]:
    """What is said of identical results: made once for each set of names and sizes, because most results are."""
    measures = tuple(Measure(name, screen="bit-equal", total=total) for name, total in sizes)
    return Verdict(Status.AGREE, "", measures[0], EXACT), measures


def _badness(v: Verdict) -> tuple[int, float]:
    order = (Status.VOID, Status.AGREE, Status.DRIFT, Status.WRONG, Status.MALFORMED)
    share = v.measure.share if v.measure is not None and v.measure.share is not None else -1.0
    return order.index(v.status), share


def _part(bench: Bench, name: str, device: Tensor, reference: Tensor | None, part: Part, pass_: str) -> Verdict:
    """A whole destination: nothing beside the view may change, and the view holds the result."""
    if (bad := form(name, device, part.before)) is not None:
        return bad
    if not bench.insist and reference is not None and reference.shape == device.shape and bit_equal(device, reference):
        return Verdict(Status.AGREE, "", Measure(name, screen="bit-equal", total=device.numel()), EXACT)
    astray = reference is not None and stray(name, reference, part) is not None
    if astray and reference is not None:
        astray = torch.equal(beside(device, part), beside(reference, part))
        if astray and bench.row.rule not in UNVALUED and _nearly(device, reference):
            same = Measure(name, screen="reference", total=device.numel())
            return Verdict(Status.AGREE, "the reference writes beside its destination too", same, EXACT)
        # A reference that misses its destination excuses what misses it alike, and nothing else: then the truth judges alone.
        reference = reference if astray else None
    if not astray and (bad := stray(name, device, part)) is not None:
        return bad
    if bench.row.rule in UNVALUED:
        return Verdict(Status.AGREE, FORM, Measure(name, screen="form"), EXACT)
    mine = apply(device, part.layout, part.shape)
    theirs = None if reference is None else apply(reference, part.layout, part.shape)
    verdict = _tensor(bench, name, mine, theirs, inner(name), pass_)
    if verdict.status is not Status.AGREE and bool(equal(mine, apply(part.before, part.layout, part.shape)).all()):
        return replace(verdict, status=Status.WRONG, reason="nothing was written")
    return verdict


def _nearly(device: Tensor, reference: Tensor) -> bool:
    """Whether two destinations hold the same numbers but for a few roundings."""
    if not (device.is_floating_point() or device.is_complex()):
        return same_values(device, reference)
    f = torch.finfo(device.dtype)
    return torch.allclose(device, reference, ROUNDINGS * f.eps, ROUNDINGS * f.smallest_normal * f.eps, equal_nan=True)


def _tensor(bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth_name: str, pass_: str) -> Verdict:
    """One tensor by value."""
    if (bad := form(name, device, reference)) is not None:
        return bad
    if device.layout is not torch.strided or device.is_quantized:
        return Verdict(Status.VOID, f"parity does not judge {str(device.layout).removeprefix('torch.')} results", Measure(name))
    if str(device.dtype).removeprefix("torch.") not in FACTS:
        return unfamiliar(bench, name, device, reference)
    row, f = bench.row, facts_of(device)
    exact = not f.is_inexact or (row.rule is OpClass.EXACT and pass_ == "forward")
    if exact and reference is not None:
        found = exactly(bench, name, device, reference)
        right = found.status.is_finding and f.is_inexact and row.oracle != "exact"
        return where_the_reference_errs(bench, name, device, reference, truth_name) or found if right else found
    if not bench.insist and reference is not None and bit_equal(device, reference):
        return Verdict(Status.AGREE, "", Measure(name, screen="bit-equal", total=device.numel()), EXACT)
    known = None if bench.limits is not None else bench.told.get((truth_name, pass_))
    if known is not None and same_bits(device, known[0]) and same_bits(reference, known[1]):
        verdict = known[2]
        return verdict if verdict.measure is None else replace(verdict, measure=replace(verdict.measure, tensor=name))
    verdict = by_oracle(bench, name, device, reference, truth_name, pass_, exact)
    bench.told[truth_name, pass_] = device, reference, verdict
    return verdict
