"""An answer that is given as a whole, while it comes: its text, and the bytes that the rest of it will be.

As objects of Python, log-probabilities with 20 alternatives take about 5 KB a token; a crowd of samples that asks for
them would leave the interpreter's heap tens of MiB larger, for that goes back to the system in whole arenas only. As
the JSON that is sent in the end they take a fifth, in a few large blocks, and no answer takes long to encode at last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.server.endpoints import Format
from engine.server.generation import Piece

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class WholeAnswer:
    """Choices in the order of their numbers, whatever the order in which their pieces come."""

    def __init__(self, form: Format) -> None:
        self._format = form
        self._choices: dict[int, _WholeChoice] = {}

    def add(self, piece: Piece) -> None:
        self._choices.setdefault(piece.choice, _WholeChoice()).add(self._format, piece)

    def encoded(self, head: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
        choices = b",".join(self._choices[i].encoded(self._format) for i in sorted(self._choices))
        return _object({**_values(head), "choices": b"[%b]" % choices, "usage": _json(usage)})


class _WholeChoice:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: dict[str, bytearray] = {}  # name of a list -> its entries, with commas between them
        self._last: dict[str, Any] = {}

    def add(self, form: Format, piece: Piece) -> None:
        self._last = form.chunk_choice(piece)
        self._texts.append(form.text(self._last))
        for name, entries in (self._last["logprobs"] or {}).items():
            found = self._logprobs.setdefault(name, bytearray())
            if entries:
                found += (b"," if found else b"") + _json(entries)[1:-1]

    def encoded(self, form: Format) -> bytes:
        fields = _values(form.choice(self._last, "".join(self._texts)))
        if self._logprobs:
            fields["logprobs"] = _object({name: b"[" + entries + b"]" for name, entries in self._logprobs.items()})
        return _object(fields)


def _json(value: Any) -> bytes:
    return _encode(value).encode()


def _values(fields: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: _json(value) for name, value in fields.items()}


def _object(fields: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(b"%b:%b" % (_json(name), value) for name, value in fields.items()) + b"}"
