"""Time to first token and inter-token latency, taken apart by what the engine wrote down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from loadtests.quantiles import min_samples, nearest_rank
from pipeline.diagnosis import told
from pipeline.diagnosis.causes import Finding, ranked
from pipeline.diagnosis.inputs import Run
from pipeline.diagnosis.steps import StepCost, fit, stalled_s
from pipeline.diagnosis.told import WORSE
from pipeline.load.samples import stage_latencies

TAIL = 0.95  # requests or steps from this quantile on are the tail
IN_THE_TAIL, OF_A_MEAN_GAP = "in the tail", "of a mean gap"
NO_LOG = "the engine's step log and request log were not kept with this run"
TTFT_PARTS = (
    "queue", "prefill_compute", "behind_prefill", "decodes_beside", "preempted", "cold_cache", "stall", "between_steps",
    "outside_engine",
)  # fmt: skip
ITL_PARTS = ("decode_compute", "prefill_interference", "stall", "between_steps", "preempted")


@dataclass(frozen=True)
class Parts:
    """Mean milliseconds of each part over the tail or over all (``where``), and what they were taken from."""

    ms: dict[str, float]
    total_ms: float
    count: int
    cost: StepCost
    where: str
    prompt_tokens: float = 0.0
    hit_share: float = 0.0
    decodes: float = 0.0
    read_bytes: int = 0  # the weights, which every step reads once


def worst_stage(run: Run, metric: str, against: Run | None) -> str | None:
    """The stage whose P99 (else P95, else P50) grew most against the other run; without one, the slowest."""

    def figure(r: Run, stage: str) -> float | None:
        f = (r.stages.get(stage) or {}).get(metric) or {}
        return next((f[q] for q in ("p99", "p95", "p50") if f.get(q) is not None), None)

    known = {s: v for s in run.stages if (v := figure(run, s)) is not None}
    if against is not None:
        known = {s: v / b for s, v in known.items() if (b := figure(against, s))}
    return max(known, key=lambda s: known[s], default=None)


def ttft(run: Run, against: Run | None, stage: str | None = None) -> Finding:
    """P99 TTFT: queue, prefill compute, behind other prefill, preempted, cold cache, and what lies outside.

    Args:
        stage: whose; None: the worst.
    """
    symptom = "P99 time to first token"
    stage = stage or worst_stage(run, "ttft_ms", against)
    if stage is None or run.records is None:
        return Finding(symptom, "not measured", "no percentile of TTFT")
    return _held(symptom, run, against, stage, "ttft_ms", TTFT_PARTS, ttft_parts)


def itl(run: Run, against: Run | None, stage: str | None = None) -> Finding:
    """Inter-token latency: step time by batch size, prefill interference, stalls, preemption.

    Of the mean gap; where that is as before, a percentile can still be worse, because the same work comes in fewer and
    longer gaps (prompts that are no longer computed in chunks): then of the tail.

    Args:
        stage: whose; None: the worst.
    """
    symptom = "inter-token latency"
    stage = stage or worst_stage(run, "itl_ms", against)
    if stage is None or run.records is None:
        return Finding(symptom, "not measured", "no percentile of ITL")
    take_apart = itl_parts
    if against is not None:
        mine, theirs = itl_parts(run, stage), itl_parts(against, stage)
        if mine is not None and theirs is not None and mine.total_ms < WORSE * theirs.total_ms:
            take_apart = itl_tail_parts
    return _held(symptom, run, against, stage, "itl_ms", ITL_PARTS, take_apart)


def _held(
    symptom: str,
    run: Run,
    against: Run | None,
    stage: str,
    metric: str,
    names: tuple[str, ...],
    take_apart: Callable[[Run, str], Parts | None],
) -> Finding:
    said, ratio = _figure(run, against, stage, metric)
    mine = take_apart(run, stage)
    theirs = None if against is None else take_apart(against, stage)
    both_told = against is not None and told.why_none(run) is None and told.why_none(against) is None
    if mine is None or (theirs is None and both_told):  # a log is held against a log, else metrics against metrics
        return told.held(symptom, said, ratio, (run, against), stage, metric, NO_LOG)
    if against is None or theirs is None:
        more = "" if against is None else f"; {NO_LOG} of {against.name}"
        figures = {n: f"{mine.ms.get(n, 0):.1f} of {mine.total_ms:.1f} ms {mine.where}" for n in names}
        return Finding(symptom, "measured", said + more, ranked(mine.ms, mine.total_ms, figures))
    if ratio is not None and ratio < WORSE:
        return Finding(symptom, "as before", said)
    grown, figures = _grown(mine, theirs, metric)
    return Finding(symptom, "worse", said, ranked(grown, mine.total_ms - theirs.total_ms, figures))


def _figure(run: Run, against: Run | None, stage: str, metric: str) -> tuple[str, float | None]:
    """("P99 of the stage in both runs", the largest ratio of their percentiles)."""

    def quantiles(r: Run) -> dict[str, float]:
        assert r.records is not None
        values = sorted(getattr(stage_latencies(r.records, stage), metric))
        return {
            name: nearest_rank(values, q)
            for name, q in (("P50", 0.5), ("P95", 0.95), ("P99", 0.99))
            if len(values) >= min_samples(q)
        }

    mine = quantiles(run)
    text = f"{stage}: " + ", ".join(f"{k} {v:.0f} ms" for k, v in mine.items())
    if against is None or against.records is None:
        return text, None
    theirs = quantiles(against)
    both = [k for k in mine if k in theirs and theirs[k] > 0]
    text += f"; {against.name}: " + ", ".join(f"{k} {v:.0f} ms" for k, v in theirs.items())
    return text, max((mine[k] / theirs[k] for k in both), default=None)


def _grown(mine: Parts, theirs: Parts, metric: str) -> tuple[dict[str, float], dict[str, str]]:
    """How much each part grew. What follows from another part is counted with it: where a prompt token or a decode
    costs more, or more of each prompt is computed, that much of the growth of waiting is its consequence; a colder
    cache is prefill that was not needed.
    """
    names = set(mine.ms) | set(theirs.ms)
    grown = {n: mine.ms.get(n, 0.0) - theirs.ms.get(n, 0.0) for n in names}
    figures = {n: f"{theirs.ms.get(n, 0.0):.1f} -> {mine.ms.get(n, 0.0):.1f} ms {mine.where}" for n in names}
    if metric == "ttft_ms":
        lost = max(0.0, theirs.hit_share - mine.hit_share)
        cold = 1000 * mine.cost.token_s * lost * mine.prompt_tokens
        grown["cold_cache"] = cold
        grown["prefill_compute"] = grown.get("prefill_compute", 0.0) - cold
        figures["cold_cache"] = f"hits {theirs.hit_share:.0%} -> {mine.hit_share:.0%} of prompt tokens"
        _take_followers(grown, theirs, "cold_cache", (1 - mine.hit_share) / max(1 - theirs.hit_share, 1e-9))
        tokens = max(mine.prompt_tokens, 1.0)
        dearer = mine.cost.prefill_s(tokens) / max(theirs.cost.prefill_s(tokens), 1e-9)
        if dearer >= WORSE:
            _take_followers(grown, theirs, "prefill_compute", dearer)
            figures["prefill_compute"] += f"; a prompt token costs {dearer:.2f} times as much"
    else:
        n = max(theirs.decodes, 1.0)
        a, b = theirs.cost.decode_step_s(n), mine.cost.decode_step_s(n)
        larger = max(0.0, 1000 * mine.cost.decode_s * (mine.decodes - theirs.decodes))
        grown["larger_batches"] = larger
        grown["decode_compute"] = grown.get("decode_compute", 0.0) - larger
        figures["larger_batches"] = f"{theirs.decodes:.1f} -> {mine.decodes:.1f} decodes in a step"
        figures["decode_compute"] = f"a step of {n:.0f} decodes takes {1000 * a:.1f} -> {1000 * b:.1f} ms"
        if mine.read_bytes:
            figures["decode_compute"] += f", reading weights at {mine.read_bytes / b / 1e9:.1f} GB/s"
    return grown, figures


def _take_followers(grown: dict[str, float], theirs: Parts, cause: str, times: float) -> None:
    """Counts with ``cause`` what waiting grew by because each prompt takes so many ``times`` as long, in place."""
    if times < WORSE:
        return
    for follower in ("behind_prefill", "queue"):
        moved = min(max(grown.get(follower, 0.0), 0.0), (times - 1) * theirs.ms.get(follower, 0.0) * 1.5)
        grown[follower] = grown.get(follower, 0.0) - moved
        grown[cause] += moved


def ttft_parts(run: Run, stage: str) -> Parts | None:
    """Of the requests in the tail of a stage's TTFT; None without the engine's logs."""
    steps = run.steps_in(stage)
    if steps is None or run.requests is None or run.records is None:
        return None
    cost = fit(run.steps if run.steps is not None else steps)
    rows = _joined(run.records, run.requests, stage)
    if cost is None or not rows.height:
        return None
    tail = rows.filter(pl.col("client_ttft_s") >= nearest_rank(sorted(rows["client_ttft_s"]), TAIL))
    parts = [_of_request(r, steps, cost) for r in tail.iter_rows(named=True)]
    ms = {n: 1000 * float(np.mean([p.get(n, 0.0) for p in parts])) for n in TTFT_PARTS}
    tokens = float(tail["prompt_tokens"].mean() or 0)  # type: ignore[arg-type]
    hits = float(rows["cached_tokens"].fill_null(0).sum()) / max(1.0, float(rows["prompt_tokens"].sum()))
    total = 1000 * float(tail["client_ttft_s"].mean() or 0)  # type: ignore[arg-type]
    return Parts(ms, total, tail.height, cost, IN_THE_TAIL, prompt_tokens=tokens, hit_share=hits)


def _joined(records: pl.DataFrame, requests: pl.DataFrame, stage: str) -> pl.DataFrame:
    """A stage's measured requests that got a first token, the client's times beside the server's."""
    mine = records.filter(
        (pl.col("stage") == stage) & (pl.col("phase") == "measured") & pl.col("first_token_s").is_not_null()
    ).select("server_id", (pl.col("first_token_s") - pl.col("due_s")).alias("client_ttft_s"))
    theirs = requests.filter(pl.col("prefill_s").is_not_null() & pl.col("first_token_s").is_not_null())
    return mine.join(theirs, left_on="server_id", right_on="id")


def _of_request(r: Mapping[str, float], steps: pl.DataFrame, cost: StepCost) -> dict[str, float]:
    """Seconds of each part of one request's time to first token."""
    end = r["first_token_s"]
    begin = end - r["prefill_s"]
    mine = steps.filter((pl.col("start_s") + pl.col("duration_s") > begin) & (pl.col("start_s") < end))
    waited_s, stalled_before_s = _before_it_was_seen(r, steps, cost, begin)
    outside_s = r["client_ttft_s"] - r["queued_s"] - r["prefill_s"] - waited_s
    out = {"queue": r["queued_s"] + waited_s - stalled_before_s, "outside_engine": outside_s}
    preempted = min(r["preempted_s"] or 0.0, r["prefill_s"])
    own = max(1.0, r["prompt_tokens"] - (r["cached_tokens"] or 0))
    prefill = mine["prefill_tokens"].to_numpy()
    decodes = mine["decode_requests"].to_numpy()
    took = mine["duration_s"].to_numpy()
    stall = stalled_s(mine, cost)
    said = np.maximum(cost.predicted(mine), 1e-9)
    by_decodes = np.where(prefill > 0, cost.decode_s * decodes / said, 1.0) * (took - stall)
    by_prefill = took - stall - by_decodes
    share = min(1.0, own / max(own, float(prefill.sum())))
    out["prefill_compute"] = share * float(by_prefill.sum())
    out["behind_prefill"] = (1 - share) * float(by_prefill.sum())
    out["decodes_beside"] = float(by_decodes.sum())
    out["stall"] = float(stall.sum()) + stalled_before_s
    out["preempted"] = preempted
    out["between_steps"] = max(0.0, r["prefill_s"] - preempted - float(took.sum()))
    return out


def _before_it_was_seen(
    r: Mapping[str, float], steps: pl.DataFrame, cost: StepCost, begin: float
) -> tuple[float, float]:
    """Seconds that a request waited, not yet in the queue, until the step that ran when it came was over, since the
    engine takes in new requests between two steps; and how many of them that step stalled.
    """
    seen = begin - r["queued_s"]
    end_s = pl.col("start_s") + pl.col("duration_s")
    last = steps.filter((pl.col("start_s") < seen) & (end_s > r["received_s"]) & (end_s <= begin)).tail(1)
    if not last.height:
        return 0.0, 0.0
    ended = last["start_s"][0] + last["duration_s"][0]
    waited = max(0.0, min(ended, seen) - max(last["start_s"][0], r["received_s"]))
    return waited, min(waited, float(stalled_s(last, cost)[0]))


def itl_parts(run: Run, stage: str) -> Parts | None:
    """Of the steps that hold decodes, each as often as it holds some; None without the step log.

    A gap runs from the end of the step before, which gave the token before, to the end of the step itself: so it is one
    whether or not an answer goes on after it.
    """
    return _gaps(run, stage, 0.0)


def itl_tail_parts(run: Run, stage: str) -> Parts | None:
    """The same of the longest gaps alone, from the quantile ``TAIL`` on."""
    return _gaps(run, stage, TAIL)


def _gaps(run: Run, stage: str, least: float) -> Parts | None:
    """``least``: the quantile of the gaps from which they count."""
    steps = run.steps_in(stage)
    if steps is None or run.steps is None:
        return None
    cost = fit(run.steps)
    end_s = pl.col("start_s") + pl.col("duration_s")
    steps = steps.with_columns((end_s - end_s.shift(1)).alias("gap_s"))
    steps = steps.filter((pl.col("decode_requests") > 0) & pl.col("gap_s").is_not_null())
    if cost is None or not steps.height:
        return None
    if least:
        ordered = steps.sort("gap_s").with_columns(pl.col("decode_requests").cum_sum().alias("rank"))
        steps = ordered.filter(pl.col("rank") >= least * float(steps["decode_requests"].sum()))
    weight = steps["decode_requests"].to_numpy().astype(np.float64)
    weight /= weight.sum()
    gap, took = steps["gap_s"].to_numpy(), steps["duration_s"].to_numpy()
    stall = stalled_s(steps, cost)
    said = np.maximum(cost.predicted(steps), 1e-9)
    beside = cost.token_s * steps["prefill_tokens"].to_numpy() / said * (took - stall)
    alone = took - stall - beside
    parts = {
        "decode_compute": alone,
        "prefill_interference": beside,
        "stall": stall,
        "between_steps": np.maximum(gap - took, 0.0),
    }
    ms = {n: 1000 * float(weight @ v) for n, v in parts.items()}
    ms["preempted"] = 1000 * _preempted_s(run, stage)
    decodes = float(weight @ steps["decode_requests"].to_numpy())
    total = 1000 * float(weight @ np.maximum(gap, took)) + ms["preempted"]
    where = IN_THE_TAIL if least else OF_A_MEAN_GAP
    return Parts(ms, total, steps.height, cost, where, decodes=decodes, read_bytes=run.weights_bytes or 0)


def _preempted_s(run: Run, stage: str) -> float:
    """Time that running answers spent without blocks, for each gap between two tokens."""
    if run.requests is None or run.records is None:
        return 0.0
    mine = run.requests.join(
        run.records.filter(pl.col("stage") == stage), left_on="id", right_on="server_id", how="semi"
    )
    gaps = int((mine["output_tokens"] - 1).clip(0).sum())
    return float(mine["preempted_s"].fill_null(0).sum()) / max(1, gaps)
