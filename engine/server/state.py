"""What the handlers of one server share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.artifact import Manifest
from engine.config import EngineConfig
from engine.server.client import CoreClient
from engine.server.errors import ApiError
from engine.server.metrics import Metrics
from engine.text import TextCodec


@dataclass
class ServerState:
    model: str
    manifest: Manifest
    config: EngineConfig
    client: CoreClient
    codec: TextCodec
    metrics: Metrics
    accepting: bool = True  # false from the moment a shutdown begins
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, thread_name_prefix="tokenise"))

    def check_model(self, name: str) -> None:
        """
        Raises:
            ApiError: 404, with the name that is served.
        """
        if name != self.model:
            raise ApiError(404, f"model {name!r} is not served here; this server has {self.model!r}", reason="invalid")

    def unready(self) -> str | None:
        """Why no request is taken, or None."""
        return self.client.unhealthy() if self.accepting else "the server is shutting down"
