"""One streaming chat completion, stamped as it arrives.

A plain socket and own readers: a load client that needs much CPU takes it from the server on the same machine, and
stamps late. Every read is stamped before it is looked at. Knows nothing of Locust; under Locust's patched sockets the
same code is cooperative.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import ssl
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from loadtests.counting import Miscount, TokenCounter, UsageMissing
from loadtests.records import Status
from loadtests.sse import SseReader
from loadtests.wire import ResponseReader, WireError

_REFUSED = (429, 503)
_READ_BYTES = 1 << 16
_CLOSING_S = 1.0  # how long to wait for the end of the body after [DONE]; only keeping the connection depends on it
_DIGEST_CHARS = 16


@dataclass(slots=True)
class Exchange:
    """A request on its way and what came of it. Times are seconds since the run's start."""

    request_id: str
    stage: str
    phase: str
    seed: int
    due_s: float
    max_tokens: int
    arrival: int = 0
    session: str | None = None
    turn: int = 0
    leave_after_s: float | None = None
    worker: int = 0
    concurrency: int = 0
    sent_s: float | None = None
    first_byte_s: float | None = None
    end_s: float | None = None
    token_times_s: array[float] = field(default_factory=lambda: array("d"))
    status: Status = "error"
    reason: str | None = "not finished"
    http_status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    retry_after_s: float | None = None
    usage_missing: bool = False
    server_id: str | None = None
    text: str = ""  # of the answer, for the next turn; the driver drops it
    text_digest: str | None = None
    cut: str | None = None  # why the client itself ended it, if it did

    def row(self) -> dict[str, Any]:
        """As a row of ``loadtests.records.SCHEMA``."""
        return {
            "request_id": self.request_id,
            "stage": self.stage,
            "phase": self.phase,
            "seed": self.seed,
            "due_s": self.due_s,
            "sent_s": self.sent_s,
            "first_byte_s": self.first_byte_s,
            "first_token_s": self.token_times_s[0] if self.token_times_s else None,
            "end_s": self.end_s,
            "token_times_s": self.token_times_s.tolist(),
            "status": self.status,
            "reason": self.reason,
            "http_status": self.http_status,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "max_tokens": self.max_tokens,
            "concurrency": self.concurrency,
            "arrival": self.arrival,
            "session": self.session,
            "turn": self.turn,
            "leave_after_s": self.leave_after_s,
            "worker": self.worker,
            "server_id": self.server_id,
            "queued_s": None,  # joined from the server's own log, where there is one
            "text_digest": self.text_digest,
        }


class Endpoint:
    """Where requests go: base URL, with or without ``/v1`` at its end, and an optional bearer token.

    Raises:
        ValueError: the URL is not http(s)://host[:port].
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base URL {base_url!r}: expected http://HOST:PORT or https://HOST")
        self.url, self.secure, self.host, self.port = base_url, parts.scheme == "https", parts.hostname, parts.port
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"
        lines = {"Host": parts.netloc.rpartition("@")[2], **self.headers}
        path = f"{self.prefix}/v1/chat/completions"
        self.head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        self._tls = ssl.create_default_context() if self.secure else None
        self._api_key = api_key

    def without_key(self, text: str) -> str:
        """What a server said, without the key, should it have repeated it."""
        return text.replace(self._api_key, "***") if self._api_key else text

    def connect(self, timeout_s: float) -> socket.socket:
        """A new connection for streams.

        Raises:
            OSError: nobody listens, or the certificate is not good.
        """
        made = socket.create_connection((self.host, self.port or (443 if self.secure else 80)), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._tls.wrap_socket(made, server_hostname=self.host) if self._tls else made


def encoded(body: dict[str, Any]) -> bytes:
    """A request's body. Apart, so that it is done before the request is due."""
    return json.dumps(body).encode()


class StreamClient:
    """Sends one request at a time over a connection that it keeps. ``abort`` may be called from elsewhere."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint, self._timeout_s, self._clock = endpoint, timeout_s, clock
        self._socket: socket.socket | None = None

    def send(self, exchange: Exchange, body: bytes) -> None:
        """Sends ``body`` to ``/v1/chat/completions`` and fills ``exchange``. Failures are recorded, not raised."""
        length = f"Content-Length: {len(body)}\r\nX-Request-Id: {exchange.request_id}\r\n\r\n"
        request = (self._endpoint.head + length).encode() + body
        stream = _Stream(exchange, self._endpoint.without_key)
        exchange.sent_s = self._clock()
        limits = _Limits(exchange.sent_s, self._timeout_s, exchange.leave_after_s)
        keep = False
        try:
            keep = self._exchange(request, exchange, stream, limits)
        except UsageMissing as e:
            exchange.usage_missing, exchange.reason = True, str(e)
        except TimeoutError:
            exchange.status, exchange.reason = limits.passed()
        except (OSError, WireError, Miscount) as e:
            exchange.status, exchange.reason = "error", f"{type(e).__name__}: {e}"
        except (ValueError, TypeError, LookupError, AttributeError) as e:  # not JSON, not UTF-8, not a chat chunk
            exchange.status, exchange.reason = "error", f"unreadable answer: {e}"
        finally:
            if exchange.end_s is None:
                exchange.end_s = self._clock()
            stream.take()
            if exchange.reason:
                exchange.reason = self._endpoint.without_key(exchange.reason)
            if not keep:
                self.close()

    def _exchange(self, request: bytes, exchange: Exchange, stream: _Stream, limits: _Limits) -> bool:
        """Whether the connection can be used again. A kept one that the server has closed is replaced once."""
        while True:
            fresh = self._socket is None
            if self._socket is None:
                self._socket = self._endpoint.connect(limits.left_s(self._clock()))
            try:
                self._socket.settimeout(limits.left_s(self._clock()))
                self._socket.sendall(request)
                read = self._read(limits.left_s(self._clock()))
            except ConnectionError:
                if fresh:
                    raise
                read = b""
            if read or fresh:
                break
            self.close()
        at_s = self._clock()
        exchange.first_byte_s = at_s if read else None
        while stream.feed(read, at_s):
            if stream.over:
                return stream.reader.keep and self._see_out(stream)  # nothing to wait for where it cannot be kept
            read = self._read(limits.left_s(at_s))
            at_s = self._clock()
        return stream.reader.keep

    def _read(self, wait_s: float) -> bytes:
        """
        Raises:
            TimeoutError: nothing came within ``wait_s``.
        """
        assert self._socket is not None
        self._socket.settimeout(wait_s)
        return self._socket.recv(_READ_BYTES)

    def _see_out(self, stream: _Stream) -> bool:
        """The answer is whole; if the body ends properly too, the connection can be used again."""
        try:
            while stream.feed(self._read(_CLOSING_S), 0.0):
                pass
        except (OSError, WireError):
            return False
        return stream.reader.keep

    def abort(self) -> None:
        """Ends a request that another thread or greenlet waits on; it sees a closed connection."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class _Limits:
    """Until when a request may take: its timeout, or its user's patience."""

    def __init__(self, sent_s: float, timeout_s: float, leave_after_s: float | None) -> None:
        self._timeout_s, self._leave_after_s = timeout_s, leave_after_s
        self._until_s = sent_s + min(timeout_s, timeout_s if leave_after_s is None else leave_after_s)

    def left_s(self, now_s: float) -> float:
        """
        Raises:
            TimeoutError: none.
        """
        left_s = self._until_s - now_s
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def passed(self) -> tuple[Status, str]:
        """What a request is that has reached its limit."""
        if self._leave_after_s is not None and self._leave_after_s < self._timeout_s:
            return "abandoned", f"its user left {self._leave_after_s:g} s after sending"
        return "timeout", f"no end within {self._timeout_s:g} s"


class _Stream:
    """What comes of the reads of one answer. ``over``: the answer is whole, whatever the connection does."""

    def __init__(self, exchange: Exchange, without_key: Callable[[str], str]) -> None:
        self._without_key = without_key
        self.reader, self.over = ResponseReader(), False
        self._exchange, self._counter = exchange, TokenCounter()
        self._events: SseReader | None = None
        self._refusal: list[bytes] = []

    def feed(self, read: bytes, at_s: float) -> bool:
        """One read, made at ``at_s``; empty at the end. Whether there is more to come.

        Raises:
            WireError, UsageMissing, Miscount, ValueError: the answer is not one.
        """
        reader, exchange = self.reader, self._exchange
        if not read:
            reader.eof()
            return self._ended(at_s)
        body = reader.feed(read)
        if exchange.http_status is None and reader.status is not None:
            exchange.http_status = reader.status
            if reader.status == 200:
                kind = reader.headers.get("content-type", "")
                if "text/event-stream" not in kind:
                    raise ValueError(f"content type {kind!r}, expected text/event-stream")
                self._events = SseReader()
        if self._events is not None:
            for event in self._events.feed(body):
                self._event(event, at_s)
        else:
            self._refusal.append(body)
        return self._ended(at_s) if reader.done else True

    def _event(self, event: bytes, at_s: float) -> None:
        if self.over:
            return
        if event == b"[DONE]":
            return self._settle(at_s)
        chunk = _chunk(event)
        if chunk.get("error") or ("choices" not in chunk and "message" in chunk):
            raise WireError(f"the server reported: {_message(chunk)}")
        self._counter.add(chunk, at_s)

    def _ended(self, at_s: float) -> bool:
        """The body has come to its end."""
        if self._events is None:
            self._refused()
        elif not self.over:
            if self._counter.finish_reason is None:
                raise WireError("the stream ended before the answer did")
            self._settle(at_s)
        return False

    def _settle(self, at_s: float) -> None:
        self.over, self._exchange.end_s = True, at_s
        self._counter.finish()
        self._exchange.status, self._exchange.reason = "ok", None
        if (ended := self._counter.finish_reason) in ("abort", "error"):
            self._exchange.status, self._exchange.reason = "error", f"the server ended the answer: {ended}"

    def _refused(self) -> None:
        exchange, body = self._exchange, b"".join(self._refusal)
        exchange.status = "refused" if exchange.http_status in _REFUSED else "error"
        try:
            text = _message(json.loads(body))
        except ValueError:
            text = body.decode(errors="replace")
        exchange.reason = f"HTTP {exchange.http_status}: {self._without_key(text)[:300]}"
        with contextlib.suppress(ValueError):
            exchange.retry_after_s = float(self.reader.headers.get("retry-after", ""))

    def take(self) -> None:
        """Puts what was counted into the exchange, however it ended."""
        exchange, counter = self._exchange, self._counter
        exchange.finish_reason, exchange.server_id, exchange.text = counter.finish_reason, counter.id, counter.text
        if exchange.text:
            exchange.text_digest = hashlib.sha256(exchange.text.encode(errors="surrogatepass")).hexdigest()[
                :_DIGEST_CHARS
            ]
        if usage := counter.usage:
            exchange.prompt_tokens = _count(usage, "prompt_tokens")
            exchange.output_tokens = _count(usage, "completion_tokens")
            exchange.cached_tokens = _count(usage.get("prompt_tokens_details"), "cached_tokens")
        try:
            exchange.token_times_s = counter.arrivals()
        except Miscount as e:
            exchange.status, exchange.reason = "error", f"{type(e).__name__}: {e}"


def _chunk(event: bytes) -> Any:
    """One event as JSON. Half a surrogate pair, which a server may send for half a character, is read too.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(event)
    except ValueError:
        return json.loads(event)


def _count(usage: Any, key: str) -> int | None:
    found = usage.get(key) if isinstance(usage, dict) else None
    return found if isinstance(found, int) else None


def _message(answer: Any) -> str:
    """The text of an OpenAI-style error, or the whole as text."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)


def get_json(endpoint: Endpoint, path: str, timeout_s: float = 10) -> Any:
    """GET ``path`` (below the base URL) as JSON.

    Raises:
        OSError, http.client.HTTPException, ValueError: unreachable, not 200, not JSON.
    """
    kind = http.client.HTTPSConnection if endpoint.secure else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=timeout_s)
    try:
        connection.request("GET", endpoint.prefix + path, headers=endpoint.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            said = endpoint.without_key(body.decode(errors="replace"))
            raise http.client.HTTPException(f"HTTP {response.status}: {said[:200]}")
        return json.loads(body)
    finally:
        connection.close()
