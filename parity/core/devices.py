"""Names of devices, without torch."""

from __future__ import annotations

# For hints, and where a name must be recognised before torch is imported; torch knows more of them.
HONEST = ":honest"  # behind the name of a simulated device: its healthy twin, which rounds as real devices do
SIMULATED = ("sim", "sim:mps", f"sim{HONEST}", f"sim:mps{HONEST}")
USUAL = ("auto", "cpu", *SIMULATED, "mps", "cuda", "xpu", "mtia", "hpu", "npu", "privateuseone")
