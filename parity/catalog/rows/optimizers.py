"""Steps of optimizers and operations on lists of tensors: the fused kernels, and whole steps of torch.optim."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import COMPOSITE, ELEMENTWISE, EXACT, ROUNDED, Forms, Judged, Row, Signature
from parity.catalog.signatures import Operand, anything, strictly, within
from parity.core.case import Arg, OpClass, TensorSpec
from parity.core.dtypes import FLOATS, INTS

# Every run gets copies of the operands, which the glue returns after the step.
_row = partial(Row, family="optimizers", rule=COMPOSITE, dtypes=FLOATS, forms=Forms(updates=True), judged=ROUNDED)
CALLS = "parity.catalog.glue.steps."
Group = tuple[TensorSpec, ...]
EPS = 2.0**-6  # so large that a kernel which ignores it, or adds it in another place, shows


def _shapes(draw: Draw) -> tuple[Shape, ...]:
    """Shapes of one to three parameters; sometimes of more than fit one launch."""
    if draw.rare(12):
        return ((2,),) * draw.choice((33, 65))
    return tuple(draw.shape(0, 3) for _ in range(draw.choice((1, 2, 3))))


def _group(draw: Draw, shapes: tuple[Shape, ...], low: float, high: float) -> Group:
    return tuple(draw.inside(s, low, high, grad=False) for s in shapes)


def _scaling(draw: Draw) -> tuple[Arg, Arg]:
    """grad_scale and found_inf of a gradient scaler: neither, both, or only the second, as with gradients that somebody has
    unscaled before; the step must be skipped if found_inf is 1."""
    kind = draw.pick(6)
    if kind < 4:
        return None, None
    scale = draw.inside((), 2, 8, dtype="float32", grad=False) if kind == 4 else None
    flag = draw.choice((0.0, 1.0))
    return scale, draw.inside((), flag, flag, dtype="float32", grad=False)


def _rate(draw: Draw) -> Arg:
    """A learning rate: left out, a number, or a tensor of no or of one dimension."""
    if draw.pick(4) < 3:
        return draw.option(0.001)
    return draw.inside(draw.choice(((), (1,))), 0.0625, 0.0625, dtype="float32", grad=False)


def _adam(draw: Draw) -> Arguments:
    shapes = _shapes(draw)
    params, grads = _group(draw, shapes, -2, 2), _group(draw, shapes, -2, 2)
    first, second = _group(draw, shapes, -1, 1), _group(draw, shapes, 0.0625, 2)
    amsgrad = draw.flag()
    most = _group(draw, shapes, 0.0625, 2) if amsgrad else ()
    named = keywords(
        step=draw.option(2.0, 7.0),
        lr=_rate(draw),
        beta1=draw.option(0.5),
        beta2=draw.option(0.96875),
        weight_decay=draw.option(0.25),
        eps=draw.option(EPS),
        amsgrad=True if amsgrad else None,
        maximize=draw.option(True),
    )
    return Arguments((params, grads, first, second, most, *_scaling(draw)), named)


def _sgd(draw: Draw) -> Arguments:
    shapes = _shapes(draw)
    params, grads = _group(draw, shapes, -2, 2), _group(draw, shapes, -2, 2)
    momentum = draw.choice((0.0, 0.5, 0.875))
    buffers = _group(draw, shapes, -1, 1) if momentum else ()
    named = keywords(
        weight_decay=draw.option(0.25),
        momentum=momentum or None,
        lr=_rate(draw),
        dampening=draw.option(0.25),
        nesterov=draw.option(True) if momentum else None,
        maximize=draw.option(True),
        is_first_step=draw.option(True),
    )
    return Arguments((params, grads, buffers, *_scaling(draw)), named)


def _adagrad(draw: Draw) -> Arguments:
    shapes = _shapes(draw)
    params, grads, sums = _group(draw, shapes, -2, 2), _group(draw, shapes, -2, 2), _group(draw, shapes, 0.0625, 2)
    named = keywords(
        step=draw.option(2.0, 7.0),
        lr=_rate(draw),
        lr_decay=draw.option(0.125),
        weight_decay=draw.option(0.25),
        eps=draw.option(EPS),
        maximize=draw.option(True),
    )
    return Arguments((params, grads, sums, *_scaling(draw)), named)


def _steps(*flags: tuple[str, tuple[Arg, ...]]) -> Signature:
    """Parameters and the gradients of each step; the optimizer's arguments by name. Where torch refuses two of them together,
    the second one is left out."""

    def signature(draw: Draw) -> Arguments:
        shapes = _shapes(draw)
        params = _group(draw, shapes, -2, 2)
        grads = tuple(_group(draw, shapes, 0.125, 2) for _ in range(draw.choice((1, 2, 3))))
        named = {name: draw.option(*values) for name, values in flags}
        if not named.get("momentum"):
            named.pop("nesterov", None)
        if named.get("nesterov"):
            named.pop("dampening", None)
        rate = _rate(draw)
        if not (named.get("foreach") and isinstance(rate, TensorSpec)):
            named["lr"] = rate
        return Arguments((params, grads), keywords(**named))

    return signature


def _optimizer(name: str, *flags: tuple[str, tuple[Arg, ...]]) -> Row:
    return _row(
        f"optim.{name}", _steps(("foreach", (True, False)), *flags), call=f"{CALLS}optim_{name.lower()}", dtypes=("float32",)
    )


_DECAY: tuple[str, tuple[Arg, ...]] = ("weight_decay", (0.25,))
_MAXIMIZE: tuple[str, tuple[Arg, ...]] = ("maximize", (True,))
_BETAS: tuple[str, tuple[Arg, ...]] = ("betas", ((0.5, 0.75),))
_EPS: tuple[str, tuple[Arg, ...]] = ("eps", (EPS,))
_AMSGRAD: tuple[str, tuple[Arg, ...]] = ("amsgrad", (True,))
_DECOUPLED: tuple[str, tuple[Arg, ...]] = ("decoupled_weight_decay", (True,))


def _list(operand: Operand, others: int, scalars: tuple[Arg, ...] = ()) -> Signature:
    """f(tensors, [other tensors ...], [a number, or one for each tensor])."""

    def signature(draw: Draw) -> Arguments:
        shapes = _shapes(draw)
        groups: list[Arg] = [tuple(operand(draw, s) for s in shapes)]
        numbers = bool(scalars) and (others > 1 or draw.flag())
        if others > 1 or not numbers:
            groups += [tuple(operand(draw, s) for s in shapes) for _ in range(others)]
        if numbers:
            start = draw.pick(len(scalars))
            each = tuple(scalars[(start + k) % len(scalars)] for k in range(len(shapes)))
            groups.append(each if draw.flag() else each[0] if each else scalars[start])
        return Arguments(tuple(groups))

    return signature


def _foreach(name: str, signature: Signature, rule: OpClass, dtypes: tuple[str, ...] = FLOATS) -> Row:
    # torch 2.13 has no working gradient for _foreach_addcdiv with a number.
    return Row(
        f"foreach_{name}",
        signature,
        family="optimizers",
        rule=rule,
        call=f"torch._foreach_{name}",
        dtypes=dtypes,
        grad=() if name == "addcdiv" else tuple(d for d in dtypes if d in FLOATS),
        judged=Judged(rounds_between=rule is COMPOSITE),
    )


def _scale_check(draw: Draw) -> Arguments:
    shapes = _shapes(draw)
    grads = tuple(draw.tensor(s, grad=False) for s in shapes)
    return Arguments(
        (grads, draw.inside((), 0, 0, dtype="float32", grad=False), draw.inside((), 0.25, 0.5, dtype="float32", grad=False))
    )


def _scale_update(draw: Draw) -> Arguments:
    flag = draw.choice((0, 1))
    found_inf = draw.inside((), flag, flag, grad=False)
    tracker = draw.inside((), 0, 3, dtype="int32", grad=False)
    return Arguments(
        (draw.inside((), 1, 1024, grad=False), tracker, found_inf, 2.0, draw.choice((0.5, 0.25)), draw.choice((2, 1, 4)))
    )


def _filled(draw: Draw, shape: Shape) -> TensorSpec:
    """An operand with elements."""
    return draw.tensor(tuple(n or 1 for n in shape))


def _named(names: tuple[str, ...], operand: Operand) -> Signature:
    """f(the name of a function, tensors)."""

    def signature(draw: Draw) -> Arguments:
        return Arguments((draw.choice(names), tuple(operand(draw, s) for s in _shapes(draw))))

    return signature


NUMBERS = (2, 0.5, -1.0, 0)
SOME = ("float32", "float16")
# Functions of lists that no optimizer calls; all are defined between 0.25 and 0.875.
UNARY = (
    *("log", "cos", "acos", "asin", "atan", "cosh", "erf", "erfc", "expm1", "lgamma", "log10", "log1p", "log2", "rsqrt"),
    *("sigmoid", "sin", "sinh", "tan", "tanh", "sqrt", "exp", "reciprocal"),
)
WHOLE = ("trunc", "ceil", "floor", "frac", "round", "zero", "clone", "abs", "neg", "sign")

ROWS = (
    _row("fused_adam", _adam, call=CALLS + "*"),
    _row("fused_adamw", _adam, call=CALLS + "*"),
    # In half types torch 2.13's CPU kernel reads uninitialised memory: two equal calls differ.
    _row("fused_sgd", _sgd, call=CALLS + "*", dtypes=("float32",), grad=()),
    _row("fused_adagrad", _adagrad, call=CALLS + "*"),
    _optimizer("SGD", ("momentum", (0.5,)), ("nesterov", (True,)), ("dampening", (0.25,)), _DECAY, _MAXIMIZE),
    _optimizer("Adam", _AMSGRAD, _DECAY, _MAXIMIZE, _BETAS, _EPS, _DECOUPLED),
    _optimizer("AdamW", _AMSGRAD, _DECAY, _MAXIMIZE, _BETAS, _EPS),
    _optimizer("NAdam", _DECOUPLED, _DECAY, _MAXIMIZE, _BETAS, _EPS, ("momentum_decay", (0.125,))),
    _optimizer("RAdam", _DECAY, _MAXIMIZE, _BETAS, _EPS, _DECOUPLED),
    _optimizer("Adamax", _DECAY, _MAXIMIZE, _BETAS, _EPS),
    _optimizer("Adagrad", ("lr_decay", (0.125,)), _DECAY, _MAXIMIZE, ("initial_accumulator_value", (0.5,)), _EPS),
    _optimizer("Adadelta", _DECAY, _MAXIMIZE, ("rho", (0.5,)), _EPS),
    _optimizer("RMSprop", ("momentum", (0.5,)), ("centered", (True,)), _DECAY, _MAXIMIZE, ("alpha", (0.5,)), _EPS),
    _optimizer("Rprop", _MAXIMIZE, ("etas", ((0.25, 1.5),)), ("step_sizes", ((0.0625, 2.0),))),
    _optimizer("ASGD", _DECAY, _MAXIMIZE, ("lambd", (0.125,)), ("alpha", (0.5,)), ("t0", (1.0,))),
    _row("amp_unscale", _scale_check, call=CALLS + "*", dtypes=FLOATS),
    _row("amp_update_scale", _scale_update, call=CALLS + "*", dtypes=("float32",)),
    _foreach("add", _list(anything, 1, NUMBERS), ELEMENTWISE),
    _foreach("sub", _list(anything, 1, NUMBERS), ELEMENTWISE),
    _foreach("mul", _list(anything, 1, NUMBERS), ELEMENTWISE),
    _foreach("div", _list(anything, 1, (2, 0.5, -4.0)), ELEMENTWISE),
    _foreach("maximum", _list(anything, 1, NUMBERS), EXACT, (*FLOATS, *INTS)),
    _foreach("minimum", _list(anything, 1, NUMBERS), EXACT, (*FLOATS, *INTS)),
    _foreach("clamp_min", _list(anything, 1, NUMBERS), EXACT, (*FLOATS, *INTS)),
    _foreach("clamp_max", _list(anything, 1, NUMBERS), EXACT, (*FLOATS, *INTS)),
    _foreach("pow", _list(strictly(0.25, 4), 1, (2, 0.5, -1.0)), ELEMENTWISE),
    _foreach("addcmul", _list(anything, 2, (2, 0.5, 0)), ELEMENTWISE),
    _foreach("addcdiv", _list(strictly(0.25, 4), 2, (2, 0.5, 0)), ELEMENTWISE),
    _foreach("lerp", _list(anything, 2), ELEMENTWISE),
    _foreach("abs", _list(anything, 0), EXACT),
    _foreach("neg", _list(anything, 0), EXACT),
    _foreach("sign", _list(anything, 0), EXACT),
    _foreach("exp", _list(within(-8, 8), 0), ELEMENTWISE),
    _foreach("sqrt", _list(within(0, 64), 0), ELEMENTWISE),
    _foreach("reciprocal", _list(anything, 0), ELEMENTWISE),
    _foreach("norm", _list(anything, 0), COMPOSITE),
    _row("foreach_unary", _named(UNARY, strictly(0.25, 0.875)), call=CALLS + "*", rule=ELEMENTWISE, grad=FLOATS),
    _row("foreach_whole", _named(WHOLE, anything), call=CALLS + "*", rule=EXACT, dtypes=("float32",), grad=("float32",)),
    _row("foreach_in_place", _named(UNARY, strictly(0.25, 0.875)), call=CALLS + "*", rule=ELEMENTWISE, dtypes=SOME),
    _row("foreach_copied", _list(anything, 1), call=CALLS + "*", rule=EXACT, dtypes=("float32",)),
    _row("foreach_max", _list(_filled, 0), call="torch._foreach_max", rule=EXACT, dtypes=SOME),
)
