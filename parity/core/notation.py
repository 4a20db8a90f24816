"""Cases as text and back: `softmax(float16[1, 3].flat(1, 0), dim=-1).cotangent("normal", "expanded", 3)`.

The notation is a subset of Python's expressions and is parsed with `ast`, so a person can type it, an editor can colour it,
and nothing is evaluated. A tensor is `dtype[shape]` (`float32[()]` is 0-d) followed by the steps of its layout, its values
(`.normal(seed=7)`, `.between(0, 4)`, `.at(5, "nan")`, `.of(1, 2, 3)`), `.frozen()` for one that requires no gradient and
`.on_cpu()` for one that stays on the CPU. Attributes of torch (`float16`, `channels_last`) are written without `torch.`.
Suffixes of the call describe how it runs, in any order; each is left out where it has its default:

    .cotangent(values, layout, seed)   what is passed to backward: "ones", "normal", "zero", "nonfinite", "huge" or
                                       "tiny", in a named layout
    .into(word)                        the destination of out=: a layout by name, "empty" (to be resized) or a dtype to cast to
    .under(mode)                       "no_grad" or "inference": the autograd mode of every call; "deterministic": torch
                                       uses such algorithms only, and two equal calls must give equal bits
    .after(what)                       what the device runs right before: "garbage", "other_scalar", "other_values", "smaller",
                                       "larger", "larger_smaller", "other_layout", "other_dtype", "other_grad",
                                       "other_presence", "destination", "sibling" (`parity.checks.history`)
    .sharing("memory")                 operands that are described alike are one tensor
    .history(case, ...)                cases that are checked in the same process before, each in all its aspects
    .refused(kind)                     the call has an error of this kind and must raise (`parity.checks.refusal`)
    .as_dtype(name)                    the item's dtype, where it is not the first operand's
"""

from __future__ import annotations

import ast
import functools
import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from parity.core import layout as layouts
from parity.core import untrusted
from parity.core.case import (
    COTANGENTS,
    ERROR_KINDS,
    HISTORIES,
    Arg,
    Case,
    Cotangent,
    Layout,
    Slice,
    TensorSpec,
    Values,
    Word,
    operands_in,
)
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, near

# Suffixes of the call that take one word, and the words they accept.
ROUTE = {
    "into": (*layouts.WORDS, "empty", *FACTS),
    "under": ("grad", "no_grad", "inference", "deterministic"),
    "after": HISTORIES,
    "refused": ERROR_KINDS,
    "sharing": ("memory",),
}

LONGEST = 1 << 16  # characters of a case id
DEEPEST = 40  # levels of nested brackets
LARGEST = 1 << 63  # exclusive limit of integers: the range of int64 and uint64
PLAIN = Cotangent()
NUMBERS = {"inf": math.inf, "nan": math.nan}  # the NaN object of generation: parsed cases equal drawn ones

# ------------------------------------------------------------------------------------------------------------ to text


def number(x: complex) -> str:
    """A number in Python's syntax, with `inf` and `nan` as names."""
    if isinstance(x, complex):
        return f"complex({number(x.real)}, {number(x.imag)})"  # repr loses negative zeros and cannot write NaN
    return str(x) if isinstance(x, float) and not math.isfinite(x) else repr(x)


def spec_text(spec: TensorSpec) -> str:
    text, v = _outline(spec.dtype, spec.shape, spec.layout), spec.values
    if v.literal is not None:
        text += f".of({', '.join(map(number, v.literal))})"
    elif v.params:
        text += f".{v.family}({', '.join([*map(number, v.params), *([f'seed={v.seed}'] if v.seed else [])])})"
    elif v.seed:
        text += f".{v.family}(seed={v.seed})"
    elif v.family != "uniform":
        text += f".{v.family}()"
    for where, word in v.specials:
        text += f'.at({where}, "{word}")'
    return text + (".on_cpu()" if spec.on_cpu else "") + ("" if spec.grad or not FACTS[spec.dtype].is_inexact else ".frozen()")


@functools.lru_cache(maxsize=8192)
def _outline(dtype: str, shape: tuple[int, ...], layout: Layout) -> str:
    text = f"{dtype}[{', '.join(map(str, shape)) or '()'}]"
    for word, *ints in layout:
        text += f".{word}({', '.join(map(str, ints))})"
    return text


def arg_text(arg: Arg) -> str:
    """The text of one argument."""
    if isinstance(arg, TensorSpec):
        return spec_text(arg)
    if isinstance(arg, Word):
        return arg.name
    if isinstance(arg, Slice):
        return f"slice({arg.start}, {arg.stop}, {arg.step})"
    if isinstance(arg, tuple):
        return "(" + ", ".join(map(arg_text, arg)) + ("," if len(arg) == 1 else "") + ")"
    if isinstance(arg, (float, complex)):
        return number(arg)
    return "..." if arg is Ellipsis else repr(arg)


def case_text(case: Case) -> str:
    """The id of a case. Op names that are no Python names (OpInfo entries) are written `op("name", "dtype")(...)`."""
    plain = _is_name(case.op)
    head = case.op if plain else f'op("{case.op}", "{case.dtype}")'
    inner = [arg_text(a) for a in case.args] + [f"{k}={arg_text(v)}" for k, v in case.kwargs]
    text = f"{head}({', '.join(inner)})"
    if plain and _main_dtype(case.args, case.kwargs) != case.dtype:
        text += f'.as_dtype("{case.dtype}")'
    c = case.cotangent
    if c != PLAIN:
        text += f'.cotangent("{c.values}", "{c.layout}", {c.seed})'
    text += f'.into("{case.into}")' if case.into != "contiguous" else ""
    text += f'.under("{case.under}")' if case.under != "grad" else ""
    text += f'.after("{case.after}")' if case.after else ""
    text += f'.refused("{case.refused}")' if case.refused else ""
    text += f'.sharing("{case.sharing}")' if case.sharing else ""
    return with_history(text, map(case_text, case.history)) if case.history else text


def with_history(text: str, before: Iterable[str]) -> str:
    """The text of a case with other cases before it."""
    return f"{text}.history({', '.join(before)})"


@functools.cache
def _is_name(op: str) -> bool:
    return all(part.isidentifier() for part in op.split("."))


def _main_dtype(args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]) -> str:
    specs = operands_in((args, kwargs))
    return specs[0].dtype if specs else ""


# ---------------------------------------------------------------------------------------------------------- from text


def parse(text: str) -> Case:
    """The case that a text describes. Raises CaseError that names the part that does not parse."""
    if len(text) > LONGEST:
        raise CaseError(f"this is not a case id: it has {len(text):,} characters, and may have {LONGEST:,}")
    if untrusted.depth_of_brackets(text) > DEEPEST:
        raise CaseError(
            f"this is not a case id: its brackets are deeper than {DEEPEST}; copy it whole and quote it for the shell"
        )
    try:
        return _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        why = str(e.args[0]) if e.args and not isinstance(e, (RecursionError, MemoryError)) else "it is too deep"
        part = untrusted.printable(text[:200]) + (" ..." if len(text) > 200 else "")
        raise CaseError(f"this is not a case id: '{part}' ({why}); copy it whole and quote it for the shell") from None


def _parsed(text: str) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SyntaxWarnings of Python's parser, about text that is refused below
        return _case(ast.parse(text.strip(), mode="eval").body)


def _case(node: ast.expr) -> Case:
    route: list[ast.Call] = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _has_call(node.func.value):
        if _is_quoted_head(node.func.value):
            break
        route.append(node)
        node = node.func.value
    if not isinstance(node, ast.Call):
        raise _bad(node, "an op with its arguments, like add(float32[2], float32[2])")
    op, dtype = _head(node.func)
    args = tuple(_arg(a) for a in node.args)
    if any(k.arg is None for k in node.keywords):
        raise _bad(node, "keyword arguments by name")
    kwargs = tuple((k.arg or "", _arg(k.value)) for k in node.keywords)
    case = Case(op, dtype or _main_dtype(args, kwargs), args, kwargs)
    for call in reversed(route):
        case = _with_route(case, call)
    return case


def _has_call(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Call)


def _is_quoted_head(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "op"


def _head(func: ast.expr) -> tuple[str, str]:
    if isinstance(func, ast.Call) and isinstance(func.func, ast.Name) and func.func.id == "op":
        parts = [_literal(a) for a in func.args]
        if len(parts) == 2 and all(isinstance(p, str) for p in parts):
            return str(parts[0]), str(parts[1])
        raise _bad(func, 'op("name", "dtype")')
    return _dotted(func), ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise _bad(node, "a name")


def _with_route(case: Case, call: ast.Call) -> Case:
    assert isinstance(call.func, ast.Attribute)
    word = call.func.attr
    if word == "history":
        return replace(case, history=tuple(map(_case, call.args)))
    values = [_literal(a) for a in call.args]
    if word == "cotangent" and len(values) == 3 and isinstance(values[2], int):
        if values[0] not in COTANGENTS or values[1] not in (*layouts.WORDS, *layouts.EXPANDED):
            raise _bad(call, 'cotangent("ones" | "normal" | "zero" | "nonfinite" | "huge" | "tiny", layout word, seed)')
        return replace(case, cotangent=Cotangent(str(values[0]), str(values[1]), values[2]))
    if word == "as_dtype" and len(values) == 1 and values[0] in FACTS:
        return replace(case, dtype=str(values[0]))
    if word not in ROUTE:
        words = ", ".join(f".{w}(word)" for w in ROUTE)
        raise _bad(call, f"one of .cotangent(values, layout, seed), .as_dtype(name), .history(case, ...), {words}")
    if len(values) != 1 or values[0] not in ROUTE[word]:
        raise _bad(call, f".{word}() of one of {', '.join(ROUTE[word])}")
    return replace(case, **{word: values[0]})


def _arg(node: ast.expr) -> Arg:
    if isinstance(node, ast.Tuple):
        return tuple(_arg(e) for e in node.elts)
    if isinstance(node, ast.Name):
        return NUMBERS.get(node.id, Word(node.id))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice" and len(node.args) == 3:
        return Slice(*(_literal(a) for a in node.args))
    if isinstance(node, ast.Subscript) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        spec = _spec(node)
        layouts.check(spec.shape, spec.layout)
        return spec
    value: Arg = _literal(node)
    return value


def _spec(node: ast.expr) -> TensorSpec:
    if isinstance(node, ast.Subscript):
        dtype = _dotted(node.value)
        if dtype not in FACTS:
            raise CaseError(f"unknown dtype '{dtype}' in a case id; {near(dtype, FACTS)}")
        index = node.slice
        dims = [_literal(e) for e in (index.elts if isinstance(index, ast.Tuple) else [index])]
        if not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in dims):
            raise _bad(node, "a shape of sizes, like float32[2, 3]")
        return TensorSpec(dtype, tuple(dims), grad=FACTS[dtype].is_inexact)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        raise _bad(node, "a tensor, like float32[2, 3].transpose(0, 1)")
    spec = _spec(node.func.value)
    return _with_part(spec, node, node.func.attr)


def _with_part(spec: TensorSpec, node: ast.Call, word: str) -> TensorSpec:
    values = [_literal(a) for a in node.args]
    named = {k.arg: _literal(k.value) for k in node.keywords}
    if word in layouts.ARITY:
        if not all(isinstance(v, int) for v in values):
            raise _bad(node, f".{word}() takes integers")
        return replace(spec, layout=(*spec.layout, (word, *values)))
    if word == "frozen":
        return replace(spec, grad=False)
    if word == "on_cpu":
        return replace(spec, on_cpu=True)
    if word == "at" and not (len(values) == 2 and isinstance(values[0], int) and isinstance(values[1], str)):
        raise _bad(node, '.at(flat index, "word")')
    if word == "of" and not all(isinstance(v, (int, float, complex)) for v in values):
        raise _bad(node, "numbers in .of()")
    if word not in ("at", "of"):
        seed = named.get("seed", 0)
        numbers = all(isinstance(v, (int, float)) for v in values) and set(named) <= {"seed"}
        if not numbers or not isinstance(seed, int) or seed < 0:
            raise _bad(node, "a value family with numbers, like .normal(seed=7)")
    if word == "at":
        return replace(spec, values=replace(spec.values, specials=(*spec.values.specials, (int(values[0]), str(values[1])))))
    if word == "of":
        if len(values) != spec.numel:
            raise CaseError(f".of() needs the {spec.numel} elements of {spec.dtype}{list(spec.shape)}, got {len(values)}")
        return replace(spec, values=replace(spec.values, literal=tuple(values)))
    return replace(spec, values=Values(word, tuple(values), int(named.get("seed", 0)), spec.values.specials))


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in NUMBERS:
        return NUMBERS[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "complex" and len(node.args) == 2:
        real, imag = (_literal(a) for a in node.args)
        if isinstance(real, (int, float)) and isinstance(imag, (int, float)):
            return complex(real, imag)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Name):
        return -_literal(node.operand)
    try:
        value = ast.literal_eval(node)
        hash(value)  # cases are hashable, so a list or a dict is refused
    except (ValueError, TypeError):
        raise _bad(node, "a plain number, string, None or tuple") from None
    _sized(value)
    return value


def _sized(value: Any) -> None:
    """Raises CaseError for integers outside the ranges of int64 and uint64."""
    if isinstance(value, tuple):
        for v in value:
            _sized(v)
    elif isinstance(value, int) and not -LARGEST <= value < 2 * LARGEST:
        raise CaseError(f"a whole number of {value.bit_length()} bits in a case id; they have at most 64")


def _bad(node: ast.AST, wanted: str) -> CaseError:
    try:
        text = ast.unparse(node)
    except RecursionError:
        text = "..."
    return CaseError(f"cannot read {untrusted.printable(text[:200])!r} in a case id; expected {wanted}")
