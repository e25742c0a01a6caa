"""What all layers of one step share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import AttentionMeta


@dataclass(frozen=True)
class StepInput:
    """T tokens of R requests, one after the other."""

    tokens: Tensor  # int64 [T]
    cos: Tensor  # float32 [T, head_dim]
    sin: Tensor  # float32 [T, head_dim]
    slots: Tensor  # int64 [T], block * block_size + offset
    meta: AttentionMeta
