from __future__ import annotations

import pytest

from loadtests.clocks import Offset, clock_id


def test_the_shortest_trip_gives_the_offset_and_its_error() -> None:
    """Their clock is 100 s ahead; the way there takes up to 30 ms more than the way back."""
    offset = Offset()
    for there_s, back_s in ((0.031, 0.001), (0.003, 0.001), (0.010, 0.002)):
        offset.trip(5.0, 5.0 + there_s + 100, 5.0 + there_s + back_s)
    offset.settle()
    assert offset.value_s == pytest.approx(100.001)
    assert offset.error_s == pytest.approx(0.002)
    assert abs(offset.value_s - 100) <= offset.error_s


def test_how_far_it_moves_is_kept() -> None:
    offset = Offset()
    for value_s in (1.0, 1.02, 1.01):
        offset.trip(0.0, value_s, 0.0)
        offset.settle()
    assert offset.value_s == 1.01
    assert offset.moved_s == pytest.approx(0.02)


def test_one_clock_has_no_offset() -> None:
    offset = Offset(same=True)
    offset.trip(0.0, 3.0, 0.1)
    offset.settle()
    assert (offset.value_s, offset.error_s) == (0.0, 0.0)
    assert clock_id() == clock_id()
