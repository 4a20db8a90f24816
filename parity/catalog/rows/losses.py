"""Loss functions, with every reduction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import COMPOSITE, OUT, ROUNDED, UNCHECKED, Counts, Draws, Refuses, Row, Signature, Wrong
from parity.catalog.signatures import REDUCTION, Operand, Options, anything, none, one_of, options, strictly, whole, within
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import FLOATS

# Every loss is a sequence of elementwise steps and a sum, and half-precision kernels may round between them.
_row = partial(Row, family="losses", rule=COMPOSITE, dtypes=FLOATS, grad=FLOATS, judged=ROUNDED, call="torch.nn.functional.*")


def _shape(draw: Draw, low: int, high: int) -> Shape:
    """A shape of rank low..high; in one of 16 cases more without elements, whose mean is NaN."""
    shape = draw.shape(low, high)
    where = draw.pick(len(shape)) if shape and draw.rare(16) else None
    return tuple(0 if k == where else n for k, n in enumerate(shape))


def _pointwise(
    first: Operand = anything, second: Operand = anything, choices: Options = none, broadcasts: bool = True
) -> Signature:
    """Input and target of one shape, or one of them broadcasts."""

    def signature(draw: Draw) -> Arguments:
        shape = _shape(draw, 0, 4)
        kind = draw.pick(8) if broadcasts else 0
        target = second(draw, draw.broadcastable(shape) if kind == 7 else shape)
        x = first(draw, draw.broadcastable(shape) if kind == 6 else shape)
        return Arguments((x, target), (*keywords(reduction=REDUCTION(draw)), *choices(draw)))

    return signature


def _classes(draw: Draw) -> tuple[Shape, Shape, int]:
    """Shapes of logits and of class targets, and the number of classes."""
    classes = draw.size(2)
    rest = draw.shape(0, 2)
    rest = tuple(min(n, 2) for n in rest) if classes > 64 else rest  # not both large
    if draw.pick(4) == 3 and not rest:
        return (classes,), (), classes
    batch = 0 if draw.rare(24) else draw.choice((1, 2, 3, 5))
    if draw.rare(40):
        batch, rest = (1, draw.choice(((4099,), (65, 33)))) if draw.flag() else (draw.choice((1025, 4099)), ())
        return (batch, 3, *rest), (batch, *rest), 3
    return (batch, classes, *rest), (batch, *rest), classes


def _weight(draw: Draw, shape: Shape) -> TensorSpec | None:
    return draw.maybe(draw.inside(shape, 0.25, 2, grad=False))


def _cross_entropy(draw: Draw) -> Arguments:
    """Class indices or probabilities, weights, an ignored class, smoothing."""
    logits, targets, classes = _classes(draw)
    weight = _weight(draw, (classes,))
    reduction = REDUCTION(draw)
    smoothing = draw.option(0.25)
    x = draw.between(logits, -8, 8) if draw.flag() else draw.tensor(logits)
    if draw.pick(4) == 3:
        probabilities = _chances(draw, logits)
        return Arguments((x, probabilities), keywords(weight=weight, reduction=reduction, label_smoothing=smoothing))
    ignored = draw.option(0, -100, classes - 1, -1)
    target = _targets(draw, targets, classes, ignored)
    return Arguments((x, target), keywords(weight=weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing))


def _targets(draw: Draw, shape: Shape, classes: int, ignored: int | None) -> TensorSpec:
    """Class indices; if the ignored index is no class, some or all targets are the ignored index."""
    outside = -100 if ignored is None else ignored
    if 0 <= outside < classes or draw.pick(3) < 2:
        return draw.index(shape, classes)
    if outside == -1:
        return draw.inside(shape, -1, classes - 1, dtype="int64", grad=False)
    return draw.inside(shape, outside, outside, dtype="int64", grad=False)


def _nll(draw: Draw) -> Arguments:
    logits, targets, classes = _classes(draw)
    ignored = draw.option(0, -100, classes - 1, -1)
    named = keywords(weight=_weight(draw, (classes,)), ignore_index=ignored, reduction=REDUCTION(draw))
    return Arguments((draw.between(logits, -8, 0), _targets(draw, targets, classes, ignored)), named)


def _chances(draw: Draw, shape: Shape) -> TensorSpec:
    """Probabilities; sometimes 0 and 1 (where the gradient of the target is not finite)."""
    return replace(whole(0, 1)(draw, shape), grad=False) if draw.rare(4) else draw.inside(shape, 0, 1)


def _probabilities(draw: Draw) -> Arguments:
    shape = _shape(draw, 0, 4)
    weight = _weight(draw, draw.broadcastable(shape))
    # At 0 and 1 torch clamps the logarithm at -100.
    x = (
        draw.inside(shape, *draw.choice(((0.0625, 0.9375), (0, 0), (1, 1))))
        if draw.rare(8)
        else draw.inside(shape, 0.0625, 0.9375)
    )
    target = _chances(draw, shape)
    return Arguments((x, target), keywords(weight=weight, reduction=REDUCTION(draw)))


def _with_logits(draw: Draw) -> Arguments:
    shape = _shape(draw, 0, 4)
    weight = _weight(draw, draw.broadcastable(shape))
    positive = draw.maybe(draw.inside(shape if draw.pick(4) == 3 else shape[-1:], 0.5, 3, grad=False))
    x, target = draw.between(shape, -8, 8), _chances(draw, shape)
    return Arguments((x, target), keywords(weight=weight, pos_weight=positive, reduction=REDUCTION(draw)))


def _triplet(draw: Draw) -> Arguments:
    shape = _shape(draw, 2, 3)
    named = keywords(margin=draw.option(0.5), p=draw.option(1.0, 3.0), swap=draw.option(True), reduction=REDUCTION(draw))
    return Arguments((draw.tensor(shape), draw.tensor(shape), draw.tensor(shape)), named)


def _signs(draw: Draw, shape: Shape) -> TensorSpec:
    """Targets of +1 or -1."""
    return draw.inside(shape, *draw.choice(((1, 1), (-1, -1))), grad=False)


def _ranking(draw: Draw) -> Arguments:
    shape = _shape(draw, 0, 3)
    operands = draw.tensor(shape), draw.tensor(shape), _signs(draw, shape)
    return Arguments(operands, keywords(margin=draw.option(0.5), reduction=REDUCTION(draw)))


def _cosine_embedding(draw: Draw) -> Arguments:
    n, k = _shape(draw, 2, 2)
    operands = draw.tensor((n, k)), draw.tensor((n, k)), _signs(draw, (n,))
    return Arguments(operands, keywords(margin=draw.option(0.25), reduction=REDUCTION(draw)))


def _multi_margin(draw: Draw) -> Arguments:
    n, classes = draw.extent((1, 2, 3, 5)), draw.size(2)
    operands = draw.tensor((n, classes)), draw.index((n,), classes)
    named = keywords(p=draw.option(2), margin=draw.option(0.5), weight=_weight(draw, (classes,)), reduction=REDUCTION(draw))
    return Arguments(operands, named)


def _multilabel_margin(draw: Draw) -> Arguments:
    n, classes = draw.extent((1, 2, 3)), min(draw.size(2), 4097)  # the CPU compares each class with each other one
    return Arguments((draw.tensor((n, classes)), draw.unique_index((n, classes), classes)), keywords(reduction=REDUCTION(draw)))


def _multilabel_soft(draw: Draw) -> Arguments:
    n, classes = draw.choice((1, 2, 3)), draw.size(2)
    x, target = draw.between((n, classes), -8, 8), draw.inside((n, classes), 0, 1, grad=False)
    return Arguments((x, target), keywords(weight=_weight(draw, (classes,)), reduction=REDUCTION(draw)))


def _gaussian(draw: Draw) -> Arguments:
    shape = _shape(draw, 1, 4)
    variances = draw.choice((shape, shape[:-1], (*shape[:-1], 1)))
    operands = draw.tensor(shape), draw.tensor(shape), draw.inside(variances, 0.25, 4)
    return Arguments(operands, keywords(full=draw.option(True), reduction=REDUCTION(draw)))


def _ctc(draw: Draw) -> Arguments:
    """Targets shorter than half the input, so that a path exists even with repeats."""
    classes, batch, length = draw.choice((3, 2, 5, 17)), draw.choice((1, 2, 3)), draw.choice((5, 7, 16, 33))
    target = 1 + draw.pick(2)
    logits = draw.between((length, batch, classes), -4, 4)
    blank = draw.choice((0, classes - 1))
    dtype = draw.choice(("int64", "int32"))
    low, high = (1, classes - 1) if blank == 0 else (0, classes - 2)
    flat = draw.flag()  # all targets in one vector
    wanted = tuple(max(1, target - draw.pick(2)) for _ in range(batch))
    labels = draw.inside((sum(wanted),) if flat else (batch, target), low, high, dtype=dtype, grad=False)
    lengths: Arg = tuple(length - (draw.pick(2) if k else 0) for k in range(batch))
    named = keywords(blank=blank or None, reduction=REDUCTION(draw), zero_infinity=draw.option(True))
    return Arguments((logits, labels, lengths, wanted), named)


def _distance(draw: Draw) -> Arguments:
    shape = _shape(draw, 2, 3)
    return Arguments(
        (draw.tensor(shape), draw.tensor(shape)), keywords(p=draw.option(1.0, 3.0, float("inf")), keepdim=draw.option(True))
    )


def _similarity(draw: Draw) -> Arguments:
    shape = _shape(draw, 1, 4)
    dim = draw.dim(shape)
    other = (1, *shape[1:]) if len(shape) > 1 and dim % len(shape) and draw.pick(4) == 3 else shape
    return Arguments((draw.tensor(shape), draw.tensor(other)), keywords(dim=dim, eps=draw.option(0.0078125)))


def _pdist(draw: Draw) -> Arguments:
    n, k = _shape(draw, 2, 2)
    n = min(n, 513)  # all pairs of rows are compared
    return Arguments((draw.tensor((n + 1, k)),), keywords(p=draw.option(1.0, 3.0, 0.5, float("inf"))))


def _kernel(*last: float) -> Signature:
    """(input, target, reduction by number, ...), with a destination."""

    def signature(draw: Draw) -> Arguments:
        shape = _shape(draw, 0, 5)
        operands = draw.tensor(shape), draw.tensor(shape)
        return Arguments((*operands, draw.choice((1, 0, 2)), *((draw.choice(last),) if last else ())))

    return signature


def _cross_entropy_kernel(draw: Draw) -> Arguments:
    shape = _shape(draw, 0, 4)
    x, target = draw.inside(shape, 0.0625, 0.9375), draw.inside(shape, 0, 1)
    return Arguments((x, target, draw.maybe(draw.inside(shape, 0.25, 2, grad=False)), 0))  # the CPU reduces in the destination


def _loss(name: str, signature: Signature, dtypes: tuple[str, ...] = FLOATS, **more: Any) -> Row:
    """A function of torch.nn.functional. more: other fields of the row."""
    return _row(name, signature, dtypes=dtypes, grad=dtypes, counts=Counts((f"nn.functional.{name}",)), **more)


ROWS = (
    _loss("mse_loss", _pointwise()),
    _loss("l1_loss", _pointwise(), refuses=Refuses(takes=("int",))),
    *(
        _row(f"{name}_kernel", signature, call=f"parity.catalog.glue.aten.{name}", forms=OUT, refuses=UNCHECKED)
        for name, signature in (
            ("mse_loss", _kernel()),
            ("huber_loss", _kernel(1.0, 0.5, 2.0)),
            ("smooth_l1_loss", _kernel(1.0, 0.5, 2.0, 0.0)),
            ("binary_cross_entropy", _cross_entropy_kernel),
        )
    ),
    _loss("smooth_l1_loss", _pointwise(choices=options(beta=one_of(0.5, 2.0, 0.0))), refuses=Refuses(takes=("complex",))),
    _loss("huber_loss", _pointwise(choices=options(delta=one_of(0.5, 2.0))), refuses=Refuses(wrong=(Wrong("delta", -1.0),))),
    _loss("kl_div", _pointwise(within(-8, 0), _chances, options(log_target=one_of(True)))),
    _loss(
        "poisson_nll_loss",
        _pointwise(strictly(0.125, 4), strictly(0, 4), options(full=one_of(True), log_input=one_of(False))),
        refuses=Refuses(takes=("complex",)),
    ),
    _loss("soft_margin_loss", _pointwise(second=_signs, broadcasts=False), refuses=Refuses(takes=("complex",))),
    _loss(
        "hinge_embedding_loss",
        _pointwise(second=_signs, choices=options(margin=one_of(0.5))),
        draws=Draws(choices=(1,)),
        refuses=Refuses(takes=("int",)),
    ),
    _loss("binary_cross_entropy", _probabilities),
    _loss("binary_cross_entropy_with_logits", _with_logits),
    _loss("cross_entropy", _cross_entropy, refuses=Refuses(wrong=(Wrong("label_smoothing", 1.5),))),
    _loss("nll_loss", _nll),
    _loss("gaussian_nll_loss", _gaussian),
    _loss("margin_ranking_loss", _ranking),
    _loss("cosine_embedding_loss", _cosine_embedding, draws=Draws(choices=(2,))),
    _loss("triplet_margin_loss", _triplet),
    _loss("multi_margin_loss", _multi_margin, dtypes=("float32",), refuses=Refuses(wrong=(Wrong("p", 3),))),
    _loss("multilabel_margin_loss", _multilabel_margin, dtypes=("float32",), refuses=Refuses(wraps=True)),
    _loss("multilabel_soft_margin_loss", _multilabel_soft),
    _loss("ctc_loss", _ctc, call="parity.catalog.glue.calls.ctc_loss", dtypes=("float32",), draws=Draws(on_cpu="all")),
    _loss("pairwise_distance", _distance),
    _loss("cosine_similarity", _similarity),
    _loss("pdist", _pdist, dtypes=("float32",), refuses=Refuses(wrong=(Wrong("p", -1.0),))),
)
