"""The fast draw against a slow one that computes everything."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.draw import _falling, draw, gumbel, kept
from engine.request import SamplingParams

TEMPERATURES = [5e-324, 1e-9, 0.01, 0.5, 1.0, 1.7, 40.0, 1e35, 1e300]
FILTERS: list[dict[str, Any]] = [
    {}, {"top_k": 1}, {"top_k": 7}, {"top_p": 0.4}, {"top_p": 0.97}, {"min_p": 0.03}, {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.8}, {"min_p": 0.01, "top_k": 9, "top_p": 0.9},
]  # fmt: skip


def params(temperature: float = 1.0, **filters: Any) -> SamplingParams:
    return SamplingParams(max_tokens=9, temperature=temperature, **filters)


def noise_of(seed: int, position: int, token: int) -> float:
    """SplitMix64 and the Gumbel distribution, in Python's integers."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{position}".encode()).digest()[:8], "big")
    z = (token * 0x9E3779B97F4A7C15 + key) % 2**64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return -math.log(-math.log((((z ^ z >> 31) >> 12) + 0.5) / 2**52))


def slow_kept(logits: list[float], p: SamplingParams) -> list[int]:
    """The filters as their definitions read, over (token, scaled logit) in order of falling logit."""
    top = max(logits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    left = [(i, (logits[i] - top) / p.temperature) for i in order]
    if p.min_p:
        left = [pair for pair in left if pair[1] >= math.log(p.min_p)]
    if p.top_k:
        left = left[: p.top_k]
    total, mass, ids = math.fsum(math.exp(x) for _, x in left), 0.0, list[int]()
    for i, x in left:
        ids.append(i)
        mass += math.exp(x)
        if p.top_p < 1 and mass >= p.top_p * total:
            break
    return ids


def slow_draw(logits: list[float], p: SamplingParams, seed: int, position: int, ids: list[int] | None = None) -> int:
    names, top = ids or range(len(logits)), max(logits)
    return max(
        (((logits[i] - top) / p.temperature + noise_of(seed, position, names[i]), -names[i], names[i]))
        for i in slow_kept(logits, p)
    )[2]


def row_of(seed: int, size: int, spread: float, steps: int | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Random logits; ``steps`` makes many of them equal."""
    row = np.random.default_rng(seed).standard_normal(size) * spread
    return (row if steps is None else np.round(row * steps) / steps).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(TEMPERATURES), st.sampled_from(FILTERS), st.sampled_from([0.1, 3, 30]))
def test_the_winner_is_that_of_the_slow_draw(seed: int, temperature: float, filters: Any, spread: float) -> None:
    row = row_of(seed, 700, spread)
    p = params(temperature, **filters)
    assert draw(row, p, seed, 5) == slow_draw(row.tolist(), p, seed, 5)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(TEMPERATURES), st.sampled_from(FILTERS))
def test_among_some_tokens_only(seed: int, temperature: float, filters: Any) -> None:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(5000, int(rng.integers(1, 300)), replace=False))
    row, p = row_of(seed, len(ids), 4.0), params(temperature, **filters)
    assert draw(row, p, seed, 5, ids) == slow_draw(row.tolist(), p, seed, 5, ids.tolist())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(TEMPERATURES), st.sampled_from(FILTERS), st.sampled_from([None, 1, 4]))
def test_filters_keep_what_their_definitions_say(
    seed: int, temperature: float, filters: Any, steps: int | None
) -> None:
    row, p = row_of(seed, 3000, 3.0, steps), params(temperature, **filters)
    found, expected = kept(row, p), slow_kept(row.tolist(), p)
    places = list(range(3000)) if found is None else found.tolist()
    if "top_p" not in filters:
        assert set(places) == set(expected)
    else:  # one place more or less where the mass is the wanted one to seven digits
        shorter, longer = sorted((places, expected), key=len)
        assert longer[: len(shorter)] == shorter
        if len(longer) > len(shorter):
            top = float(row.max())
            within = slow_kept(row.tolist(), params(temperature, **{**filters, "top_p": 1.0}))
            weights = [math.exp((float(row[i]) - top) / temperature) for i in within]
            assert sum(weights[: len(shorter)]) / sum(weights) == pytest.approx(p.top_p, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -1.5, 3e38, -3e38, 1e-45, -1e-45, -math.inf, 7.25]), max_size=40))
def test_the_sort_is_stable_and_knows_all_floats(values: list[float]) -> None:
    row = np.array(values, dtype=np.float32)
    assert _falling(row).tolist() == sorted(range(len(values)), key=lambda i: -row[i])


def test_a_nucleus_larger_than_any_partial_sort() -> None:
    row = row_of(3, 40_000, 0.01)
    found = kept(row, params(top_p=0.9))
    assert found is not None
    assert found.tolist() == slow_kept(row.tolist(), params(top_p=0.9))
    assert len(found) > 30_000
    everything = kept(row, params(top_p=1 - 1e-16))
    assert everything is not None
    assert len(everything) == 40_000


def test_boundaries_by_hand() -> None:
    row = np.log(np.array([0.1, 0.4, 0.2, 0.3, 0.4], dtype=np.float32))

    def left(**filters: Any) -> list[int]:
        found = kept(row, params(**filters))
        assert found is not None
        return [int(i) for i in found]

    assert left(top_k=1) == [1]  # the lower id of two equal ones
    assert left(top_k=3) == [1, 4, 3]
    assert left(top_p=0.5) == [1, 4]
    assert left(top_p=0.01) == [1]
    assert left(top_k=2, top_p=0.3) == [1]
    assert sorted(left(min_p=0.6)) == [1, 3, 4]
    assert sorted(left(min_p=1.0)) == [1, 4]
    assert sorted(left(min_p=1e-12)) == [0, 1, 2, 3, 4]
    assert kept(row, params(top_k=99)) is None
    assert kept(row, params()) is None


def test_masked_tokens_are_never_drawn() -> None:
    row = row_of(1, 500, 3.0)
    row[np.arange(500) % 7 != 0] = -np.inf
    for filters in FILTERS:
        for seed in range(20):
            assert draw(row, params(1.3, **filters), seed, 2) % 7 == 0


def test_a_tiny_temperature_is_greedy_and_a_huge_one_uniform() -> None:
    row = row_of(2, 300, 3.0)
    assert {draw(row, params(5e-324), seed, 1) for seed in range(30)} == {int(row.argmax())}
    found = Counter(draw(row[:10], params(1e300), seed, 1) for seed in range(2000))
    assert stats.chisquare([found[i] for i in range(10)]).pvalue > 1e-3


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.999999}, {"min_p": 0.001}])
def test_draws_follow_the_distribution(filters: dict[str, float]) -> None:
    wanted = [0.5, 0.3, 0.15, 0.05]
    row = np.log(np.array([*wanted, 1e-20], dtype=np.float32))
    found = Counter(draw(row, params(**filters), seed, 4) for seed in range(3000))
    assert set(found) <= {0, 1, 2, 3}
    assert stats.chisquare([found[i] for i in range(4)], [w * 3000 for w in wanted]).pvalue > 1e-3


def test_the_tail_has_its_share() -> None:
    """Twenty thousand tokens eleven below the best, which the race looks at last, have a quarter of the mass."""
    row = np.full(20_001, -11.0, dtype=np.float32)
    row[123] = 0.0
    share = 20_000 * math.exp(-11) / (1 + 20_000 * math.exp(-11))
    late = sum(draw(row, params(), seed, 1) != 123 for seed in range(1500))
    assert stats.binomtest(late, 1500, share).pvalue > 1e-3


def test_noise_is_keyed_and_has_the_gumbel_distribution() -> None:
    ids = np.arange(20_000)
    noise = gumbel(1, 2, ids)
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3
    assert noise[[5, 77, 19_999]].tolist() == gumbel(1, 2, np.array([5, 77, 19_999])).tolist()
    assert noise[:50].tolist() == pytest.approx([noise_of(1, 2, i) for i in range(50)], rel=1e-12)
    for other in (gumbel(1, 3, ids), gumbel(2, 2, ids)):
        assert abs(stats.pearsonr(noise, other).statistic) < 0.05


@settings(max_examples=50, deadline=None)
@given(st.integers(-(2**63), 2**64), st.lists(st.integers(0, 200_000), min_size=1, max_size=60, unique=True))
def test_the_noise_of_a_token_does_not_depend_on_its_place_in_an_array(seed: int, ids: list[int]) -> None:
    assert gumbel(seed, 3, np.array(ids)).tolist() == [float(gumbel(seed, 3, np.array([i]))[0]) for i in ids]
