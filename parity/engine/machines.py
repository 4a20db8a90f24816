"""Several machines in one run: each is examined through the gateway that its workers will use, before any of them starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import execnet

from parity.core.errors import DeviceError, UsageError
from parity.core.results import Fingerprint
from parity.engine.child import REFUSALS
from parity.engine.doctor import PROBE_SECONDS, fingerprint_of
from parity.engine.merging import difference

# What runs on the machine: the examination, with that machine's own Python and parity, and without the folder it stands in.
EXAMINE = """
import sys
sys.path[:] = filter(None, sys.path)
from parity.core.errors import ParityError
from parity.engine.doctor import examined_once
try:
    channel.send((0, examined_once(*channel.receive())))
except ParityError as e:
    channel.send((e.exit_code, str(e)))
"""
STRANGE = re.compile(r"[^\x21-\x7e ]")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a run. spec: how its gateway is opened (`ssh=mac2//python=...`); workers: how many of it were asked for;
    answer: of the examination."""

    spec: str
    workers: int
    answer: dict[str, Any]

    @property
    def fingerprint(self) -> Fingerprint:
        """What may change numerics on it."""
        return fingerprint_of(self.answer)


def read_specs(given: Sequence[str]) -> dict[str, int]:
    """The gateways by number of workers, of texts such as `2*ssh=mac2//python=python3`. Raises UsageError."""
    specs: dict[str, int] = {}
    for text in given:
        count, spec = text.split("*", 1) if re.match(r"\d+\*", text) else ("1", text)
        try:
            read = execnet.XSpec(spec)
        except (AttributeError, ValueError) as e:
            raise UsageError(f"-n {text}: {e}; give popen//python=PATH, or ssh=HOST//python=PATH") from None
        if STRANGE.search(text) or not (read.popen or read.ssh or read.socket or read.vagrant_ssh) or int(count) < 1:
            raise UsageError(f"-n '{text}' names no machine; give popen//python=PATH, or ssh=HOST//python=PATH")
        specs[spec] = specs.get(spec, 0) + int(count)
    return specs


def examine(specs: dict[str, int], device: str, faults: str | None, setup: str | None) -> list[Machine]:
    """Examine every machine; the first one decides what `auto` is. Raises DeviceError or
    UsageError, which names the machine."""
    machines: list[Machine] = []
    for spec, workers in specs.items():
        name = str(machines[0].answer["device"]) if machines else device
        machines.append(Machine(spec, workers, _examined(spec, name, faults, setup)))
    return machines


def _examined(spec: str, device: str, faults: str | None, setup: str | None) -> dict[str, Any]:
    group = execnet.Group()
    try:
        gateway = group.makegateway(spec)
        channel = gateway.remote_exec(EXAMINE)
        channel.send((device, faults, setup))
        code, answer = channel.receive(PROBE_SECONDS + 10)
    except (execnet.HostNotFound, execnet.RemoteError, execnet.TimeoutError, EOFError, OSError, AssertionError) as e:
        why = str(e).strip().splitlines()[-1] if str(e).strip() else type(e).__name__
        raise DeviceError(f"machine {spec} cannot be reached: {why}; try its host and Python by hand") from None
    finally:
        group.terminate(timeout=2)
    if code:
        raise REFUSALS[code](f"machine {spec}: {answer}")
    return dict(answer)


def differences(machines: Sequence[Machine], mixed: bool) -> tuple[str, ...]:
    """How the machines differ from the first one, a text for each that does. Raises UsageError unless mixed."""
    first = machines[0]
    texts = []
    for m in machines[1:]:
        if said := difference(first.fingerprint, m.fingerprint):
            if not mixed:
                raise UsageError(f"machines {first.spec} and {m.spec} differ: {said}; take equal ones, or give --accept mixed")
            texts.append(f"{m.spec}: {said}")
    return tuple(texts)
