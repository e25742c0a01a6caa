"""reports/plots/*.csv: what ``dvc plots show`` draws. An absent figure is an empty cell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.files import atomic_write
from pipeline.report.inputs import RunData
from pipeline.report.latency import StageSeries, finite, tail_ecdf
from pipeline.report.tiers import TierFigures

COLUMNS: dict[str, dict[str, Any]] = {
    "latency_over_time": {
        "tier": pl.String,
        "stage": pl.String,
        "t_s": pl.Float64,
        "ttft_p95_ms": pl.Float64,
        "itl_p95_ms": pl.Float64,
        "output_tokens_per_s": pl.Float64,
    },
    "ttft_ecdf": {"tier": pl.String, "stage": pl.String, "ttft_ms": pl.Float64, "share": pl.Float64},
    "itl_ecdf": {"tier": pl.String, "stage": pl.String, "itl_ms": pl.Float64, "share": pl.Float64},
    "quality_by_scenario": {
        "tier": pl.String,
        "scenario": pl.String,
        "kind": pl.String,
        "n": pl.Int64,
        "correct": pl.Float64,
        "accuracy": pl.Float64,
    },
    "tiers": {
        "tier": pl.String,
        "verdict": pl.String,
        "weights_mib": pl.Float64,
        "kv_pool_mib": pl.Float64,
        "rss_peak_mib": pl.Float64,
        "accuracy": pl.Float64,
        "output_tokens_per_s": pl.Float64,
        "worst_ttft_p95_ms": pl.Float64,
        "worst_itl_p95_ms": pl.Float64,
    },
}


def worst(t: TierFigures, metric: str, q: str) -> float | None:
    """The largest of a percentile over the load stages; None if any stage has none (it could be the worst)."""
    found = [s.latency[metric, q].value for s in t.stages.values()]
    known = [v for v in found if v is not None]
    return max(known) if known and len(known) == len(found) else None


def _mib(value: float | None) -> float | None:
    return None if value is None else round(value / 1024**2, 2)


def rows_of(
    run: RunData, tiers: dict[str, TierFigures], series: dict[tuple[str, str], StageSeries]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of each CSV by its name."""
    out: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}
    for (tier, stage), s in series.items():
        key = {"tier": tier, "stage": stage}
        for t, a, b, c in zip(s.t_s, s.ttft_p95_ms, s.itl_p95_ms, s.output_tokens_per_s, strict=True):
            out["latency_over_time"].append(
                key
                | {"t_s": float(t), "ttft_p95_ms": finite(a), "itl_p95_ms": finite(b), "output_tokens_per_s": finite(c)}
            )
        for name, values in (("ttft", s.ttft_ms), ("itl", s.itl_ms)):
            out[f"{name}_ecdf"] += [key | {f"{name}_ms": v, "share": p} for v, p in tail_ecdf(values)]
    for name, t in run.tiers.items():
        for scenario, block in ((t.eval or {}).get("scenarios") or {}).items():
            wanted = ("kind", "n", "correct", "accuracy")
            out["quality_by_scenario"].append({"tier": name, "scenario": scenario} | {k: block.get(k) for k in wanted})
    for name, f in tiers.items():
        out["tiers"].append(
            {
                "tier": name,
                "verdict": f.verdict,
                "weights_mib": _mib(f.weights_bytes.value),
                "kv_pool_mib": _mib(f.kv_pool_bytes.value),
                "rss_peak_mib": _mib(f.rss_bytes.value),
                "accuracy": f.accuracy.value,
                "output_tokens_per_s": f.output_tokens_per_s.value,
                "worst_ttft_p95_ms": worst(f, "ttft_ms", "p95"),
                "worst_itl_p95_ms": worst(f, "itl_ms", "p95"),
            }
        )
    return out


def write_plots(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Writes every CSV, with its heading even where it has no rows."""
    for name, columns in COLUMNS.items():
        clean = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in rows[name]
        ]
        frame = pl.DataFrame(clean, schema=columns, strict=False)
        atomic_write(folder / f"{name}.csv", frame.write_csv(float_precision=4))
