"""What is drawn is what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.charts import MOST_POINTS, colours_of, ecdf, latency_ecdf, over_time
from engine.bench.drive import RunRecord, Step


def record(steps: list[tuple[float, float, int]]) -> RunRecord:
    """(pause before, duration, requests) of each step."""
    run, now = RunRecord(4, 1000, 10, 50, [0.0], [[1.0]], [[1]]), 0.0
    for pause, took, requests in steps:
        now += pause
        run.steps.append(Step(now, 0.0, took, 0.0, requests, 0, 0, 0, 0, 0, 0))
        now += took
    return run


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(1e-4, 3), st.integers(0, 9)), min_size=1, max_size=40))
def test_the_area_below_a_course_is_the_sum_over_the_steps(steps: list[tuple[float, float, int]]) -> None:
    points = over_time(record(steps), lambda s: s.batch_requests)
    width = sum(pause + took for pause, took, _ in steps) / min(MOST_POINTS, len(steps))
    area = sum(p["v"] for p in points) * width
    assert area == pytest.approx(sum(took * n for _, took, n in steps), abs=1e-3 * width * len(points))
    assert all(p["v"] <= max(n for *_, n in steps) + 1e-3 for p in points)


def test_a_course_in_equal_spans() -> None:
    points = over_time(record([(0.0, 1.0, 2), (1.0, 2.0, 3)]), lambda s: s.batch_requests)
    assert [(p["t"], p["v"]) for p in points] == [(0.0, 1.0), (2.0, 3.0), (4.0, 0.0)]
    assert over_time(record([]), lambda s: s.batch_requests) == []


@pytest.mark.parametrize("count", [1, 7, 1000, 3 * MOST_POINTS + 1])
def test_the_curve_ends_at_the_largest_sample(count: int) -> None:
    points = ecdf([float(n) for n in range(count, 0, -1)])
    assert points[-1] == (count, 1.0)
    assert all(share == value / count for value, share in points)
    assert len(points) <= 2 * MOST_POINTS
    assert ecdf([]) == []


def test_every_policy_has_a_line_of_its_own() -> None:
    runs = {name: [RunRecord(4, 1000, 10, 50, [0.0], [[1.0, 2.0 + i]], [[1, 1]])] for i, name in enumerate("abcdefg")}
    svg = latency_ecdf(runs, "ITL")
    for colour in colours_of(list(runs)):
        assert f'stroke="{colour}"' in svg
    assert 'role="img" aria-label="ITL by policy' in svg
