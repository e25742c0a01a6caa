"""Whether the finish reasons can be believed: answers that end at exactly their limit and say that they ended by
themselves.

One may: its last token was the end. So many at the very limit may not, where hardly any end by themselves just before
it. A server that says ``stop`` for an answer that it cut hides every cut-off share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
from scipy import stats

BELOW = 3  # lengths below the limit, whose answers say how many end by themselves at one length
_P, _LEAST_EXPECTED = 1e-4, 0.5


@dataclass(frozen=True)
class StopAtLimit:
    """``answers`` of the ``at_limit`` that ended at exactly ``max_tokens`` say ``stop``; ``expected`` may."""

    answers: int
    at_limit: int
    expected: float

    @property
    def words(self) -> str:
        chance = f"where about {self.expected:.2g} would by chance" if self.expected else "though told to go on"
        return (
            f"{self.answers} of {self.at_limit} answers that end at exactly their limit say 'stop', {chance}: the "
            "server's finish reasons cannot be believed, so nothing is known of answers that were cut off"
        )

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"words": self.words}


def stop_at_limit(answers: pl.DataFrame, *, fixed_output: bool) -> StopAtLimit | None:
    """None: no more than chance explains.

    Args:
        answers: whole ones, with ``output_tokens``, ``max_tokens`` and ``finish_reason``.
        fixed_output: the server was told to go on to the limit, so that none ends there by itself.
    """
    stopped = answers.filter(pl.col("finish_reason") == "stop")
    left = stopped["max_tokens"] - stopped["output_tokens"]
    found, at_limit = int((left == 0).sum()), answers.filter(pl.col("output_tokens") == pl.col("max_tokens")).height
    if not found:
        return None
    if fixed_output:
        return StopAtLimit(found, at_limit, 0.0)
    expected = max(float(left.is_between(1, BELOW).sum()) / BELOW, _LEAST_EXPECTED)
    return StopAtLimit(found, at_limit, expected) if float(stats.poisson.sf(found - 1, expected)) < _P else None
