"""The monotonic clocks of several processes: one on a machine, measured between machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/time")


def clock_id() -> str | None:
    """The same for all processes that share one monotonic clock; None where that cannot be known."""
    try:
        return f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return None


@dataclass
class Offset:
    """What to add to our monotonic clock to get another's, from round trips (Cristian 1989: the shortest is best).

    Of a clock that is ours too (``same``) nothing is measured: it is zero.
    """

    same: bool = False
    value_s: float = 0.0
    error_s: float = 0.0
    moved_s: float = 0.0  # largest distance from the first value, of all rounds
    _first_s: float | None = None
    _round: list[tuple[float, float]] = field(default_factory=list)  # (round trip, offset)

    def trip(self, sent_s: float, theirs_s: float, back_s: float) -> None:
        """One round trip: our clock at both ends, theirs in between."""
        self._round.append((back_s - sent_s, theirs_s - (sent_s + back_s) / 2))

    def settle(self) -> None:
        """The round is over: its shortest trip gives the value."""
        trips, self._round = self._round, []
        if self.same or not trips:
            return
        trip_s, self.value_s = min(trips)
        self.error_s = trip_s / 2
        if self._first_s is None:
            self._first_s = self.value_s
        self.moved_s = max(self.moved_s, abs(self.value_s - self._first_s))
