"""One timer for all calls, on a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.simulator.agenda import Agenda, Call


class Loop:
    """A clock, and the timers that were asked of it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def arm(self, at_s: float, call: Call) -> Any:
        self.timers.append(Timer(at_s, call))
        return self.timers[-1]

    def turn(self) -> bool:
        """To the next timer that is not cancelled; False: there is none."""
        live = [t for t in self.timers if not t.cancelled]
        self.timers = live
        if not live:
            return False
        timer = min(live, key=lambda t: t.at_s)
        live.remove(timer)
        self.now_s = max(self.now_s, timer.at_s)
        timer.call()
        return True


class Timer:
    def __init__(self, at_s: float, call: Call) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40))
def test_every_call_is_made_once_in_order_and_not_early(asked: list[tuple[int, bool]]) -> None:
    loop, made = Loop(), list[tuple[float, float, int]]()
    agenda = Agenda(lambda: loop.now_s, loop.arm)
    for i, (due, cancelled) in enumerate(asked):
        number = agenda.at(float(due), lambda due=due, i=i: made.append((loop.now_s, float(due), i)))  # type: ignore[misc]
        if cancelled:
            agenda.cancel(number)
        assert sum(not t.cancelled for t in loop.timers) <= 1
    while loop.turn():
        pass
    assert [m[1:] for m in made] == sorted((float(d), i) for i, (d, gone) in enumerate(asked) if not gone)
    assert all(at_s == due for at_s, due, _ in made)


def test_what_becomes_due_meanwhile_waits_for_the_next_wake_up() -> None:
    loop, made = Loop(), list[str]()
    agenda = Agenda(lambda: loop.now_s, loop.arm)

    def first() -> None:
        made.append("first")
        loop.now_s = 5.0
        agenda.at(2.0, lambda: made.append("second"))

    agenda.at(1.0, first)
    loop.turn()
    assert made == ["first"]
    loop.turn()
    assert made == ["first", "second"]
    assert not loop.turn()


def test_a_call_that_fails_does_not_hold_up_the_others() -> None:
    loop, made = Loop(), list[int]()
    agenda = Agenda(lambda: loop.now_s, loop.arm)

    def fails() -> None:
        raise RuntimeError("planted")

    agenda.at(1.0, fails)
    agenda.at(1.0, lambda: made.append(1))
    with pytest.raises(RuntimeError, match="planted"):
        loop.turn()
    loop.turn()
    assert made == [1]


def test_a_call_that_was_made_can_no_longer_be_cancelled() -> None:
    loop, made = Loop(), list[int]()
    agenda = Agenda(lambda: loop.now_s, loop.arm)
    number = agenda.at(1.0, lambda: made.append(1))
    loop.turn()
    agenda.cancel(number)
    agenda.at(2.0, lambda: made.append(2))
    loop.turn()
    assert made == [1, 2]
