"""reports/metrics.json: a nested dict of numbers and words, which ``dvc metrics show`` and ``diff`` flatten.

An absent figure is null and is listed under ``not_measured`` with its reason (a list, which DVC leaves out).
"""

from __future__ import annotations

from typing import Any

from pipeline.report.inputs import RunData
from pipeline.report.numbers import is_number
from pipeline.report.tiers import TierFigures, Value


def metrics_of(run: RunData, tiers: dict[str, TierFigures]) -> dict[str, Any]:
    """Per tier: verdict, accuracy, weights_mib, output_tokens_per_s; per load stage TTFT and ITL P95 and P99."""
    absent: list[dict[str, str]] = []

    def plain(figure: Value, where: str, divide: float = 1.0, places: int = 4) -> float | None:
        if is_number(figure.value) and figure.value is not None:
            return round(figure.value / divide, places)
        absent.append({"figure": where, "reason": figure.reason})
        return None

    out: dict[str, Any] = {}
    for name, t in tiers.items():
        entry: dict[str, Any] = {
            "verdict": t.verdict or "none",
            "accuracy": plain(t.accuracy, f"{name}.accuracy"),
            "weights_mib": plain(t.weights_bytes, f"{name}.weights_mib", 1024**2, 1),
            "output_tokens_per_s": plain(t.output_tokens_per_s, f"{name}.output_tokens_per_s", places=2),
        }
        for stage, s in t.stages.items():
            entry[stage] = {
                f"{metric[:-3]}_{q}_ms": plain(s.latency[metric, q], f"{name}.{stage}.{metric[:-3]}_{q}_ms", places=2)
                for metric in ("ttft_ms", "itl_ms")
                for q in ("p95", "p99")
            } | {
                "output_tokens_per_s": plain(
                    s.rates["output_tokens_per_s"], f"{name}.{stage}.output_tokens_per_s", places=2
                )
            }
        out[name] = entry
    return {
        "schema_version": 1,
        "verdict": (run.verdict or {}).get("verdict") or "none",
        "candidate": run.candidate,
        "tiers": out,
        "not_measured": absent,
    }
