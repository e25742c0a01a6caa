"""How rows of logits are drawn from, as numbers that travel with a step: one row of ``COLUMNS`` int64 a row of logits.

key   where the generator starts (engine.draw.key_of), 64 bits without a sign
top_k 0: off
bits of float64: temperature (0: nothing is drawn), min_p, log(min_p), top_p, sharpness (engine.draw.sharpness_of)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.draw import draw_keyed, key_of, sharpness_of
from engine.request import SamplingParams

COLUMNS = 7
NOT_DRAWN = -1  # in the place of a token: the host has to draw it
_FLOATS = struct.Struct("<5d")
_WORDS = struct.Struct("<5q")
_MOST = 2**31 - 1  # beyond any vocabulary


@dataclass(frozen=True)
class RowDraw:
    """One row, read back; has engine.draw.Filters."""

    key: int
    top_k: int
    temperature: float
    min_p: float
    top_p: float


def can_draw(params: SamplingParams) -> bool:
    """Whether the token is drawn from the model's logits as they are, with a temperature."""
    return params.temperature > 0 and not params.modifies_logits


def row_of(params: SamplingParams, seed: int, position: int) -> list[int]:
    """The row for a token at ``position``."""
    key, least = key_of(seed, position), math.log(params.min_p) if params.min_p else -math.inf
    floats = (params.temperature, params.min_p, least, params.top_p, float(sharpness_of(params.temperature)))
    return [key - 2**64 if key >> 63 else key, min(params.top_k, _MOST), *_WORDS.unpack(_FLOATS.pack(*floats))]


def read(row: Sequence[int]) -> RowDraw:
    temperature, min_p, _, top_p, _ = _FLOATS.unpack(_WORDS.pack(*row[2:]))
    return RowDraw(row[0] % 2**64, row[1], temperature, min_p, top_p)


def draw_rows(logits: Tensor, largest: Tensor, draws: Tensor) -> list[int]:
    """What engine.draw draws from each row of float32 [W, vocab] whose ``largest`` [W] is finite, on the host."""
    found = []
    for values, top, row in zip(logits.cpu().numpy(), largest.tolist(), draws.tolist(), strict=True):
        how = read(row)
        drawn = how.temperature > 0 and math.isfinite(top)
        found.append(draw_keyed(values, how, how.key) if drawn else NOT_DRAWN)
    return found
