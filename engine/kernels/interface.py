"""What a kernel backend must do. ``kernels/reference`` defines what is right; every other backend agrees with it.

The contract that the whole product stands on: **each row's result depends on that row alone**, bit for bit. A row may
be computed alone or among 500 others, in the first or the last place, today or after a preemption. Ways to break it:
a library product whose blocking depends on the number of rows, an accumulation split by the batch's longest context,
a remainder loop that adds in another order, a quantisation scale taken over several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.artifact import LinearSpec

Activation = Literal["silu", "gelu_tanh"]
# Dtypes that tensors have as codes: few operations know their own.
CODES = {torch.float8_e4m3fn: torch.uint8, torch.uint4: torch.uint8}
SCALED = {torch.int8, torch.uint8}  # stored with a scale


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
    contiguous in each tensor. The scales are there where keys and values are int8, or uint8, the codes of e4m3: one for
    each token and KV head. ``four_bits``: keys and values are codes of 4 bits, two a byte, the first the lower, and
    each group of them (engine.ledger.KV_GROUPS) has a scale and a base.
    """

    k: Tensor  # [blocks, block_size, kv_heads, D], or D/2 where four_bits
    v: Tensor  # [blocks, block_size, kv_heads, D], or D/2 where four_bits
    k_scale: Tensor | None = None  # float32 [blocks, block_size, kv_heads]; four_bits: bfloat16 [..., groups, 2]
    v_scale: Tensor | None = None  # likewise

    @property
    def four_bits(self) -> bool:
        return self.k_scale is not None and self.k_scale.dtype == torch.bfloat16

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


@dataclass(frozen=True)
class StepInput:
    """T tokens of R requests, one after the other. ``draws``: how the wanted rows are drawn from, for a replay that
    ``draws``; None: whoever gets the logits draws.
    """

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T], each in its own request
    slots: Tensor  # int64 [T], block * block_size + offset
    meta: AttentionMeta
    wanted: Tensor  # int64 [W], rising: the rows whose hidden states are wanted
    draws: Tensor | None = None  # int64 [W, engine.kernels.draws.COLUMNS]


@dataclass(frozen=True)
class StepSizes:
    """The largest step that is to come."""

    rows: int
    requests: int  # that run at once, and so rows of logits
    context: int  # tokens of the longest request


@dataclass(frozen=True)
class Heads:
    """The heads of an attention layer. The norms are RMS norms of each head by itself (Henry et al. 2020, "Query-Key
    Normalization")."""

    heads: int
    kv_heads: int
    dim: int
    q_norm: Tensor | None = None  # float32 [dim]; both or neither
    k_norm: Tensor | None = None
    eps: float = 0.0


class Operations(Protocol):
    """What a model's forward pass is made of. T, the rows of a step, may be 0. Returns new tensors, which a model only
    hands on to further operations: a recorder can stand in for the kernels.
    """

    def embed(self, tokens: Tensor, w: PackedLinear, scale: float = 1.0) -> Tensor:
        """Rows ``tokens`` (int64 [T]) of a packed bf16-scheme weight [N, K] -> [T, K]: a tied head and the embedding
        are one tensor in memory. ``scale`` is rounded to the compute dtype before it is applied.
        """
        ...

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        """x [T, K] -> [T, N], in the compute dtype."""
        ...

    def gated_linear(self, x: Tensor, w: PackedLinear, activation: Activation) -> Tensor:
        """x [T, K] -> [T, N / 2]: ``gated_mul`` of the product, the same bits."""
        ...

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """[T, N1], [T, N2], ... -> [T, N1 + N2 + ...]."""
        ...

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        """x [T, N] -> its rows int64 [W] -> [W, N]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, H] in the compute dtype, weight float32 [H] -> [T, H]; in float32, rounded once (Zhang and Sennrich
        2019). Rows may be tokens or the heads of tokens.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), the sum rounded to the compute dtype first."""
        ...

    def queries(self, qkv: Tensor, heads: Heads, cos: Tensor, sin: Tensor, step: StepInput, cache: KvCache) -> Tensor:
        """The queries [T, heads * dim] of fused rows of q, k and v [T, (heads + 2 kv_heads) * dim], after ``rms_norm``
        of each head where there are norms and ``rope`` by the tables cos and sin, float32 [positions, dim / 2]. Keys,
        which go the same way, and values are written into the cache, as ``write_kv`` does it. Mutates the cache.
        """
        ...

    def attend(
        self, q: Tensor, heads: Heads, cache: KvCache, step: StepInput, scale: float, window: int | None
    ) -> Tensor:
        """``paged_attention`` of [T, heads * dim] -> the same shape."""
        ...

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """gate_up [T, 2I] -> activation(gate) * up [T, I], in float32, rounded once.

        silu(x) = x sigmoid(x); gelu_tanh(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel
        2016).
        """
        ...

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        """As ``linear``, but float32 comes out: the head's output is not rounded more than the backend must."""
        ...


class StepOutput(NamedTuple):
    hidden: Tensor  # [W, hidden], normed, in the compute dtype
    logits: Tensor | None  # float32 [W, vocab], if they were asked for
    best: Sequence[tuple[int, float]] | None = None  # of each row of logits the first of its largest, where known
    drawn: Sequence[int] | None = None  # of each row its token, NOT_DRAWN where the host draws; None: of all of them


class Model(Protocol):
    """What a backend must know of a model to run it in its own way."""

    head: PackedLinear

    def run(self, ops: Operations, step: StepInput, caches: Sequence[KvCache]) -> Tensor:
        """Normed hidden states [W, hidden] of the wanted rows. Mutates the caches."""
        ...


class Replay(Protocol):
    """A model's step as a backend has prepared it: the bits of ``Model.run`` and ``logits`` on its kernels. The step's
    tensors lie on the host; the output's lie where the kernels compute, and are good until the next step."""

    draws: bool  # whether it draws, and then takes tokens -1 - r for what it drew from row r of the step before

    def __call__(self, step: StepInput, with_logits: bool) -> StepOutput: ...

    def profile(self, on: bool) -> list[tuple[str, int | None, float]]:
        """(kind of operation, layer or None, seconds) for each operation of a step, in their order, summed over the
        steps since profiling was switched on; nothing if it was not. ``on``: whether to go on, from zero.
        """
        ...


class Kernels(Operations, Protocol):
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

    def pin_threads(self, on: bool) -> None:
        """Whether each of the backend's own compute threads keeps to one CPU. The thread that calls the kernels moves
        freely: what it starts would inherit its CPU.

        Raises:
            UnavailableError: this backend or system cannot do it.
        """
        ...

    def record(self, model: Model, caches: Sequence[KvCache], largest: StepSizes) -> Replay | None:
        """The model's step, prepared for steps up to ``largest`` (more rows are possible, and take more memory
        later); None: this backend has nothing better than to run it one operation after the other.
        """
        ...

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor of the model that no product reads (a norm's weights, a table), where these kernels read it."""
        ...

    def grant(self, limit: int) -> int:
        """What of a limit on memory, in bytes, there is for weights, activations and KV cache."""
        ...

    def watched(self) -> AbstractContextManager[None]:
        """Within it, memory that runs out is a MemoryError that says what was asked for and what there was."""
        ...

    def memory_facts(self) -> dict[str, int]:
        """Bytes that a device's own books have, by name; nothing on a CPU, whose memory is the process's."""
        ...

    def about(self) -> dict[str, Any]:
        """What the kernels run on and how, beyond their name, once a step is recorded; JSON."""
        ...

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [W, vocab] -> (int64 [W], float32 [W]): the first of the largest of each row and its value, NaN
        where the row has one.
        """
        ...

    def draw(self, logits: Tensor, largest: Tensor, draws: Tensor) -> Tensor:
        """float32 [W, vocab], float32 [W] as of ``best``, int64 [W, COLUMNS] as of engine.kernels.draws -> int64 [W]:
        the tokens that engine.draw draws, NOT_DRAWN for a row without a temperature, whose largest is not finite or,
        seldom, that only the host can tell.
        """
        ...

    def follow(self, tokens: Tensor, best: Tensor) -> Tensor:
        """int64 [T], int32 [W, 3] -> int64 [T]: the tokens, and for -1 - r what row r of ``best`` says: its third
        number, or its first where that is NOT_DRAWN.
        """
        ...

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, heads, D], k [T, kv_heads, D], float32 cos and sin [T, D] (halves repeated) -> rotated q, k.

        Rotates pairs (i, i + D/2), in float32, rounding once at the end (Su et al. 2021, in the NeoX layout).
        """
        ...

    def new_kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        """A zeroed cache of keys and values. ``dtype``: float32, bfloat16, int8, uint4 or, not on a CPU, float8_e4m3fn.

        Raises:
            engine.artifact.ArtifactError: uint4 and an odd ``head_dim``.
        """
        ...

    def write_kv(self, k: Tensor, v: Tensor, cache: KvCache, slots: Tensor) -> None:
        """Writes k, v [T, kv_heads, D] into the cache at ``slots`` int64 [T] (block * block_size + offset). Mutates
        the cache; casts to its dtype, or to int8 with one scale for each token and head: absmax / 127 in float32 (1
        where all is zero), rounded half to even; e4m3: absmax / 448. uint4: of each group base = its smallest and
        scale = (largest - smallest) / 15, in float32 and then rounded to bfloat16 (scale 1 where that is 0), code =
        (x - base) / scale, rounded half to even, in 0 ... 15; read as code x scale + base, rounded to float32 once.
        What is not finite stays so, in the scale, or in the base.
        """
        ...

    def paged_attention(
        self, q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None = None
    ) -> Tensor:
        """Causal attention of q [T, heads, D] over the paged cache -> [T, heads, D], accumulated in float32.

        ``window``: position p sees p - window + 1 ... p only (Beltagy et al. 2020; Mistral 7B, Jiang et al. 2023).
        """
        ...
