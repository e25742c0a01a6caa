"""Offsets between clocks, with numbers that floating point holds exactly."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest

from loadtests.clocks import Clock, Offset, Reading, RoundTrip, clock_id

AHEAD_S = 128.0  # of the other clock


def there_and_back(sent_s: float, there_s: float, back_s: float, thinks_s: float = 0.0) -> RoundTrip:
    received_s = sent_s + there_s
    replied_s = received_s + thinks_s
    return RoundTrip(sent_s, received_s + AHEAD_S, replied_s + AHEAD_S, replied_s + back_s)


def test_four_timestamps_give_the_offset_and_the_time_on_the_way() -> None:
    even = there_and_back(8.0, 0.25, 0.25, thinks_s=4.0)
    assert even.way_s == 0.5  # what the other side took does not count
    assert even.reading == Reading(8.0 + 2.25, 8.0 + 2.25 + AHEAD_S, 0.25)
    assert even.reading.offset_s == AHEAD_S


@pytest.mark.parametrize(("there_s", "back_s"), [(0.5, 0.0), (0.0, 0.5), (0.375, 0.125)])
def test_the_error_holds_however_the_two_ways_share_the_time(there_s: float, back_s: float) -> None:
    reading = there_and_back(8.0, there_s, back_s).reading
    assert reading.error_s == 0.25
    assert reading.offset_s - AHEAD_S == (there_s - back_s) / 2
    assert abs(reading.offset_s - AHEAD_S) <= reading.error_s


def test_of_a_round_the_quickest_trip_counts() -> None:
    offset = Offset()
    for there_s, back_s in ((1.0, 0.0), (0.125, 0.125), (0.0, 2.0)):
        offset.add(there_and_back(8.0, there_s, back_s))
    offset.settle()
    assert offset.readings == [Reading(8.125, 8.125 + AHEAD_S, 0.125)]
    assert (offset.value_s, offset.error_s, offset.moved_s) == (AHEAD_S, 0.125, 0.0)
    offset.settle()  # a round without a trip finds nothing
    assert len(offset.readings) == 1


def drifting() -> Offset:
    """Ahead by 4 s at 100 s, by 6 s at 200 s, by 5 s at 300 s."""
    return Offset(readings=[Reading(100.0, 104.0, 0.25), Reading(200.0, 206.0, 0.5), Reading(300.0, 305.0, 0.125)])


def test_what_it_may_be_off_by_is_the_worst_reading_and_the_largest_change() -> None:
    offset = drifting()
    assert offset.error_s == 0.5 + 2.0
    assert offset.moved_s == 2.0
    assert offset.value_s == 5.0


def test_between_readings_the_offset_is_between_theirs() -> None:
    theirs_s = np.array([104.0, 155.0, 206.0, 255.5, 305.0, np.nan])
    assert drifting().to_ours(theirs_s)[:-1].tolist() == [100.0, 150.0, 200.0, 250.0, 300.0]
    assert np.isnan(drifting().to_ours(theirs_s)[-1])


def test_outside_them_it_is_that_of_the_nearest() -> None:
    assert drifting().to_ours(np.array([4.0, 405.0])).tolist() == [0.0, 400.0]


def test_one_clock_has_no_offset() -> None:
    offset = Offset(same=True)
    offset.add(there_and_back(0.0, 0.5, 0.5))
    offset.settle()
    assert (offset.readings, offset.value_s, offset.error_s) == ([], 0.0, 0.0)
    assert offset.to_ours(np.array([3.0])).tolist() == [3.0]


def test_a_clock_that_was_never_measured_is_not_taken_for_ours() -> None:
    with pytest.raises(ValueError, match="never measured"):
        Offset().to_ours(np.array([3.0]))


def test_a_clock_without_a_name_is_like_no_other() -> None:
    assert clock_id() == clock_id()
    assert Clock(id="a").same("a")
    assert not Clock(id="a").same("b")
    assert not Clock(id=None).same(None)


def test_a_moment_by_the_calendar() -> None:
    clock = Clock(read=lambda: 1000.0)
    earlier, later = (datetime.fromisoformat(clock.utc(at_s)) for at_s in (400.0, 1600.0))
    assert earlier < later
    assert earlier.utcoffset() == later.utcoffset() is not None
    assert clock.utc(1000.0).endswith("Z")
