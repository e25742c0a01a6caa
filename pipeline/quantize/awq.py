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

from pipeline.quantize.formats import group_grid, group_range

CLIP_RATIOS = tuple(round(1 - 0.05 * i, 2) for i in range(10))  # 1.0 ... 0.55; 1.0 is no clipping
_CHUNK = 2**18  # weights handled at once: bounds temporaries and stays in the cache


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

    def __add__(self, other: Moments) -> Moments:
        total = Moments(self.second.shape[0])
        total.second = self.second + other.second
        total._sum_abs, total._tokens = self._sum_abs + other._sum_abs, self._tokens + other._tokens
        return total

    @property
    def mean_abs(self) -> Tensor:
        return self._sum_abs / max(1, self._tokens)


@dataclass(frozen=True)
class Rounding:
    group_size: int
    symmetric: bool


def output_error(difference: Tensor, second: Tensor) -> float:
    """tr(D G D^T) for ``difference`` D [out, in]; float32 products, float64 sum in fixed order."""
    return sum(float((d @ second).mul_(d).sum(dtype=torch.float64)) for d in _chunks(difference))


def rounded(weight: Tensor, how: Rounding, clip: Tensor | None = None) -> Tensor:
    """float32 [out, in]: the weight as it reads back after rounding (``expand_groups`` of ``round_groups``)."""
    grouped = weight.view(weight.shape[0], -1, how.group_size)
    return _snap(grouped, *group_grid(*group_range(grouped, how.symmetric), clip)).view(weight.shape)


def _snap(grouped: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """In place on one temporary: the searches spend most of their time here."""
    wide = scale.float()[..., None]
    codes = grouped / wide
    if zero is None:
        return codes.round_().clamp_(-8, 7).mul_(wide)
    return codes.add_(zero[..., None]).round_().clamp_(-8, 7).sub_(zero[..., None]).mul_(wide)


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
            output_error(part - rounded(part * s, how).div_(s), moments.second)
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
        by_group = (
            part.view(part.shape[0], groups, how.group_size).transpose(0, 1).contiguous()
        )  # [groups, rows, group]
        ranges = group_range(by_group, how.symmetric)
        best = torch.ones(groups, part.shape[0])
        best_error = torch.full_like(best, float("inf"))
        for ratio in CLIP_RATIOS:
            clip = torch.full_like(best, ratio)
            d = _snap(by_group, *group_grid(*ranges, clip)).sub_(by_group)
            error = torch.bmm(d, blocks).mul_(d).sum(2)
            better = error < best_error
            best, best_error = torch.where(better, clip, best), torch.where(better, error, best_error)
        found.append(best.t())
    chosen = torch.cat(found).contiguous()
    plain = output_error(weight - rounded(weight, how), second)
    return chosen if output_error(weight - rounded(weight, how, chosen), second) < plain else None


def _chunks(matrix: Tensor) -> tuple[Tensor, ...]:
    return tuple(matrix.split(max(1, _CHUNK // matrix.shape[1])))
