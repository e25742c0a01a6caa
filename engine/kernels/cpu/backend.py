"""The C kernels behind the interface. Which products they take over is decided here, once, for all row counts:

scheme  bfloat16 with AVX512_BF16             otherwise
bf16    products_float.c, bf16 dot            products_float.c, float32 multiply-add on widened weights
w4a16   products_float.c, bf16 dot            products_float.c, float32 multiply-add
w8a8    products_int.c: sums in int32 (exact), rescaled; rows.c quantises the activations
w4a8    products_int.c, likewise
w8a16   as bf16, on weights widened when they are loaded
fp8     as bf16, on e4m3 codes (exact in bfloat16), scaled afterwards; rows are quantised by the reference

The last two are right here, not fast or small: their weights take the memory of bfloat16 (of float32 where that is the
compute dtype and the scheme w8a16).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.artifact import GROUPED, ArtifactError, LinearSpec
from engine.kernels.composed import Composed
from engine.kernels.cpu import compile as compiler
from engine.kernels.cpu import panels
from engine.kernels.cpu.library import Library, pointer
from engine.kernels.cpu.pages import Arena, zeros
from engine.kernels.cpu.products import GATES, W_BF16, W_F32, W_INT4, W_INT4A8, W_INT8, CpuLinear
from engine.kernels.cpu.program import KV_KINDS, NO_WINDOW, Program, record
from engine.kernels.errors import UnavailableError
from engine.kernels.interface import Activation, AttentionMeta, KvCache, Model, PackedLinear, StepSizes
from engine.kernels.reference import four_bits, packing
from engine.kernels.reference.backend import quantise_rows_fp8


class CpuKernels(Composed):
    """Implements engine.kernels.interface.Kernels."""

    name = "cpu"

    def __init__(self, dtype: torch.dtype, threads: int, target: str | None = None) -> None:
        """Builds the C library if need be. ``target``: the compiler's flags for a machine with less than this one has.

        Raises:
            UnavailableError: it cannot be built or loaded here.
        """
        self.dtype, self.threads, self.torch_threads = dtype, threads, 1
        self._bf16 = int(dtype == torch.bfloat16)
        self._c = Library(compiler.load(target=target), "_bf16" if self._bf16 else "_f32")
        self._panel = int(self._c.products_panel())
        self._dot = int(self._bf16 and self._c.products_have_dot())
        self._arena = Arena()
        self._one_by_one = False  # a linear that csrc/step.c does not have

    def pack_linear(self, tensors: dict[str, Tensor], spec: LinearSpec | None, bias: Tensor | None) -> CpuLinear:
        scheme = packing.check_keys(tensors, spec)
        own_bias = None if bias is None else bias.float().contiguous()
        group = 0
        if spec is not None and scheme in GROUPED:
            q, scale, zero = packing.unpack_w4a16(tensors, spec.group_size)
            n, k = q.shape
            if scale.dtype != torch.bfloat16:
                raise ArtifactError(f"weight_scale is {scale.dtype}; expected {torch.bfloat16}")
            packed, scales, zeros = panels.pack_int4(q, scale, zero, self._panel)
            own = {"panels": packed, "scales": scales, "zeros": zeros}
            kind, group = W_INT4 if scheme == "w4a16" else W_INT4A8, k // scale.shape[1]
        elif scheme == "w8a8":
            weight = packing.check_dtype(tensors, "weight", torch.int8)
            n, k = weight.shape
            scale = packing.check_dtype(tensors, "weight_scale", torch.float32, torch.bfloat16)
            packing.check_shape("weight_scale", scale, n, 1)
            own = {"panels": panels.pack_int8(weight, self._panel), "scales": scale.float().view(-1).contiguous()}
            kind = W_INT8
        elif scheme == "w8a16":
            q, scale = packing.unpack_w8a16(tensors)
            n, k = q.shape
            weight = (q.float() * scale).to(self.dtype)
            kind = W_BF16 if self._bf16 else W_F32
            own = {"panels": (panels.pack_bf16 if self._bf16 else panels.pack_float32)(weight, self._panel)}
        elif scheme == "fp8":
            codes, scale = packing.unpack_fp8(tensors)
            n, k = codes.shape
            own = {"panels": panels.pack_bf16(codes.to(torch.bfloat16), self._panel), "columns": scale.view(-1)}
            own |= {} if own_bias is None else {"bias": own_bias}  # is added to what has been scaled
            kind, own_bias, self._one_by_one = W_BF16, None, True
        else:
            weight = packing.check_dtype(tensors, "weight", torch.bfloat16, torch.float32, torch.float16)
            n, k = weight.shape
            if weight.dtype == torch.bfloat16 or self._bf16:
                kind, own = W_BF16, {"panels": panels.pack_bf16(weight.to(torch.bfloat16), self._panel)}
            else:
                kind, own = W_F32, {"panels": panels.pack_float32(weight.float(), self._panel)}
        kept = {name: self._arena.keep(tensor) for name, tensor in own.items()}
        return CpuLinear(scheme, int(k), int(n), kept, own_bias, kind=kind, group=group)

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w, self.dtype)

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w, torch.float32)

    def pin_threads(self, on: bool) -> None:
        if error := self._c.pool_pin(on, self.threads):
            raise UnavailableError(
                f"pin_threads: compute threads cannot be bound to CPUs here ({os.strerror(error)}); set it to false"
            )

    def record(self, model: Model, caches: Sequence[KvCache], largest: StepSizes) -> Program | None:
        return None if self._one_by_one else record(self._c, self.dtype, self.threads, model, caches, largest.rows)

    def embed(self, tokens: Tensor, w: PackedLinear, scale: float = 1.0) -> Tensor:
        columns = w.tensors["panels"][tokens // self._panel, :, tokens % self._panel]  # [T, K or pairs]
        if columns.dtype == torch.int32:
            columns = columns.view(torch.bfloat16)
        return columns[:, : w.in_features].to(self.dtype) * torch.tensor(scale).to(self.dtype)

    def _product(self, x: Tensor, w: PackedLinear, dtype: torch.dtype) -> Tensor:
        """x . w, and where w is of an 8-bit kind with x quantised a row at a time."""
        assert isinstance(w, CpuLinear)  # nothing else comes out of pack_linear
        if w.scheme == "fp8":
            codes, row_scales = quantise_rows_fp8(x)
            out = self._sums(codes.to(self.dtype), w, torch.float32) * row_scales * w.tensors["columns"]
            return (out + w.tensors["bias"] if "bias" in w.tensors else out).to(dtype)
        return self._sums(x, w, dtype)

    def _sums(self, x: Tensor, w: CpuLinear, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        rows, linear, bf16 = x.shape[0], ctypes.addressof(w.c), int(dtype == torch.bfloat16)
        out = torch.empty(rows, w.out_features, dtype=dtype)
        if w.integer:
            q, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(rows)
            self._c.quantise_rows(pointer(x), pointer(q), pointer(scales), rows, w.in_features, self.threads)
            failed = self._c.product_int(
                linear, pointer(q), pointer(scales), pointer(out), bf16, GATES[None], rows, self.threads
            )
        else:
            dot = int(self._dot and w.kind != W_F32)
            failed = self._c.product_float(
                linear, pointer(x), self._bf16, pointer(out), bf16, dot, self._bf16, GATES[None], rows, self.threads
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
        if dtype == torch.uint4:
            return _four_bits(blocks, block_size, kv_heads, head_dim)
        k = zeros((blocks, kv_heads, head_dim, block_size), dtype).permute(0, 3, 1, 2)
        v = zeros((blocks, kv_heads, block_size, head_dim), dtype).permute(0, 2, 1, 3)
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
        self._c.gated_mul(pointer(gate_up), pointer(out), rows, width, GATES[activation], self.threads)
        return out


def _four_bits(blocks: int, block_size: int, kv_heads: int, head_dim: int) -> KvCache:
    """Laid out as csrc/four_bits.h says."""
    scales = (
        torch.zeros(blocks, kv_heads, *four_bits.scale_shape(head_dim, group), block_size, dtype=torch.bfloat16)
        for group in (four_bits.KEY_GROUP, four_bits.VALUE_GROUP)
    )
    k = zeros((blocks, kv_heads, head_dim // 2, block_size), torch.uint8).permute(0, 3, 1, 2)
    v = zeros((blocks, kv_heads, block_size, head_dim // 2), torch.uint8).permute(0, 2, 1, 3)
    return KvCache(k, v, *(scale.permute(0, 4, 1, 2, 3) for scale in scales))


def _rows(x: Tensor) -> Tensor:
    """[T, heads, D] whose rows are contiguous, at any distance from each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
