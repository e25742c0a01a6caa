"""Grouped-query attention (Ainslie et al. 2023) over the paged cache of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import Heads, KvCache, Operations, StepInput
from engine.layers.linear import Linear
from engine.layers.rope import RotaryTable


@dataclass(frozen=True)
class Attention:
    """q, k and v come from one fused product. Writes this step's keys and values before it attends."""

    heads: Heads
    qkv: Linear
    out: Linear  # after it, for those rows that are still needed
    scale: float
    rotary: RotaryTable  # shared by the layers that rotate alike
    window: int | None = None  # positions that one sees, its own included

    def __call__(self, ops: Operations, x: Tensor, step: StepInput, cache: KvCache) -> Tensor:
        """x [T, hidden] -> [T, heads * dim], the input of ``out``. Mutates the cache at ``step.slots``."""
        q = ops.queries(self.qkv(ops, x), self.heads, self.rotary.cos, self.rotary.sin, step, cache)
        return ops.attend(q, self.heads, cache, step, self.scale, self.window)

    @property
    def norms(self) -> list[Tensor]:
        return [norm for norm in (self.heads.q_norm, self.heads.k_norm) if norm is not None]
