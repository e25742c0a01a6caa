"""What the handlers of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.artifact import Manifest
from engine.config import EngineConfig
from engine.protocol import StepRow
from engine.server.auth import ApiKeys
from engine.server.client import CoreClient
from engine.server.errors import ApiError
from engine.server.grammars import GrammarChecker
from engine.server.limits import Limits
from engine.server.logs import LogDir, StepRing
from engine.server.metrics import Metrics
from engine.server.prompt_log import PromptLog
from engine.server.records import RequestRecord, current_record
from engine.server.threads import Threads
from engine.text import TextCodec

T = TypeVar("T")
TIDY_EVERY_S = 2.0
SHUTTING_DOWN = "the server is shutting down"


@dataclass
class ServerState:
    model: str
    manifest: Manifest
    config: EngineConfig
    client: CoreClient
    codec: TextCodec
    metrics: Metrics
    steps: StepRing
    limits: Limits
    log_dir: LogDir | None = None
    prompt_log: PromptLog | None = None
    keys: ApiKeys | None = None
    accepting: bool = True  # false from the moment a shutdown begins
    grammars: GrammarChecker = field(init=False)
    threads: Threads = field(default_factory=Threads)

    def __post_init__(self) -> None:
        self.grammars = GrammarChecker(self.client.artifact)

    async def tidy_up(self) -> None:
        """Gives freed memory back after large bodies, and when something has been done and nothing is any more; until
        it is cancelled."""
        done = 0
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            idle = self.client.num_open == 0 and self.client.stats.get("steps", 0) != done
            if idle or self.threads.untidy:
                done = self.client.stats.get("steps", 0) if idle else done
                await self.threads.tidy_up()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Parses and tokenises the body of the request that is being handled, beside the event loop."""
        return await self.threads.run(work, current_record().body_bytes)

    def note_step(self, row: StepRow) -> None:
        self.steps.add(row)
        self.metrics.step(row)
        if self.log_dir:
            self.log_dir.add("steps", row)

    def note_request(self, record: RequestRecord) -> None:
        if self.log_dir:
            for row in record.rows(self.client.clock):
                self.log_dir.add("requests", row)
        if self.prompt_log:
            self.prompt_log.note(record, self.client.clock)

    def check_model(self, name: str) -> None:
        """
        Raises:
            ApiError: 404, with the name that is served.
        """
        if name != self.model:
            message = f"model {name!r} is not served here; this server has {self.model!r}"
            raise ApiError(404, message, reason="invalid", param="model")

    def check_tokens(self, ids: list[int], param: str) -> None:
        """
        Raises:
            ApiError: 400 for an id that the model does not have.
        """
        vocab_size = self.client.about["vocab_size"]
        if ids and max(ids) >= vocab_size:
            raise ApiError(400, f"token id {max(ids)} is outside the vocabulary of {vocab_size}", param=param)

    def unready(self) -> str | None:
        """Why no request is taken, or None."""
        return self.client.unhealthy() if self.accepting else SHUTTING_DOWN
