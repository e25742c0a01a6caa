"""The figures of each tier, side by side: what metrics.json, tiers.csv, the page and the summary all show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.report.inputs import Json, RunData, TierData
from pipeline.report.numbers import is_number

QUANTILES = ("p50", "p95", "p99")
FALLBACK = "load.json holds no value and no reason"


@dataclass(frozen=True)
class Value:
    """A figure, or why there is none."""

    value: float | int | None
    reason: str = ""


@dataclass(frozen=True)
class StageFigures:
    """One tier in one load stage; keys of ``latency`` are ("ttft_ms" | "itl_ms" | "e2e_ms", "p50" | "p95" | "p99")."""

    stage: str
    counts: dict[str, int]
    latency: dict[tuple[str, str], Value]
    rates: dict[str, Value]

    @property
    def unfinished(self) -> int:
        return sum(self.counts.get(k, 0) for k in ("error", "refused", "timeout", "censored"))


@dataclass(frozen=True)
class TierFigures:
    tier: str
    verdict: str | None
    reason: str
    weights_bytes: Value
    kv_bytes_per_token: Value
    kv_pool_bytes: Value
    rss_bytes: Value
    accuracy: Value
    correct: int | None
    n: int | None
    interval: tuple[float, float] | None
    delta: Value
    output_tokens_per_s: Value
    stages: dict[str, StageFigures] = field(default_factory=dict)


def wilson(correct: float, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson's score interval of a share; None of no items or of partial scores."""
    if n < 1 or correct != int(correct):
        return None
    from scipy.stats import binomtest

    found = binomtest(int(correct), n).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def pick(source: Json | None, *path: str, reason: str) -> Value:
    """The number at ``path``; where it is null, the reason that stands beside it, else ``reason``."""
    here: Any = source
    for key in path[:-1]:
        here = here.get(key) if isinstance(here, dict) else None
    if not isinstance(here, dict):
        return Value(None, reason)
    value, last = here.get(path[-1]), path[-1]
    if is_number(value):
        return Value(value)
    reasons = here.get("reasons")
    beside = (
        here.get(f"{last}_reason") or (reasons.get(last) if isinstance(reasons, dict) else None) or here.get("reason")
    )
    return Value(None, str(beside) if beside else reason)


def _stage(tier: TierData, name: str, block: Json) -> StageFigures:
    return StageFigures(
        stage=name,
        counts={k: int(v) for k, v in block.items() if k in _COUNTS and is_number(v)},
        latency={(m, q): _percentile(block, m, q) for m in ("ttft_ms", "itl_ms", "e2e_ms") for q in QUANTILES},
        rates={k: pick(block, k, reason=tier.why("load") if tier.load is None else FALLBACK) for k in _RATES},
    )


def _percentile(block: Json, metric: str, q: str) -> Value:
    reasons = block.get("reasons")
    told = reasons.get(f"{metric}.{q}") if isinstance(reasons, dict) else None
    return pick(block, metric, q, reason=str(told or FALLBACK))


_COUNTS = ("requests", "ok", "error", "refused", "timeout", "censored")
_RATES = (
    "output_tokens_per_s",
    "prompt_tokens_per_s",
    "requests_per_s",
    "goodput_share",
    "output_tokens_mean",
    "cut_off_share",
    "prefix_hit_share",
)


def peak_rss(tier: TierData) -> Value:
    """The highest resident memory of the server and its core that was sampled during the load test."""
    found: list[float] = []
    if tier.samples is not None and "rss_bytes" in tier.samples.columns:
        found += [v for v in tier.samples["rss_bytes"].to_list() if is_number(v)]
    for moment in ("info", "info_after"):
        value = pick(tier.server, moment, "memory", "rss_bytes", reason="").value
        if value is not None:
            found.append(value)
    return Value(max(found)) if found else Value(None, tier.why("samples", "server"))


def figures_of(run: RunData, tier: TierData) -> TierFigures:
    """Collects one tier's figures. Measured memory comes first, planned where nothing was measured."""
    entry = run.verdict_of(tier.name)
    measured = pick(tier.server, "info", "memory", "weights_bytes", reason=tier.why("server", "plan"))
    planned = pick(tier.plan, "ledger", "weights_bytes", reason=tier.why("plan"))
    pool = pick(tier.server, "info", "memory", "kv_pool_bytes", reason=tier.why("server", "plan"))
    pool_planned = pick(tier.plan, "ledger", "kv_pool_bytes", reason=tier.why("plan"))
    accuracy = pick(tier.eval, "accuracy", reason=tier.why("eval"))
    n, correct = (tier.eval or {}).get("n"), (tier.eval or {}).get("correct")
    whole = is_number(n) and is_number(correct)
    reference = run.tiers.get(run.reference)
    base = pick(reference.eval if reference else None, "accuracy", reason="the reference has no accuracy")
    delta = Value(None, accuracy.reason or base.reason)
    if tier.name != run.reference and accuracy.value is not None and base.value is not None:
        delta = Value(accuracy.value - base.value)
    blocks = (tier.load or {}).get("stages")
    return TierFigures(
        tier=tier.name,
        verdict=entry.get("verdict"),
        reason=str(entry.get("reason") or run.missing.get("verdict") or "the gate's verdict does not name this tier"),
        weights_bytes=measured if measured.value is not None else planned,
        kv_bytes_per_token=pick(tier.plan, "ledger", "kv_bytes_per_token", reason=tier.why("plan")),
        kv_pool_bytes=pool if pool.value is not None else pool_planned,
        rss_bytes=peak_rss(tier),
        accuracy=accuracy,
        correct=int(correct) if whole and correct is not None else None,
        n=int(n) if whole and n is not None else None,
        interval=wilson(float(correct), int(n)) if whole and n is not None and correct is not None else None,
        delta=delta,
        output_tokens_per_s=pick(tier.load, "overall", "output_tokens_per_s", reason=tier.why("load")),
        stages={
            str(s): _stage(tier, str(s), b)
            for s, b in (blocks if isinstance(blocks, dict) else {}).items()
            if isinstance(b, dict)
        },
    )


def all_figures(run: RunData) -> dict[str, TierFigures]:
    return {name: figures_of(run, tier) for name, tier in run.tiers.items()}
