"""How stored rows are typed. `convert` reads a tree of JSON into a dataclass by its annotations, with msgspec, and refuses what
does not fit them; `schemas` describes the same dataclasses. The types below are what JSON has no type for.

NaN and infinities are written as the strings "nan", "inf" and "-inf": msgspec would write null, from which they do not come
back, and takes no string for a float. A field that holds them, or any other number, is annotated `Number`.
"""

from __future__ import annotations

import functools
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec

from parity.core.errors import near

T = TypeVar("T")
Tree: TypeAlias = dict[str, Any]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
SPELLED = ("nan", "inf", "-inf")  # the numbers that JSON does not have
PLACE = re.compile(r"(.*) - at `(?:key` in `)?\$\.?([^`]*)`", re.DOTALL)  # how msgspec ends a message


class Special(ABC):
    """A type of fields that msgspec leaves to `read`. A value is of the type that is registered for it, a float or a str."""

    schema: ClassVar[Tree]

    @classmethod
    @abstractmethod
    def read(cls, value: object) -> object:
        """The value of a field. Raises ValueError with a message of its own, or TypeError with what was expected."""


class _Number(Special):
    schema: ClassVar[Tree] = {"anyOf": [{"type": "number"}, {"enum": list(SPELLED)}]}

    @classmethod
    def read(cls, value: object) -> float:
        if (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in SPELLED:
            return float(value)
        raise TypeError("expected a number")


_Number.register(float)


def words(unknown: str, allowed: Collection[str], form: re.Pattern[str] | None = None) -> Any:
    """A type of fields that hold one of some words. unknown: what is said of another, with {} for it; form: of further words
    that are allowed, and not listed."""
    every = tuple(map(str, allowed))
    listed: Tree = {"enum": list(every)}

    class Word(Special):
        schema: ClassVar[Tree] = {"anyOf": [listed, {"type": "string", "pattern": f"^{form.pattern}$"}]} if form else listed

        @classmethod
        def read(cls, value: object) -> str:
            if not isinstance(value, str):
                raise TypeError("expected a word")
            if value not in every and not (form and form.fullmatch(value)):
                raise ValueError(f"{unknown.format(value[:60])}; allowed: {', '.join(filter(None, every))}")
            return value

    Word.register(str)
    return Word


if TYPE_CHECKING:
    Number: TypeAlias = float
else:
    Number = _Number


def schema_of(kind: Any) -> Tree:
    """The JSON schema of a type of this module, such as one that `words` made."""
    schema: Tree = kind.schema
    return schema


def named(by: Any) -> msgspec.Meta:
    """The names that a mapping may hold. by: what `words` made."""
    return msgspec.Meta(extra_json_schema={"propertyNames": schema_of(by)}, extra={"names": by})


# --------------------------------------------------------------------------------------------------------------- reading


class Misfit(ValueError):
    """What does not fit its annotation. field: that of the outermost dataclass, where one is at fault."""

    def __init__(self, why: str, field: str = "") -> None:
        super().__init__(why)
        self.field = field


def convert(tree: Tree, kind: type[T]) -> T:
    """A dataclass from JSON. Raises Misfit with a reason that names the field and its value, or with what its `__post_init__`
    says in a ValueError: what no single field can say stands there."""
    _refuse_unknown(tree, kind)
    try:
        return msgspec.convert(tree, kind, dec_hook=_read)
    except msgspec.ValidationError as e:
        found = PLACE.fullmatch(str(e))
        raise Misfit(_reason(e, tree), re.split(r"[.\[]", found[2])[0] if found else "") from None


def _read(kind: type[Any], value: object) -> object:
    return kind.read(value)


class _Fields(NamedTuple):
    """The names of all fields of a dataclass; of those that hold other dataclasses, with their type; and of mappings, with the
    words for the names in them, level by level."""

    names: frozenset[str]
    inner: tuple[tuple[str, type[Any]], ...]
    named: tuple[tuple[str, tuple[Any, ...]], ...]


@functools.cache
def _fields(kind: type[Any]) -> _Fields:
    hints = get_type_hints(kind, include_extras=True)
    inner = tuple((name, part) for name, hint in hints.items() if (part := _inner(hint)) is not None)
    named = tuple((name, words) for name, hint in hints.items() if (words := _names(hint)))
    return _Fields(frozenset(f.name for f in fields(kind)), inner, named)


def _inner(hint: Any) -> type[Any] | None:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next(filter(None, map(_inner, get_args(hint))), None)


def _names(hint: Any) -> tuple[Any, ...]:
    """The words for the names of a mapping, and for those of the mappings in it."""
    base, *metas = get_args(hint) or [None]
    own = next((m.extra["names"] for m in metas if isinstance(m, msgspec.Meta) and m.extra), None)
    return (own, *_names(get_args(base)[1])) if own else ()


def _refuse_unknown(tree: Tree, kind: Any, field: str = "") -> None:
    """Raises Misfit for a field that the dataclass does not have, and for a name that a mapping may not hold: msgspec passes
    over both. field: the outermost one."""
    names, inner, named = _fields(kind)
    if not tree.keys() <= names:
        wrong = min(tree.keys() - names)
        raise Misfit(f"unknown field '{wrong[:60]}'; {near(wrong, names)}", field or wrong)
    for name, words in named:
        _refuse_names(tree.get(name), words, field or name)
    for name, part in inner:
        value = tree.get(name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                _refuse_unknown(one, part, field or name)


def _refuse_names(tree: object, words: tuple[Any, ...], field: str) -> None:
    if not words or not isinstance(tree, dict):
        return
    for name, value in tree.items():
        try:
            words[0].read(name)
        except ValueError as e:
            raise Misfit(str(e), field) from None
        _refuse_names(value, words[1:], field)


def _reason(e: msgspec.ValidationError, tree: Any) -> str:
    """What a person reads of an error: the field, its value as far as the message says where it is, and what is expected."""
    if isinstance(e.__cause__, ValueError):
        return str(e.__cause__)
    found = PLACE.fullmatch(str(e))
    what, path = (found[1], found[2].partition("[...]")[0]) if found else (str(e), "")
    what = what.replace("`", "'")
    if not path:
        return what[:1].lower() + what[1:]
    value = tree
    for name, place in re.findall(r"([\w-]+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(place)]
    return f"'{path}' holds {str(value)[:60]!r}, {what[:1].lower()}{what[1:]}"


# --------------------------------------------------------------------------------------------------------------- schemas


def schemas(kinds: Sequence[type[Any]]) -> Mapping[str, Tree]:
    """The JSON schema of each dataclass, and of those in its fields, by its name. Fields at their default are left out."""
    _, made = msgspec.json.schema_components(kinds, schema_hook=schema_of)
    for tree in made.values():
        for of in tree["properties"].values():
            of.pop("default", None)
    return {
        name: {
            "description": " ".join(inspect.cleandoc(tree["description"]).split()),
            "type": "object",
            "properties": tree["properties"],
            "required": tree["required"],
            "additionalProperties": False,
        }
        for name, tree in made.items()
    }
