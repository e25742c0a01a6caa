"""One streaming chat completion, stamped as it arrives.

Plain ``http.client``: a load client that needs much CPU takes it from the server on the same machine. Every read is
stamped before it is parsed. Knows nothing of Locust; under Locust's patched sockets the same code is cooperative.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from loadtests.counting import Miscount, TokenCounter, UsageMissing
from loadtests.records import Status
from loadtests.sse import SseReader

_REFUSED = (429, 503)
_READ_BYTES = 1 << 16
_CLOSING_S = 1.0  # how long to wait for the end of the body after [DONE]; only keeping the connection depends on it


@dataclass(slots=True)
class Exchange:
    """A request on its way and what came of it. Times are seconds since the run's start."""

    request_id: str
    stage: str
    phase: str
    seed: int
    due_s: float
    max_tokens: int
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

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)


class StreamClient:
    """Sends one request at a time over a connection that it keeps. ``abort`` may be called from elsewhere."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint, self._timeout_s, self._clock = endpoint, timeout_s, clock
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None

    def send(self, exchange: Exchange, body: dict[str, Any]) -> None:
        """Sends ``body`` to ``/v1/chat/completions`` and fills ``exchange``. Failures are recorded, not raised."""
        payload = json.dumps(body).encode()
        counter = TokenCounter()
        keep = False
        exchange.sent_s = self._clock()
        deadline = exchange.sent_s + self._timeout_s
        try:
            response = self._response(payload, deadline)
            exchange.first_byte_s = self._clock()
            exchange.http_status = response.status
            if response.status == 200:
                self._read_stream(response, exchange, counter, deadline)
            else:
                self._read_refusal(response, exchange)
            keep = response.isclosed() and not response.will_close
        except UsageMissing as e:
            exchange.usage_missing, exchange.reason = True, str(e)
        except TimeoutError:
            exchange.status, exchange.reason = "timeout", f"no end within {self._timeout_s:g} s"
        except (OSError, http.client.HTTPException, Miscount) as e:
            exchange.status, exchange.reason = "error", f"{type(e).__name__}: {e}"
        except (ValueError, TypeError, LookupError, AttributeError) as e:  # not JSON, not UTF-8, not a chat chunk
            exchange.status, exchange.reason = "error", f"unreadable answer: {e}"
        finally:
            if exchange.end_s is None:
                exchange.end_s = self._clock()
            self._take(exchange, counter)
            if not keep:
                self.close()

    def _take(self, exchange: Exchange, counter: TokenCounter) -> None:
        exchange.token_times_s = counter.times
        exchange.finish_reason = counter.finish_reason
        if usage := counter.usage:
            exchange.prompt_tokens = usage.get("prompt_tokens")
            exchange.output_tokens = usage.get("completion_tokens")
            exchange.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def _response(self, payload: bytes, deadline: float) -> http.client.HTTPResponse:
        """The response's head. A kept connection that the server has closed meanwhile is replaced once."""
        path = f"{self._endpoint.prefix}/v1/chat/completions"
        while True:
            fresh = self._connection is None
            if self._connection is None:
                self._connection = self._endpoint.connect(self._timeout_s)
                self._connection.connect()
            self._socket = self._connection.sock
            try:
                self._await(deadline)
                self._connection.request("POST", path, payload, self._endpoint.headers)
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                if fresh:
                    raise
                self.close()

    def _await(self, deadline: float) -> None:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        if self._socket is not None:
            self._socket.settimeout(left)

    def _read_stream(
        self, response: http.client.HTTPResponse, exchange: Exchange, counter: TokenCounter, deadline: float
    ) -> None:
        kind = response.getheader("Content-Type", "")
        if "text/event-stream" not in kind:
            raise ValueError(f"content type {kind!r}, expected text/event-stream")
        reader = SseReader()
        done, at_s = False, 0.0
        while True:
            try:
                self._await(at_s + _CLOSING_S if done else deadline)
                read = response.read1(_READ_BYTES)
            except (OSError, http.client.HTTPException):
                if done:
                    break
                raise
            at_s = self._clock()
            if not read:
                break
            for event in reader.feed(read):
                if event == b"[DONE]":
                    done, exchange.end_s = True, at_s
                    continue
                chunk = json.loads(event)
                if chunk.get("error"):
                    raise http.client.HTTPException(f"the server reported: {_message(chunk)}")
                counter.add(chunk, at_s)
        if not done and counter.finish_reason is None:
            raise http.client.HTTPException("the stream ended before the answer did")
        counter.finish()
        exchange.status, exchange.reason = "ok", None
        if counter.finish_reason in ("abort", "error"):
            exchange.status, exchange.reason = "error", f"the server ended the answer: {counter.finish_reason}"

    def _read_refusal(self, response: http.client.HTTPResponse, exchange: Exchange) -> None:
        body = response.read()
        exchange.status = "refused" if response.status in _REFUSED else "error"
        try:
            text = _message(json.loads(body))
        except ValueError:
            text = body[:200].decode(errors="replace")
        exchange.reason = f"HTTP {response.status}: {text[:300]}"
        with contextlib.suppress(TypeError, ValueError):
            exchange.retry_after_s = float(response.getheader("Retry-After"))  # type: ignore[arg-type]

    def abort(self) -> None:
        """Ends a request that another thread or greenlet waits on; it sees a closed connection."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._socket = None


def _message(answer: Any) -> str:
    """The text of an OpenAI-style error, or the whole as text."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)


def get_json(endpoint: Endpoint, path: str, timeout_s: float = 10) -> Any:
    """GET ``path`` (below the base URL) as JSON.

    Raises:
        OSError, http.client.HTTPException, ValueError: unreachable, not 200, not JSON.
    """
    connection = endpoint.connect(timeout_s)
    try:
        connection.request("GET", endpoint.prefix + path, headers=endpoint.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise http.client.HTTPException(f"HTTP {response.status}: {body[:200].decode(errors='replace')}")
        return json.loads(body)
    finally:
        connection.close()
