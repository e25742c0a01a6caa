"""What a step computes: the scheduler's answer, before it becomes a batch for the runner."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Request


@dataclass(eq=False)
class Scheduled:
    """Positions ``start`` up to ``end`` of a request, and the block copies that must precede them."""

    request: Request
    start: int
    end: int
    is_decode: bool
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def reaches_end(self) -> bool:
        """Whether all that is due is computed with it, so that the next token can be drawn."""
        return self.end == self.request.num_due_tokens


@dataclass(eq=False)
class Plan:
    """One step: what is in it, and the room that is left. ``allowance`` is the part of ``budget`` that prefill may
    use."""

    budget: int
    allowance: int
    entries: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    chunk_waits: int = 0  # tokens of the chunk that did not fit

    @property
    def num_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries if not e.is_decode)

    @property
    def copies(self) -> list[tuple[int, int]]:
        return [pair for entry in self.entries for pair in entry.copies]
