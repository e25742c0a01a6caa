from __future__ import annotations

from itertools import islice, pairwise
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from loadtests.schedule import ClosedLoop, Share, closed_loop, due_times, open_arrivals
from loadtests.workload import StageSpec


def stage(arrivals: dict[str, Any], warmup_s: float = 2, duration_s: float = 98) -> StageSpec:
    return StageSpec.model_validate(
        {
            "name": "s",
            "warmup_s": warmup_s,
            "duration_s": duration_s,
            "arrivals": arrivals,
            "prompt_tokens": {"kind": "fixed", "tokens": 9},
            "output_tokens": {"kind": "fixed", "tokens": 9},
        }
    )


WALK = {"kind": "walk", "min": 2, "max": 9, "step": 3, "every_s": 0.5}


def test_constant_concurrency() -> None:
    loop = closed_loop(stage({"kind": "closed", "concurrency": 4}), 1)
    assert [loop.next_active(slot, 17.5) for slot in (0, 3, 4)] == [17.5, 17.5, None]


def test_the_walk_is_seeded_bounded_and_moves() -> None:
    loop = closed_loop(stage(WALK), 1)
    users = [n for _, n in loop.levels]
    assert loop.levels == closed_loop(stage(WALK), 1).levels != closed_loop(stage(WALK), 2).levels
    assert len(users) == 200
    assert {min(users), max(users)} == {2, 9}
    assert all(abs(a - b) <= 3 for a, b in pairwise(users))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(0, 5), st.floats(0, 25))
def test_the_next_active_moment_is_the_first(levels: list[int], slot: int, at_s: float) -> None:
    loop = ClosedLoop([(float(i), n) for i, n in enumerate(levels)])
    found = loop.next_active(slot, at_s)
    later = [at_s, *(float(i) for i in range(len(levels)) if i > at_s)]
    assert found == next((t for t in later if slot < loop.users(t)), None)


def test_constant_rate() -> None:
    due = list(open_arrivals(stage({"kind": "constant", "rate_per_s": 4}, 0, 3), 1))
    assert due == [i / 4 for i in range(12)]


def test_poisson_arrivals_are_seeded_and_have_the_rate() -> None:
    spec = stage({"kind": "poisson", "rate_per_s": 20}, 0, 200)
    due = list(open_arrivals(spec, 3))
    gaps = [b - a for a, b in pairwise(due)]
    assert due == list(open_arrivals(spec, 3)) != list(open_arrivals(spec, 4))
    assert due[-1] < 200
    assert 3700 < len(due) < 4300  # 4000 +- 5 standard deviations
    assert 0.9 < stdev(gaps) / mean(gaps) < 1.1  # exponential


@pytest.mark.parametrize("burstiness", [0.25, 1, 4])
def test_gaps_of_gamma_arrivals(burstiness: float) -> None:
    spec = stage({"kind": "gamma", "rate_per_s": 20, "burstiness": burstiness}, 0, 200)
    gaps = [b - a for a, b in pairwise(open_arrivals(spec, 3))]
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=1 / (20 * burstiness)).cdf).pvalue > 1e-3
    assert stdev(gaps) / mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.1)


RAMP = [[0, 5], [20, 5], [20, 40], [30, 40], [30, 5], [60, 25]]  # steady, a burst, steady again, rising


def expected(from_s: float, to_s: float, n: int = 20_000) -> float:
    """Integral of RAMP and of its last rate after it, by small steps."""

    def rate(t: float) -> float:
        before = max((i for i, (at, _) in enumerate(RAMP) if at <= t), default=0)
        if before == len(RAMP) - 1:
            return RAMP[-1][1]
        (a, x), (b, y) = RAMP[before : before + 2]
        return x + (y - x) * (t - a) / (b - a)

    return sum(rate(from_s + (i + 0.5) * (to_s - from_s) / n) for i in range(n)) * (to_s - from_s) / n


def test_a_rate_that_changes_with_constant_gaps() -> None:
    spec = stage({"kind": "constant", "rates": RAMP}, 5, 75)
    due = list(open_arrivals(spec, 1))
    assert due[0] == 0
    for i, at_s in enumerate(due):  # arrival i is where the rate has summed up to i
        if i % 97 == 0:
            assert expected(0, at_s) == pytest.approx(i, abs=0.1)
    assert len(due) == round(expected(0, 80))


def test_a_rate_that_changes_with_random_gaps() -> None:
    spec = stage({"kind": "poisson", "rates": RAMP}, 0, 80)
    due = list(open_arrivals(spec, 5))
    assert due == sorted(due)
    assert due[-1] < 80
    # In its own clock the process has exponential gaps of mean 1, so 20 of them sum up to a gamma of shape 20.
    sums = [expected(a, b, 500) for a, b in pairwise(due[::20])]
    assert stats.kstest(sums, stats.gamma(20).cdf).pvalue > 1e-3
    for from_s, to_s in ((0, 20), (20, 30), (30, 60), (60, 80)):
        found, mu = sum(from_s <= t < to_s for t in due), expected(from_s, to_s)
        assert abs(found - mu) < 4 * mu**0.5


def test_a_rate_may_fall_to_nothing() -> None:
    spec = stage({"kind": "constant", "rates": [[0, 2], [10, 2], [10, 0], [20, 0], [20, 1], [22, 0]]}, 0, 98)
    due = list(open_arrivals(spec, 1))
    assert [t for t in due if t < 10] == [i / 2 for i in range(20)]
    assert len(due) == 21
    assert due[-1] == 20


def test_steps_of_concurrency() -> None:
    loop = closed_loop(stage({"kind": "steps", "levels": [[0, 2], [10, 0], [20, 5]]}), 1)
    assert [loop.users(t) for t in (0, 9.9, 10, 20, 99)] == [2, 2, 0, 5, 5]
    assert loop.next_active(1, 12) == 20


OPEN = [
    {"kind": "constant", "rate_per_s": 3},
    {"kind": "poisson", "rates": [[0, 1], [50, 9]]},
    {"kind": "gamma", "rate_per_s": 4, "burstiness": 0.5},
]


@given(st.sampled_from(OPEN), st.integers(1, 9), st.integers(0, 2**31))
def test_workers_send_what_one_would_have_sent(arrivals: dict[str, Any], workers: int, seed: int) -> None:
    spec = stage(arrivals)
    whole = list(due_times(spec, seed))
    shares = [list(due_times(spec, seed, Share(k, workers))) for k in range(workers)]
    assert whole == list(enumerate(open_arrivals(spec, seed)))
    assert sorted(x for share in shares for x in share) == whole
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 9), st.integers(0, 40))
def test_workers_hold_each_user_and_each_arrival_once(workers: int, users: int) -> None:
    shares = [Share(k, workers) for k in range(workers)]
    assert sorted(slot for s in shares for slot in s.slots(users)) == list(range(users))
    taken = [list(islice(s.indices(), 20)) for s in shares]
    assert sorted(i for t in taken for i in t) == list(range(20 * workers))
    assert all(s.owns(i) for s, t in zip(shares, taken, strict=True) for i in t)


def test_no_such_worker() -> None:
    with pytest.raises(ValueError, match="worker 2 of 2; expected 0 to 1"):
        Share(2, 2)


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ({"kind": "gamma", "rate_per_s": 1}, "kind gamma needs burstiness"),
        ({"kind": "poisson", "rate_per_s": 1, "burstiness": 2}, "kind poisson has no burstiness"),
        ({"kind": "poisson"}, "either rate_per_s or rates"),
        (
            {"kind": "poisson", "rates": [[1, 1], [2, 1]]},
            "expected two or more, the first at 0",
        ),
        ({"kind": "poisson", "rates": [[0, 1], [9, 1], [5, 1]]}, "in order of time"),
        ({"kind": "poisson", "rates": [[0, 0], [9, 0]]}, "above 0 somewhere"),
        ({"kind": "steps", "levels": [[0, 1], [0, 2]]}, "each later than the one before"),
        ({"kind": "steps", "levels": [[0, 0], [9, 0]]}, "no user at any time"),
    ],
)
def test_arrivals_that_make_no_sense(arrivals: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        stage(arrivals)


def test_the_wrong_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="open-loop"):
        closed_loop(stage({"kind": "poisson", "rate_per_s": 1}), 1)
    with pytest.raises(TypeError, match="closed-loop"):
        next(open_arrivals(stage(WALK), 1))
