"""What all layers of one step share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.interface import AttentionMeta


@dataclass(frozen=True)
class StepInput:
    """T tokens of R requests, one after the other."""

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T], each in its own request
    slots: Tensor  # int64 [T], block * block_size + offset
    meta: AttentionMeta
