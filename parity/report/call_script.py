"""An operator that diverges in a model as a standalone script of plain torch: the very call, with its strides and values."""

from __future__ import annotations

import itertools

from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_map

from parity.checks.equivalents import on_the_cpu
from parity.checks.operators import OperatorCall, StridedOperand
from parity.execution.inputs import Slot
from parity.locating.located import Divergence
from parity.report.script import Unwritable, base_text, expression, quoted
from parity.report.script_text import HEAD, NAMED, REAL, TAIL

LARGEST = 1 << 20  # bytes of all operands together


def call_script(p: Divergence, device_name: str) -> str:
    """The script, which runs the call on the CPU and on a device, also in float64, and judges. Raises Unwritable, with the
    reason, for what is no single call of torch or is too large to be written down."""
    call = p.call
    operator = None if call is None else on_the_cpu(call.operator)
    if call is None or not isinstance(operator, (OpOverload, OpOverloadPacket)):
        raise Unwritable(f"{p.operator} is not an operator that the CPU has, too; parity run tests it")
    bases = {x.group: x.base for x in call.operands}
    size = sum(b.numel() * b.element_size() for b in bases.values())
    if size > LARGEST:
        many = f"{size >> 10} KiB, and a script holds {LARGEST >> 10}"
        raise Unwritable(f"the operands of {p.operator} take {many}; try a smaller model")
    simulated = device_name.partition(":")[0] == "sim"
    head = HEAD.format(
        title=quoted(f"{p.operator} in {p.title} of a model: {p.verdict.status}"),
        case=quoted(str(call.operator._schema)),
        remark="",
        default="default: mps or cuda, it was found on a simulated device" if simulated else f"default: {device_name}",
        imports="import base64\nimport sys\nimport zlib\n\nimport torch",
    )
    constants = ["ELEMENTWISE = False", "WIDE = True", *(f"BASE_{g} = {base_text(b)}" for g, b in bases.items())]
    body = [
        "def run(device, wide):",
        '    """The call on a device, its results by name; wide: in float64."""',
        *_lines(call, str(operator)),
    ]
    default = REAL if simulated else NAMED.format(name=device_name)
    parts = [head.rstrip(), "\n".join(constants), "\n".join(body), default.rstrip(), TAIL.replace("@MORE@", "").rstrip()]
    return "\n\n\n".join(parts) + "\n"


def _lines(call: OperatorCall, operator: str) -> list[str]:
    """The body of `run`. operator: "aten.gelu.default"."""
    places = {x.group: '"cpu"' if x.on_cpu else "device" for x in call.operands}
    lines = [f"base{g} = put(BASE_{g}, {place}, wide)" for g, place in places.items()]
    for k, x in enumerate(call.operands):
        view = f"base{x.group}.as_strided({list(x.shape)}, {list(x.strides)}, {x.offset})"
        view = f"{view}.conj()" if x.conj else view
        lines.append(f"t{k} = torch._neg_view({view})" if x.neg else f"t{k} = {view}")
    number = itertools.count()
    args, kwargs = tree_map(lambda x: Slot(next(number)) if isinstance(x, StridedOperand) else x, (call.args, call.kwargs))
    given = ", ".join([*map(expression, args), *(f"{n}={expression(v)}" for n, v in kwargs.items())])
    kept = "".join(f', "operand[{k}]": t{k}' for k in sorted(call.written | call.statistics))
    lines += [f"outputs = tensors(torch.ops.{operator}({given}))"]
    lines += [f'return {{**{{f"out[{{i}}]": t for i, t in enumerate(outputs)}}{kept}}}']
    return [f"    {line}" for line in lines]
