"""A network of three equal layers, and a fault that strikes in one of them."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from parity.devices import Call


class Layer(nn.Module):
    """A linear layer with layer_norm and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 16)."""
        return x + F.gelu(self.up(self.norm(x)))


class Net(nn.Module):
    """Three layers after an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(20, 16), nn.ModuleList(Layer() for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch)."""
        x: Tensor = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def larger(call: Call) -> Any:
    """The first result 3 % too large."""
    result = call.run()
    return (result[0] * 1.03, *result[1:]) if isinstance(result, tuple) else result * 1.03
