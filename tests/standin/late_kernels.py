"""The stand-in with kernels that run late: a call leaves its work in a queue, which runs when somebody synchronises. Until then
results are not there, and an index out of range is no error yet. For `--setup`.

Calls whose shape depends on numbers (nonzero), and those of which torch has no meta kernel, wait for the queue.
"""

from __future__ import annotations

import standin_library
import torch

standin_library.install()
torch.ops.standin.run_late(True)
