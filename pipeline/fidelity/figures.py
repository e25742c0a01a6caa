"""Figures of a teacher-forced comparison. Plain arithmetic on lists of per-token values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from statistics import mean, median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.errors import SeatrialError

BIN_TOKENS = 128  # neighbouring tokens are correlated: the slope is that of means over so many
MIN_BINS = 4
CONFIDENCE = 0.95
PROMPT_BUCKETS = (0, 64, 256, 1024)


class Scored(BaseModel):
    """One sequence under a variant. The first token has no value: nothing predicts it."""

    model_config = ConfigDict(frozen=True)
    logprobs: list[float] = Field(description="of each token that is there")
    best: list[int] = Field(description="the likeliest token of each position")
    kl: list[float] | None = Field(None, description="from the reference, in nats; None: this is the reference")


def compared(reference: Sequence[Scored], variant: Sequence[Scored]) -> dict[str, Any]:
    """One of ``parts`` of a record: all tokens of all sequences pooled.

    Raises:
        SeatrialError: sequences that do not belong together, or none.
    """
    if [len(r.logprobs) for r in reference] != [len(v.logprobs) for v in variant] or not any(
        r.logprobs for r in reference
    ):
        raise SeatrialError("the reference and the variant have scored different sequences; measure both again")
    kl = [x for v in variant for x in v.kl or []]
    ours = [x for v in variant for x in v.logprobs]
    if len(kl) != len(ours):
        raise SeatrialError(f"{len(kl)} divergences for {len(ours)} tokens; the server compares with no reference")
    pairs = [(a, b) for r, v in zip(reference, variant, strict=True) for a, b in zip(r.best, v.best, strict=True)]
    return {
        "tokens": len(ours),
        "perplexity": perplexity(ours),
        "reference_perplexity": perplexity([x for r in reference for x in r.logprobs]),
        "kl_mean": mean(kl),
        "kl_p99": percentile(kl, 0.99),
        "kl_max": max(kl),
        "top1_agreement": sum(a == b for a, b in pairs) / len(pairs),
    }


def perplexity(logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-likelihood of a token."""
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the least value that at least this share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def slope(kl: Sequence[float]) -> dict[str, Any] | None:
    """How the divergence grows with the position, in nats per 1,000 tokens: least squares on means of BIN_TOKENS
    neighbours, with the one-sided upper bound of a t-interval (Draper and Smith 1998, section 1.4). None: too short."""
    from scipy import stats

    bins = [mean(kl[i : i + BIN_TOKENS]) for i in range(0, len(kl) - BIN_TOKENS + 1, BIN_TOKENS)]
    if len(bins) < MIN_BINS:
        return None
    fit = stats.linregress([i * BIN_TOKENS / 1000 for i in range(len(bins))], bins)
    error = 0.0 if len(set(bins)) == 1 else float(fit.stderr)  # scipy's is NaN for a reference held against itself
    beyond = float(stats.t.ppf(CONFIDENCE, len(bins) - 2)) * error
    return {
        "per_1000_tokens": float(fit.slope),
        "upper": float(fit.slope) + beyond,
        "confidence": CONFIDENCE,
        "bins": len(bins),
    }


def long_figures(kl: Sequence[float]) -> dict[str, Any]:
    """``long`` of a record."""
    found = slope(kl)
    short = f"{len(kl)} tokens; a slope needs {MIN_BINS * BIN_TOKENS}"
    return {
        "tokens": len(kl),
        "kl_mean": mean(kl) if kl else None,
        "slope": found,
        "reason": short if found is None else None,
    }


def first_divergence(a: Sequence[str], b: Sequence[str]) -> int | None:
    """The first position at which two outputs differ; the end of the shorter one counts. None: they are equal."""
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def greedy_figures(
    prompt_tokens: Sequence[int], reference: Sequence[list[str]], variant: Sequence[list[str]]
) -> dict[str, Any]:
    """``greedy`` of a record, from the tokens of the outputs to the same prompts."""
    at = [first_divergence(a, b) for a, b in zip(reference, variant, strict=True)]
    rows = []
    for low, high in zip(PROMPT_BUCKETS, (*PROMPT_BUCKETS[1:], None), strict=True):
        mine = [d for n, d in zip(prompt_tokens, at, strict=True) if low <= n and (high is None or n < high)]
        other = [d for d in mine if d is not None]
        rows.append(
            {
                "from": low,
                "to": high,
                "prompts": len(mine),
                "identical": len(mine) - len(other),
                "first_divergence_median": median(other) if other else None,
            }
        )
    share = sum(d is None for d in at) / len(at) if at else None
    return {"prompts": len(at), "identical_share": share, "by_prompt_tokens": rows}
