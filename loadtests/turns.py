"""Two load clients, one machine: they send in turns, so that what else happens to the machine meets both alike.

    client 1      want ->          <- go      sends for turn_s, waits for its last answer      want -> ...
    the table                      one turn at a time, round the table, a pause of guard_s between two
    client 2      want ->                                                                      <- go

A turn ends with the last answer of what was sent in it, not with the clock: so no two turns overlap, however long an
answer takes, and the other server computes nothing meanwhile. The first turn is given when everybody wants one, and
whoever has had its last one waits until all have, so that nobody starts or ends in another's turn. Whoever is gone is
left out; the others go on without it.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

_WANT, _END, _GO, _OVER, _STOP = b"w", b"e", b"g", b"o", b"s"


@dataclass
class Turn:
    """Part of a stage in which its client may send: what is due from ``start_s`` to ``until_s``. ``before_s``: how much
    of the stage was before it; ``end_s``: when the last of it was answered.
    """

    start_s: float
    until_s: float
    before_s: float
    measured: bool
    end_s: float = math.inf


def turn_lengths(warmup_s: float, duration_s: float, turn_s: float) -> list[tuple[float, bool]]:
    """(length_s, measured) of a stage's turns: of at most ``turn_s``, and none both warms up and measures."""
    out: list[tuple[float, bool]] = []
    for length_s, measured in ((warmup_s, False), (duration_s, True)):
        count = math.ceil(length_s / turn_s)
        out += [(length_s / max(count, 1), measured)] * count
    return out


class Seat:
    """A client's place at the table. ``turn_s``: the longest turn."""

    def __init__(self, wire: socket.socket, turn_s: float) -> None:
        self.turn_s = turn_s
        self._wire = wire

    def next(self) -> bool:
        """Ends the turn that this client has, if any, and waits for its next; False: there is no table any more."""
        return self._say(_WANT) == _GO

    def end(self) -> None:
        """Ends the last turn and waits until nobody wants another."""
        self._say(_END)

    def leave(self) -> None:
        """Gives up the place; whoever waits at it waits no longer."""
        with suppress(OSError):  # the table was gone before
            self._wire.shutdown(socket.SHUT_RDWR)

    def _say(self, what: bytes) -> bytes:
        try:
            self._wire.sendall(what)
            return self._wire.recv(1)
        except OSError:
            return b""


@dataclass
class Place:
    """The client's end of the wire before a client has it: ``wire`` goes to its process, and is closed here then."""

    wire: socket.socket
    turn_s: float

    def close(self) -> None:
        self.wire.close()


class Table:
    """Gives the turns while its ``with`` block runs, the first to the first place."""

    def __init__(self, places: int, turn_s: float, guard_s: float) -> None:
        pairs = [socket.socketpair() for _ in range(places)]
        self.places = [Place(theirs, turn_s) for _, theirs in pairs]
        self._wires = [ours for ours, _ in pairs]
        self._guard_s = guard_s
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Table:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._stop.send(_STOP)
        self._thread.join()
        for wire in (*self._wires, self._stop, self._stopped):
            wire.close()
        for place in self.places:
            place.close()

    def _run(self) -> None:
        try:
            self._give()
        finally:
            for wire in self._wires:  # whoever still waits, or asks again, is told that there is no table
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_WR)

    def _give(self) -> None:
        at_table, wanting, ended = set(range(len(self._wires))), set[int](), set[int]()
        last, holder = len(self._wires) - 1, None
        began = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ, None)
            for i, wire in enumerate(self._wires):
                selector.register(wire, selectors.EVENT_READ, i)
            while True:
                for key, _ in selector.select():
                    i = key.data
                    if i is None:
                        return
                    said = _read(self._wires[i])
                    if not said:  # it is gone
                        selector.unregister(self._wires[i])
                        at_table.discard(i)
                    (wanting if said == _WANT else ended).add(i)
                    holder = None if holder == i else holder
                began = began or wanting | ended >= at_table
                if ended >= at_table:
                    for i in at_table:
                        _tell(self._wires[i], _OVER)
                    return
                if holder is None and began:
                    following = _following(last, len(self._wires), at_table - ended)
                    if following in wanting:
                        time.sleep(self._guard_s)
                        wanting.discard(following)
                        holder = last = following
                        _tell(self._wires[following], _GO)


def _following(last: int, places: int, playing: set[int]) -> int:
    return next(i % places for i in range(last + 1, last + 1 + places) if i % places in playing)


def _read(wire: socket.socket) -> bytes:
    try:
        return wire.recv(1)
    except OSError:
        return b""


def _tell(wire: socket.socket, what: bytes) -> None:
    with suppress(OSError):  # it has just gone, which is read next
        wire.sendall(what)
