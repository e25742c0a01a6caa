"""Judges, one for each kind of rule: ``JUDGES[kind](rule, context) -> results``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.gate.context import Context
from pipeline.gate.result import RuleResult
from pipeline.gate.rules import baseline, health, kv_drift, latency, quality, review

Judge = Callable[[Any, Context], list[RuleResult]]

JUDGES: dict[str, Judge] = {
    "latency_limit": latency.latency_limit,
    "error_rate": latency.error_rate,
    "truncation": latency.truncation,
    "quality_delta": quality.quality_delta,
    "pinned": quality.pinned,
    "answer_length": quality.answer_length,
    "cut_off": quality.cut_off,
    "divergence": quality.divergence,
    "evalset_health": health.evalset_health,
    "provenance": health.provenance,
    "client_health": health.client_health,
    "ledger": health.ledger,
    "kv_integrity": health.kv_integrity,
    "kv_drift": kv_drift.kv_drift,
    "review": review.review,
    "quality_baseline": baseline.quality_baseline,
    "latency_baseline": baseline.latency_baseline,
}
