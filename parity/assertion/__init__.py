"""For people's own functions and modules: the same three runs (reference, device, float64) and the same judge as the suite.

`assert_parity(model, x, device="mps")` compares outputs, gradients, and whatever the call writes;
`compare(fn, on_device, on_cpu, x)` judges two results that are there already.
"""

from parity.assertion.asserting import assert_parity
from parity.assertion.comparison import Comparison, ParityFailure, ParityWarning
from parity.assertion.pair import compare

__all__ = ["Comparison", "ParityFailure", "ParityWarning", "assert_parity", "compare"]
