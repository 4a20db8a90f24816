"""A finding as the few lines of plain torch that a bug report begins with.

The exact script (`parity.report.script`) keeps every bit of the case, and judges. This one is for reading: literal values,
plain view calls, one call on the CPU and on the device, and what both print.
"""

from __future__ import annotations

import re
from dataclasses import replace

from parity.checks import transfer
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.errors import ParityError
from parity.core.results import Aspect
from parity.report import script
from parity.report.script import CaseScript, Unwritable

SHOWN_BITS = 32  # of dtypes whose differences may not show in the four digits that torch prints
LONGEST = 4000  # most characters of a script that is worth reading
STRIDES = [
    "    result = run(device)",
    "    print(device, [t.stride() for t in (result if isinstance(result, (list, tuple)) else [result])])",
]
ASPECTS = (Aspect.FORWARD, Aspect.BACKWARD, Aspect.INPLACE, Aspect.OUT, Aspect.TRANSFER)


def minimal(case: Case, aspect: str, device: str, operands: bool = False, strides: bool = False) -> str | None:
    """The script, which takes the device as its argument; None if the case cannot be written in a few lines of torch alone.

    A destination and an operand that is written are printed whole, so that a write outside the view shows. operands: print the
    operands after the call instead of its result; strides: print the strides of its result.
    """
    if aspect not in ASPECTS:
        return None
    try:
        data = script.data_of(case, Aspect.FORWARD if aspect == Aspect.TRANSFER else aspect)
        if data is not None and aspect == Aspect.TRANSFER:
            data = replace(data, aspect=Aspect.TRANSFER)
        text = "" if data is None else _text(replace(data, strides=strides), device, operands)
    except (Unwritable, ParityError):
        return None
    return text if text and len(text) <= LONGEST and "unpacked(" not in text else None


def _text(t: CaseScript, device: str, operands: bool) -> str:
    function, sources = ("", []) if t.aspect == Aspect.TRANSFER else script.function_of(t)
    imports = [line for line in sources if line.startswith(("from ", "import "))]
    definitions = [s for s in sources if s not in imports]
    body = [f"    {line}" for line in _body(t, function, operands)]
    mode = script.mode_line(t.case)
    if mode.startswith("with "):
        body = [f"    {mode}", *(f"    {line}" for line in body)]
    elif mode:
        body = [f"    {mode}", *body]
    default = "" if device.startswith("sim") else device
    last = [
        *(["", "torch.set_printoptions(precision=9)"] if FACTS[t.case.dtype].bits >= SHOWN_BITS else [""]),
        f'for device in ("cpu", sys.argv[1] if sys.argv[1:] else "{default or "mps"}"):',
        *(STRIDES if t.strides else ["    print(device, run(device))"]),
    ]
    head = ["import sys", "", "import torch", *imports]
    parts = ["\n".join(head), *definitions, "\n".join(["def run(device):", *body])]
    text = "\n\n\n".join(parts) + "\n\n" + "\n".join(last) + "\n"
    text = (
        text
        if "nan" not in text and "inf" not in text
        else text.replace("import torch\n", "import torch\nfrom math import inf, nan\n", 1)
    )
    compile(text, "script", "exec")
    return text


def _body(t: CaseScript, function: str, operands: bool) -> list[str]:
    """The statements of `run`."""
    if t.aspect == Aspect.TRANSFER:
        return _copies(t)
    lines: list[str] = []
    written = t.row.forms.mutates or t.aspect == Aspect.INPLACE
    leaves = []
    for i, o in enumerate(t.inputs.operands):
        place = "" if o.spec.on_cpu else ".to(device)"
        base = f"{_literal(script.base_text(o.base))}{place}"
        leaf = t.aspect == Aspect.BACKWARD and o.spec.grad and (o.view.is_floating_point() or o.view.is_complex())
        if written and i == 0:
            lines += [
                f"base = {base}" + (".requires_grad_()" if leaf else ""),
                *(["leaf = base", "base = base.clone()"] if leaf else []),
            ]
            lines.append(f"t0 = {script.view_text('base', o.spec.layout, o.spec.shape)}")
            leaves += ["leaf"] if leaf else []
            continue
        view = script.view_text(base, o.spec.layout, o.spec.shape)
        lines.append(f"t{i} = {view}" + (".detach().requires_grad_()" if leaf else ""))
        leaves += [f"t{i}"] if leaf else []
    arguments = _plain(script.arguments_text(t))
    if t.aspect == Aspect.OUT:
        return [*lines, *_into(t, function, arguments)]
    call = f"{function}({arguments})"
    if operands and not written:
        return [*lines, call, f"return {', '.join(f't{i}' for i in range(len(t.inputs.operands)))}"]
    if t.aspect == Aspect.BACKWARD:
        return [*lines, *_gradients(t, call, leaves)]
    return [*lines, call, "return base"] if written else [*lines, f"return {call}"]


def _copies(t: CaseScript) -> list[str]:
    """Every way of `parity.checks.transfer` for the operands that it copies."""
    lines, copies = [], []
    for i, o in enumerate(t.inputs.operands[: transfer.OPERANDS]):
        if o.spec.on_cpu:
            continue
        base, dtype = _literal(script.base_text(o.base)), f"torch.{transfer.copied_as(o.spec)}"
        for name, place in (("near", ""), ("far", ".to(device)")):
            lines.append(f"{name}{i} = {script.view_text(f'{base}{place}', o.spec.layout, o.spec.shape)}")
        empty = f"torch.empty({tuple(o.spec.shape)}, dtype={dtype}"
        copies += [f"near{i}.to(device, {dtype}, copy=True).cpu()", f"{empty}, device=device).copy_(near{i}).cpu()"]
        copies += [f'far{i}.to("cpu", {dtype}, copy=True)', f"{empty}).copy_(far{i})"]
    if not copies:
        raise Unwritable("no operand is copied")
    return [*lines, "return (", *(f"    {c}," for c in copies), ")"]


def _gradients(t: CaseScript, call: str, leaves: list[str]) -> list[str]:
    fed = script.cotangents_of(t)
    if not fed or not leaves:
        raise Unwritable("no gradient")
    texts = [script.view_text(f"{_literal(script.base_text(c.base))}.to(device)", c.layout, c.shape) for c in fed]
    outputs = "t0" if t.row.forms.mutates else call
    lines = [call] if t.row.forms.mutates else []
    if len(fed) == 1 and len(t.result) - t.row.forms.mutates == 1:
        return [*lines, f"return torch.autograd.grad({outputs}, [{', '.join(leaves)}], {texts[0]}, allow_unused=True)"]
    lines += [f"live = [x for x in {outputs} if x.requires_grad]"]
    return [*lines, f"return torch.autograd.grad(live, [{', '.join(leaves)}], [{', '.join(texts)}], allow_unused=True)"]


def _into(t: CaseScript, function: str, arguments: str) -> list[str]:
    targets = script.destinations_of(t)
    lines = []
    for i, d in enumerate(targets):
        lines += [
            f"base{i} = {_literal(script.base_text(d.base))}.to(device)",
            f"out{i} = {script.view_text(f'base{i}', d.layout, d.shape)}",
        ]
    outs = ", ".join(f"out{i}" for i in range(len(targets)))
    given = ", ".join(x for x in (arguments, f"out={outs if len(targets) == 1 else f'({outs})'}") if x)
    bases = ", ".join(f"{'base' if d.shape and d.base.numel() else 'out'}{i}" for i, d in enumerate(targets))
    return [*lines, f"{function}({given})", f"return {bases}"]


def _literal(text: str) -> str:
    """A base without what is the default: shapes of one dimension, float32."""
    text = re.sub(r"\.reshape\(\(\d+,\)\)$", "", text)
    text = re.sub(r"torch\.tensor\(\[([^\[\],]+)\], dtype=([\w.]+)\)\.reshape\(\(\)\)$", r"torch.tensor(\1, dtype=\2)", text)
    return text.replace(", dtype=torch.float32)", ")") if "." in text.partition("dtype")[0].partition("(")[2] else text


def _plain(arguments: str) -> str:
    """Arguments for one dtype alone."""
    return re.sub(r"wider\(([\w.]+), wide\)", r"\1", arguments)
