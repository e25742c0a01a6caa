"""What the simulator really did: JSON lines, one a request, after a first line that names the scenario.

All times are the machine's monotonic clock in seconds, taken just before the bytes went to the socket. ``sent`` holds
[planned_s, sent_s, tokens] of every write with tokens in it; sent - planned is how late the simulator itself was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass(slots=True)
class Truth:
    """One chat request."""

    number: int
    id: str
    request_id: str | None  # the client's X-Request-Id
    received_s: float
    open_requests: int  # itself included, when it arrived
    status: int = 200
    started_s: float | None = None  # when it had a slot
    head_s: float | None = None
    sent: list[tuple[float, float, int]] = field(default_factory=list)
    ended_s: float | None = None
    end: str = "running"  # done, refused, reset, close, error_event, hang, client_gone
    prompt_tokens: int | None = None
    output_tokens: int | None = None  # what usage says, or would
    cached_tokens: int | None = None
    finish_reason: str | None = None
    truncated: bool = False

    @property
    def token_times_s(self) -> list[float]:
        """When each token went out."""
        return [sent_s for _, sent_s, tokens in self.sent for _ in range(tokens)]


class TruthLog:
    def __init__(self, path: Path, scenario: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._write({"schema_version": 1, "scenario": scenario})

    def add(self, truth: Truth) -> None:
        self._write(asdict(truth))

    def _write(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_truth(path: Path) -> list[Truth]:
    """The requests of a truth log, in order of arrival; of one that is being written, those whose line has ended."""
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    found = [Truth(**json.loads(line)) for line in whole.splitlines()[1:]]
    for t in found:
        t.sent = [(a, b, c) for a, b, c in t.sent]
    return sorted(found, key=lambda t: t.number)
