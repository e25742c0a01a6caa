"""What the handlers of one server share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

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
from engine.server.records import RequestRecord
from engine.text import TextCodec


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
    keys: ApiKeys | None = None
    accepting: bool = True  # false from the moment a shutdown begins
    grammars: GrammarChecker = field(init=False)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, thread_name_prefix="tokenise"))

    def __post_init__(self) -> None:
        self.grammars = GrammarChecker(self.client.artifact)

    def note_step(self, row: StepRow) -> None:
        self.steps.add(row)
        self.metrics.step(row)
        if self.log_dir:
            self.log_dir.add("steps", row)

    def note_request(self, record: RequestRecord) -> None:
        if self.log_dir:
            for row in record.rows(self.client.clock):
                self.log_dir.add("requests", row)

    def check_model(self, name: str) -> None:
        """
        Raises:
            ApiError: 404, with the name that is served.
        """
        if name != self.model:
            message = f"model {name!r} is not served here; this server has {self.model!r}"
            raise ApiError(404, message, reason="invalid", param="model")

    def unready(self) -> str | None:
        """Why no request is taken, or None."""
        return self.client.unhealthy() if self.accepting else "the server is shutting down"
