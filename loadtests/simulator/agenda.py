"""Calls that are due at moments of the monotonic clock, with one timer of the event loop for all of them.

A timer of the loop for each token of hundreds of streams costs more than the token: the loop's heap is ordered by
comparisons written in Python, and each call runs in a context of its own. Here the heap holds tuples, and one wake-up
makes all calls that are due.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count

Call = Callable[[], None]


class Agenda:
    """``clock`` and ``arm`` (call this then) are the loop's; a test gives others."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        arm: Callable[[float, Call], asyncio.TimerHandle] = lambda at_s, call: asyncio.get_running_loop().call_at(
            at_s, call
        ),
    ) -> None:
        self._clock, self._arm = clock, arm
        self._due: list[tuple[float, int, Call]] = []
        self._numbers = count()
        self._cancelled: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = 0.0
        self._running = False

    def at(self, due_s: float, call: Call) -> int:
        """Makes ``call`` once, at ``due_s`` or as soon as it has passed; its number, for :meth:`cancel`. Calls of one
        moment are made in the order in which they were asked for.
        """
        number = next(self._numbers)
        heapq.heappush(self._due, (due_s, number, call))
        if not self._running:
            self._wind()
        return number

    def cancel(self, number: int) -> None:
        """The call is not made. Of one that was made already: nothing."""
        if any(n == number for _, n, _ in self._due):
            self._cancelled.add(number)

    def _run(self) -> None:
        """Makes what is due by now. What becomes due meanwhile waits for the next time: sockets come in between."""
        self._timer, self._running = None, True
        now_s, due = self._clock(), self._due
        try:
            while due and due[0][0] <= now_s:
                _, number, call = heapq.heappop(due)
                if number in self._cancelled:
                    self._cancelled.discard(number)
                else:
                    call()
        finally:
            self._running = False
            self._wind()

    def _wind(self) -> None:
        if not self._due or (self._timer is not None and self._armed_s <= self._due[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_s = self._due[0][0]
        self._timer = self._arm(self._armed_s, self._run)
