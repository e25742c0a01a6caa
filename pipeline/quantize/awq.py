"""The searches of AWQ (Lin et al. 2023, arXiv 2306.00978) on second moments instead of on activations.

A linear y = W x rounded as W' has the output error sum |(W - W') x|^2 = tr(D G D^T) with D = W - W' and the second
moment G = sum x x^T over the calibration tokens. With G each candidate costs one product of the weight's own size,
whatever the number of tokens, and the activations need not be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.quantize.formats import expand_groups, round_groups

CLIP_RATIOS = tuple(round(1 - 0.05 * i, 2) for i in range(10))  # 1.0 ... 0.55; 1.0 is no clipping
_CHUNK = 2**20  # weights handled at once: bounds temporaries and stays in the cache


class Moments:
    """Of one input: ``second`` [in, in] = sum x x^T and ``mean_abs`` [in]."""

    def __init__(self, size: int) -> None:
        self.second = torch.zeros(size, size)
        self._sum_abs, self._tokens = torch.zeros(size), 0

    def add(self, x: Tensor) -> None:
        """``x`` [tokens, in], float32."""
        self.second.addmm_(x.t(), x)
        self._sum_abs += x.abs().sum(0)
        self._tokens += x.shape[0]

    @property
    def mean_abs(self) -> Tensor:
        return self._sum_abs / max(1, self._tokens)


@dataclass(frozen=True)
class Rounding:
    group_size: int
    symmetric: bool


def output_error(difference: Tensor, second: Tensor) -> float:
    """tr(D G D^T) for ``difference`` D [out, in]; float32 products, float64 sum in fixed order."""
    return sum(float(((d @ second) * d).sum(dtype=torch.float64)) for d in _chunks(difference))


def rounded(weight: Tensor, how: Rounding, clip: Tensor | None = None) -> Tensor:
    """float32 [out, in]: the weight as it reads back after rounding."""
    return expand_groups(*round_groups(weight, how.group_size, how.symmetric, clip))


def scale_candidates(mean_abs: Tensor, grid: int) -> Iterator[Tensor]:
    """Scales per input channel, float32 [in]: ones first, then mean|x|^(i/grid), centred geometrically."""
    yield torch.ones_like(mean_abs)
    magnitude = mean_abs.clamp(min=1e-4 * float(mean_abs.max().clamp(min=1e-12)))
    for i in range(1, grid + 1):
        s = magnitude ** (i / grid)
        yield s / (s.max() * s.min()).sqrt()


def search_scale(
    weights: list[Tensor], moments: Moments, how: Rounding, grid: int, realise: Callable[[Tensor], Tensor]
) -> Tensor:
    """The scale [in] with the least output error of ``weights`` that read one input; the first wins a tie.

    ``realise`` turns a wished scale into the one that the layer before can carry exactly.
    """
    best, best_error = torch.ones_like(moments.mean_abs), float("inf")
    for wished in scale_candidates(moments.mean_abs, grid):
        s = realise(wished)
        error = sum(
            output_error(part - rounded(part * s, how) / s, moments.second)
            for weight in weights
            for part in _chunks(weight)
        )
        if error < best_error:
            best, best_error = s, error
    return best


def search_clip(weight: Tensor, second: Tensor, how: Rounding) -> Tensor | None:
    """The clip ratio of each group, [out, in/group], by that group's own output error; None if it does not pay in all.

    ``weight`` and ``second`` are those after scaling. Groups are judged without their cross terms, so the whole is
    judged once more at the end.
    """
    groups = weight.shape[1] // how.group_size
    blocks = torch.stack(
        [
            second[i * how.group_size : (i + 1) * how.group_size, i * how.group_size : (i + 1) * how.group_size]
            for i in range(groups)
        ]
    )  # [groups, group, group]
    found = []
    for part in _chunks(weight):
        best = torch.ones(part.shape[0], groups)
        best_error = torch.full_like(best, float("inf"))
        for ratio in CLIP_RATIOS:
            d = (part - rounded(part, how, torch.full_like(best, ratio))).view(part.shape[0], groups, how.group_size)
            by_group = d.transpose(0, 1)  # [groups, rows, group]
            error = (torch.bmm(by_group, blocks) * by_group).sum(2).t()
            better = error < best_error
            best = torch.where(better, torch.full_like(best, ratio), best)
            best_error = torch.where(better, error, best_error)
        found.append(best)
    clip = torch.cat(found)
    plain = output_error(weight - rounded(weight, how), second)
    return clip if output_error(weight - rounded(weight, how, clip), second) < plain else None


def _chunks(matrix: Tensor) -> tuple[Tensor, ...]:
    return tuple(matrix.split(max(1, _CHUNK // matrix.shape[1])))
