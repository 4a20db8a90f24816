"""Steps of optimizers and operations on lists of tensors: the fused kernels, and whole steps of torch.optim."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import COMPOSITE, ELEMENTWISE, EXACT, Row, Signature
from parity.catalog.signatures import Operand, anything, strictly, within
from parity.core.case import Arg, OpClass, TensorSpec
from parity.core.dtypes import FLOATS, INTS

# Every run gets copies of the operands, which the glue returns after the step.
_row = partial(Row, family="optimizers", rule=COMPOSITE, dtypes=FLOATS, updates=True, rounds_between=True)
CALLS = "parity.catalog.glue.steps."
Group = tuple[TensorSpec, ...]


def _shapes(draw: Draw) -> tuple[Shape, ...]:
    """Shapes of one to three parameters; sometimes of more than fit one launch."""
    if draw.rare(12):
        return ((2,),) * draw.choice((33, 65))
    return tuple(draw.shape(0, 3) for _ in range(draw.choice((1, 2, 3))))


def _group(draw: Draw, shapes: tuple[Shape, ...], low: float, high: float) -> Group:
    return tuple(draw.inside(s, low, high, grad=False) for s in shapes)


def _scaling(draw: Draw) -> tuple[Arg, Arg]:
    """grad_scale and found_inf of a gradient scaler: neither, or both; the step must be skipped if found_inf is 1."""
    if draw.pick(3) < 2:
        return None, None
    scale = draw.inside((), 2, 8, dtype="float32", grad=False)
    flag = draw.choice((0.0, 1.0))
    return scale, draw.inside((), flag, flag, dtype="float32", grad=False)


def _rate(draw: Draw) -> Arg:
    """A learning rate: left out, a number, or a tensor."""
    return draw.inside((), 0.125, 0.125, dtype="float32", grad=False) if draw.pick(4) == 3 else draw.option(0.001)


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


def _steps(*flags: tuple[str, tuple[Arg, ...]]) -> Signature:
    """Parameters and the gradients of each step; the optimizer's arguments by name."""

    def signature(draw: Draw) -> Arguments:
        shapes = _shapes(draw)
        params = _group(draw, shapes, -2, 2)
        grads = tuple(_group(draw, shapes, 0.125, 2) for _ in range(draw.choice((1, 2, 3))))
        return Arguments((params, grads), keywords(**{name: draw.option(*values) for name, values in flags}))

    return signature


def _optimizer(name: str, *flags: tuple[str, tuple[Arg, ...]]) -> Row:
    return _row(
        f"optim.{name}", _steps(("foreach", (True, False)), *flags), call=f"{CALLS}optim_{name.lower()}", dtypes=("float32",)
    )


_DECAY: tuple[str, tuple[Arg, ...]] = ("weight_decay", (0.25,))
_MAXIMIZE: tuple[str, tuple[Arg, ...]] = ("maximize", (True,))


def _list(operand: Operand, others: int, scalars: tuple[Arg, ...] = ()) -> Signature:
    """f(tensors, [other tensors ...], [a number, or one for each tensor])."""

    def signature(draw: Draw) -> Arguments:
        shapes = _shapes(draw)
        groups: list[Arg] = [tuple(operand(draw, s) for s in shapes)]
        if scalars and others == 1 and draw.flag():
            number = draw.choice(scalars)
            return Arguments((groups[0], number if draw.flag() else (number,) * len(shapes)))
        groups += [tuple(operand(draw, s) for s in shapes) for _ in range(others)]
        more: tuple[Arg, ...] = (draw.choice(scalars),) if scalars and others > 1 else ()
        return Arguments((*groups, *more))

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
        rounds_between=rule is COMPOSITE,
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


NUMBERS = (2, 0.5, -1.0, 0)

ROWS = (
    _row("fused_adam", _adam, call=CALLS + "*"),
    _row("fused_adamw", _adam, call=CALLS + "*"),
    # In half types torch 2.13's CPU kernel reads uninitialised memory: two equal calls differ.
    _row("fused_sgd", _sgd, call=CALLS + "*", dtypes=("float32",), grad=()),
    _optimizer("SGD", ("momentum", (0.5,)), _DECAY, _MAXIMIZE),
    _optimizer("Adam", ("amsgrad", (True,)), _DECAY, _MAXIMIZE),
    _optimizer("AdamW", ("amsgrad", (True,)), _DECAY, _MAXIMIZE),
    _optimizer("NAdam", ("decoupled_weight_decay", (True,)), _DECAY, _MAXIMIZE),
    _optimizer("RAdam", _DECAY, _MAXIMIZE),
    _optimizer("Adamax", _DECAY, _MAXIMIZE),
    _optimizer("Adagrad", ("lr_decay", (0.125,)), _DECAY, _MAXIMIZE),
    _optimizer("Adadelta", _DECAY, _MAXIMIZE),
    _optimizer("RMSprop", ("momentum", (0.5,)), ("centered", (True,)), _DECAY, _MAXIMIZE),
    _optimizer("Rprop", _MAXIMIZE),
    _optimizer("ASGD", _DECAY, _MAXIMIZE),
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
)
