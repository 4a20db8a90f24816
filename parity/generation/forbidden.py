"""Calls that an op refuses for a reason of its own: arguments that contradict one another or make no sense, matrices without
factors, sizes that do not fit, operands on two devices.

Listed are checks that torch makes in the operator or leaves to the kernel. What Python itself refuses, the same for every
device, would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from parity.catalog.row import Row
from parity.vocabulary import Arg, Case, TensorSpec, Values

Change = tuple[str, Arg]
Made = tuple[str, Callable[[], Case]]
_WINDOWS: tuple[Change, ...] = (("padding", 99), ("padding", -1), ("stride", -1), ("stride", 0))
_CONVOLVED: tuple[Change, ...] = (("padding", -1), ("stride", -1), ("stride", 0), ("groups", 7), ("groups", 0), ("dilation", 0))
ARGUMENTS: dict[str, tuple[Change, ...]] = {
    **{f"avg_pool{n}d": _WINDOWS for n in (1, 2, 3)},
    **{f"max_pool{n}d": (*_WINDOWS, ("dilation", 0)) for n in (1, 2, 3)},
    **{f"conv{n}d": _CONVOLVED for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (*_CONVOLVED, ("output_padding", 9)) for n in (1, 2, 3)},
    **dict.fromkeys(("unfold", "fold"), (("dilation", -1), ("dilation", 0), ("stride", -1), ("stride", 0), ("padding", -1))),
    "cross_entropy": (("label_smoothing", 1.5),),
    "huber_loss": (("delta", -1.0),),
    "multi_margin_loss": (("p", 3),),
    "cdist": (("p", -1.0),),
    "scaled_dot_product_attention": (("dropout_p", 1.5),),
    "pdist": (("p", -1.0),),
}
# Only beside an argument that is given.
CONTRADICTIONS: dict[str, tuple[str, Change]] = {"scaled_dot_product_attention": ("attn_mask", ("is_causal", True))}
# The last dimension of the first operand must be that of another, or a size that is told.
FITTING = (
    *("mm", "bmm", "matmul", "addmv", "dot", "vdot", "mv", "inner", "linear", "bilinear", "layer_norm"),
    *("scaled_dot_product_attention", "fold", "col2im"),
)
COMPUTES_NOTHING = ("scaled_dot_product_attention", "fold", "col2im")  # of nothing, whatever its sizes
# No window is that wide.
WINDOWED = tuple(f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3))
WIDE = 1 << 20
# Operands (by place) that are chances, rates or deviations, of which none is negative.
CHANCES = {"bernoulli": 0, "bernoulli_tensor_": 1, "poisson": 0, "multinomial": 0}
# And numbers, with one that no law has.
LAWS: dict[str, tuple[int, float]] = {
    "bernoulli_": (1, 1.5),
    "bernoulli_p": (1, -0.5),
    "geometric_": (1, 1.5),
    "exponential_": (1, -1.0),
    "normal_": (2, -1.0),
    "log_normal_": (2, -0.5),
    "cauchy_": (2, -1.0),
    "uniform_": (2, -99.0),
}
# They raise where there is no factor: for a matrix of equal numbers, or, those that take definite ones, of negative numbers.
SINGULAR = ("solve", "inv", "lu_factor", "lu_solve", "tensorsolve", "tensorinv")
INDEFINITE = ("cholesky", "cholesky_old", "cholesky_solve", "cholesky_inverse")
# Every operator of these asks for operands on one device.
ONE_DEVICE = ("contractions", "linalg", "convolutions", "normalization", "losses", "attention")
ANYWHERE = ("ctc_loss",)  # whose targets may be on either


def calls(row: Row, case: Case) -> Iterator[Made]:
    """(word of `vocabulary.FLAWS`, how to make the call) of each that fits the case."""
    first = case.args[0] if case.args else None
    if not isinstance(first, TensorSpec):
        return
    hollow = not all(s.numel for s in case.args if isinstance(s, TensorSpec))
    if row.name in FITTING and first.shape and not (hollow and row.name in COMPUTES_NOTHING):
        longer = replace(first, shape=(*first.shape[:-1], first.shape[-1] + 1))
        yield "shape", lambda: replace(case, args=(longer, *case.args[1:]))
    if hollow:
        return  # of nothing, some compute nothing
    changes = ARGUMENTS.get(row.name, ())
    if row.name in CONTRADICTIONS:
        beside, change = CONTRADICTIONS[row.name]
        changes = (*changes, change, change) if beside in dict(case.kwargs) else changes
    for name, value in changes:
        yield "argument", lambda name=name, value=value: _with(case, name, value)  # type: ignore[misc]  # bound early
    if row.name in WINDOWED and len(case.args) > 1:
        yield "size", lambda: replace(case, args=(first, WIDE, *case.args[2:]))
    if row.name in CHANCES:
        place = CHANCES[row.name]
        yield "chance", lambda: replace(case, args=tuple(_negative(a) if k == place else a for k, a in enumerate(case.args)))
    if row.name in LAWS and len(case.args) > LAWS[row.name][0]:
        at, number = LAWS[row.name]
        yield "argument", lambda: replace(case, args=tuple(number if k == at else a for k, a in enumerate(case.args)))
    if row.name in (*SINGULAR, *INDEFINITE) and min(first.shape[-2:]) > 1:
        number = -1 if row.name in INDEFINITE else 1
        equal = replace(first, values=Values("inside", (number, number)), grad=False)
        yield "value", lambda: replace(case, args=(equal, *case.args[1:]))
    if row.family in ONE_DEVICE and row.name not in ANYWHERE and first.shape:
        shaped = [k for k, a in enumerate(case.args) if k and isinstance(a, TensorSpec) and a.shape]
        if shaped:
            yield (
                "device",
                lambda: replace(case, args=tuple(_apart(a) if k == shaped[0] else a for k, a in enumerate(case.args))),
            )


def _negative(operand: Arg) -> Arg:
    assert isinstance(operand, TensorSpec)
    return replace(operand, values=Values("inside", (-1, -1)), grad=False)


def _apart(operand: Arg) -> Arg:
    assert isinstance(operand, TensorSpec)
    return replace(operand, on_cpu=True)


def _with(case: Case, name: str, value: Arg) -> Case:
    return replace(case, kwargs=(*((n, v) for n, v in case.kwargs if n != name), (name, value)))
