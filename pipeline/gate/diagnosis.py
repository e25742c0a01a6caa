"""Which stage of serving is at fault, in the field's fixed order, with the figure that says so.

P99 TTFT -> prefill scheduling or memory; inter-token latency -> decode bandwidth or quantised kernels; throughput ->
concurrency and batching; quality -> tier or context handling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.gate.explained import OVER, explained
from pipeline.gate.inputs import TierRun

Rules = list[dict[str, Any]]
QUEUE_SHARE, KV_SHARE = 0.25, 0.9  # of the time to first token, or of the samples with a queue; of the pool in use
SLOWER = 1.1  # times the reference's median: the kernels of this tier are slower
STALLED = 4.0  # P99 over P50 of the gaps: tokens do not come slowly, they stop coming
LONG_LOSS = 10.0  # points that long documents lose more than the rest


def diagnose(run: TierRun, reference: TierRun, verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Four rows, always in the same order, for the candidate."""
    rules = verdict["rules"]
    rows = [_ttft(run, rules), _itl(run, reference, rules), _throughput(run, rules), _quality(run, reference, rules)]
    return explained(rows, run, reference)


def _row(step: int, symptom: str, finding: str, evidence: str, suspect: str) -> dict[str, Any]:
    return {
        "step": step, "symptom": symptom, "finding": finding, "evidence": evidence, "suspect": suspect, "cause": None,
        "figure": None, "knob": None,
    }  # fmt: skip


def _of(rules: Rules, group: str, word: str = "") -> Rules:
    """Rules of a group that were judged (an absent limit or "no baseline yet" says nothing)."""
    return [r for r in rules if r["group"] == group and word in r["title"] and r["outcome"] != "not_applicable"]


NOBODY = "none"
UNPROVEN = "none proven: the rules above are undecided"


def _finding(rules: Rules) -> tuple[str, str | None]:
    """(what the rules say, whom to suspect); None where a rule fails, so that the figures must say whom."""
    failing = [r["title"] for r in rules if r["outcome"] == "fail"]
    doubtful = [r["title"] for r in rules if r["outcome"] == "undecided"]
    if failing:
        return OVER + ", ".join(failing), None
    if doubtful:
        return "not decided: " + ", ".join(doubtful), UNPROVEN
    return ("within limits" if rules else "no limit set"), NOBODY


def _slowest(run: TierRun, metric: str, rules: Rules) -> tuple[str, dict[str, Any]] | None:
    """The stage with the worst P99 (else P95) of a metric; where rules fail, of the stages that they name, and there
    an infinite P95 (too many requests failed) is the worst.
    """
    stages = (run.load or {}).get("stages") or {}
    named = {str(r["stage"]) for r in rules if r["outcome"] == "fail" and r["stage"]}
    known = {s: f.get(metric) or {} for s, f in stages.items() if s in named or not named}
    known = {s: f for s, f in known.items() if named or f.get("p95") is not None}
    return max(known.items(), key=lambda x: float(x[1].get("p99") or x[1].get("p95") or math.inf), default=None)


@dataclass(frozen=True)
class Pressure:
    """What the second-by-second samples say of a span of the run. None: a foreign server does not tell it."""

    samples: int
    waiting_share: float
    kv_peak_share: float | None
    preemptions: int | None
    running: float

    @property
    def of_memory(self) -> bool:
        return (self.kv_peak_share or 0.0) >= KV_SHARE or bool(self.preemptions)

    def __str__(self) -> str:
        peak, preempted = self.kv_peak_share, self.preemptions
        kv = "use of the KV pool not told" if peak is None else f"KV blocks in use peaked at {peak:.0%}"
        put_out = "preemptions not told" if preempted is None else f"{preempted} preemptions"
        return (
            f"requests waited in {self.waiting_share:.0%} of {self.samples} samples, {kv}, {put_out}, "
            f"{self.running:.1f} requests ran on average"
        )


def _pressure(run: TierRun, stage: str | None = None) -> Pressure | None:
    """Of one stage's time, from its first request due to its last one ended; None: of the whole run."""
    import polars as pl

    s = run.samples
    needed = {"t_s", "requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_total", "preemptions_total"}
    if s is None or not needed <= set(s.columns):
        return None
    if stage is not None and run.records is not None:
        mine = run.records.filter(pl.col("stage") == stage)
        start, end = mine["due_s"].min(), mine["end_s"].max() or mine["due_s"].max()
        s = s.filter(pl.col("t_s").is_between(start, end)) if start is not None else s.clear()
    s = s.drop_nulls(["t_s", "requests_running", "requests_waiting"]).filter(pl.col("kv_blocks_total").fill_null(1) > 0)
    if not s.height:
        return None
    used = pl.col("kv_blocks_used") / pl.col("kv_blocks_total")
    if "kv_usage_share" in s.columns:  # of a server that tells no blocks
        used = pl.coalesce(used, pl.col("kv_usage_share"))
    told = pl.col("preemptions_total").drop_nulls()
    waiting, kv, preemptions, running = s.select(
        (pl.col("requests_waiting") > 0).mean().alias("waiting"),
        used.max().alias("kv"),
        (told.last() - told.first()).alias("preemptions"),
        pl.col("requests_running").mean().alias("running"),
    ).row(0)
    return Pressure(s.height, float(waiting), kv, None if preemptions is None else int(preemptions), float(running))


def _ttft(run: TierRun, rules: Rules) -> dict[str, Any]:
    symptom, mine = "P99 time to first token", _of(rules, "latency", "first token")
    finding, clear = _finding(mine)
    slow = _slowest(run, "ttft_ms", mine)
    if slow is None:
        return _row(1, symptom, "not measured", run.missing("load") or "no percentile of TTFT", "unknown")
    stage, figures = slow
    pressure = _pressure(run, stage)
    evidence = f"worst in {stage}: {_figures(figures)}"
    evidence += f"; {pressure}" if pressure else "; the server's queue and memory were not sampled"
    waited = _waited_share(figures, (run.load or {})["stages"][stage])
    if waited is not None:
        evidence += f"; waiting in the queue is {waited:.0%} of it"
    if clear:
        return _row(1, symptom, finding, evidence, clear)
    if figures.get("p95") is None and _failed_share(run, stage) > 0:
        suspect = f"failing requests: {_failed_share(run, stage):.0%} of those in {stage} never had a first token"
    elif pressure is None and (waited or 0.0) < QUEUE_SHARE:
        suspect = "unknown: without samples a queue cannot be told from slow prefill"
    elif pressure is not None and pressure.of_memory:
        suspect = "memory: the KV pool is full, requests are preempted or wait for blocks"
    elif (
        waited >= QUEUE_SHARE if waited is not None else pressure is not None and pressure.waiting_share >= QUEUE_SHARE
    ):
        suspect = "prefill scheduling: requests queue although KV blocks are free (max_num_seqs, token budget)"
    else:
        suspect = "prefill itself: nothing queues, so the prompt's computation is slow (chunk size, prefill kernels)"
    return _row(1, symptom, finding, evidence, suspect)


def _waited_share(ttft: dict[str, Any], stage: dict[str, Any]) -> float | None:
    """Queue time over TTFT at the highest quantile that both have; None where the queue was not measured."""
    queue = stage.get("queue_ms") or {}
    both = [q for q in ("p99", "p95", "p50") if queue.get(q) is not None and ttft.get(q)]
    return min(1.0, float(queue[both[0]]) / float(ttft[both[0]])) if both else None


def _failed_share(run: TierRun, stage: str) -> float:
    figures = ((run.load or {}).get("stages") or {}).get(stage) or {}
    return 1 - figures.get("ok", 0) / figures["requests"] if figures.get("requests") else 0.0


def _figures(figures: dict[str, Any]) -> str:
    said = [f"{k.upper()} {figures[k]:.0f} ms" for k in ("p50", "p95", "p99") if figures.get(k) is not None]
    if figures.get("p95") is None:
        said.append("no P95 (too few requests, or too many of them failed)")
    return ", ".join(said)


def _itl(run: TierRun, reference: TierRun, rules: Rules) -> dict[str, Any]:
    symptom, mine = "inter-token latency", _of(rules, "latency", "inter-token")
    finding, clear = _finding(mine)
    slow = _slowest(run, "itl_ms", mine)
    if slow is None:
        return _row(2, symptom, "not measured", run.missing("load") or "no percentile of ITL", "unknown")
    stage, figures = slow
    evidence = f"worst in {stage}: {_figures(figures)}"
    then = (((reference.load or {}).get("stages") or {}).get(stage) or {}).get("itl_ms") or {}
    slower = False
    if then.get("p50") and figures.get("p50") and run.tier != reference.tier:
        ratio = figures["p50"] / then["p50"]
        slower = ratio > SLOWER
        evidence += f"; the median is {ratio:.2f} times that of {reference.tier}"
    stalls = bool(figures.get("p99") and figures.get("p50") and figures["p99"] > STALLED * figures["p50"])
    if clear:
        suspect = f"{clear}; the kernels of {run.tier} are slower than those of {reference.tier}" if slower else clear
    elif figures.get("p95") is None and _failed_share(run, stage) > 0:
        suspect = f"failing requests: {_failed_share(run, stage):.0%} of those in {stage} broke off"
    elif slower:
        suspect = "quantised kernels: slower than the reference tier on the same load"
    elif stalls:
        suspect = "stalls between tokens: long prefills share steps with decodes (prefill_chunk_tokens)"
    else:
        suspect = "decode bandwidth: every token is slow, in this tier as in the reference"
    return _row(2, symptom, finding, evidence, suspect)


def _throughput(run: TierRun, rules: Rules) -> dict[str, Any]:
    symptom, pressure = "throughput", _pressure(run)
    overall = (run.load or {}).get("overall") or {}
    rate = overall.get("output_tokens_per_s")
    if rate is None:
        return _row(3, symptom, "not measured", run.missing("load") or "no rate", "unknown")
    evidence = (
        f"{rate:.0f} output and {overall.get('prompt_tokens_per_s') or 0:.0f} prompt tokens a second over all stages"
    )
    _, clear = _finding(_of(rules, "errors"))
    if pressure is None:
        return _row(3, symptom, "reported", evidence, "unknown: no samples of the running batch")
    evidence += f"; {pressure}"
    if pressure.waiting_share >= QUEUE_SHARE:
        suspect = "concurrency: the batch is full while requests wait (max_num_seqs, KV pool)"
        return _row(3, symptom, "bounded by the batch", evidence, suspect)
    suspect = NOBODY if clear else "failing or shortened answers: see the rules on errors"
    return _row(3, symptom, "bounded by the load offered", evidence, suspect)


def _quality(run: TierRun, reference: TierRun, rules: Rules) -> dict[str, Any]:
    symptom = "quality"
    if run.evaluation is None or reference.evaluation is None:
        why = run.missing("eval") or reference.missing("eval") or "no evaluation"
        return _row(4, symptom, "not measured", why, "unknown")
    mine, theirs = run.evaluation["scenarios"], reference.evaluation["scenarios"]
    losses = {
        s: 100 * (mine[s]["accuracy"] - theirs[s]["accuracy"])
        for s in mine
        if s in theirs and isinstance(mine[s].get("accuracy"), int | float) and "accuracy" in theirs[s]
    }
    evidence = f"accuracy {run.evaluation['accuracy']:.1%}"
    if run.tier != reference.tier:
        evidence += f" against {reference.evaluation['accuracy']:.1%} of {reference.tier}"
    if losses and run.tier != reference.tier:
        worst = min(losses, key=lambda s: losses[s])
        evidence += f"; worst scenario {worst} {losses[worst]:+.1f} points"
    finding, clear = _finding(_of(rules, "quality") + _of(rules, "baseline", "accuracy"))
    if clear:
        return _row(4, symptom, finding, evidence, clear)
    long = [v for s, v in losses.items() if mine[s].get("kind") == "long_context"]
    others = [v for s, v in losses.items() if mine[s].get("kind") != "long_context"]
    if long and others and min(long) < sum(others) / len(others) - LONG_LOSS:
        suspect = "context handling: the loss is in long documents"
    else:
        suspect = f"the tier: {run.tier} loses outside long documents too"
    return _row(4, symptom, finding, evidence, suspect)
