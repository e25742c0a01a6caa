"""The C kernels behind the interface. Which products they take over is decided here, once, for all row counts:

scheme  bfloat16 with AVX512_BF16       otherwise
bf16    gemm.c, bf16 dot                gemm.c, float32 multiply-add on widened weights
w4a16   gemm.c, bf16 dot                gemm.c, float32 multiply-add
w8a8    gemm.c, int8 products summed in int32 (exact) and rescaled; rows.c quantises the activations
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.artifact import ArtifactError, LinearSpec
from engine.kernels.cpu import compile as compiler
from engine.kernels.cpu import panels
from engine.kernels.cpu.library import Library, pointer
from engine.kernels.interface import Activation, AttentionMeta, KvCache, PackedLinear
from engine.kernels.reference import packing

W_BF16, W_F32, W_INT4 = 0, 1, 2  # as in csrc/gemm.c
ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}  # as in csrc/rows.c
KV_KINDS, NO_WINDOW = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}, 0  # as in csrc/attention.c


class CpuKernels:
    """Implements engine.kernels.interface.Kernels."""

    name = "cpu"

    def __init__(self, dtype: torch.dtype, threads: int, target: str | None = None) -> None:
        """Builds the C library if need be. ``target``: the compiler's -march flag, for tests of other machines.

        Raises:
            UnavailableError: it cannot be built or loaded here.
        """
        self.dtype, self.threads, self.torch_threads = dtype, threads, 1
        self._bf16 = int(dtype == torch.bfloat16)
        self._c = Library(compiler.load(target=target), "_bf16" if self._bf16 else "_f32")
        self._panel = int(self._c.gemm_panel())
        self._dot = int(self._bf16 and self._c.gemm_has_dot())

    def pack_linear(self, tensors: dict[str, Tensor], spec: LinearSpec | None, bias: Tensor | None) -> PackedLinear:
        scheme = packing.check_keys(tensors, spec)
        own_bias = None if bias is None else bias.float()
        if scheme == "w4a16":
            assert spec is not None  # check_keys
            q, scale, zero = packing.unpack_w4a16(tensors, spec.group_size)
            n, k = q.shape
            if scale.dtype != torch.bfloat16:
                raise ArtifactError(f"weight_scale is {scale.dtype}; expected {torch.bfloat16}")
            packed, scales, zeros = panels.pack_int4(q, scale, zero, self._panel)
            own = {"panels": packed, "scales": scales, "zeros": zeros}
        elif scheme == "w8a8":
            weight = packing.check_dtype(tensors, "weight", torch.int8)
            n, k = weight.shape
            scale = packing.check_dtype(tensors, "weight_scale", torch.float32, torch.bfloat16)
            packing.check_shape("weight_scale", scale, n, 1)
            own = {
                "panels": panels.pack_int8(weight, self._panel),
                "scale": scale.float().view(-1).contiguous(),
                "sums": weight.sum(1, dtype=torch.int32),
            }
        else:
            weight = packing.check_dtype(tensors, "weight", torch.bfloat16, torch.float32, torch.float16)
            n, k = weight.shape
            exact = weight.dtype == torch.bfloat16 or self._bf16
            own = {
                "panels": panels.pack_bf16(weight.to(torch.bfloat16), self._panel)
                if exact
                else panels.pack_float32(weight.float(), self._panel)
            }
        return PackedLinear(scheme, int(k), int(n), own, own_bias)

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._w8a8(x, w, self.dtype) if w.scheme == "w8a8" else self._gemm(x, w, self.dtype)

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._w8a8(x, w, torch.float32) if w.scheme == "w8a8" else self._gemm(x, w, torch.float32)

    def embed(self, tokens: Tensor, w: PackedLinear) -> Tensor:
        columns = w.tensors["panels"][tokens // self._panel, :, tokens % self._panel]  # [T, K or pairs]
        if columns.dtype == torch.int32:
            columns = columns.view(torch.bfloat16)
        return columns[:, : w.in_features].to(self.dtype)

    def _gemm(self, x: Tensor, w: PackedLinear, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        own = w.tensors
        out = torch.empty(x.shape[0], w.out_features, dtype=dtype)
        group = 1
        if w.scheme == "w4a16":
            kind, group = W_INT4, w.in_features // own["scales"].shape[1]
        else:
            kind = W_BF16 if own["panels"].dtype == torch.int32 else W_F32
        dot = int(self._dot and kind != W_F32)
        failed = self._c.gemm(
            pointer(x),
            self._bf16,
            pointer(out),
            int(dtype == torch.bfloat16),
            pointer(own["panels"]),
            pointer(own.get("scales")),
            pointer(own.get("zeros")),
            pointer(w.bias),
            x.shape[0],
            w.in_features,
            w.out_features,
            group,
            kind,
            dot,
            self._bf16,
            self.threads,
        )
        if failed:
            raise MemoryError(f"no memory for the buffers of a product of {x.shape[0]} rows")
        return out

    def _w8a8(self, x: Tensor, w: PackedLinear, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        rows, k, n = x.shape[0], w.in_features, w.out_features
        q, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(rows)
        self._c.quantise_rows(pointer(x), pointer(q), pointer(scales), rows, k, self.threads)
        out = torch.empty(rows, n, dtype=dtype)
        own = w.tensors
        failed = self._c.gemm_int8(
            pointer(q),
            pointer(scales),
            pointer(out),
            int(dtype == torch.bfloat16),
            pointer(own["panels"]),
            pointer(own["scale"]),
            pointer(own["sums"]),
            pointer(w.bias),
            rows,
            k,
            n,
            self.threads,
        )
        if failed:
            raise MemoryError(f"no memory for the buffers of a product of {rows} rows")
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        self._c.rms_norm(
            pointer(x), None, pointer(weight), pointer(out), None, x.shape[0], x.shape[1], eps, self.threads
        )
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        self._c.rms_norm(
            pointer(x),
            pointer(residual),
            pointer(weight),
            pointer(out),
            pointer(total),
            x.shape[0],
            x.shape[1],
            eps,
            self.threads,
        )
        return out, total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q, k = _rows(q), _rows(k)
        rows, heads, dim = q.shape
        q_out, k_out = torch.empty(q.shape, dtype=self.dtype), torch.empty(k.shape, dtype=self.dtype)
        self._c.rope(
            pointer(q),
            q.stride(0),
            pointer(k),
            k.stride(0),
            pointer(cos),
            pointer(sin),
            pointer(q_out),
            pointer(k_out),
            rows,
            heads,
            k.shape[1],
            dim,
            self.threads,
        )
        return q_out, k_out

    def new_kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        k = torch.zeros(blocks, kv_heads, head_dim, block_size, dtype=dtype).permute(0, 3, 1, 2)
        v = torch.zeros(blocks, kv_heads, block_size, head_dim, dtype=dtype).permute(0, 2, 1, 3)
        if dtype != torch.int8:
            return KvCache(k, v)
        k_scale, v_scale = (torch.zeros(blocks, kv_heads, block_size).permute(0, 2, 1) for _ in range(2))
        return KvCache(k, v, k_scale, v_scale)

    def write_kv(self, k: Tensor, v: Tensor, cache: KvCache, slots: Tensor) -> None:
        k, v = _rows(k), _rows(v)
        rows, kv_heads, dim = k.shape
        self._c.write_kv(
            pointer(k),
            k.stride(0),
            pointer(v),
            v.stride(0),
            self._bf16,
            *map(pointer, (cache.k, cache.v, cache.k_scale, cache.v_scale)),
            KV_KINDS[cache.k.dtype],
            pointer(slots),
            rows,
            kv_heads,
            dim,
            cache.block_size,
            self.threads,
        )

    def paged_attention(
        self, q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None = None
    ) -> Tensor:
        q = q.contiguous()
        _, heads, dim = q.shape
        _, block_size, kv_heads, _ = cache.k.shape
        out = torch.empty_like(q)
        requests, max_blocks = meta.block_tables.shape
        failed = self._c.paged_attention(
            pointer(q),
            self._bf16,
            pointer(out),
            *map(pointer, (cache.k, cache.v, cache.k_scale, cache.v_scale)),
            KV_KINDS[cache.k.dtype],
            pointer(meta.query_starts),
            pointer(meta.context_lens),
            pointer(meta.block_tables),
            max_blocks,
            requests,
            heads,
            kv_heads,
            dim,
            block_size,
            NO_WINDOW if window is None else window,
            scale,
            self.threads,
        )
        if failed:
            raise MemoryError("no memory for the attention buffers")
        return out

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate_up = gate_up.contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=self.dtype)
        self._c.gated_mul(pointer(gate_up), pointer(out), rows, width, ACTIVATIONS[activation], self.threads)
        return out


def _rows(x: Tensor) -> Tensor:
    """[T, heads, D] whose rows are contiguous, at any distance from each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
