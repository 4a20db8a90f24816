"""The text of scripts: the frame of one that judges, with what it prints, compares and ends with, which `parity.report.script`
fills in, and statements of a short one on fewer lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from parity.core.results import Record, Status

WIDTH = 128  # of a line of several statements or numbers

HEAD = '''\
"""{title}

{case}

python {{this file}} [device]      ({default})
Ends with 1 where the device and the CPU differ by more than a few roundoffs, with 0 where they agree, and with 2 where nothing
was compared: a device that is not there, or a call that the CPU does not take. For git bisect run, make that 2 a 125 (skip).
"""

from __future__ import annotations

{imports}

nan, inf = float("nan"), float("inf")


def unpacked(data, dtype):
    """A flat tensor from compressed bytes."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(data))), dtype=dtype)


def wider(dtype, wide):
    """float64 or complex128 in the run that shows the truth."""
    return dtype if not wide else torch.complex128 if dtype.is_complex else torch.float64


def put(base, device, wide):
    """A copy of a dense tensor on the device; views are made there, because copying a view would repair its layout."""
    inexact = base.is_floating_point() or base.is_complex()
    return base.to(wider(base.dtype, wide) if inexact else base.dtype).to(device, copy=True)


def tensors(result):
    """All tensors of a result; numbers as tensors."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple, dict)):
        return [t for r in (result.values() if isinstance(result, dict) else result) for t in tensors(r)]
    return [] if result is None or isinstance(result, str) else [torch.tensor(result)]
'''

TAIL = '''\
def attempt(device, wide=False):
    """Results by name on the CPU, or the exception."""
    try:
        return {n: t.detach().to("cpu").resolve_conj().resolve_neg() for n, t in run(device, wide).items()}
    except Exception as e:
        return e


def parts(t):
    """Real numbers in float64, complex ones side by side."""
    return torch.view_as_real(t.to(torch.complex128)) if t.is_complex() else t.to(torch.float64)


def differs(name, got, cpu, truth):
    """Print the largest difference of one tensor; whether it is more than a few roundoffs."""
    if got.shape != cpu.shape or got.dtype != cpu.dtype:
        print(f"  {name} is {got.dtype}{list(got.shape)} on the device, {cpu.dtype}{list(cpu.shape)} on the CPU")
        return True
    if not cpu.numel():
        return False
    if not (cpu.is_floating_point() or cpu.is_complex()):
        bad = got != cpu
        if bad.any():
            index = tuple(bad.nonzero()[0].tolist())
            print(f"  {name}: {int(bad.sum())} of {cpu.numel()} differ, first at {list(index)}: {got[index]} {cpu[index]}")
        return bool(bad.any())
    eps = torch.finfo(cpu.dtype).eps
    d, c = parts(got), parts(cpu)
    same = (d == c) | (d.isnan() & c.isnan())
    off = torch.where(same, 0.0, (d - c).abs()).nan_to_num(inf, inf)
    allowed = (16 if truth is None else 4) * eps * c.abs().nan_to_num(0, 0, 0) + torch.finfo(cpu.dtype).tiny
    truth = truth if truth is not None and truth.shape == cpu.shape else None
    if truth is not None:
        # What rounding does here shows in the CPU's own error.
        own = (c - parts(truth)).abs().nan_to_num(0, 0, 0)
        allowed = allowed + 4 * (own if ELEMENTWISE else own.max())
    worst = int((off / allowed).argmax())
    ones = torch.zeros(off.numel(), dtype=torch.bool)
    ones[worst] = True
    index = ones.view(off.shape).nonzero()[0].tolist()[: cpu.dim()]
    at = tuple(index)
    most, limit = float(off.flatten()[worst]), float(allowed.flatten()[worst])
    print(f"  {name}: largest difference {most:.6g} at {index}, allowed {limit:.3g}")
    wide = "" if truth is None else f", float64 {truth[at].item()!r}"
    print(f"    device {got[at].item()!r}, CPU {cpu[at].item()!r}{wide}")
    return bool((off > allowed).any())


def nothing(why):
    """One line, and the exit code of a comparison that did not take place."""
    print(" ".join(str(why).split()), file=sys.stderr)
    return 2


def main():
    asked = sys.argv[1:]
    if len(asked) > 1 or asked[:1] and (not asked[0] or asked[0].startswith("-")):
        return nothing(f"usage: python {sys.argv[0]} [DEVICE], like mps, cuda:1 or cpu; not {' '.join(asked)!r}")
    device = asked[0] if asked else default_device()
    if device is None:
        return nothing(f"no accelerator found; name a device: python {sys.argv[0]} DEVICE (cpu shows that the script runs)")
    try:
        torch.empty(1, device=device).cpu()
    except Exception as e:
        first = str(e).strip().partition("\\n")[0].partition(". ")[0]
        return nothing(f"device {device!r} cannot be used here, so nothing was compared: {type(e).__name__}: {first}")
    torch.set_printoptions(precision=9, linewidth=140)
    print(f"torch {torch.__version__}, device {device}")
    cpu, got = attempt("cpu"), attempt(device)
    truth = attempt("cpu", wide=True) if WIDE else None
    for place, results in (("device", got), ("CPU", cpu), ("float64", truth)):
        if isinstance(results, Exception):
            print(f"{place} raises {type(results).__name__}: {results}")
        for name, t in results.items() if isinstance(results, dict) else ():
            print(f"{place} {name} = {t}")
    truth = truth if isinstance(truth, dict) else {}
    if isinstance(cpu, Exception) and isinstance(got, dict) and list(truth) == list(got):
        cpu = {n: t.to(got[n].dtype) for n, t in truth.items()}  # the truth stands in for a CPU that refuses the dtype
    if isinstance(cpu, Exception):
        return nothing(f"the CPU raises {type(cpu).__name__}, so nothing was compared: {cpu}")
    if isinstance(got, Exception):
        print("they differ: the device raises where the CPU does not")
        return 1
    if list(got) != list(cpu):
        print(f"the device gives {list(got)}, the CPU {list(cpu)}")
        return 1
    bad = [differs(name, got[name], cpu[name], truth.get(name)) for name in cpu]
@MORE@    print("they differ" if any(bad) else "they agree")
    return int(any(bad))


if __name__ == "__main__":
    sys.exit(main())
'''

AGAIN = """\
    again = attempt(device)
    for name in cpu if isinstance(again, dict) else ():
        if not torch.equal(parts(again[name]).nan_to_num(), parts(got[name]).nan_to_num()):
            print(f"  {name}: two equal calls on the device differ")
        bad.append(differs(name, again[name], cpu[name], truth.get(name)))
"""

STRIDES = """\
    theirs, ours = run(device, False), run("cpu", False)
    for name in cpu:
        there, here = ([s for s, n in zip(r[name].stride(), r[name].shape) if n > 1] for r in (theirs, ours))
        print(f"  {name}: strides of dimensions longer than 1 are {there} on the device, {here} on the CPU")
        bad.append(there != here)
"""

NAMED = """\
def default_device():
    return "{name}"
"""

REAL = """\
def default_device():
    # Found on a simulated device, which only parity has: name a real one.
    return torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else None
"""


def judging(
    title: str, case: str, lines: Sequence[str], constants: Sequence[str], device: str, sources: Sequence[str] = (), *,
    more: str = "",
) -> str:  # fmt: skip
    """The script that runs a call on the CPU and on a device, also in float64, and judges. case: what is below the title;
    lines: the body of `run`; sources: imports and definitions that it needs; more: what `main` compares besides."""
    imports = [line for line in sources if line.startswith(("from ", "import "))]
    simulated = device.partition(":")[0] == "sim"
    head = HEAD.format(
        title=quoted(title),
        case=quoted(case),
        default="default: the one that torch finds; it was found on a simulated one" if simulated else f"default: {device}",
        imports="\n".join([*sorted(["import base64", "import sys", "import zlib"]), "", "import torch", *imports]),
    )
    run = ["def run(device, wide):", '    """The call on a device, its results by name; wide: in float64."""']
    body = "\n".join([*run, *(f"    {line}" for line in lines)])
    default, tail = REAL if simulated else NAMED.format(name=device), TAIL.replace("@MORE@", more)
    definitions = [x for x in sources if x not in imports]
    parts = [head.rstrip(), *definitions, "\n".join(constants), body, default.rstrip(), tail.rstrip()]
    text = "\n\n\n".join(parts) + "\n"
    compile(text, "script", "exec")
    return text


def quoted(text: str) -> str:
    """Escape a text for use inside a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def excused(text: str, r: Record, command: str) -> str:
    """The script of a finding that it does not show by itself. command: what replays the finding."""
    why = "it was seen once, and not again" if r.status == Status.NOT_REPRODUCED else "it comes only after other cases"
    return f"# This may not show the finding: {why}.\n# {command}\n{text}"


def on_fewer_lines(lines: Sequence[str], excess: int) -> list[str]:
    """The statements with short ones in a row on one line, also those of one context, until there are so many lines fewer."""
    made: list[str] = []
    for line in lines:
        context, before = _context(line), made[-1] if made else ""
        joined = f"{before}; {line.removeprefix(context)}"
        alone = [x for x in (before, line) if "\n" in x or x.endswith(":") or x.lstrip().startswith("return")]
        if excess > 0 and before and not alone and context == _context(before) and len(joined) < WIDTH:
            made[-1] = joined
            excess -= 1
        else:
            made.append(line)
    return made


def _context(line: str) -> str:
    """The indentation of a statement, with the context before it on its line."""
    m = re.match(r" *(with .+?\): )?", line)
    return m[0] if m else ""


def nested(m: re.Match[str]) -> str:
    """Elements and dtype, with the shape that follows them in brackets."""
    texts = re.split(r", (?![^(]*\))", m[1])
    for n in reversed(ast.literal_eval(m[3])):
        texts = [f"[{', '.join(texts[k : k + n])}]" for k in range(0, len(texts), n)]
    return texts[0] + m[2]
