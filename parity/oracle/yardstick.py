"""The one table of how far roundings move a result, and of how many times as far a device may be off.

All estimators of that movement stand on it: runs in float64 with every step rounded (the sensitivity of rows and functions, the
rounded runs of a training), runs in a function's own dtypes with every kernel moved, sums over magnitudes or squares, and the
roundings of a single operator. What a table gives for a device, an op, a class or a dtype is in `tolerances`; what holds for
all of them is here. A verdict names the row that decided.
"""

from __future__ import annotations

from dataclasses import dataclass

from parity.core.results import Tolerance


@dataclass(frozen=True, slots=True)
class Factor:
    """A row of the table. unit: what the value multiplies; source: a formula, a paper or a measurement, or the reason of a
    choice."""

    name: str
    value: float
    unit: str
    source: str


TABLE: dict[str, Factor] = {}


def _factor(name: str, value: float, unit: str, source: str) -> float:
    TABLE[name] = Factor(name, value, unit, source)
    return value


def place(name: str) -> str:
    """Where a person finds the row of this name."""
    return f"oracle/yardstick.py: {TABLE[name].name}"


def tolerance_by(name: str) -> Tolerance:
    """The row of this name as the tolerance of a verdict."""
    return Tolerance("yardstick", TABLE[name].value, 0.0, None, place(name), TABLE[name].source)


# ------------------------------------------------------------------------------------- how far a simulated rounding moves

SCALE = _factor(
    "scale", 16.0, "times the sensitivity to one roundoff",
    "tolerances/default.toml, the rule of every class: measured on an H200",
)  # fmt: skip
SUM_SCALE = _factor(
    "scale of sums", 4.0, "sqrt(n) u S", "tolerances/default.toml, contraction; Higham and Mary, SIAM J. Sci. Comput. 41 (2019)"
)
SUM_LOSS = _factor(
    "loss of a sum", 0.25, "sqrt(n) u S",
    "`SUM_SCALE` times this is the bound for sums over `SCALE`; a chain of n terms of one sign is off by about as much",
)  # fmt: skip
MOVED_SUM = _factor(
    "moved sum", 0.3, "sqrt(n) u of the result", "about what a chain of n additions is off by in the mean square; as `SUM_LOSS`"
)
FAST_CONVOLUTION = _factor(
    "fast convolution", 1 / 128, "u of a half type, of the norms of a tile",
    "measured: cuDNN on an H100 loses up to 0.07 u of half types there, which is less than `SCALE` times this",
)  # fmt: skip
BETWEEN_KERNELS = _factor(
    "between kernels", 8.0, "parts of u, by which a half type's result moves from kernel to kernel",
    "`SCALE` over this: such a number is rounded once, where `SCALE` is for roundings that add up, so four are plenty",
)  # fmt: skip
POWER = _factor(
    "power", 17.0 / 7.0, "u of float32, by which the result of a power moves",
    "tolerances/default.toml: 17 ULP, where all other functions have 7 or less, which `SCALE` u cover",
)  # fmt: skip
OWN_ROUNDING = _factor("own rounding", 2.0, "u of the truth, before the scale", "a rounding of the result and one inside")
LEAST_HALF = _factor(
    "least of half types", 16.0, "parts of the smallest number",
    "`SCALE`: a function is off by one of the smallest numbers there",
)  # fmt: skip
LEAST_SINGLE = _factor(
    "least of float32", 4.0, "parts of the smallest number", "`SCALE` over this: a function's bound of about four ULP"
)
COARSE = _factor(
    "coarse inputs", 8.0, "u, of the inputs of a function without float64", "chosen: well above the function's own rounding"
)
STANDARD = _factor(
    "standard deviations", 2.0, "times the root mean square of a function's movements",
    "95 of 100 normal errors stay below; never more than the largest movement",
)  # fmt: skip
STEP = _factor(
    "moved step", 2.0, "u, by which a kernel's result moves in a moved run",
    "it stands for the roundings inside the kernel, too",
)  # fmt: skip
HALF_STEP = _factor(
    "rounded step", 0.55, "u of a half type, in the rounded runs of a training",
    "formula: rounding to nearest moves by 0.41 u in the mean square, `rounded` by 0.77",
)  # fmt: skip

# ---------------------------------------------------------------------------------- how many times as far a device may be

AGAIN = _factor("second derivatives", 2.0, "times the scale", "devices differ in formulas, too")
AGAIN_HALF = _factor("second derivatives of half types", 4.0, "times the scale", "as above, with results rounded in between")
FLUSHED = _factor("flushed", 4.0, "of the smallest numbers", "a few partial results may be flushed, or off by a few of them")
WIDENING_LIMIT = _factor("widest", 8.0, "times the budget", "chosen: the most that the reference's own error widens a budget")
WIDENED = _factor("widened", 4.0, "times the reference's own error", "chosen: two errors of one size differ by less")
CLOSE = _factor("close", 4.0, "budgets of few samples", "chosen: up to this more samples may cover an error")
NEAR = _factor(
    "near", 2.0, "times an estimated budget", "chosen: up to this single elements of few cases are marginal; 1.12 on an H100"
)
NEAR_OUTSIDE = _factor("few near", 1000.0, "elements of a tensor, of which one may be near", "chosen; of fewer, one alone")
NEAR_OTHERS = _factor(
    "others of a near one", 0.5, "of the budget, root mean square", "chosen: honest errors are a quarter of an estimate or less"
)
FAR = _factor("far", SCALE, "budgets of few samples", "chosen: from this on no more samples cover an error, nearly always")
UNMOVED = _factor("unmoved", 1e8, "budgets", "no wrong number of usual size is so far off: no sample moved it, as at a kink")
CHANCE_OUTSIDE = _factor(
    "turned steps", 50_000, "elements, one of which a turned step may put outside",
    "measured in bfloat16: resnet18 on the honest device has 8 of 1.2 million and 5 of 295,000 outside, neighbours together",
)  # fmt: skip
CHANCE_SHARE = _factor("turned element", 1.5, "times its budget, or the usual one", "chosen: what such elements are off by")
CHANCE_BUDGETS = _factor("usual budget", 0.9, "as a quantile of all budgets", "chosen: of the usual budget of such elements")
AGAINST_REFERENCE = _factor("against the reference", SCALE, "times a rounding", "`SCALE`: both sides have errors, which add up")
DESTINATION = _factor("destination", 2.0 * SCALE, "times 2 u", "twice `SCALE`: of the reference and of the device")
COARSER_SINGLE = _factor(
    "coarser than float32", 2.0**12, "budgets", "formula: bfloat16's roundoff over float32's, 2**-8 / 2**-24, over `SCALE`"
)
COARSER_HALF = _factor("coarser than half types", 2.0**6, "budgets", "six lost bits")
OWN_ULP = _factor("one operator", 2.0, "ULP of an element", "chosen: what a kernel of a few roundings is off by")
STRUCK = _factor("struck again", 8.0 * FAR, "times one operator", "chosen: for calls of an operator that was found before")
ODD = _factor(
    "a wrong operator likely", 0.6, "of a movement by `STEP` roundoffs", "chosen: honest devices are a quarter of it away"
)
ALIKE = _factor("struck alike", 0.75, "of how far the first call is off", "chosen: for calls of one operator that differ alike")
SUM_ULP = _factor("one operator's sum", 0.5, "ULP of the largest element", "chosen: what sums and products add to any element")
CPU_ERRORS = _factor("the CPU's error", 4.0, "times it", "as `WIDENED`")
OPERATOR_SUM = _factor("sums of one operator", SUM_SCALE, "sqrt(n) u of the partial sums", "`SUM_SCALE`")
LEAN = _factor("lean", 6.0, "standard deviations of independent roundings", "formula: chance exceeds it once in 5e8 times")
SKETCH = _factor("sketch", LEAN, "standard deviations of a sum of independent roundings", "as `LEAN`")
EASED = _factor("eased", 1.5, "times an agreement of the same shapes", "chosen: operators alike differ by less")
OWN_MOVEMENT = _factor(
    "own movement", SCALE / STEP, "times an element's movement in moved runs",
    "formula: `SCALE` times one roundoff, over `STEP`",
)  # fmt: skip
NEAR_MOVEMENT = _factor(
    "near movement", 12.0, "times the usual movement of its neighbours", "formula: 8 standard deviations of a normal movement"
)

# ---------------------------------------------------------------------------------------------- what all elements share

CHANCE = _factor("common factor", 8.0, "standard deviations of the samples' common factor", "the samples are few")
ALIGNED_SINGLE = _factor("aligned in float32", 8.0, "times the sum of all changes", "chosen: functions are biased to one side")
ALIGNED_HALF = _factor("aligned in half types", 1.0, "times the sum of all changes", "half types are rounded to nearest")
SPREAD_SINGLE = _factor("spread in float32", SCALE, "times the root mean square of the changes", "`SCALE`")
SPREAD_HALF = _factor("spread in half types", 3.0, "times the root mean square of the changes", "they are rounded as simulated")
SPREAD_FEW = _factor(
    "spread of few in half types", 2.0 * SPREAD_HALF, "times the root mean square of the changes",
    "twice `SPREAD_HALF`: of one element chance averages nothing out",
)  # fmt: skip
ONE_SIDED = _factor("one-sided", 4.0 * SCALE, "u", "formula: twice `SCALE` times 2 u, of the last kernel's arithmetic")

# ------------------------------------------------------------------------------------------------------------ trainings

MARGIN = _factor("margin", 4.0, "times a typical rounded run", "chosen: an honest device's roundings over the CPU's")
LEANING = _factor("leaning", 8.0, "typical common factors at every step", "`ALIGNED_SINGLE`: what honest devices lean")
HALF_LEANING = _factor("leaning of half types", 0.25, "as above", "the rounding of results, without bias, outweighs all else")
GATE = _factor("gate", 10.0, "typical errors", "chosen: a result that far off is looked at again, with many runs")
HIGHER = _factor("higher gate", 1.5, "times what was looked at for nothing", "chosen: so that equal steps are not looked at")
