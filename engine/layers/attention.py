"""Grouped-query attention (Ainslie et al. 2023) over the paged cache of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import Kernels, KvCache
from engine.layers.linear import Linear
from engine.layers.step import StepInput
from engine.ledger import ModelShape


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of each head of q and of k by itself (Henry et al. 2020, "Query-Key Normalization")."""

    q: Tensor  # float32 [head_dim]
    k: Tensor  # float32 [head_dim]
    eps: float

    def __call__(self, kernels: Kernels, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, heads, head_dim], k [T, kv_heads, head_dim] -> the same shapes, contiguous."""
        normed_q = kernels.rms_norm(q.reshape(-1, q.shape[2]), self.q, self.eps)
        normed_k = kernels.rms_norm(k.reshape(-1, k.shape[2]), self.k, self.eps)
        return normed_q.view(q.shape), normed_k.view(k.shape)


@dataclass(frozen=True)
class Attention:
    """q, k and v come from one fused product. Writes this step's keys and values before it attends."""

    kernels: Kernels
    shape: ModelShape
    qkv: Linear
    out: Linear
    scale: float
    window: int | None = None  # positions that one sees, its own included
    head_norms: HeadNorms | None = None

    def __call__(self, x: Tensor, step: StepInput, turn: tuple[Tensor, Tensor], cache: KvCache) -> Tensor:
        """x [T, hidden] -> [T, hidden]. ``turn``: cos and sin of the step's positions, float32 [T, head_dim]. Mutates
        the cache at ``step.slots``."""
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        flat_q, flat_k, flat_v = self.qkv(x).split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        q, k, v = (t.unflatten(1, (-1, dim)) for t in (flat_q, flat_k, flat_v))  # [T, heads or kv_heads, dim]
        if self.head_norms is not None:
            q, k = self.head_norms(self.kernels, q, k)
        q, k = self.kernels.rope(q, k, *turn)
        self.kernels.write_kv(k, v, cache, step.slots)
        attended = self.kernels.paged_attention(q, cache, step.meta, self.scale, self.window)  # [T, heads, dim]
        return self.out(attended.flatten(1))

    @property
    def norms(self) -> list[Tensor]:
        return [] if self.head_norms is None else [self.head_norms.q, self.head_norms.k]
