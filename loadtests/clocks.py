"""The monotonic clocks of several processes: one on a machine, measured between machines.

    master's clock   sent --------------------> back      offset = ((received - sent) + (replied - back)) / 2
    worker's clock        received -> replied             way    = (back - sent) - (replied - received)

The true offset lies within half the time on the way of this one, however unevenly the two ways share it; so of several
round trips the quickest is taken (RFC 5905, section 8; Cristian 1989). Clocks drift apart, so this is done again and
again over a run, and a moment between two such rounds is shifted by an offset between theirs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/time")


def clock_id() -> str | None:
    """The same for all processes that share one monotonic clock; None where that cannot be known."""
    try:
        return f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return None


@dataclass(frozen=True)
class Clock:
    """A monotonic clock in seconds, and which it is: equal names are one clock, None is unlike any."""

    read: Callable[[], float] = time.monotonic
    id: str | None = field(default_factory=clock_id)

    def same(self, id: str | None) -> bool:
        return self.id is not None and self.id == id

    def utc(self, at_s: float) -> str:
        """A moment of this clock, not far from now, by this machine's calendar: RFC 3339 in UTC."""
        at = datetime.now(UTC) + timedelta(seconds=at_s - self.read())
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class RoundTrip:
    """One message there and one back: our clock at both ends, theirs in between."""

    sent_s: float
    received_s: float
    replied_s: float
    back_s: float

    @property
    def way_s(self) -> float:
        """Time under way, both ways together."""
        return (self.back_s - self.sent_s) - (self.replied_s - self.received_s)

    @property
    def reading(self) -> Reading:
        return Reading((self.sent_s + self.back_s) / 2, (self.received_s + self.replied_s) / 2, self.way_s / 2)


@dataclass(frozen=True)
class Reading:
    """One moment by our clock and by theirs; they may be ``error_s`` apart."""

    ours_s: float
    theirs_s: float
    error_s: float

    @property
    def offset_s(self) -> float:
        """What to add to our clock to get theirs."""
        return self.theirs_s - self.ours_s


@dataclass
class Offset:
    """What to add to our monotonic clock to get another's, from rounds of round trips.

    Of a clock that is ours too (``same``) nothing is measured: it is zero.
    """

    same: bool = False
    readings: list[Reading] = field(default_factory=list)
    _round: list[RoundTrip] = field(default_factory=list)

    def add(self, trip: RoundTrip) -> None:
        """One more round trip of the round that is under way."""
        self._round.append(trip)

    def settle(self) -> None:
        """The round is over: its quickest round trip gives a reading."""
        trips, self._round = self._round, []
        if trips and not self.same:
            self.readings.append(min(trips, key=lambda t: t.way_s).reading)

    @property
    def value_s(self) -> float:
        """The latest reading."""
        return self.readings[-1].offset_s if self.readings else 0.0

    @property
    def error_s(self) -> float:
        """How far off a moment that ``to_ours`` gives may be.

        The error of the worst reading, and the largest change of the offset from one to the next: whatever the clocks
        do between two rounds, as long as they go from one offset to the other without passing either, is within that.
        """
        worst = max((r.error_s for r in self.readings), default=0.0)
        changes = (abs(b.offset_s - a.offset_s) for a, b in itertools.pairwise(self.readings))
        return worst + max(changes, default=0.0)

    @property
    def moved_s(self) -> float:
        """The largest distance of a reading from the first."""
        return max((abs(r.offset_s - self.readings[0].offset_s) for r in self.readings), default=0.0)

    def to_ours(self, theirs_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Moments of their clock, on ours: between readings by an offset between theirs, outside by the nearest's.
        NaN stays.

        Raises:
            ValueError: the clocks differ, and no round is over.
        """
        if self.same:
            return theirs_s
        if not self.readings:
            raise ValueError("another machine's clock was never measured")
        at = [r.theirs_s for r in self.readings]
        return theirs_s - np.interp(theirs_s, at, [r.offset_s for r in self.readings])
