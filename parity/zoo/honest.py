"""The old name of `parity.devices.sim.honest`, for one version: `--device sim:honest` replaces `--setup parity.zoo.honest`."""

from parity.devices.sim.honest import FAULTS, KINDS, SUBSETS

__all__ = ["FAULTS", "KINDS", "SUBSETS"]
