"""Requests out of a log, as questions: from a JSONL file of OpenAI-style bodies, whoever wrote it.

A line has ``messages`` or ``prompt``, at its top or below ``body`` or ``request``; it may have ``scenario``,
``response`` (the text that was answered) and ``max_tokens``. Anything else is passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError

DEFAULT_SCENARIO = "requests"
DEFAULT_TOKENS = 128


@dataclass(frozen=True)
class Logged:
    """One request of the log. ``turns`` are (role, text) with the last from the user."""

    where: str
    turns: tuple[tuple[str, str], ...]
    scenario: str
    max_tokens: int
    response: str | None

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.turns)


def read_log(path: Path) -> tuple[list[Logged], int]:
    """The requests, and the number of lines that are objects but no text requests (tools, images, an empty turn).

    Raises:
        SeatrialError: no such file, or a line that is not a JSON object in UTF-8, as file:line.
    """
    if not path.is_file():
        raise SeatrialError(f"{path} not found; expected a JSONL file of requests with `messages` or `prompt`")
    found, other = [], 0
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
            if not isinstance(row, dict):
                raise ValueError(f"found {type(row).__name__}")
        except (UnicodeDecodeError, ValueError, RecursionError) as e:
            raise SeatrialError(
                f"{path}:{number}: expected a JSON object in UTF-8: {e}; mend or remove that line"
            ) from e
        logged = _logged(f"{path.name}:{number}", row)
        if logged is None:
            other += 1
        else:
            found.append(logged)
    return found, other


def _logged(where: str, row: dict[str, Any]) -> Logged | None:
    body = next((row[k] for k in ("body", "request") if isinstance(row.get(k), dict)), row)
    turns = _turns(body)
    if not turns or turns[-1][0] != "user" or not turns[-1][1].strip():
        return None
    scenario, tokens, response = row.get("scenario"), body.get("max_tokens"), row.get("response")
    return Logged(
        where,
        turns,
        scenario if isinstance(scenario, str) and scenario else DEFAULT_SCENARIO,
        tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else DEFAULT_TOKENS,
        response if isinstance(response, str) else None,
    )


def _turns(body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    if isinstance(body.get("prompt"), str):
        return (("user", body["prompt"]),)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return ()
    turns = []
    for m in messages:
        if not isinstance(m, dict) or m.get("role") not in ("system", "user", "assistant"):
            return ()
        if not isinstance(m.get("content"), str):
            return ()
        turns.append((m["role"], m["content"]))
    return tuple(turns)
