"""Requests out of a log, as questions: from a JSONL file of OpenAI-style bodies, whoever wrote it, or a folder of such
files, as the bundled engine's ``--prompt-log`` is.

A line has ``messages`` or ``prompt``, at its top or below ``body`` or ``request``; it may have ``scenario``,
``response`` (the text that was answered), ``max_tokens`` and ``at`` (RFC 3339, when it was asked). Anything else is
passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError

DEFAULT_SCENARIO = "requests"
DEFAULT_TOKENS = 128


@dataclass(frozen=True)
class Logged:
    """One request of the log. ``turns`` are (role, text) with the last from the user; ``week`` is its ISO week in UTC,
    if the log says when it was asked.
    """

    where: str
    turns: tuple[tuple[str, str], ...]
    scenario: str
    max_tokens: int
    response: str | None
    week: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.turns)


def read_log(path: Path) -> tuple[list[Logged], int]:
    """The requests, and the number of lines that are objects but no text requests (tools, images, an empty turn).

    Of a folder all its ``*.jsonl``, by name.

    Raises:
        SeatrialError: no such file, a folder without any, or a line that is not a JSON object in UTF-8, as file:line.
    """
    paths = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not paths or not paths[0].is_file():
        raise SeatrialError(
            f"{path} {'has no *.jsonl' if path.is_dir() else 'not found'}; expected a JSONL file of requests with "
            "`messages` or `prompt`, or a folder of such files"
        )
    read = [_read_file(p) for p in paths]
    return [r for found, _ in read for r in found], sum(other for _, other in read)


def _read_file(path: Path) -> tuple[list[Logged], int]:
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
        _week(row.get("at")),
    )


def _week(at: Any) -> str | None:
    """The ISO week of a moment; None for what is none, or belongs to no zone."""
    try:
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            return None
        year, number, _ = moment.astimezone(UTC).isocalendar()
    except (TypeError, ValueError, OverflowError):
        return None
    return f"{year}-W{number:02d}"


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
