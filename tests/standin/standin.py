"""A stand-in for torch's `mps` device on Linux, for `--setup`:

    parity doctor --device mps --setup tests/standin/standin.py
    parity run add softmax --device mps --setup tests/standin/standin.py
    pytest --parity-device mps --parity-setup tests/standin/standin.py
    PYTORCH_ENABLE_MPS_FALLBACK=1 parity run eigh --device mps --setup tests/standin/standin.py

Tensors have the dispatch key MPS, so that autograd, autocast, torch.mps, torch.accelerator and all that torch composes are
torch's own code. It knows nothing of Metal: the kernels are the CPU's, for the operators to which torch's table gives an MPS
kernel; the others raise, or fall back to the CPU, as on MPS. Whoever reads a tensor's memory on the host dies.

Nothing may ask torch for MPS before this runs, since torch looks for its hooks once. Where torch has MPS itself, this does
nothing. The files next to it are variants: Metal's fast math, hardly any memory, an asynchronous error, kernels that run late.
"""

from __future__ import annotations

import standin_library

standin_library.install()
