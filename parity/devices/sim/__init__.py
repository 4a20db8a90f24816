"""The simulated device: a real torch device in the PrivateUse1 slot, named "sim". Importing this registers nothing."""

from parity.devices.sim.device import SimDevice, simulated
from parity.devices.sim.faults import Call, Fault, load_faults

__all__ = ["Call", "Fault", "SimDevice", "load_faults", "simulated"]
