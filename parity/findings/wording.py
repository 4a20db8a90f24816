"""What messages and deaths say without what changes from call to call, so that equal ones read alike."""

from __future__ import annotations

import functools
import re

from parity.catalog import entries
from parity.catalog.lookup import called_by
from parity.core.devices import all_backends
from parity.core.errors import ParityError
from parity.core.results import ANYBODYS, Cause, Record, Status
from parity.store.rows import Death

LOST = "the device computes nothing any more"  # in the words of a death
GONE, HANG = "device lost", "hang"  # for the same, and for what parity ended, where nothing else is said: of these ids are made
LOOKING = "looking for the cause of "  # what was tried then
LOOKED_AT = 1000  # characters of a message that are looked at
SKELETON = 100  # most characters of an error's message in a symptom


@functools.cache
def function_of(op: str) -> str:
    """The public function or the operator of torch that an op calls; the op itself if it calls several, or has no row here."""
    try:
        called = called_by(entries.row(op))
    except ParityError:
        return op
    return called.replace("torch.ops.aten.", "aten::") or op


def death_words(d: Death) -> str:
    """How a process ended, without numbers: deaths with equal words count as one cause. The function is one of the words where
    there is no error's message, or one that any kernel's end gives. What was tried when the device was found dead is none."""
    lost = d.signal.startswith(f"{LOST} after ")
    m = re.match(rf"{LOST} after (?:{LOOKING})?(\w+ in \w+: .*)", d.signal)
    words = f"{LOST}: {skeleton(m[1].partition(': ')[2])}" if m else LOST if lost else skeleton(d.signal)
    anybodys = any(b.ends and b.ends.search(words) for b in all_backends()) or bool(m and ANYBODYS.search(m[1]))
    says_nothing = d.how == HANG or " " not in words or words == LOST or anybodys
    words = HANG if d.how == HANG else GONE if words == LOST else words
    return f"{d.how}: {words} in {Cause(function_of(d.op), 'dies').kernel}" if says_nothing else f"{d.how}: {words}"


def bare_symptom(r: Record) -> str:
    """The symptom of a record without a cause."""
    if r.status == Status.NOT_REPRODUCED:
        return r.status
    return f"raises: {skeleton(r.reason)}" if r.status == Status.ERROR else "values"


def skeleton(message: str) -> str:
    """An error's first sentence without numbers, addresses, quoted names, shapes and lists of names, so that equal errors read
    alike: those of fused optimizers differ in nothing but the tensors that they list."""
    text = message.strip()[:LOOKED_AT].splitlines()[0] if message.strip() else ""
    text = re.sub(r" Search for [`'].*| \(Could this error message be improved.*", "", text)  # what torch adds to any message
    if "AttributeError in " not in text:  # whose names are all that it says
        text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    # The same check of fused optimizers; one of them says nothing about it.
    text = re.sub(r"Expected at::native::check_fast_path_restrictions\(.*", "... must have same", text)
    text = re.sub(r"\[[^\[\]]*\]|\([\d\s,x.]*\)", "", text)
    text = re.sub(r"\b\w+(?:, \w+)+,? and \w+\b", "...", text)
    text = re.sub(r"(?<=: )[a-z_]\w*(?:\.\w+)*: (?=[A-Z])", "", text)  # the function that says it
    text = re.sub(r"\b(Half|BFloat16|Float|Double|ComplexFloat|Int|Long|Short|Char|Byte|Bool)\b", "T", text)
    text = re.sub(r"0x[0-9a-fA-F]+|[-+]?\d[\d.,]*(e[-+]?\d+)?", "N", text)
    return " ".join(text.split())[:SKELETON].rstrip(" .,:;")
