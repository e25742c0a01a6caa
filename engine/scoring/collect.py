"""What is asked of the logits of a prompt's positions, taken from a step's rows."""

from __future__ import annotations

import math

from engine.ledger import SLICE_ROWS
from engine.logits import Rows
from engine.request import Request
from engine.sampling import token_logprobs
from engine.scoring.prompt_score import PromptScore, ScoringError


def collect_prompt_logprobs(request: Request, rows: Rows, end: int, score: PromptScore | None) -> None:
    """Adds the log-probabilities that ``request`` is owed and that the rows tell, the last ones before position
    ``end``; the logits themselves go, into ``score`` if there is one.

    Raises:
        ScoringError: logits that are not finite, or rows that cannot be stored or compared.
    """
    first, at = request.owed_row, end - len(rows)  # the row at a position predicts the token behind it
    last = min(end, request.num_prompt_tokens - 1)
    for start in range(first, last, SLICE_ROWS):
        stop = min(last, start + SLICE_ROWS)
        part = rows[start - at : stop - at]
        found = token_logprobs(part, request.prompt[start + 1 : stop + 1], request.params.prompt_logprobs or 0)
        broken = next((i for i, p in enumerate(found) if not math.isfinite(p.logprob)), None)
        if broken is not None:
            raise ScoringError(
                f"the model's logits at position {start + broken + 1} are not finite; the weights or their scales are "
                "damaged"
            )
        request.prompt_logprobs += found
        if score is not None:
            score.take(part)
