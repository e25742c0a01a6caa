"""What a kernel backend must do. ``kernels/reference`` defines what is right; every other backend agrees with it.

The contract that the whole product stands on: **each row's result depends on that row alone**, bit for bit. A row may
be computed alone or among 500 others, in the first or the last place, today or after a preemption. Ways to break it:
a library product whose blocking depends on the number of rows, an accumulation split by the batch's longest context,
a remainder loop that adds in another order, a quantisation scale taken over several tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.artifact import LinearSpec


@dataclass(frozen=True)
class AttentionMeta:
    """Where the queries of a step stand. Request r owns the query rows query_starts[r] ... query_starts[r + 1] - 1,
    which are its last tokens: row i stands at position context_lens[r] - (query_starts[r + 1] - i) and sees
    every position up to its own.
    """

    query_starts: Tensor  # int32 [R + 1]
    context_lens: Tensor  # int32 [R], tokens of the request after this step
    block_tables: Tensor  # int32 [R, max_blocks], padded with 0


@dataclass(frozen=True)
class PackedLinear:
    """A linear layer in a backend's own layout. Only the backend that packed it reads ``tensors``."""

    scheme: str
    in_features: int
    out_features: int
    tensors: dict[str, Tensor]
    bias: Tensor | None = None  # [N]

    @property
    def nbytes(self) -> int:
        own = [*self.tensors.values(), *([] if self.bias is None else [self.bias])]
        return sum(int(t.numel()) * int(t.element_size()) for t in own)


class Kernels(Protocol):
    """One backend for one compute dtype (bfloat16 or float32). Returns new tensors where nothing else is said."""

    name: str
    dtype: torch.dtype
    torch_threads: int  # for torch.set_num_threads

    def pack_linear(self, tensors: dict[str, Tensor], spec: LinearSpec | None, bias: Tensor | None) -> PackedLinear:
        """From stored tensors (keys ``weight``, ``weight_scale``, ... as in engine.artifact) to this backend's layout.

        ``spec`` None means bf16. Stored tensors of several modules that read the same input may be concatenated along
        their rows first (engine.layers.linear does).

        Raises:
            ArtifactError: tensors missing, or of a shape or dtype the scheme does not have.
        """
        ...

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        """x [T, K] -> [T, N], in the compute dtype."""
        ...

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        """As ``linear``, but float32 comes out: the head's output is not rounded more than the backend must."""
        ...

    def embed(self, tokens: Tensor, w: PackedLinear) -> Tensor:
        """Rows ``tokens`` (int64 [T]) of a packed bf16-scheme weight [N, K] -> [T, K]: a tied head and the embedding
        are one tensor in memory.
        """
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, H], weight [H] -> [T, H]; statistics in float32 (Zhang and Sennrich 2019)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), the sum rounded to the compute dtype first."""
        ...

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, heads, D], k [T, kv_heads, D], float32 cos and sin [T, D] (halves repeated) -> rotated q, k.

        Rotates pairs (i, i + D/2), in float32, rounding once at the end (Su et al. 2021, in the NeoX layout).
        """
        ...

    def new_kv_cache(
        self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Zeroed caches for keys and for values of shape [blocks, block_size, kv_heads, head_dim].

        Strides are the backend's own (keys may lie transposed in a block); a block is contiguous.
        """
        ...

    def write_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
        """Writes k, v [T, kv_heads, D] into the caches [blocks, block_size, kv_heads, D] at ``slots`` int64 [T]
        (block * block_size + offset). Mutates the caches; casts to their dtype.
        """
        ...

    def paged_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta, scale: float) -> Tensor:
        """Causal attention of q [T, heads, D] over the paged caches -> [T, heads, D], accumulated in float32."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [T, 2I] -> silu(gate) * up [T, I]."""
        ...
