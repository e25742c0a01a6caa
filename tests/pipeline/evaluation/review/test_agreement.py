"""Alpha against published examples, and what must hold for any ratings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation.review.agreement import Level, alpha


def units(*raters: str) -> list[list[float]]:
    """Columns of a published table, one string a rater, ``*`` for no rating."""
    return [[float(v) for v in column if v != "*"] for column in zip(*(r.split() for r in raters), strict=True)]


# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: four observers, twelve units.
FOUR = units("1 2 3 3 2 1 4 1 2 * * *", "1 2 3 3 2 2 4 1 2 5 * 3", "* 3 3 3 2 3 4 2 2 5 1 *", "1 2 3 3 2 4 4 1 2 5 1 *")
# The worked example of the encyclopedia's article on alpha: three coders, fifteen units.
THREE = units("* * * * * 3 4 1 2 1 1 3 3 * 3", "1 * 2 1 3 3 4 3 * * * * * * *", "* * 2 1 3 4 4 * 2 1 1 3 3 * 4")


@pytest.mark.parametrize(
    ("ratings", "level", "published"),
    [
        (FOUR, "nominal", 0.743),
        (FOUR, "ordinal", 0.815),
        (FOUR, "interval", 0.849),
        (THREE, "nominal", 0.691),
        (THREE, "interval", 0.811),
    ],
)
def test_published_examples(ratings: list[list[float]], level: Level, published: float) -> None:
    found = alpha(ratings, level)
    assert found is not None
    assert round(found, 3) == published


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_perfect_agreement_is_one_and_too_little_data_is_none(level: Level) -> None:
    assert alpha([[1, 1], [5, 5], [3, 3, 3], [2]], level) == 1
    assert alpha([[4, 4], [4, 4]], level) is None
    assert alpha([[1], [2]], level) is None
    assert alpha([[1, 2]], level) is None


@given(st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=12), st.randoms())
def test_order_of_units_and_raters_does_not_matter(ratings: list[list[int]], rng) -> None:  # type: ignore[no-untyped-def]
    found = alpha(ratings)
    shuffled = [rng.sample(u, len(u)) for u in rng.sample(ratings, len(ratings))]
    again = alpha(shuffled)
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert found == pytest.approx(again)
        assert found <= 1 + 1e-9
