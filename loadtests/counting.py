"""Which token arrived when, from the chunks of one stream.

The server's usage is the authority on how many tokens there are; text is never tokenised again. Two cases:

- Chunks carry a running usage from the first with content on (``continuous_usage_stats``): a chunk holds as many tokens
  as the count grew by.
- They do not: a chunk with text holds one token, and the final usage checks the sum. Chunks without text (special
  tokens), a last one that only names the finish reason (an end-of-sequence token has no text) and a first one that only
  names the role are counted, in this order, as far as the usage says that tokens are missing. Should it still say more,
  some chunks held several tokens; which ones is unknown and does not matter for the gaps: those within a chunk are zero
  in any case.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal, NamedTuple

_Kind = Literal["text", "silent", "role", "finish"]


class UsageMissing(Exception):
    """The server ended a stream properly without saying how many tokens it had."""


class Miscount(Exception):
    """Usage contradicts the stream."""


class _Chunk(NamedTuple):
    at_s: float
    kind: _Kind
    length: int  # characters of text
    usage: int | None  # completion tokens by the running usage


class TokenCounter:
    """Collects the chunks of one stream."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.id: str | None = None
        self._chunks: list[_Chunk] = []
        self._text: list[str] = []

    def add(self, chunk: dict[str, Any], at_s: float) -> None:
        """One parsed chunk that arrived at ``at_s``."""
        usage = chunk.get("usage")
        if usage:
            self.usage = usage
        if self.id is None and isinstance(chunk.get("id"), str):
            self.id = chunk["id"]
        choices = chunk.get("choices")
        if not choices:
            return
        finish = choices[0].get("finish_reason")
        if finish:
            self.finish_reason = finish
        delta = choices[0].get("delta") or {}
        text = delta.get("content")
        length = 0
        if isinstance(text, str):
            self._text.append(text)
            length = len(text)
        if len(delta) > isinstance(text, str):
            length = sum(len(v) if isinstance(v, str) else 1 for k, v in delta.items() if k != "role" and v)
        if length:
            kind: _Kind = "text"
        elif finish:
            kind = "finish"
        elif "role" in delta:
            kind = "role"
        else:
            kind = "silent"
        self._chunks.append(_Chunk(at_s, kind, length, usage.get("completion_tokens") if usage else None))

    @property
    def text(self) -> str:
        """What the answer says so far."""
        return "".join(self._text)

    def arrivals(self) -> array[float]:
        """When each token arrived, of what has come so far; of a stream that is over, after :meth:`finish`.

        Raises:
            Miscount: the running usage went down, or the final one counts fewer tokens than the stream showed.
        """
        first = next((c for c in self._chunks if c.kind == "text"), None)
        # A count that comes with the last chunk only is a final one, even where that chunk still has a choice in it.
        running = first.usage is not None if first else all(c.usage is not None for c in self._chunks)
        times = self._by_count() if running else self._by_chunk()
        total = (self.usage or {}).get("completion_tokens")
        if total is not None:
            if total < len(times):
                raise Miscount(f"usage counts {total} output tokens, but the stream showed {len(times)}")
            if self._chunks:
                times.extend([self._chunks[-1].at_s] * (total - len(times)))
        return times

    def finish(self) -> None:
        """The stream is over.

        Raises:
            UsageMissing: there was none.
        """
        if (self.usage or {}).get("completion_tokens") is None:
            raise UsageMissing(
                "the stream ended without usage; token counts come from the server alone, so it must honour "
                '`"stream_options": {"include_usage": true}`'
            )

    def _by_count(self) -> array[float]:
        times = array("d")
        for c in self._chunks:
            if c.usage is None:
                continue
            if c.usage < len(times):
                raise Miscount(f"usage went down from {len(times)} to {c.usage} output tokens")
            times.extend([c.at_s] * (c.usage - len(times)))
        return times

    def _by_chunk(self) -> array[float]:
        total = (self.usage or {}).get("completion_tokens")
        counts = [1 if c.kind == "text" else 0 for c in self._chunks]
        missing = 0 if total is None else total - sum(counts)
        for wanted in ("silent", "finish", "role"):
            for i, c in enumerate(self._chunks):
                if missing > 0 and c.kind == wanted:
                    counts[i] += 1
                    missing -= 1
        whole = sum(c.length for c in self._chunks)
        if missing > 0 and whole:  # several tokens in a chunk: shared out by length of text
            seen = given = 0
            for i, c in enumerate(self._chunks):
                seen += c.length
                upto = round(missing * seen / whole)
                counts[i] += upto - given
                given = upto
        return array("d", [c.at_s for c, n in zip(self._chunks, counts, strict=True) for _ in range(n)])
