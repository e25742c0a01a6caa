"""The searches, held against sums over tokens and against what they promise: never worse than plain rounding."""

from __future__ import annotations

import pytest
import torch

from pipeline.quantize.awq import Moments, Rounding, output_error, rounded, scale_candidates, search_clip, search_scale
from pipeline.quantize.formats import expand_groups, round_groups
from pipeline.quantize.threads import LANES, in_lanes, one_thread_each

HOW = [Rounding(16, True), Rounding(16, False)]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moments_of(x: torch.Tensor) -> Moments:
    moments = Moments(x.shape[1])
    for part in x.split(50):
        moments.add(part)
    return moments


def test_the_error_by_moments_is_the_error_over_tokens() -> None:
    x, d = normal(300, 32), normal(24, 32, seed=1)
    moments = moments_of(x)
    assert output_error(d, moments.second) == pytest.approx(float((x @ d.t()).square().sum()), rel=1e-5)
    assert torch.allclose(moments.mean_abs, x.abs().mean(0), rtol=1e-5)
    halves = moments_of(x[:100]) + moments_of(x[100:])
    assert torch.allclose(halves.second, moments.second, rtol=1e-4, atol=1e-3)
    assert torch.allclose(halves.mean_abs, moments.mean_abs)


@pytest.mark.parametrize("how", HOW)
def test_rounding_in_the_search_is_rounding_in_the_artifact(how: Rounding) -> None:
    weight = normal(40, 64)
    clip = normal(40, 4, seed=2).abs().clamp(0.5, 1)
    for c in (None, clip):
        stored = expand_groups(*round_groups(weight, how.group_size, how.symmetric, c))
        assert torch.equal(rounded(weight, how, c), stored)


@pytest.mark.parametrize("how", HOW)
def test_an_outlier_channel_is_scaled_up_and_the_error_falls(how: Rounding) -> None:
    x, weight = normal(400, 64), normal(32, 64, seed=1)
    x[:, 5] *= 40
    moments = moments_of(x)
    s = search_scale([weight], moments, how, 10, lambda wished: wished)
    assert s[5] == s.max()
    plain = output_error(weight - rounded(weight, how), moments.second)
    scaled = output_error(weight - rounded(weight * s, how) / s, moments.second)
    assert scaled < 0.6 * plain


def test_no_scale_is_among_the_candidates_and_wins_a_tie() -> None:
    moments = Moments(16)
    moments.add(torch.ones(3, 16))
    candidates = list(scale_candidates(moments.mean_abs, 4))
    assert len(candidates) == 5
    assert torch.equal(candidates[0], torch.ones(16))
    exact = torch.randint(-7, 8, (8, 16), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(search_scale([exact], moments, HOW[1], 4, lambda wished: wished), torch.ones(16))
    silent = Moments(16)
    silent.add(torch.zeros(3, 16))
    assert all(bool(c.isfinite().all()) for c in scale_candidates(silent.mean_abs, 4))


@pytest.mark.parametrize("how", HOW)
def test_clipping_pays_or_is_left_out(how: Rounding) -> None:
    x, weight = normal(400, 64), normal(32, 64, seed=1)
    weight[:, ::16] *= 6  # one large weight in each group, on an input that hardly speaks
    x[:, ::16] *= 0.01
    second = moments_of(x).second
    clip = search_clip(weight, second, how)
    assert clip is not None
    assert clip.shape == (32, 4)
    assert float(clip.min()) < 1
    plain = output_error(weight - rounded(weight, how), second)
    assert output_error(weight - rounded(weight, how, clip), second) < 0.8 * plain
    assert search_clip(torch.zeros(32, 64), second, how) is None
    for seed in range(5):  # correlated inputs: the cross terms between groups can make a local gain a loss
        mixed = moments_of(normal(100, 8, seed=seed) @ normal(8, 64, seed=seed + 9)).second
        other = normal(4, 64, seed=seed + 20)
        found = search_clip(other, mixed, how)
        if found is not None:
            assert output_error(other - rounded(other, how, found), mixed) < output_error(
                other - rounded(other, how), mixed
            )


def test_lanes_keep_the_order_and_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread_each():
        assert torch.get_num_threads() == 1
        found = in_lanes(lambda n: (n, torch.get_num_threads()), range(7))
    assert torch.get_num_threads() == before
    assert found == [(n, 1) for n in range(7)]
    assert LANES == 2
