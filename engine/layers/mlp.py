"""The gated feed-forward layer (Shazeer 2020, SwiGLU and GeGLU)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import Activation, Kernels
from engine.layers.linear import Linear


@dataclass(frozen=True)
class GatedMlp:
    kernels: Kernels
    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return self.down(self.kernels.gated_mul(self.gate_up(x), self.activation))
