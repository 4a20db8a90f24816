"""Comparison of users' own functions and modules, with the same three runs (reference, device, float64) and the same judge as
the suite.

`assert_parity(model, x, device="mps")` compares outputs, gradients, and everything the call writes; `compare(fn, on_device,
on_cpu, x)` judges two existing results.
"""

from parity.assertion.asserting import assert_parity
from parity.assertion.auditing import audit
from parity.assertion.capturing import Captured, capture
from parity.assertion.comparison import Comparison, ParityFailure, ParityWarning
from parity.assertion.generation import Generation, compare_generation
from parity.assertion.located import Located
from parity.assertion.locating import locate
from parity.assertion.needs import Needs
from parity.assertion.pair import compare
from parity.assertion.trained import Training
from parity.assertion.training import compare_training

__all__ = [
    "Captured",
    "Comparison",
    "Generation",
    "Located",
    "Needs",
    "ParityFailure",
    "ParityWarning",
    "Training",
    "assert_parity",
    "audit",
    "capture",
    "compare",
    "compare_generation",
    "compare_training",
    "locate",
]
