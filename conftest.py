"""Settings of parity's own tests."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)
