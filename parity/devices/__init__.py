"""Devices: the seam that the rest of parity speaks to, the native ones, and the simulated one."""

from parity.devices.base import Device
from parity.devices.refusals import classify
from parity.devices.resolve import resolve
from parity.devices.sim import Call, Fault, load_faults

__all__ = ["Call", "Device", "Fault", "classify", "load_faults", "resolve"]
