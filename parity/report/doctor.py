"""The doctor's answer as text and as JSON."""

from __future__ import annotations

from typing import Any

from parity.core.dtypes import FACTS
from parity.core.health import HEALTHY, conclusion
from parity.devices.fingerprint import VARIABLES
from parity.engine.doctor import fingerprint_of, in_words, named
from parity.report.answers import Examined, Variable
from parity.report.output import last_line

WIDE = 28
DEFAULTS = "none of those that change numbers is set"


def render(found: dict[str, Any], seconds: float | None = None) -> str:
    """An examination's answer as text. seconds: that it took."""
    f = fingerprint_of(found)
    lines = [f"device   {named(f)}", f"verdict  {in_words(found['verdict'])}", *(f"         {r}" for r in found["reasons"])]
    if found["dtypes"]:
        lines.append(f"dtypes   {', '.join(found['dtypes'])}")
        lines.append(f"         not: {', '.join(d for d in FACTS if d not in found['dtypes']) or 'none'}")
    software = ("torch", f"{f.torch} ({f.torch_git[:10]})"), ("os", f.os), ("machine", f.machine)
    lines += [f"{key:<{WIDE}}{value}" for key, value in (*f.facts, *found["machine"], *software)]
    lines.append(f"environment{'' if f.environment else ': ' + DEFAULTS}")
    lines += [f"  {f'{k}={v}':<{WIDE + 12}}  {VARIABLES.get(k, '')}".rstrip() for k, v in f.environment]
    following = f"parity run --device {f.device}" if found["verdict"] == HEALTHY else ""
    said = last_line(conclusion(found["verdict"]), f"{f.device} is {found['verdict']}", seconds, following=following)
    return "\n".join([*lines, said])


def answer(found: dict[str, Any]) -> Examined:
    """The same for other programs: the probe's answer, the meaning of its verdict, and what each variable does."""
    f = fingerprint_of(found)
    environment = tuple(Variable(k, v, VARIABLES.get(k, "")) for k, v in f.environment)
    facts, machine = (dict(found[key]) for key in ("facts", "machine"))
    verdict, reasons, dtypes = found["verdict"], tuple(found["reasons"]), tuple(found["dtypes"])
    means = in_words(verdict)
    return Examined(str(found["device"]), verdict, means, reasons, dtypes, facts, machine, environment, found["fingerprint"])
