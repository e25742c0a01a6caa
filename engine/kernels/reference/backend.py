"""The reference backend: every operation as plainly as PyTorch allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.artifact import GROUPED, LinearSpec
from engine.kernels.composed import Composed
from engine.kernels.errors import UnavailableError
from engine.kernels.interface import CODES, SCALED, Activation, AttentionMeta, KvCache, Model, PackedLinear, StepSizes
from engine.kernels.reference import attention, four_bits, packing
from engine.kernels.reference.matmul import fused_multiply_add, row_tile, tiled_linear

FP8_MAX = 448.0
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class ReferenceKernels(Composed):
    """Implements engine.kernels.interface.Kernels for the CPU.

    PyTorch computes exp and tanh in vectors, and one by one what is left at the end of a thread's share of a tensor,
    with other bits: such functions are given one row at a time, so that each element keeps its place. Sums, products,
    quotients and roots are the same bits everywhere.
    """

    name = "reference"

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        self.dtype, self.threads, self.torch_threads = dtype, threads, threads

    def pack_linear(self, tensors: dict[str, Tensor], spec: LinearSpec | None, bias: Tensor | None) -> PackedLinear:
        scheme = packing.check_keys(tensors, spec)
        own_bias = None if bias is None else bias.to(self.dtype)
        if scheme in GROUPED:
            assert spec is not None  # check_keys
            q, scale, zero = packing.unpack_w4a16(tensors, spec.group_size)
            n, k = q.shape
            nibbles = q[:, 0::2] | (q[:, 1::2] << 4)  # two a byte: quantised weights stay small in memory
            own = {"nibbles": nibbles, "scale": scale, "zero": zero}
        elif scheme == "w8a8":
            weight = packing.check_dtype(tensors, "weight", torch.int8)
            n, k = weight.shape
            scale = packing.check_dtype(tensors, "weight_scale", torch.float32, torch.bfloat16)
            packing.check_shape("weight_scale", scale, n, 1)
            own = {"weight": weight.contiguous(), "scale": scale.float().view(-1)}
        elif scheme == "w8a16":
            weight, scale = packing.unpack_w8a16(tensors)
            n, k = weight.shape
            own = {"weight": weight, "scale": scale}
        elif scheme == "fp8":
            weight, scale = packing.unpack_fp8(tensors)
            n, k = weight.shape
            own = {"weight": weight, "scale": scale.view(-1)}
        else:
            weight = packing.check_dtype(tensors, "weight", torch.bfloat16, torch.float32, torch.float16)
            n, k = weight.shape
            own = {"weight": weight.to(self.dtype).contiguous()}
        return PackedLinear(scheme, int(k), int(n), own, own_bias)

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w).to(self.dtype)

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w).float()

    def _product(self, x: Tensor, w: PackedLinear) -> Tensor:
        """float32 where x is rounded to 8 bits, else the compute dtype."""
        if w.scheme in INTEGER_SUMS:
            q, scale = quantise_rows(x)
            out = INTEGER_SUMS[w.scheme](q, scale, w.tensors)
            return out if w.bias is None else out + w.bias.float()
        if w.scheme == "fp8":
            codes, scale = quantise_rows_fp8(x)
            tile = row_tile(w.in_features, w.out_features, torch.float32, self.threads)
            out = (
                tiled_linear(codes.float().contiguous(), w.tensors["weight"].float(), tile) * scale * w.tensors["scale"]
            )
            return out if w.bias is None else out + w.bias.float()
        if w.scheme == "w4a16":
            weight = packing.dequantise_w4a16(_codes(w.tensors), w.tensors["scale"], w.tensors["zero"], self.dtype)
        elif w.scheme == "w8a16":
            weight = (w.tensors["weight"].float() * w.tensors["scale"]).to(self.dtype)
        else:
            weight = w.tensors["weight"]
        tile = row_tile(w.in_features, w.out_features, self.dtype, self.threads)
        out = tiled_linear(x.contiguous(), weight, tile)
        return out if w.bias is None else out + w.bias

    def pin_threads(self, on: bool) -> None:
        if on:
            raise UnavailableError("pin_threads: PyTorch's threads cannot be bound to CPUs; set it to false")

    def record(self, model: Model, caches: Sequence[KvCache], largest: StepSizes) -> None:
        return None

    def embed(self, tokens: Tensor, w: PackedLinear, scale: float = 1.0) -> Tensor:
        return w.tensors["weight"][tokens] * torch.tensor(scale).to(self.dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        mean = wide.square().mean(-1, keepdim=True)
        return (wide * (mean + eps).rsqrt() * weight).to(self.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        def rotate(x: Tensor) -> Tensor:
            wide = x.float()
            low, high = wide.chunk(2, dim=-1)
            turned = torch.cat((-high, low), dim=-1)
            return (wide * cos[:, None] + turned * sin[:, None]).to(x.dtype)

        return rotate(q), rotate(k)

    def new_kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        shape, stored = (blocks, block_size, kv_heads, head_dim), CODES.get(dtype, dtype)
        if dtype == torch.uint4:
            k, v = (torch.zeros(*shape[:3], head_dim // 2, dtype=stored) for _ in range(2))
            about = [four_bits.scale_shape(head_dim, group) for group in (four_bits.KEY_GROUP, four_bits.VALUE_GROUP)]
            return KvCache(k, v, *(torch.zeros(*shape[:3], *own, dtype=torch.bfloat16) for own in about))
        k, v = torch.zeros(shape, dtype=stored), torch.zeros(shape, dtype=stored)
        return KvCache(k, v, torch.zeros(shape[:3]), torch.zeros(shape[:3])) if stored in SCALED else KvCache(k, v)

    def write_kv(self, k: Tensor, v: Tensor, cache: KvCache, slots: Tensor) -> None:
        block, offset = slots // cache.block_size, slots % cache.block_size
        for x, stored, scales, group in (
            (k, cache.k, cache.k_scale, four_bits.KEY_GROUP),
            (v, cache.v, cache.v_scale, four_bits.VALUE_GROUP),
        ):
            if scales is None:
                stored[block, offset] = x.to(stored.dtype)
            elif cache.four_bits:
                stored[block, offset], scales[block, offset] = four_bits.quantise(x, group)
            else:
                q, scale = quantise_rows(x) if stored.dtype == torch.int8 else quantise_rows_fp8(x)
                stored[block, offset], scales[block, offset] = q.view(stored.dtype), scale[..., 0]

    def paged_attention(
        self, q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None = None
    ) -> Tensor:
        return attention.paged_attention(q, cache, meta, scale, window)

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        wide = gate.float().contiguous()
        activated = torch.stack([ACTIVATIONS[activation](row) for row in wide]) if len(wide) else wide
        return (activated * up.float()).to(self.dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] -> (int8 [..., K], float32 scale [..., 1]): symmetric, absmax / 127 of each row, half to even.

    A row of zeros has scale 1. One that is not finite has a scale that is not, so that it is seen in what comes of it.
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    scale = scale.where(scale != 0, torch.ones_like(scale))
    return (wide / scale).round().clamp(-127, 127).nan_to_num(0).to(torch.int8), scale


def quantise_rows_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] -> (float8_e4m3fn [..., K], float32 scale [..., 1]): absmax / 448 of each row, half to even.

    448 is the largest finite e4m3 (Micikevicius et al. 2022, "FP8 formats for deep learning", table 1). A row of zeros
    has scale 1. Products of two such codes are exact in float32; their sum is rounded there, then scaled.
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / FP8_MAX
    scale = scale.where(scale != 0, torch.ones_like(scale))
    return (wide / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def _w8a8(x: Tensor, row_scale: Tensor, own: dict[str, Tensor]) -> Tensor:
    """int8 x [T, K] x int8 -> int32, exact; float32 scales of the token and of the output channel."""
    return torch._int_mm(x, own["weight"].t()).float() * row_scale * own["scale"]


def _w4a8(x: Tensor, row_scale: Tensor, own: dict[str, Tensor]) -> Tensor:
    """The same within each group of inputs; the sums of the groups, scaled, are added up in float32 in order."""
    codes, scales, zeros = _codes(own).to(torch.int8), own["scale"].float(), own["zero"].to(torch.int8)
    n, groups = scales.shape
    size = x.shape[1] // groups
    centred = (codes.view(n, groups, size) - zeros[..., None]).transpose(0, 1).contiguous()  # [groups, N, size]
    total = torch.zeros(x.shape[0], n)
    for g, part in enumerate(x.view(-1, groups, size).transpose(0, 1).contiguous()):
        total = fused_multiply_add(torch._int_mm(part, centred[g].t()).float(), scales[:, g], total)
    return total * row_scale


def _codes(own: dict[str, Tensor]) -> Tensor:
    """uint8 [N, K] in 0 ... 15."""
    return torch.stack([own["nibbles"] & 15, own["nibbles"] >> 4], dim=2).flatten(1)


INTEGER_SUMS = {"w8a8": _w8a8, "w4a8": _w4a8}
