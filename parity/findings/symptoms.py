"""The words of causes that reports read, too; torch is not loaded for them."""

from __future__ import annotations

import re

A_COPY = "a copy"
LOOKED_AT = 1000  # characters of a message that are looked at
SKELETON = 100  # most characters of an error's message in a symptom


def skeleton(message: str) -> str:
    """An error's first sentence without numbers, addresses, quoted names and shapes, so that equal errors read alike."""
    text = message.strip()[:LOOKED_AT].splitlines()[0] if message.strip() else ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\[[^\[\]]*\]|\([\d\s,x.]*\)", "", text)
    text = re.sub(r"\b(Half|BFloat16|Float|Double|ComplexFloat|Int|Long|Short|Char|Byte|Bool)\b", "T", text)
    text = re.sub(r"0x[0-9a-fA-F]+|[-+]?\d[\d.,]*(e[-+]?\d+)?", "N", text)
    return " ".join(text.split())[:SKELETON].rstrip(" .,:;")
