"""The server's end of the pipes: starts the engine core, hands requests over, deals its news out."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.protocol import LENGTH_BYTES, AddRequest, Output, StepRow, decode, encode, length_of
from engine.server.errors import ApiError
from engine.server.logs import Clock

log = logging.getLogger(__name__)


class CoreError(RuntimeError):
    """The engine core did not start, or is gone."""


class Ticket:
    """Requests that were handed over together. News of all of them come through one queue; None: the core is gone.

    ``last_word`` gets the last output of each, even of those that nobody waits for any more; one without timings where
    the core was lost.
    """

    def __init__(self, ids: list[str], last_word: Callable[[Output], None]) -> None:
        self.open_ids = set(ids)
        self.news: asyncio.Queue[Output | None] = asyncio.Queue()
        self.last_word = last_word


class CoreClient:
    """
    Process tree and who notices whose end:

        server --stdin pipe--> core     closed by the server's end, however it comes: the core ends
        server <--stdout pipe-- core    closed by the core's end: `failure` is set, /health answers 503
    """

    def __init__(
        self,
        artifact: Path,
        config: EngineConfig,
        heartbeat_timeout_s: float,
        on_step: Callable[[StepRow], None] = lambda _: None,
        core_options: Sequence[str] = (),
    ) -> None:
        """``core_options``: further options of ``python -m engine.process``."""
        self.artifact, self.config, self.heartbeat_timeout_s = artifact, config, heartbeat_timeout_s
        self.on_step = on_step
        self.clock = Clock.since(time.monotonic())  # the core's own once it is there
        self._core_options = core_options
        self.about: dict[str, Any] = {}
        self.stats: dict[str, int] = {}
        self.failure: str | None = None
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tickets: dict[str, Ticket] = {}
        self._closing: dict[str, Ticket] = {}  # nobody waits for them, but the core has not ended them yet
        self._heard_s = time.monotonic()
        self._latencies_s: deque[float] = deque([1.0], maxlen=32)

    async def start(self) -> None:
        """Starts the core and waits until the model is loaded.

        Raises:
            CoreError: it did not come up, with its reason.
        """
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.process", "--artifact", str(self.artifact),
            "--config-json", self.config.model_dump_json(), *self._core_options, stdin=PIPE, stdout=PIPE,
        )  # fmt: skip
        first = await self._read()
        if first is None or first["type"] != "ready":
            code = await self._process.wait()
            raise CoreError(first["message"] if first else f"the engine core ended with exit code {code} while loading")
        self.about, self.stats = first, first["stats"]
        self.clock = Clock.since(first["began_s"])
        self._heard_s = time.monotonic()
        self._reader = asyncio.create_task(self._deal())

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def num_open(self) -> int:
        """Requests that the core has, as far as is known here."""
        return len(self._tickets) + len(self._closing)

    def unhealthy(self) -> str | None:
        """Why nothing can be served, or None."""
        if self.failure:
            return self.failure
        silent_s = time.monotonic() - self._heard_s
        if silent_s > self.heartbeat_timeout_s:
            return f"the engine core has not been heard of for {silent_s:.1f} s"
        return None

    # Requests

    def submit(self, requests: Sequence[AddRequest], last_word: Callable[[Output], None] = lambda _: None) -> Ticket:
        """Hands requests over. See ``Ticket`` for ``last_word``.

        Raises:
            ApiError: 503 without a core, 429 when the queue is full.
        """
        if reason := self.unhealthy():
            raise ApiError(503, reason, reason="unhealthy")
        ids = [i for r in requests for i in r.ids]
        room = self.config.max_num_seqs + self.config.max_queue
        if self.num_open + len(ids) > room:
            raise self.queue_full(f"{self.num_open} requests are running or waiting, the server takes {room}")
        message = encode({"type": "add", "requests": requests})  # what cannot be encoded must not hold a place
        ticket = Ticket(ids, last_word)
        self._tickets.update((i, ticket) for i in ids)
        self._write(message)
        return ticket

    def queue_full(self, message: str) -> ApiError:
        """Retry when, at the recent pace, a slot has become free."""
        mean_s = sum(self._latencies_s) / len(self._latencies_s)
        wait_s = min(60, max(1, math.ceil(mean_s / self.config.max_num_seqs)))
        return ApiError(429, f"{message}; try again", reason="queue_full", headers={"Retry-After": str(wait_s)})

    def note_latency(self, seconds: float) -> None:
        self._latencies_s.append(seconds)

    def close(self, ticket: Ticket, ids: Sequence[str] | None = None) -> None:
        """Wants no more news of ``ids`` (all of the ticket by default): the core ends those that still run."""
        gone = [i for i in (ids if ids is not None else list(ticket.open_ids)) if i in ticket.open_ids]
        for i in gone:
            ticket.open_ids.discard(i)
            if self._tickets.pop(i, None):
                self._closing[i] = ticket
        if gone and not self.failure:
            self._write(encode({"type": "abort", "ids": gone}))

    def abort_all(self) -> None:
        """Ends every request in the core; each gets its last output with reason `abort`."""
        if self._tickets and not self.failure:
            self._write(encode({"type": "abort", "ids": list(self._tickets)}))

    # Pipes

    def _write(self, message: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(message)

    async def _read(self) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            prefix = await self._process.stdout.readexactly(LENGTH_BYTES)
            return decode(await self._process.stdout.readexactly(length_of(prefix)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _deal(self) -> None:
        """Deals news out until the core ends."""
        while (message := await self._read()) is not None:
            self._heard_s = time.monotonic()
            match message["type"]:
                case "step":
                    self.stats = message["stats"]
                    for fields in message["rows"]:
                        self.on_step(StepRow(*fields))
                    for fields in message["outputs"]:
                        self._deliver(Output.from_wire(fields))
                case "failed":
                    self.failure = f"the engine core failed: {message['message']}"
        assert self._process is not None
        code = await self._process.wait()
        self.give_up(self.failure or f"the engine core ended with exit code {code}")

    def give_up(self, failure: str) -> None:
        """Nothing more is expected of the core: whoever waits for it is told why."""
        self.failure = failure
        log.error("%s", self.failure)
        for ticket in {id(t): t for t in self._tickets.values()}.values():
            ticket.news.put_nowait(None)
        for i, ticket in [*self._tickets.items(), *self._closing.items()]:
            ticket.last_word(Output(i))
        self._tickets.clear()
        self._closing.clear()

    def _deliver(self, output: Output) -> None:
        ticket, last = self._tickets.get(output.id), bool(output.finish_reason or output.refusal)
        if ticket is not None:
            ticket.news.put_nowait(output)
        elif (ticket := self._closing.get(output.id)) is None:
            return  # given up
        if last:
            self._tickets.pop(output.id, None)
            self._closing.pop(output.id, None)
            ticket.open_ids.discard(output.id)
            ticket.last_word(output)

    async def stop(self) -> None:
        """Ends the core by closing its pipe, by force if that is not enough."""
        if self._reader:
            self._reader.cancel()
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), timeout=5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
