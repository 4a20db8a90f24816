"""parity: does a PyTorch device compute the right thing?

Nothing heavy is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from parity.core.version import __version__ as __version__

if TYPE_CHECKING:
    from parity.comparing.comparison import Comparison as Comparison
    from parity.comparing.comparison import ParityFailure as ParityFailure
    from parity.comparing.comparison import ParityWarning as ParityWarning
    from parity.comparing.pair import compare as compare
    from parity.devices import Call as Call
    from parity.devices import Fault as Fault
    from parity.faces.fixture import Fixture as Fixture
    from parity.generation.shrink import cases as cases
    from parity.generation.strategies import tensors as tensors
    from parity.locating.asserting import assert_parity as assert_parity
    from parity.locating.asserting import locate as locate
    from parity.locating.auditing import audit as audit
    from parity.locating.capturing import Captured as Captured
    from parity.locating.capturing import capture as capture
    from parity.locating.located import Located as Located
    from parity.locating.needs import Needs as Needs
    from parity.training.generation import Generation as Generation
    from parity.training.generation import compare_generation as compare_generation
    from parity.training.train import compare_training as compare_training
    from parity.training.trained import Training as Training

_HOMES = {
    "Call": "parity.devices", "Captured": "parity.locating.capturing", "Comparison": "parity.comparing.comparison",
    "Fault": "parity.devices", "Fixture": "parity.faces.fixture", "Generation": "parity.training.generation",
    "Located": "parity.locating.located", "Needs": "parity.locating.needs", "ParityFailure": "parity.comparing.comparison",
    "ParityWarning": "parity.comparing.comparison", "Training": "parity.training.trained",
    "assert_parity": "parity.locating.asserting", "audit": "parity.locating.auditing", "capture": "parity.locating.capturing",
    "cases": "parity.generation.shrink", "compare": "parity.comparing.pair", "compare_generation": "parity.training.generation",
    "compare_training": "parity.training.train", "locate": "parity.locating.asserting",
    "tensors": "parity.generation.strategies",
}  # fmt: skip
__all__ = [
    "Call", "Captured", "Comparison", "Fault", "Fixture", "Generation", "Located", "Needs", "ParityFailure", "ParityWarning",
    "Training", "assert_parity", "audit", "capture", "cases", "compare", "compare_generation", "compare_training", "locate",
    "tensors",
]  # fmt: skip


if not TYPE_CHECKING:  # for a type checker a name that is not above is a mistake

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module 'parity' has no attribute '{name}'")
        found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)  # asked for once, then as fast as any
        return found


def __dir__() -> list[str]:
    """Also what was not used yet: for a prompt that completes names."""
    return sorted({*globals(), *__all__})
