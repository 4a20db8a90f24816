"""The simulated device: a real torch device in the PrivateUse1 slot, named "sim". Importing this registers nothing."""

from parity.devices.setup import load_faults
from parity.devices.sim.call import Call, CallOutline
from parity.devices.sim.device import SimDevice, simulated
from parity.devices.sim.faults import Fault

__all__ = ["Call", "CallOutline", "Fault", "SimDevice", "load_faults", "simulated"]
