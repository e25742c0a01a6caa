"""Draws against theory: scipy's distributions, which the code under test does not use."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from loadtests.distributions import Empirical, Lengths, Times, draw_length, length_at, seconds_at

N = 4000
# Largest distance of an empirical distribution of N draws from its own, but for one run in a million
# (Dvoretzky-Kiefer-Wolfowitz with Massart's constant); the seeds are fixed, so a run that passes always passes.
FAR = math.sqrt(math.log(2 / 1e-6) / (2 * N))


def lengths(folder: Path | None = None, **settings: Any) -> Lengths:
    return TypeAdapter[Lengths](Lengths).validate_python(settings, context={"folder": folder} if folder else None)


def times(**settings: Any) -> Times:
    return TypeAdapter[Times](Times).validate_python(settings)


def draws(of: Lengths, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [draw_length(of, rng) for _ in range(N)]


@pytest.mark.parametrize(("median", "sigma", "low", "high"), [(120, 1.0, 16, 1200), (40, 0.5, 1, 4000)])
def test_lognormal_lengths_follow_the_truncated_lognormal(median: float, sigma: float, low: int, high: int) -> None:
    drawn = np.array(draws(lengths(kind="lognormal", median=median, sigma=sigma, min=low, max=high)))
    a, b = (math.log(x / median) / sigma for x in (low, high))
    whole = np.arange(low, high)
    theory = stats.truncnorm.cdf(np.log((whole + 0.5) / median) / sigma, a, b)  # a length is rounded
    seen = np.searchsorted(np.sort(drawn), whole, side="right") / N
    assert np.abs(seen - theory).max() < FAR
    assert low <= drawn.min() <= drawn.max() <= high


def test_uniform_lengths_are_all_as_likely() -> None:
    counts = Counter(draws(lengths(kind="uniform", min=3, max=22)))
    assert set(counts) == set(range(3, 23))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_a_histogram_is_drawn_by_its_weights_and_evenly_within_a_bin() -> None:
    bins = [
        {"min": 100, "max": 199, "weight": 1},
        {"min": 5, "max": 5, "weight": 2},
        {"min": 10, "max": 19, "weight": 1},
    ]
    drawn = draws(lengths(kind="empirical", histogram=bins))
    expected = {n: N / 4 / 100 for n in range(100, 200)} | {5: N / 2} | {n: N / 4 / 10 for n in range(10, 20)}
    counts = Counter(drawn)
    assert set(counts) <= set(expected)
    assert stats.chisquare([counts[n] for n in expected], list(expected.values())).pvalue > 1e-4


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.floats(0, 1, exclude_max=True))
def test_lengths_of_a_file_have_the_quantiles_of_the_file(values: list[int], p: float) -> None:
    of = Empirical.model_construct(kind="empirical")
    of._bins, of._below = tuple((v, v) for v in sorted(values)), tuple(float(i + 1) for i in range(len(values)))
    assert of.at(p) == sorted(values)[min(int(p * len(values)), len(values) - 1)]


def test_a_file_of_lengths_is_scaled_and_bounded(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("asked, given\n10,1\n2000,2\n30,3\n9,4\n")
    of = lengths(tmp_path, kind="empirical", file="seen.csv", column="asked", factor=0.5, min=5, max=100)
    assert set(draws(of)) == {5, 15}  # 1000 is above, 4 below
    assert isinstance(of, Empirical)
    assert of.sha256 == hashlib.sha256((tmp_path / "seen.csv").read_bytes()).hexdigest()


def test_plain_lengths_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "seen.txt").write_text("7\n7\n9\n\n")
    counts = Counter(draws(lengths(tmp_path, kind="empirical", file="seen.txt")))
    assert set(counts) == {7, 9}
    assert stats.binomtest(counts[7], N, 2 / 3).pvalue > 1e-4


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (None, {}, "seen.txt cannot be read: No such file"),
        ("", {}, "holds no lengths"),
        ("4\n0\n", {}, "line 2: found '0', expected a whole number of tokens, 1 or more"),
        ("4.5\n", {}, "line 1: found '4.5'"),
        ("4,5\n", {}, "for a CSV file give column: NAME"),
        ("a,b\n1,2\n", {"column": "c"}, "has the columns a, b; expected c"),
        ("4\n", {"min": 5}, r"none of the 1 lengths of .*seen.txt is in \[5, any\]: they go from 4 to 4"),
        ("4\n", {"sha256": "0" * 64}, "another file, or a changed one"),
        ("4\n", {"histogram": [{"min": 1, "max": 2, "weight": 1}]}, "either histogram or file"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, settings: dict[str, Any], message: str) -> None:
    if text is not None:
        (tmp_path / "seen.txt").write_text(text)
    with pytest.raises(ValidationError, match=message):
        lengths(tmp_path, kind="empirical", file="seen.txt", **settings)


def test_lengths_are_of_one_file(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("4\n")
    assert lengths(tmp_path, kind="empirical", file="a*.txt")
    with pytest.raises(ValidationError, match=r"\*.txt matches 2 files; expected one"):
        lengths(tmp_path, kind="empirical", file="*.txt")
    with pytest.raises(ValidationError, match=r"no file matches .*c\*.txt"):
        lengths(tmp_path, kind="empirical", file="c*.txt")


def test_a_histogram_takes_no_settings_of_a_file() -> None:
    with pytest.raises(ValidationError, match="factor goes with file"):
        lengths(kind="empirical", histogram=[{"min": 1, "max": 2, "weight": 1}], factor=2)
    with pytest.raises(ValidationError, match="min is 3, above max 2"):
        lengths(kind="empirical", histogram=[{"min": 3, "max": 2, "weight": 1}])


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=20))
def test_no_length_is_out_of_bounds_or_out_of_order(ps: list[float]) -> None:
    of = [
        lengths(kind="uniform", min=3, max=9),
        lengths(kind="lognormal", median=30, sigma=2, min=4, max=90),
        lengths(kind="empirical", histogram=[{"min": 4, "max": 6, "weight": 1}, {"min": 60, "max": 90, "weight": 0.1}]),
    ]
    for one in of:
        found = [length_at(one, p) for p in sorted(ps)]
        assert found == sorted(found)
        assert found[0] >= 3
        assert found[-1] <= 90


@pytest.mark.parametrize(
    ("settings", "cdf"),
    [
        ({"kind": "uniform", "min_s": 1, "max_s": 5}, stats.uniform(1, 4).cdf),
        ({"kind": "exponential", "mean_s": 2}, stats.expon(scale=2).cdf),
        ({"kind": "exponential", "mean_s": 2, "max_s": 3}, stats.truncexpon(b=1.5, scale=2).cdf),
        ({"kind": "lognormal", "median_s": 8, "sigma": 0.7}, stats.lognorm(s=0.7, scale=8).cdf),
        (
            {"kind": "lognormal", "median_s": 8, "sigma": 0.7, "max_s": 16},
            lambda x: stats.truncnorm.cdf(np.log(x / 8) / 0.7, -np.inf, math.log(2) / 0.7),
        ),
    ],
)
def test_times_follow_their_distributions(settings: dict[str, Any], cdf: Any) -> None:
    rng, of = random.Random(2), times(**settings)
    assert stats.kstest([seconds_at(of, rng.random()) for _ in range(N)], cdf).pvalue > 1e-4


def test_times_that_make_no_sense() -> None:
    assert seconds_at(times(kind="fixed", s=3), 0.4) == 3
    with pytest.raises(ValidationError, match="min_s is 5, above max_s 1"):
        times(kind="uniform", min_s=5, max_s=1)
    with pytest.raises(ValidationError, match="expected median_s <= max_s, found 8, 1"):
        times(kind="lognormal", median_s=8, sigma=1, max_s=1)
