"""What the scheduler hands to the runner for one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.request import SamplingParams


@dataclass(frozen=True)
class BatchEntry:
    """The part of one request that this step computes.

    Tokens ``token_ids`` stand at absolute positions ``start ... start + len(token_ids) - 1``; keys and values of all
    earlier positions are in the KV cache already. ``block_table[p // block_size]`` is the block of position ``p`` and
    covers every position up to the last of this step.

    ``logits``: rows that are wanted; "all" for prompt log-probabilities: those from position ``rows_from`` on.

    A runner whose device draws takes from ``params`` and ``seed`` how the next token is drawn; to others they say
    nothing.
    """

    request_id: str
    token_ids: list[int]
    start: int
    block_table: list[int]
    logits: Literal["none", "last", "all"]
    params: SamplingParams | None = None  # None: not from these logits alone
    seed: int = 0
    rows_from: int = 0

    @property
    def num_rows(self) -> int:
        """Last rows whose logits are wanted."""
        if self.logits == "all":
            return len(self.token_ids) - max(0, self.rows_from - self.start)
        return 1 if self.logits == "last" else 0
