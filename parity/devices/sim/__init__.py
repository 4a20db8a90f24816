"""The simulated device: a real torch device in the PrivateUse1 slot, named "sim". Importing this registers nothing."""

from parity.devices.sim.call import Call, Seen
from parity.devices.sim.device import SimDevice, simulated
from parity.devices.sim.faults import Fault
from parity.devices.sim.loading import load_faults

__all__ = ["Call", "Fault", "Seen", "SimDevice", "load_faults", "simulated"]
