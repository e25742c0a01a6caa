"""What a KV cache of fewer bits loses as the context grows, from the record of ``seatrial fidelity``.

Errors of old keys and values stay in the cache, so the question is not how far a token's distribution is from the
reference's, which other rules ask, but whether it gets further with every token before it. It is asked of the weights
of the reference on the narrow cache, so that the cache alone is in the figure. The record has the slope by least
squares and its upper bound at a confidence of its own; the bounds here are at the rule's.
"""

from __future__ import annotations

from typing import Any

from scipy import stats

from pipeline.gate.context import Context, result
from pipeline.gate.inputs import NARROW_KV
from pipeline.gate.policy import KvDrift
from pipeline.gate.result import Outcome, RuleResult


def kv_drift(rule: KvDrift, context: Context) -> list[RuleResult]:
    title, reference = "growth of the divergence with the length, by the KV cache", context.reference
    header, of_reference = context.run.header("evaluation"), reference.header("evaluation")
    dtype = None if header is None else header.engine_derived.get("kv_dtype")
    limit = rule.limit(str(dtype))
    values: dict[str, Any] = {"unit": "nats per 1,000 tokens", "limit": limit}

    def said(outcome: Outcome, detail: str, would: str | None = None, **more: Any) -> list[RuleResult]:
        return [result(rule, "quality", title, outcome, detail, would_decide=would, **values, **more)]

    if dtype not in NARROW_KV:
        return said("not_applicable", f"the KV cache is {dtype or 'not known'}: nothing is rounded in it")
    measure = f"seatrial fidelity --tier {reference.tier} --kv {dtype} --long-tokens {rule.min_tokens}"
    record, why = reference.fidelity.get(str(dtype)), reference.problems.get(f"fidelity {dtype}")
    if record is None:
        return said("undecided", why or f"not measured on a KV cache of {dtype}", measure)
    if of_reference is None or record["header"]["quantisation"]["digest"] != of_reference.quantisation.digest:
        return said("undecided", f"measured of another artifact than the {reference.tier} that was evaluated", measure)
    if (of := record["reference"]["engine_derived"]["kv_dtype"]) in NARROW_KV:
        return said("undecided", f"measured against a reference whose own KV cache is {of}", measure)
    tokens, slope = record["long"]["tokens"], record["long"]["slope"]
    if slope is None or tokens < rule.min_tokens - 1:  # the first token has no distribution
        return said("undecided", f"measured on {tokens} tokens; the limit is for {rule.min_tokens}", measure)
    value, low, high = slope["per_1000_tokens"], *_ends(slope, context.confidence(rule))
    outcome: Outcome = "pass" if high <= limit else "fail" if low > limit else "undecided"
    detail = (
        f"over {tokens} tokens in {slope['bins']} stretches the mean divergence is {record['long']['kl_mean']:.2g} nats"
    )
    would = "a longer sequence" if outcome == "undecided" else None
    return said(
        outcome, detail, would, value=value, interval=[low, high], confidence=context.confidence(rule), n=tokens
    )  # fmt: skip


def _ends(slope: dict[str, Any], confidence: float) -> tuple[float, float]:
    """One-sided bounds, by Student's t with the standard error that the record's own bound holds."""
    freedom = slope["bins"] - 2
    error = (slope["upper"] - slope["per_1000_tokens"]) / float(stats.t.ppf(slope["confidence"], freedom))
    half = error * float(stats.t.ppf(confidence, freedom))
    return slope["per_1000_tokens"] - half, slope["per_1000_tokens"] + half
