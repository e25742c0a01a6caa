"""What connections may take: time for headers, for a body, between requests and for reading an answer, and how many.

uvicorn leaves these to a proxy in front of it; here they belong to the protocol, so that a server is safe by itself:

    opened --headers--> body --whole--> answer --sent--> idle --first byte--> headers ...
      header_timeout_s  body_timeout_s  write_timeout_s  idle_timeout_s

A client that is refused is told why, in the form of the API's errors. The time of a body is kept by the application
(``app._body``), which answers as it does to any other refusal. A request counts as read when its last byte is there;
from then on what the client sends ahead is kept, up to a bound, and the socket is read on: a client that has gone is
noticed in whatever state its request is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any, Literal, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from engine.server.errors import ApiError
from engine.server.metrics import Metrics

MAX_AHEAD_BYTES = 64 * 1024  # that a client sends before its answer is complete
LINGER_S = 1.0  # for a refused client to read why; closed at once, it might see a reset instead
LAST_LOOK_S = 0.2  # at a shutdown, for a request that is on its way to be told that it is refused
_Timed = Literal["header_timeout", "body_timeout"]


@dataclass(frozen=True)
class Limits:
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    max_connections: int = 1000


class LimitedProtocol(H11Protocol):
    """One connection. ``limits`` and ``metrics`` are set on a subclass: uvicorn makes the instances."""

    limits: Limits
    metrics: Metrics

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ahead = b""
        self._leaving = False  # refused: what it sends is not looked at
        self._awaited: _Timed | None = None  # what the timer is for
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # Coming and going

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = len(self.connections)
        super().connection_made(transport)
        self.metrics.connections.inc()
        if others < self.limits.max_connections or self._make_place():
            self._expect("header_timeout")
            return
        self.metrics.connection_ends.labels("too_many").inc()
        if others >= 2 * self.limits.max_connections:
            transport.abort()
            return
        found = f"{others} connections are open, the server takes {self.limits.max_connections}; try again"
        self._refuse(ApiError(503, found, reason="connections", headers={"Retry-After": "1"}))

    def _make_place(self) -> bool:
        """Closes the connection that has been between two requests for longest, if there is one."""
        idle = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.idle_until_s is not None]
        if idle:
            min(idle, key=lambda c: c.idle_until_s or 0.0).timeout_keep_alive_handler()
        return bool(idle)

    @property
    def idle_until_s(self) -> float | None:
        """When the connection will be closed, on the loop's clock, if it is between two requests."""
        waiting = self.timeout_keep_alive_task
        if waiting is None or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        return waiting.when()

    def connection_lost(self, exc: Exception | None) -> None:
        self.metrics.connections.dec()
        for timer in (self._timer, self._write_timer):
            if timer:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._leaving:
            self.transport.close()
        elif self._answering():
            super().shutdown()
        else:
            self.loop.call_later(LAST_LOOK_S, super().shutdown)

    # Reading

    def _answering(self) -> bool:
        """A request is there as a whole, its answer is not."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        if self._answering():
            self._ahead += data
            if len(self._ahead) > MAX_AHEAD_BYTES:
                self.metrics.connection_ends.labels("pipelined").inc()
                self.transport.abort()
            return
        super().data_received(data)
        if self._answering():
            self.flow.resume_reading()  # to see the end of the connection
        self._set_timer()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(ApiError(400, "this is not a valid HTTP/1.1 request"))

    def _set_timer(self) -> None:
        """The one that goes with what the client owes now."""
        if self._leaving or self.transport.is_closing():
            return
        answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY and answered:
            self._expect("body_timeout")  # the rest of it is not looked at
        elif self.conn.their_state is not h11.IDLE:
            self._expect(None)
        elif self.conn.trailing_data[0]:
            self._expect("header_timeout")
        elif answered:
            self._expect(None)
            if self.timeout_keep_alive_task is None:
                self._wait_idle()

    def _expect(self, what: _Timed | None) -> None:
        if what == self._awaited:
            return  # bytes that come one by one do not buy time
        if self._timer:
            self._timer.cancel()
        self._awaited, limit_s = what, self.limits.header_timeout_s
        self._timer = self.loop.call_later(limit_s, self._too_late, what) if what else None

    def _too_late(self, what: _Timed) -> None:
        if self.transport.is_closing():
            return
        self.metrics.connection_ends.labels(what).inc()
        if what == "header_timeout" and self.conn.trailing_data[0]:
            limit = self.limits.header_timeout_s
            self._refuse(ApiError(408, f"no complete headers after {limit:g} s", reason="timeout"))
        else:  # nothing was asked, or the answer has been given
            self._close()

    # Writing

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_writes()
        if self.transport.is_closing():
            return
        self._set_timer()
        ahead, self._ahead = self._ahead, b""
        if ahead:
            self.data_received(ahead)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def _watch_writes(self) -> None:
        """From now on, something has to be read by the client within each ``write_timeout_s`` until all is."""
        if self._write_timer:
            self._write_timer.cancel()
            self._write_timer = None
        if left := self.transport.get_write_buffer_size():
            self._write_timer = self.loop.call_later(self.limits.write_timeout_s, self._check_writes, left)

    def _check_writes(self, left: int) -> None:
        if 0 < left <= self.transport.get_write_buffer_size():
            self.metrics.connection_ends.labels("write_timeout").inc()
            self.transport.abort()
        else:
            self._watch_writes()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size():  # the last answer is still being read
            self._wait_idle()
            return
        self.metrics.connection_ends.labels("idle_timeout").inc()
        super().timeout_keep_alive_handler()

    def _wait_idle(self) -> None:
        wait_s = self.limits.idle_timeout_s
        self.timeout_keep_alive_task = self.loop.call_later(wait_s, self.timeout_keep_alive_handler)

    # Ending

    def _refuse(self, error: ApiError) -> None:
        """Says why, then closes: at the latest after ``LINGER_S``."""
        self._leaving = True
        self._expect(None)
        if self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()  # it has been answered
            return
        self.metrics.rejected.labels(error.reason).inc()
        if self.cycle is not None and not self.cycle.response_complete:  # the application waits for a body
            if record := cast(dict[str, Any], self.scope).get("record"):
                record.status, record.refusal = error.status, error.reason
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps(error.body).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        head = b"HTTP/1.1 %d %b\r\n" % (error.status, STATUS_PHRASES[error.status])
        self.transport.write(head + "".join(f"{k}: {v}\r\n" for k, v in headers.items()).encode() + b"\r\n" + body)
        with contextlib.suppress(OSError):  # it may have gone already
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self._close)

    def _close(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()


def limited_protocol(limits: Limits, metrics: Metrics) -> type[LimitedProtocol]:
    """The protocol class for ``uvicorn.Config(http=...)``."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits, "metrics": metrics})
