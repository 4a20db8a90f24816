"""A call written in another way: with other operands, in another dtype or place, or in another form.

`parity.findings.workaround` says which of these may avoid a fault, and in which words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.core.dtypes import HALF
from parity.execution.execute import Program

Call: TypeAlias = Callable[..., Any]
Change: TypeAlias = Callable[[Any], Any]
HALVES = tuple(getattr(torch, name) for name in HALF)
NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8)


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a call. plain: the form that returns its results and writes nothing, if there is one; written: the positions
    and the names of the arguments that this one writes into, if they are given."""

    call: Call
    plain: Call | None
    written: frozenset[int | str]

    def targets(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """What it writes into."""
        return [x for k, x in (*enumerate(args), *kwargs.items()) if k in self.written]


# ------------------------------------------------------------------------------------------ other operands, dtypes and places


def _inside(entering: Callable[[Sequence[Tensor]], tuple[Change, Change]]) -> Callable[[Form], Call]:
    """With other operands. entering: gets all tensors of a call, and returns what changes an argument and what brings a result
    back. What the call writes is copied into the operands that it was given."""

    def around(form: Form) -> Call:
        def call(*args: Any, **kwargs: Any) -> Any:
            enter, leave = entering([x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)])
            given, named = tree_map(enter, (args, kwargs))
            result = form.call(*given, **named)
            inner, outer = form.targets(given, named), form.targets(args, kwargs)
            _write(outer, inner)
            own = {id(a): b for a, b in zip(tree_leaves(inner), tree_leaves(outer))}
            return tree_map(lambda x: own[id(x)] if id(x) in own else leave(x), result)

        return call

    return around


def _write(targets: Any, results: Any) -> None:
    for target, result in zip(tree_leaves(targets), tree_leaves(results)):
        if target is not result:
            (target if target.shape == result.shape else target.resize_(result.shape)).copy_(result)


def _with_operands(change: Callable[[Tensor], Tensor]) -> Callable[[Form], Call]:
    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, Tensor) else x

    return _inside(lambda _given: (changed, _same))


def _same(x: Any) -> Any:
    return x


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _moved(given: Sequence[Tensor]) -> tuple[Change, Change]:
    place = _place(given)
    return lambda x: x.to(place) if isinstance(x, Tensor) and place is not None else x, _same


def _place(given: Sequence[Tensor]) -> torch.device | None:
    """Where the operands lie that are not on the CPU."""
    return next((x.device for x in given if not x.is_cpu), None)


def _in_dtype(wide: torch.dtype, narrow: Sequence[torch.dtype]) -> Callable[[Form], Call]:
    """Destinations get the result in the dtype that the call itself has."""

    def entering(given: Sequence[Tensor]) -> tuple[Change, Change]:
        dtypes = [x.dtype for x in given]
        back = next((d for d in dtypes if d in narrow), wide)
        back = wide if wide in dtypes else back  # what torch promotes to

        def enter(x: Any) -> Any:
            return x.to(wide) if isinstance(x, Tensor) and x.dtype in narrow else x

        def leave(x: Any) -> Any:
            return x.to(back) if isinstance(x, Tensor) and x.dtype == wide else x

        return enter, leave

    def around(form: Form) -> Call:
        if form.plain is None:
            return _inside(entering)(form)
        plain = _inside(entering)(Form(form.plain, None, frozenset()))
        return _out_of_place(Form(plain, plain, form.written))

    return around


def _on_the_cpu(given: Sequence[Tensor]) -> tuple[Change, Change]:
    place = _place(given)

    def enter(x: Any) -> Any:
        if isinstance(x, torch.device) and place is not None and x.type == place.type:
            return torch.device("cpu")
        return x.cpu() if isinstance(x, Tensor) else x

    def leave(x: Any) -> Any:
        return x.to(place) if isinstance(x, Tensor) and place is not None else x

    return enter, leave


# -------------------------------------------------------------------------------------------------------- other forms


def _out_of_place(form: Form) -> Call:
    """Without a destination: the result is copied into it."""
    plain = form.plain

    def call(*args: Any, **kwargs: Any) -> Any:
        targets = form.targets(args, kwargs)
        if not targets or plain is None:
            return form.call(*args, **kwargs)
        result = plain(*args, **{k: a for k, a in kwargs.items() if k not in form.written})
        _write(targets, result)
        return targets[0]

    return call


def _with_dense_gradients(form: Form) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = form.call(*args, **kwargs)
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(lambda g: g.contiguous())  # type: ignore[no-untyped-call]  # as torch has it
        return result

    return call


# Makes another call of a form; by the name of the way.
AROUND: dict[str, Callable[[Form], Call]] = {
    "contiguous": _with_operands(Tensor.contiguous),
    "copy": _with_operands(_copied),
    "moved": _inside(_moved),
    "contiguous gradient": _with_dense_gradients,
    "out of place": _out_of_place,
    "float32": _in_dtype(torch.float32, HALVES),
    "int64": _in_dtype(torch.int64, NARROW),
    "CPU": _inside(_on_the_cpu),
}


def there(way: str, p: Program) -> Program:
    """The program of a device with a way around."""
    around, destination = AROUND[way], frozenset[int | str]({"out"})
    function = Form(p.function, None, frozenset({0})) if p.row.forms.mutates else Form(p.function, p.function, destination)
    inplace = p.inplace and around(Form(p.inplace, p.function, frozenset({0})))
    return replace(p, function=around(function), inplace=inplace, there=None)
