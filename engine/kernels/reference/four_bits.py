"""Keys and values of 4 bits: codes 0 ... 15 between the smallest and the largest of a group.

What a token's codes are depends on that token alone: it is the same in any batch and in any block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ledger import KV_GROUPS, check_four_bits

KEY_GROUP, VALUE_GROUP = KV_GROUPS
MOST = 15


def scale_shape(head_dim: int, group: int) -> tuple[int, int]:
    """(groups, 2): the last group may be smaller; scale, base.

    Raises:
        engine.artifact.ArtifactError: an odd ``head_dim``.
    """
    check_four_bits(head_dim)
    return -(-head_dim // group), 2


def quantise(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x [..., D] -> (uint8 [..., D/2], the first of two codes in the lower bits; bfloat16 [..., groups, 2]). See
    engine.kernels.interface.Kernels.write_kv. A group that is not finite has a scale or a base that is not."""
    codes, scales = zip(*map(_quantise, x.float().split(group, -1)), strict=True)
    flat = torch.cat(codes, -1)
    return flat[..., 0::2] | (flat[..., 1::2] << 4), torch.stack(scales, -2)


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """One group, float32 [..., n] -> (uint8 [..., n], bfloat16 [..., 2])."""
    lowest, highest = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    base, scale = lowest.bfloat16(), ((highest - lowest) / MOST).bfloat16()
    scale = scale.where(scale != 0, torch.ones_like(scale))
    codes = ((x - base.float()) / scale.float()).round().clamp(0, MOST)
    return codes.nan_to_num(0).to(torch.uint8), torch.cat((scale, base), -1)


def dequantise(packed: Tensor, scales: Tensor, group: int) -> Tensor:
    """The reverse, float32 [..., D]. A code times a scale is exact in float32."""
    codes = torch.stack((packed & MOST, packed >> 4), -1).flatten(-2).float()
    own = scales.float().repeat_interleave(group, -2)[..., : codes.shape[-1], :]
    return codes * own[..., 0] + own[..., 1]
