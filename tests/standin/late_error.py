"""The stand-in with an error that an earlier kernel left behind: the next synchronisation raises AcceleratorError. For
`--setup`."""

from __future__ import annotations

import standin_library
import torch

standin_library.install()
torch.ops.standin.fail("index 7 is out of bounds for dimension 0 with size 3")
