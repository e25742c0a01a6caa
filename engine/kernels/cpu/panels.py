"""Weights to the panel layouts of csrc/products.h."""

from __future__ import annotations

import torch
from torch import Tensor


def _by_panel(x: Tensor, panel: int) -> Tensor:
    """[N, C] -> [ceil(N / panel), C, panel], zero columns at the end."""
    n, c = x.shape
    count = -(-n // panel)
    padded = x if n % panel == 0 else torch.cat([x, x.new_zeros(count * panel - n, c)])
    return padded.view(count, panel, c).transpose(1, 2).contiguous()


def pack_bf16(weight: Tensor, panel: int) -> Tensor:
    """bf16 [N, K] -> int32 [panels, ceil(K/2), panel]: pairs of neighbouring k, the even one in the low half."""
    if weight.shape[1] % 2:
        weight = torch.cat([weight, weight.new_zeros(weight.shape[0], 1)], dim=1)
    return _by_panel(weight.contiguous().view(torch.int32), panel)


def pack_float32(weight: Tensor, panel: int) -> Tensor:
    """float32 [N, K] -> [panels, K, panel]."""
    return _by_panel(weight, panel)


def pack_int8(weight: Tensor, panel: int) -> Tensor:
    """int8 [N, K] -> int32 [panels, ceil(K/4), panel]: four neighbouring k, each + 128, the first the lowest byte."""
    missing = -weight.shape[1] % 4
    if missing:
        weight = torch.cat([weight, weight.new_zeros(weight.shape[0], missing)], dim=1)
    unsigned = weight.contiguous().view(torch.uint8) ^ 128
    return _by_panel(unsigned.view(torch.int32), panel)


def pack_int4(q: Tensor, scale: Tensor, zero: Tensor, panel: int) -> tuple[Tensor, Tensor, Tensor]:
    """q uint8 [N, K], scale bf16 and zero uint8 [N, K/group] -> int32 words of eight nibbles [panels, K/8, panel]: byte
    b holds k = b of the eight in its low half and k = 4 + b in its high half; scales and zero points
    [panels, K/group, panel]."""
    eights = q.view(q.shape[0], -1, 2, 4)
    words = (eights[:, :, 0] | (eights[:, :, 1] << 4)).flatten(1).view(torch.int32)
    return _by_panel(words, panel), _by_panel(scale, panel), _by_panel(zero, panel)
