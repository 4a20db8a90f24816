"""Devices: the seam that the rest of parity speaks to, the native ones, and the simulated one.

`python -m parity.devices.probe` examines one; import `parity.devices.probe` for the same in this process.
"""

from parity.devices.base import Device
from parity.devices.health import Health
from parity.devices.refusals import classify
from parity.devices.resolve import resolve
from parity.devices.sim import Call, Fault, load_faults

__all__ = ["Call", "Device", "Fault", "Health", "classify", "load_faults", "resolve"]
