"""The stand-in with hardly any memory: every larger allocation raises MPS's RuntimeError. For `--setup`."""

from __future__ import annotations

import standin_library
import torch

standin_library.install()
torch.mps.set_per_process_memory_fraction(1e-6)
