"""Names of devices, without torch."""

from __future__ import annotations

# For hints, and where a name must be recognised before torch is imported; torch knows more of them.
USUAL = ("auto", "cpu", "sim", "sim:mps", "mps", "cuda", "xpu", "mtia", "hpu", "npu", "privateuseone")
