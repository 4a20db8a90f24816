"""parity: does a PyTorch device compute the right thing?

Nothing heavy is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from parity.core.version import __version__ as __version__

if TYPE_CHECKING:
    from parity.assertion import Captured as Captured
    from parity.assertion import Comparison as Comparison
    from parity.assertion import Generation as Generation
    from parity.assertion import Located as Located
    from parity.assertion import Needs as Needs
    from parity.assertion import ParityFailure as ParityFailure
    from parity.assertion import ParityWarning as ParityWarning
    from parity.assertion import Training as Training
    from parity.assertion import assert_parity as assert_parity
    from parity.assertion import audit as audit
    from parity.assertion import capture as capture
    from parity.assertion import compare as compare
    from parity.assertion import compare_generation as compare_generation
    from parity.assertion import compare_training as compare_training
    from parity.assertion import locate as locate
    from parity.devices import Call as Call
    from parity.devices import Fault as Fault
    from parity.generation.shrink import cases as cases
    from parity.generation.strategies import tensors as tensors

_HOMES = {
    "assert_parity": "parity.assertion",
    "audit": "parity.assertion",
    "capture": "parity.assertion",
    "compare": "parity.assertion",
    "compare_generation": "parity.assertion",
    "compare_training": "parity.assertion",
    "locate": "parity.assertion",
    "Captured": "parity.assertion",
    "Comparison": "parity.assertion",
    "Generation": "parity.assertion",
    "Located": "parity.assertion",
    "Needs": "parity.assertion",
    "ParityFailure": "parity.assertion",
    "ParityWarning": "parity.assertion",
    "Training": "parity.assertion",
    "Fault": "parity.devices",
    "Call": "parity.devices",
    "cases": "parity.generation.shrink",
    "tensors": "parity.generation.strategies",
}
__all__ = [
    "Call",
    "Captured",
    "Comparison",
    "Fault",
    "Generation",
    "Located",
    "Needs",
    "ParityFailure",
    "ParityWarning",
    "Training",
    "assert_parity",
    "audit",
    "capture",
    "cases",
    "compare",
    "compare_generation",
    "compare_training",
    "locate",
    "tensors",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'parity' has no attribute '{name}'")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)  # asked for once: it costs as much as a look
    return found


def __dir__() -> list[str]:
    """Also what was not used yet: for a prompt that completes names."""
    return sorted({*globals(), *__all__})
