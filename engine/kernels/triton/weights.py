"""Stored linear layers to what the kernels of jit/products.py read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.artifact import GROUPED, LinearSpec
from engine.kernels.interface import PackedLinear
from engine.kernels.reference import packing


@dataclass(frozen=True)
class TritonLinear(PackedLinear):
    """``tensors`` by scheme:

    bf16          weight [N, K] in the compute dtype
    w8a8          weight int8 [N, K], scale float32 [N]
    w8a16         weight [N, K] in the compute dtype: right, not small
    fp8           weight uint8 [N, K], e4m3 codes; scale float32 [N]
    w4a16, w4a8   codes uint8 [N, K / 2], scale bf16 or float32 [N, K / group], zero uint8 [N, K / group]

    Byte ``b * half + j`` of a row of codes has input ``2 * b * half + j`` in its low bits, and ``half`` further on in
    its high bits: both halves are neighbouring inputs, which a product takes in their order.
    """

    group: int = 0
    half: int = 0


def half_of(inputs: int, group: int, both: bool) -> int:
    """The most neighbouring inputs, up to 64, that have one scale and come in pairs in a row; ``both``: a pair has one
    scale."""
    half = 64
    while group % (2 * half if both else half) or inputs % (2 * half):
        half //= 2
    return half


def pack_codes(q: Tensor, half: int) -> Tensor:
    """uint8 [N, K] in 0 ... 15 -> [N, K / 2]."""
    n, k = q.shape
    pairs = q.view(n, k // (2 * half), 2, half)
    return (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(n, k // 2).contiguous()


def pack(
    tensors: dict[str, Tensor], spec: LinearSpec | None, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> TritonLinear:
    """See engine.kernels.interface.Kernels.pack_linear.

    Raises:
        ArtifactError: tensors missing, or of a shape or dtype the scheme does not have.
    """
    scheme = packing.check_keys(tensors, spec)
    group = half = 0
    if spec is not None and scheme in GROUPED:
        q, scale, zero = packing.unpack_w4a16(tensors, spec.group_size)
        n, k = q.shape
        group = k // scale.shape[1]
        half = half_of(k, group, both=scheme == "w4a8")
        own = {"codes": pack_codes(q, half), "scale": scale.contiguous(), "zero": zero.contiguous()}
    elif scheme == "w8a8":
        weight = packing.check_dtype(tensors, "weight", torch.int8)
        n, k = weight.shape
        scale = packing.check_dtype(tensors, "weight_scale", torch.float32, torch.bfloat16)
        packing.check_shape("weight_scale", scale, n, 1)
        own = {"weight": weight.contiguous(), "scale": scale.float().view(-1).contiguous()}
    elif scheme == "w8a16":
        codes, scale = packing.unpack_w8a16(tensors)
        n, k = codes.shape
        own = {"weight": (codes.float() * scale).to(dtype)}
    elif scheme == "fp8":
        codes, scale = packing.unpack_fp8(tensors)
        n, k = codes.shape
        own = {"weight": codes.view(torch.uint8), "scale": scale.view(-1).contiguous()}
    else:
        weight = packing.check_dtype(tensors, "weight", torch.bfloat16, torch.float32, torch.float16)
        n, k = weight.shape
        own = {"weight": weight.to(dtype).contiguous()}
    kept = {name: tensor.to(device) for name, tensor in own.items()}
    own_bias = None if bias is None else bias.to(device, dtype).contiguous()
    return TritonLinear(scheme, int(k), int(n), kept, own_bias, group=int(group), half=half)
