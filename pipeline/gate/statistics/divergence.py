"""How far two models' distributions lie apart. It moves before accuracy does: an answer flips only when its lead is
used up, while every lead shrinks.

Divergences of items are skewed beyond what any interval for their mean can cover (on 120 choice items of the shipped
set one item in a hundred makes up most of the mean of an 8-bit tier). So a limit is set on a quantile of them, and
judged as the tail of a latency is, by ``tails.judge_tail``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special


def choice_divergence(reference: Sequence[float], candidate: Sequence[float]) -> float:
    """KL divergence in nats of the candidate's distribution over the choices of one item from the reference's
    (Kullback and Leibler 1951), from the log-likelihoods of the choices, each normalised over the choices.

    Raises:
        ValueError: different numbers of choices, fewer than two, or a log-likelihood that is not a number.
    """
    a, b = np.asarray(reference, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if len(a) != len(b) or len(a) < 2 or np.isnan(a).any() or np.isnan(b).any():
        raise ValueError(f"{len(a)} and {len(b)} log-likelihoods: expected as many, two or more, and numbers")
    log_p, log_q = special.log_softmax(a), special.log_softmax(b)
    return max(0.0, float(special.rel_entr(np.exp(log_p), np.exp(log_q)).sum()))
