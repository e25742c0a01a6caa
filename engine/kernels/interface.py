"""What a kernel backend must do. ``kernels/reference`` defines what is right; every other backend agrees with it.

The contract that the whole product stands on: **each row's result depends on that row alone**, bit for bit. A row may
be computed alone or among 500 others, in the first or the last place, today or after a preemption. Ways to break it:
a library product whose blocking depends on the number of rows, an accumulation split by the batch's longest context,
a remainder loop that adds in another order, a quantisation scale taken over several tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.artifact import LinearSpec

Activation = Literal["silu", "gelu_tanh"]


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
class KvCache:
    """Keys and values of one layer, in a backend's own strides (keys may lie transposed in a block); a block is
    contiguous in each tensor. The scales are there where keys and values are int8: one for each token and KV head.
    """

    k: Tensor  # [blocks, block_size, kv_heads, D]
    v: Tensor  # [blocks, block_size, kv_heads, D]
    k_scale: Tensor | None = None  # float32 [blocks, block_size, kv_heads]
    v_scale: Tensor | None = None  # float32 [blocks, block_size, kv_heads]

    @property
    def tensors(self) -> list[Tensor]:
        """All that there are; dimension 0 is the block in each."""
        return [t for t in (self.k, self.v, self.k_scale, self.v_scale) if t is not None]

    @property
    def block_size(self) -> int:
        return int(self.k.shape[1])

    @property
    def nbytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self.tensors)


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
        """x [T, K] -> [T, N], in the compute dtype.

        bf16, w4a16: sums in float32. w8a8, w4a8: x is rounded to int8 with one float32 scale a row (as in
        ``write_kv``), sums of products of integers are exact, and what is left is float32 in this order, so that
        every backend and machine gives the same bits: the bias, if there is one, is added last, with a rounding of
        its own, and the whole then rounded to the compute dtype.

        w8a8  (sum * row scale) * scale of the output
        w4a8  s * row scale, where s goes through the groups of inputs in order, starting from 0:
              s = fma(scale of the group, sum over the group of (q - zero) * x, s), rounded once
        """
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
        """x [T, H] in the compute dtype, weight float32 [H] -> [T, H]; in float32, rounded once (Zhang and Sennrich
        2019). Rows may be tokens or the heads of tokens.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), the sum rounded to the compute dtype first."""
        ...

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, heads, D], k [T, kv_heads, D], float32 cos and sin [T, D] (halves repeated) -> rotated q, k.

        Rotates pairs (i, i + D/2), in float32, rounding once at the end (Su et al. 2021, in the NeoX layout).
        """
        ...

    def new_kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        """A zeroed cache of keys and values."""
        ...

    def write_kv(self, k: Tensor, v: Tensor, cache: KvCache, slots: Tensor) -> None:
        """Writes k, v [T, kv_heads, D] into the cache at ``slots`` int64 [T] (block * block_size + offset). Mutates
        the cache; casts to its dtype, or to int8 with one scale for each token and head: absmax / 127 in float32 (1
        where all is zero), rounded half to even. What is not finite stays so, in the scale.
        """
        ...

    def paged_attention(
        self, q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None = None
    ) -> Tensor:
        """Causal attention of q [T, heads, D] over the paged cache -> [T, heads, D], accumulated in float32.

        ``window``: position p sees p - window + 1 ... p only (Beltagy et al. 2020; Mistral 7B, Jiang et al. 2023).
        """
        ...

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """gate_up [T, 2I] -> activation(gate) * up [T, I], in float32, rounded once.

        silu(x) = x sigmoid(x); gelu_tanh(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel
        2016).
        """
        ...
