"""Steps of optimizers and operations over lists of tensors: the fused kernels by themselves, and whole steps of torch.optim."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import Row, Signature
from parity.catalog.signatures import Operand, anything, strictly, within
from parity.dtypes import FLOATS, INTS
from parity.vocabulary import Arg, OpClass, TensorSpec

# Every run gets copies of the operands, which the glue gives back as results after the step.
_row = partial(Row, family="optimizers", rule=OpClass.COMPOSITE, dtypes=FLOATS, updates=True, rounds_between=True)
CALLS = "parity.catalog.steps."
Group = tuple[TensorSpec, ...]


def _shapes(draw: Draw) -> tuple[Shape, ...]:
    """One to three parameters; more than fit one launch now and then."""
    if draw.rare(12):
        return ((2,),) * draw.choice((33, 65))
    return tuple(draw.shape(0, 3) for _ in range(draw.choice((1, 2, 3))))


def _group(draw: Draw, shapes: tuple[Shape, ...], low: float, high: float) -> Group:
    return tuple(draw.inside(s, low, high, grad=False) for s in shapes)


def _found(draw: Draw) -> tuple[Arg, Arg]:
    """grad_scale and found_inf of a gradient scaler: neither, or both, and then the step may have to be left out."""
    if draw.pick(3) < 2:
        return None, None
    scale = draw.inside((), 2, 8, dtype="float32", grad=False)
    flag = draw.choice((0.0, 1.0))
    return scale, draw.inside((), flag, flag, dtype="float32", grad=False)


def _rate(draw: Draw) -> Arg:
    """A learning rate, left out, as a number or as a tensor."""
    return draw.inside((), 0.125, 0.125, dtype="float32", grad=False) if draw.pick(4) == 3 else draw.option(0.001)


def _adam(draw: Draw) -> Call:
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
    return Call((params, grads, first, second, most, *_found(draw)), named)


def _sgd(draw: Draw) -> Call:
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
    return Call((params, grads, buffers, *_found(draw)), named)


def _steps(*flags: tuple[str, tuple[Arg, ...]]) -> Signature:
    """Parameters and the gradients of each step; the optimizer's arguments by name."""

    def signature(draw: Draw) -> Call:
        shapes = _shapes(draw)
        params = _group(draw, shapes, -2, 2)
        grads = tuple(_group(draw, shapes, 0.125, 2) for _ in range(draw.choice((1, 2, 3))))
        return Call((params, grads), keywords(**{name: draw.option(*values) for name, values in flags}))

    return signature


def _optimizer(name: str, *flags: tuple[str, tuple[Arg, ...]]) -> Row:
    return _row(
        name=f"optim.{name}",
        call=f"{CALLS}optim_{name.lower()}",
        signature=_steps(("foreach", (True, False)), *flags),
        dtypes=("float32",),
    )


_DECAY: tuple[str, tuple[Arg, ...]] = ("weight_decay", (0.25,))
_MAXIMIZE: tuple[str, tuple[Arg, ...]] = ("maximize", (True,))


def _list(operand: Operand, others: int, scalars: tuple[Arg, ...] = ()) -> Signature:
    """f(tensors, [other tensors ...], [a number, or one for each tensor])."""

    def signature(draw: Draw) -> Call:
        shapes = _shapes(draw)
        groups: list[Arg] = [tuple(operand(draw, s) for s in shapes)]
        if scalars and others == 1 and draw.flag():
            number = draw.choice(scalars)
            return Call((groups[0], number if draw.flag() else (number,) * len(shapes)))
        groups += [tuple(operand(draw, s) for s in shapes) for _ in range(others)]
        more: tuple[Arg, ...] = (draw.choice(scalars),) if scalars and others > 1 else ()
        return Call((*groups, *more))

    return signature


def _foreach(name: str, signature: Signature, rule: OpClass, dtypes: tuple[str, ...] = FLOATS) -> Row:
    return Row(
        name=f"foreach_{name}",
        family="optimizers",
        rule=rule,
        call=f"torch._foreach_{name}",
        signature=signature,
        dtypes=dtypes,
        # torch 2.13 has no working gradient for _foreach_addcdiv with a number.
        grad=() if name == "addcdiv" else tuple(d for d in dtypes if d in FLOATS),
        rounds_between=rule is OpClass.COMPOSITE,
    )


def _scale_check(draw: Draw) -> Call:
    shapes = _shapes(draw)
    grads = tuple(draw.tensor(s, grad=False) for s in shapes)
    return Call(
        (grads, draw.inside((), 0, 0, dtype="float32", grad=False), draw.inside((), 0.25, 0.5, dtype="float32", grad=False))
    )


def _scale_update(draw: Draw) -> Call:
    flag = draw.choice((0, 1))
    found = draw.inside((), flag, flag, grad=False)
    tracker = draw.inside((), 0, 3, dtype="int32", grad=False)
    return Call((draw.inside((), 1, 1024, grad=False), tracker, found, 2.0, draw.choice((0.5, 0.25)), draw.choice((2, 1, 4))))


ELEMENTWISE, COMPOSITE, EXACT = OpClass.ELEMENTWISE, OpClass.COMPOSITE, OpClass.EXACT
NUMBERS = (2, 0.5, -1.0, 0)

ROWS = (
    _row(name="fused_adam", call=f"{CALLS}fused_adam", signature=_adam),
    _row(name="fused_adamw", call=f"{CALLS}fused_adamw", signature=_adam),
    # In half types torch 2.13's CPU kernel reads memory that nobody wrote: two equal calls differ.
    _row(name="fused_sgd", call=f"{CALLS}fused_sgd", signature=_sgd, dtypes=("float32",), grad=()),
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
    _row(
        name="amp_unscale",
        call=f"{CALLS}amp_unscale",
        signature=_scale_check,
        dtypes=FLOATS,
    ),
    _row(
        name="amp_update_scale",
        call=f"{CALLS}amp_update_scale",
        signature=_scale_update,
        dtypes=("float32",),
    ),
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
