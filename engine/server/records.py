"""What is kept of each request for the request log: one row a choice, one for a request that was refused.

A record lives from the first byte of a request's headers having been read to its end, whatever the end is, and until
the core has said the last of each choice: a client that leaves is answered no more, but how long its request had waited
and run comes with the core's last word on it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.logs import Clock


class RequestRow(NamedTuple):
    """Moments are seconds since the core began, as in the step log; phases are seconds, null if not reached.

    ``choice`` is null in the one row of a request that was refused, or that ended before it had any. ``http_status`` is
    null if the client left before it was answered; ``refusal`` is the reason under which ``/metrics`` counts it.
    """

    id: str
    endpoint: str
    choice: int | None
    received_at: datetime
    received_s: float
    first_token_s: float | None
    ended_s: float
    stream: bool | None
    n: int | None
    priority: int | None
    prompt_tokens: int | None  # of the prompt that this choice continues; of all prompts where choice is null
    cached_tokens: int | None
    output_tokens: int
    queued_s: float | None
    prefill_s: float | None
    decode_s: float | None
    preempted_s: float | None
    num_preemptions: int | None
    ttft_s: float | None
    gap_max_s: float | None  # of the gaps between two tokens
    gap_mean_s: float | None
    finish_reason: str | None
    http_status: int | None
    refusal: str | None


@dataclass
class ChoiceRecord:
    index: int
    prompt_tokens: int
    cached_tokens: int | None = None
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    gap_max_s: float | None = None
    ended_s: float | None = None
    finish_reason: str | None = None
    timings: Mapping[str, float | None] = field(default_factory=dict)

    def token(self, now_s: float) -> float | None:
        """Counts a token; the gap to the one before it, if any."""
        self.output_tokens += 1
        gap_s = None
        if self.last_token_s is None:
            self.first_token_s = now_s
        else:
            gap_s = now_s - self.last_token_s
            self.gap_max_s = max(self.gap_max_s or 0.0, gap_s)
        self.last_token_s = now_s
        return gap_s

    @property
    def gap_mean_s(self) -> float | None:
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


class RequestRecord:
    def __init__(self, endpoint: str, done: Callable[[RequestRecord], None]) -> None:
        self.id, self.endpoint, self._done = uuid.uuid4().hex, endpoint, done
        self.received_s = time.monotonic()
        self.ended_s = self.received_s
        self.body_bytes = 0
        self.stream: bool | None = None
        self.n: int | None = None
        self.priority: int | None = None
        self.status: int | None = None
        self.refusal: str | None = None
        self._prompt_tokens: int | None = None  # where they are known but no choice has begun
        self.asked: list[dict[str, Any]] = []  # for the prompt log, where it takes this request
        self.choices: dict[str, ChoiceRecord] = {}
        self.owed: set[str] = set()  # choices that the core has, and on which it has not said its last word
        self._answered = False

    def begin(self, id: str, choices: dict[str, ChoiceRecord], n: int, priority: int) -> None:
        """What was asked for is known now."""
        self.id, self.choices, self.n, self.priority = id, choices, n, priority

    def refused(self, reason: str, prompt_tokens: int | None) -> None:
        self.refusal, self._prompt_tokens = reason, prompt_tokens

    def last_word(self, id: str, timings: Mapping[str, float | None] | None) -> None:
        """The core has ended the choice ``id``, or refused it."""
        self.choices[id].timings = timings or {}
        self.owed.discard(id)
        self._finish_if_complete()

    def answered(self) -> None:
        """The HTTP side is over."""
        self.ended_s, self._answered = time.monotonic(), True
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._answered and not self.owed:
            self._done(self)

    def rows(self, clock: Clock) -> list[RequestRow]:
        if self.refusal or not self.choices:
            tokens = [c.prompt_tokens for i, c in enumerate(self.choices.values()) if self.n and i % self.n == 0]
            left = None if self.status else "abort"
            whole = ChoiceRecord(-1, sum(tokens), finish_reason=left)
            return [
                self._row(clock, whole)._replace(
                    choice=None, prompt_tokens=sum(tokens) if tokens else self._prompt_tokens
                )
            ]
        return [self._row(clock, c) for c in self.choices.values()]

    def _row(self, clock: Clock, choice: ChoiceRecord) -> RequestRow:
        preemptions, first = choice.timings.get("num_preemptions"), choice.first_token_s
        return RequestRow(
            id=self.id,
            endpoint=self.endpoint,
            choice=choice.index,
            received_at=clock.at(self.received_s),
            received_s=clock.seconds(self.received_s),
            first_token_s=None if first is None else clock.seconds(first),
            ended_s=clock.seconds(self.ended_s if choice.ended_s is None else choice.ended_s),
            stream=self.stream,
            n=self.n,
            priority=self.priority,
            prompt_tokens=choice.prompt_tokens,
            cached_tokens=choice.cached_tokens,
            output_tokens=choice.output_tokens,
            **{f"{phase}_s": choice.timings.get(f"{phase}_s") for phase in PHASES},
            num_preemptions=None if preemptions is None else int(preemptions),
            ttft_s=None if first is None else first - self.received_s,
            gap_max_s=choice.gap_max_s,
            gap_mean_s=choice.gap_mean_s,
            finish_reason=choice.finish_reason,
            http_status=self.status,
            refusal=self.refusal,
        )


PHASES = ("queued", "prefill", "decode", "preempted")
_current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


def current_record() -> RequestRecord:
    """The record of the request that is being handled; outside of one, a record that nobody reads."""
    return _current.get() or RequestRecord("", lambda _: None)


class Recorded:
    """ASGI middleware: a record for every POST, handed to ``done`` when it is complete."""

    def __init__(self, app: ASGIApp, done: Callable[[RequestRecord], None]) -> None:
        self.app, self.done = app, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(scope["path"], self.done)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        scope["record"] = record  # for the protocol, which may refuse what follows the headers
        token = _current.set(record)
        try:
            await self.app(scope, receive, noting)
        except ClientDisconnect:
            pass  # while it sent its body: nobody is left to be answered
        finally:
            _current.reset(token)
            record.answered()
