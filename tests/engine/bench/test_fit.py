"""The walk against pools small enough to follow by hand, and against what must hold for any trace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bench.errors import BenchError
from engine.bench.fit import RESERVATIONS, Fit, fit, fit_all
from engine.bench.traces import Lengths

BLOCK = 4  # tokens; a token takes 10 bytes, so a block takes 40


def walk(rows: list[tuple[int, int]], reservation: str, blocks: int) -> Fit:
    return fit([Lengths(*r) for r in rows], reservation, blocks * BLOCK * 10, 10, BLOCK)


def test_one_request_alone_paged() -> None:
    """Prompt 3, output 3: positions 3, 4, 5 are computed in three steps, in 1, 1, 2 blocks."""
    f = walk([(3, 3)], "paged", 4)
    assert (f.steps, f.steps_waiting, f.requests, f.at_once_most, f.at_once_mean) == (3, 0, 1, 1, 1)
    assert f.used_bytes == pytest.approx((3 + 4 + 5) * 10 / 3)
    assert f.reserved_bytes == pytest.approx((1 + 1 + 2) * 40 / 3)
    assert f.internal_waste_bytes == pytest.approx(f.reserved_bytes - f.used_bytes)
    assert (f.external_waste_bytes, f.idle_bytes) == (0, pytest.approx(160 - f.reserved_bytes))


def test_one_request_alone_contiguous() -> None:
    """The same request holds both of its blocks from the start."""
    f = walk([(3, 3)], "contiguous", 4)
    assert (f.steps, f.reserved_bytes) == (3, 80)
    assert f.used_bytes == pytest.approx(40)
    assert f.internal_waste_bytes == pytest.approx(40)


def test_reserving_for_the_longest_halves_what_fits() -> None:
    """Four requests of 1 block each and one of 2: with 4 blocks, two pieces of 2 fit at once, but four of 1 do."""
    rows = [(3, 1), (3, 1), (3, 1), (3, 1), (7, 1)]
    exact, longest = walk(rows, "contiguous", 4), walk(rows, "contiguous-max", 4)
    assert (exact.at_once_most, longest.at_once_most) == (4, 2)
    assert (exact.steps, longest.steps) == (2, 3)
    assert longest.failures_exhausted == 2  # after the first and the second pair
    assert longest.steps_waiting == 2
    assert longest.used_bytes == 60  # two prompts of 3
    assert longest.internal_waste_bytes == 160 - 60


def test_free_blocks_that_are_not_adjacent_are_external_waste() -> None:
    """Four requests of one block fill the pool, the second and the fourth end at once: two free blocks, not adjacent.

    The fifth needs two: it waits for the third, whose block lies between them.
    """
    rows = [(2, 2), (2, 1), (2, 2), (2, 1), (7, 1)]
    f = walk(rows, "contiguous", 4)
    assert f.failures_fragmented == 1
    assert (f.steps, f.steps_waiting) == (3, 2)
    assert f.external_waste_bytes == pytest.approx((0 + 2) * 40 / 2)
    assert f.reserved_bytes == pytest.approx((4 + 2) * 40 / 2)
    assert f.idle_bytes == 0


def test_too_long_requests_are_refused_and_counted() -> None:
    f = walk([(3, 1), (30, 3)], "paged", 4)
    assert (f.requests, f.refused_requests) == (1, 1)


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_pool_too_small_for_any_request(blocks: int) -> None:
    with pytest.raises(BenchError, match=f"holds {4 * blocks} tokens .* the shortest of 2 requests has 7"):
        walk([(4, 3), (30, 3)], "paged", blocks)


def test_under_pressure_paged_recomputes_and_contiguous_never_does() -> None:
    rows = [(4, 12), (4, 12), (4, 12), (4, 12)]
    paged, contiguous, longest = fit_all([Lengths(*r) for r in rows], 8 * BLOCK * 10, 10, BLOCK)
    assert paged.preemptions > 0
    assert paged.recomputed_tokens > 0
    assert (contiguous.preemptions, longest.preemptions) == (0, 0)
    assert (contiguous.at_once_most, longest.at_once_most) == (2, 2)
    assert paged.at_once_most > 2


lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(9, 30), st.sampled_from(RESERVATIONS))
def test_bytes_add_up_for_any_trace(rows: list[tuple[int, int]], blocks: int, reservation: str) -> None:
    f = walk(rows, reservation, blocks)
    parts = (f.used_bytes, f.internal_waste_bytes, f.external_waste_bytes, f.idle_bytes)
    assert all(p >= -1e-9 for p in parts)
    assert sum(parts) == pytest.approx(f.pool_bytes)
    assert (f.requests, f.refused_requests) == (len(rows), 0)
    assert 1 <= f.at_once_most <= len(rows)
    if reservation == "paged":
        assert f.failures_fragmented == 0
        assert f.internal_waste_bytes <= f.at_once_most * BLOCK * 10  # less than one block a request
