from __future__ import annotations

from itertools import pairwise
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.schedule import ClosedLoop, closed_loop, open_arrivals
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


def test_the_wrong_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="open-loop"):
        closed_loop(stage({"kind": "poisson", "rate_per_s": 1}), 1)
    with pytest.raises(TypeError, match="closed-loop"):
        next(open_arrivals(stage(WALK), 1))
