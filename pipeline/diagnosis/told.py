"""Taken apart by what a server's metrics told of a stage, where it keeps no log that could be read.

Prometheus gives means over a stage, not the times of single requests: what is told apart is the mean, and a tail is
explained only as far as it is made of the same parts. The order of the walk and the words are those of the logs' walk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pipeline.diagnosis.causes import Cause, Finding, ranked
from pipeline.diagnosis.inputs import Run
from pipeline.load.samples import stage_latencies
from pipeline.load.server_metrics import FULL_SHARE

OF_THE_MEAN = "of the mean"
WORSE = 1.05  # times the other run's percentile: from here on a figure is called worse
OFTEN = 0.1  # of the looks


@dataclass(frozen=True)
class Means:
    """Milliseconds of each part of a stage's mean; ``figures``: each as the finding says it."""

    ms: dict[str, float]
    total_ms: float
    figures: dict[str, str]
    note: str
    hit_share: float | None = None


def why_none(run: Run) -> str | None:
    """Why the run's records hold no figures of the server's metrics; None where they do."""
    block = (run.load or {}).get("server_metrics")
    if not isinstance(block, dict):
        return "its metrics were not kept either"
    return None if block.get("stages") else str(block.get("reason") or "its metrics told nothing")


def _stage(run: Run, stage: str) -> dict[str, Any] | None:
    block = (run.load or {}).get("server_metrics") or {}
    found = (block.get("stages") or {}).get(stage)
    return found if isinstance(found, dict) else None


def held(symptom: str, said: str, ratio: float | None, runs: tuple[Run, Run | None], stage: str, metric: str,
         no_log: str) -> Finding:  # fmt: skip
    """One latency. ``said`` and ``ratio``: its percentiles, and the largest ratio to the other run's; ``no_log``: what
    is absent besides, told where the metrics do not do.
    """
    run, against = runs
    worse = ratio is not None and ratio >= WORSE
    mine, theirs = _means(run, stage, metric), None if against is None else _means(against, stage, metric)
    if isinstance(mine, str):
        return Finding(symptom, "worse" if worse else "measured", f"{said}; {no_log}, and {mine}")
    said += f"; {mine.note}"
    if against is None or isinstance(theirs, str) or theirs is None:
        more = "" if against is None else f"; of {against.name}: {theirs}"
        return Finding(symptom, "measured", said + more, ranked(mine.ms, mine.total_ms, mine.figures))
    if not worse:
        return Finding(symptom, "as before", said)
    names = mine.ms.keys() | theirs.ms.keys()
    grown = {n: mine.ms.get(n, 0.0) - theirs.ms.get(n, 0.0) for n in names}
    figures = {n: f"{theirs.ms.get(n, 0.0):.1f} -> {mine.ms.get(n, 0.0):.1f} ms {OF_THE_MEAN}" for n in names}
    _cold(grown, figures, mine, theirs)
    return Finding(symptom, "worse", said, ranked(grown, mine.total_ms - theirs.total_ms, figures))


def _cold(grown: dict[str, float], figures: dict[str, str], mine: Means, theirs: Means) -> None:
    """Prefill that a cache as warm as the other run's would not have needed, in place."""
    if mine.hit_share is None or theirs.hit_share is None or mine.hit_share >= theirs.hit_share:
        return
    needed = mine.ms.get("prefill_phase", 0.0) * (1 - theirs.hit_share) / max(1 - mine.hit_share, 1e-9)
    grown["cold_cache"] = mine.ms.get("prefill_phase", 0.0) - needed
    grown["prefill_phase"] = grown.get("prefill_phase", 0.0) - grown["cold_cache"]
    figures["cold_cache"] = f"hits {theirs.hit_share:.0%} -> {mine.hit_share:.0%} of prompt tokens"


def _means(run: Run, stage: str, metric: str) -> Means | str:
    """The parts, or why there are none."""
    if (why := why_none(run)) is not None:
        return why
    told = _stage(run, stage)
    if told is None or run.records is None:
        return f"its metrics told nothing of {stage}"
    seen = [v for v in getattr(stage_latencies(run.records, stage), metric) if math.isfinite(v)]
    if not seen:
        return "no request ended well"
    taken = _ttft(told, fmean(seen)) if metric == "ttft_ms" else _itl(told, fmean(seen))
    return taken or _lacking(told, ("queue_s", "prefill_s", "ttft_s") if metric == "ttft_ms" else ("itl_s",))


def _lacking(told: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    missing = told.get("missing") or {}
    return "its metrics do not tell " + "; ".join(str(missing.get(k, k)) for k in keys)


def _ttft(told: Mapping[str, Any], client_ms: float) -> Means | None:
    """The client's mean: waiting, first step to first token, and what lies outside."""
    queue, prefill, inside = (_ms(told, k) for k in ("queue_s", "prefill_s", "ttft_s"))
    if prefill is None and queue is not None and inside is not None:
        prefill = max(0.0, inside - queue)
    parts: dict[str, float] = {}
    if queue is not None:
        parts["kv_limit" if _pressed(told) else "queue"] = queue
    if prefill is not None:
        parts["prefill_phase"] = prefill
    known = inside if queue is None or prefill is None else queue + prefill
    if known is None:
        return None
    parts["outside_engine"] = max(0.0, client_ms - known)
    return _of(told, parts, max(client_ms, known), "time to first token")


def _itl(told: Mapping[str, Any], client_ms: float) -> Means | None:
    inside = _ms(told, "itl_s")
    if inside is None:
        return None
    parts = {"decode_steps": inside, "outside_engine": max(0.0, client_ms - inside)}
    return _of(told, parts, max(client_ms, inside), "gap")


def _of(told: Mapping[str, Any], parts: dict[str, float], total_ms: float, what: str) -> Means:
    beside = pressure(told)
    figures = {n: f"{ms:.1f} of {total_ms:.1f} ms of a mean {what}" for n, ms in parts.items()}
    if "kv_limit" in figures:
        figures["kv_limit"] += f"; {beside}"
    note = f"means of the server's own metrics ({told.get('family')}); {beside}"
    share = told.get("prefix_hit_share")
    return Means(parts, total_ms, figures, note, None if share is None else float(share))


def _ms(told: Mapping[str, Any], key: str) -> float | None:
    value = told.get(key)
    return 1000 * float(value) if isinstance(value, int | float) else None


def _pressed(told: Mapping[str, Any]) -> bool:
    """Whether requests waited for memory: the pool was full, or running ones were put out of it."""
    return (told.get("kv_usage_share_peak") or 0.0) >= FULL_SHARE or (told.get("preemptions") or 0) > 0


def pressure(told: Mapping[str, Any]) -> str:
    """What the gauges say of a stage, in words."""
    waited, running, full = (told.get(k) for k in ("waiting_share", "running_mean", "kv_usage_share_peak"))
    said = [] if waited is None else [f"requests waited at {waited:.0%} of {told.get('samples')} looks"]
    said += [] if running is None else [f"{running:.1f} ran on average"]
    said += [] if full is None else [f"the KV pool was {full:.0%} full at most"]
    said += [] if told.get("preemptions") is None else [f"{told['preemptions']:.0f} preemptions"]
    return ", ".join(said) or "its gauges told nothing"


def throughput_causes(run: Run) -> tuple[tuple[Cause, ...], str]:
    """(causes, what the gauges say), of the stage in which requests waited most."""
    if (why := why_none(run)) is not None:
        return (), why
    stages = (run.load or {})["server_metrics"]["stages"]
    told = max(stages.values(), key=lambda s: s.get("waiting_share") or 0.0)
    waited, said = told.get("waiting_share"), pressure(told)
    if waited is None:
        return (), _lacking(told, ("waiting",))
    if waited < OFTEN:
        return (Cause("offered_load", 1 - waited, said),), said
    if _pressed(told):
        return (Cause("kv_limit", waited, said),), said
    if told.get("kv_usage_share_peak") is None:
        return (), f"{said}; a full batch cannot be told from a full pool: {_lacking(told, ('kv_usage_share',))}"
    return (Cause("batch_full", waited, f"{said}, {told.get('running_peak'):.0f} ran at most"),), said


def restarted(run: Run) -> tuple[Cause, ...]:
    """The server began anew while it was measured: whatever failed then failed for that."""
    found = ((run.load or {}).get("server_metrics") or {}).get("restarts") or []
    return tuple(Cause("restarted", 1.0, str(r.get("words"))) for r in found[:1])
