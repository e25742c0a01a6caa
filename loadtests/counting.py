"""Which token arrived when, from the chunks of one stream.

The server's usage is the authority on how many tokens there are; text is never tokenised again. Two cases:

- Chunks carry a running usage (``continuous_usage_stats``): a chunk holds as many tokens as the count grew by.
- They do not: a chunk with content holds one token, and the final usage checks the sum. A first chunk that only names
  the role, and a last one that only names the finish reason, are counted when the usage says that one is missing (an
  end-of-sequence token has no text). Should usage still say more, some chunks held several tokens; which ones is
  unknown and does not matter for the gaps: those within a chunk are zero in any case.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal

_Kind = Literal["content", "role", "finish"]


class UsageMissing(Exception):
    """The server ended a stream properly without saying how many tokens it had."""


class Miscount(Exception):
    """Usage contradicts the stream."""


class TokenCounter:
    """Collects the chunks of one stream. ``times`` holds the arrival of each token, in order."""

    def __init__(self) -> None:
        self.times = array("d")
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._continuous = False
        self._chunks: list[tuple[float, _Kind, int]] = []  # arrival, kind, characters of text
        self._last_s = 0.0

    def add(self, chunk: dict[str, Any], at_s: float) -> None:
        """One parsed chunk that arrived at ``at_s``.

        Raises:
            Miscount: the running usage went down.
        """
        usage = chunk.get("usage")
        if usage:
            self.usage = usage
        choices = chunk.get("choices")
        if not choices:
            return
        self._last_s = at_s
        finish = choices[0].get("finish_reason")
        self.finish_reason = finish or self.finish_reason
        if usage and usage.get("completion_tokens") is not None:
            if not self._continuous:
                self._continuous = True
                self.times = array("d")
            new = usage["completion_tokens"] - len(self.times)
            if new < 0:
                raise Miscount(f"usage went down from {len(self.times)} to {usage['completion_tokens']} output tokens")
            self.times.extend([at_s] * new)
        elif not self._continuous:
            self._guess(choices[0].get("delta") or {}, finish, at_s)

    def _guess(self, delta: dict[str, Any], finish: str | None, at_s: float) -> None:
        text = sum(len(v) if isinstance(v, str) else 1 for k, v in delta.items() if k != "role" and v)
        if text or (delta.get("content") is not None and "role" not in delta and not finish):
            kind: _Kind = "content"
            self.times.append(at_s)
        elif finish:
            kind = "finish"
        elif "role" in delta:
            kind = "role"
        else:
            return
        self._chunks.append((at_s, kind, text))

    def finish(self) -> None:
        """Settles ``times`` against the final usage.

        Raises:
            UsageMissing: there was none.
            Miscount: it counts fewer tokens than the stream showed.
        """
        total = (self.usage or {}).get("completion_tokens")
        if total is None:
            raise UsageMissing(
                "the stream ended without usage; token counts come from the server alone, so it must honour "
                '`"stream_options": {"include_usage": true}`'
            )
        if not self._continuous:
            self._settle(total)
        if total < len(self.times):
            raise Miscount(f"usage counts {total} output tokens, but the stream showed {len(self.times)}")
        if total > len(self.times):
            self.times.extend([self._last_s] * (total - len(self.times)))

    def _settle(self, total: int) -> None:
        counts = [1 if kind == "content" else 0 for _, kind, _ in self._chunks]
        missing = total - sum(counts)
        for wanted in ("finish", "role"):
            for i, (_, kind, _) in enumerate(self._chunks):
                if missing > 0 and kind == wanted:
                    counts[i] += 1
                    missing -= 1
        if missing > 0 and self._chunks:  # several tokens in a chunk: shared out by length of text
            whole = sum(text for _, _, text in self._chunks)
            seen = given = 0
            for i, (_, _, text) in enumerate(self._chunks):
                seen += text
                upto = round(missing * seen / whole) if whole else 0
                counts[i] += upto - given
                given = upto
            counts[-1] += missing - given
            missing = 0
        if missing >= 0:
            self.times = array("d", [t for (t, _, _), n in zip(self._chunks, counts, strict=True) for _ in range(n)])
