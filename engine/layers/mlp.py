"""The gated feed-forward layer (Shazeer 2020, SwiGLU and GeGLU)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import Activation, Operations
from engine.layers.linear import Linear


@dataclass(frozen=True)
class GatedMlp:
    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, ops: Operations, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return self.down(ops, self.gate_up.gated(ops, x, self.activation))
