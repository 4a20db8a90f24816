"""Devices: the interface that the rest of parity uses, the native devices, and the simulated one. `parity.devices.preflight`
examines one in this process."""

from parity.core.devices import Health
from parity.devices.base import Device
from parity.devices.refusals import classify
from parity.devices.resolve import add, resolve
from parity.devices.sim import Call, Fault, load_faults

__all__ = ["Call", "Device", "Fault", "Health", "add", "classify", "load_faults", "resolve"]
