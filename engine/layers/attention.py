"""Grouped-query attention (Ainslie et al. 2023) over the paged cache of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import Kernels, KvCache
from engine.layers.linear import Linear
from engine.layers.step import StepInput
from engine.ledger import ModelShape


@dataclass(frozen=True)
class Attention:
    """q, k and v come from one fused product. Writes this step's keys and values before it attends."""

    kernels: Kernels
    shape: ModelShape
    qkv: Linear
    out: Linear
    window: int | None = None  # positions that one sees, its own included

    def __call__(self, x: Tensor, step: StepInput, cache: KvCache) -> Tensor:
        """x [T, hidden] -> [T, hidden]. Mutates the cache at ``step.slots``."""
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        q, k, v = self.qkv(x).split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        q, k = self.kernels.rope(q.unflatten(1, (heads, dim)), k.unflatten(1, (kv_heads, dim)), step.cos, step.sin)
        self.kernels.write_kv(k, v.unflatten(1, (kv_heads, dim)), cache, step.slots)
        attended = self.kernels.paged_attention(q, cache, step.meta, dim**-0.5, self.window)  # [T, heads, dim]
        return self.out(attended.flatten(1))
