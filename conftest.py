"""Settings of parity's own tests."""

from __future__ import annotations

import torch

pytest_plugins = ["pytester"]

torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)
