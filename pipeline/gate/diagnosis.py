"""Which stage of serving is at fault, in the field's fixed order, with the figure that says so.

P99 TTFT -> prefill scheduling or memory; inter-token latency -> decode bandwidth or quantised kernels; throughput ->
concurrency and batching; quality -> tier or context handling.
"""

from __future__ import annotations

from typing import Any

from pipeline.gate.inputs import TierRun

QUEUE_SHARE, KV_SHARE = 0.25, 0.9  # of the samples with a queue; of the pool in use


def diagnose(run: TierRun, reference: TierRun, verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Four rows, always in the same order, for the candidate."""
    rules = verdict["rules"]
    return [_ttft(run, rules), _itl(run, reference, rules), _throughput(run), _quality(run, reference, rules)]


def _row(step: int, symptom: str, finding: str, evidence: str, suspect: str) -> dict[str, Any]:
    return {"step": step, "symptom": symptom, "finding": finding, "evidence": evidence, "suspect": suspect}


def _bad(rules: list[dict[str, Any]], word: str) -> list[str]:
    return [r["title"] for r in rules if word in r["title"] and r["outcome"] == "fail"]


def _slowest(run: TierRun, metric: str) -> tuple[str, dict[str, Any]] | None:
    """The stage with the worst P99 (else P95) of a metric."""
    stages = (run.load or {}).get("stages") or {}
    known = [(s, f[metric]) for s, f in stages.items() if (f.get(metric) or {}).get("p95") is not None]
    return max(known, key=lambda x: x[1].get("p99") or x[1]["p95"], default=None)


def _pressure(run: TierRun) -> tuple[float, float, float, str] | None:
    """(share of samples with a queue, peak share of KV blocks in use, preemptions, words), from the second-by-second
    samples."""
    s = run.samples
    if s is None or s.height == 0 or not {"requests_waiting", "kv_blocks_used", "kv_blocks_total"} <= set(s.columns):
        return None
    waiting = float((s["requests_waiting"].fill_null(0) > 0).mean() or 0.0)  # type: ignore[arg-type]
    used = float((s["kv_blocks_used"] / s["kv_blocks_total"]).fill_nan(0).max() or 0.0)  # type: ignore[arg-type]
    preempted = s["preemptions_total"].drop_nulls() if "preemptions_total" in s.columns else None
    count = float(preempted[-1] - preempted[0]) if preempted is not None and preempted.len() else 0.0
    words = (
        f"requests waited in {waiting:.0%} of {s.height} samples, KV blocks in use peaked at {used:.0%}, "
        f"{count:.0f} preemptions"
    )
    return waiting, used, count, words


def _ttft(run: TierRun, rules: list[dict[str, Any]]) -> dict[str, Any]:
    symptom, slow, pressure = "P99 time to first token", _slowest(run, "ttft_ms"), _pressure(run)
    if slow is None:
        return _row(1, symptom, "not measured", run.missing("load") or "no percentile of TTFT", "unknown")
    stage, figures = slow
    evidence = f"worst in {stage}: P50 {figures['p50']:.0f} ms, {_tail(figures)}" if figures.get("p50") else stage
    if pressure:
        evidence += f"; {pressure[3]}"
    if not _bad(rules, "first token"):
        return _row(1, symptom, "within limits", evidence, "none")
    if pressure and (pressure[1] >= KV_SHARE or pressure[2] > 0):
        suspect = "memory: the KV pool is full, requests are preempted or wait for blocks"
    elif pressure and pressure[0] >= QUEUE_SHARE:
        suspect = "prefill scheduling: requests queue although KV blocks are free (max_num_seqs, token budget)"
    else:
        suspect = "prefill itself: nothing queues, so the prompt's computation is slow (chunk size, prefill kernels)"
    return _row(1, symptom, "over a limit: " + ", ".join(_bad(rules, "first token")), evidence, suspect)


def _tail(figures: dict[str, Any]) -> str:
    return f"P99 {figures['p99']:.0f} ms" if figures.get("p99") is not None else f"P95 {figures['p95']:.0f} ms"


def _itl(run: TierRun, reference: TierRun, rules: list[dict[str, Any]]) -> dict[str, Any]:
    symptom, slow = "inter-token latency", _slowest(run, "itl_ms")
    if slow is None:
        return _row(2, symptom, "not measured", run.missing("load") or "no percentile of ITL", "unknown")
    stage, figures = slow
    evidence = f"worst in {stage}: P50 {figures['p50']:.1f} ms, {_tail(figures)}"
    then = (((reference.load or {}).get("stages") or {}).get(stage) or {}).get("itl_ms") or {}
    slower = False
    if then.get("p50") and run.tier != reference.tier:
        ratio = figures["p50"] / then["p50"]
        slower = ratio > 1.1
        evidence += f"; the median is {ratio:.2f} times that of {reference.tier}"
    if not _bad(rules, "inter-token"):
        return _row(
            2, symptom, "within limits", evidence, "quantised kernels slower than the reference" if slower else "none"
        )
    if slower:
        suspect = "quantised kernels: slower than the reference tier on the same load"
    elif figures.get("p99") and figures["p99"] > 4 * figures["p50"]:
        suspect = "stalls between tokens: long prefills share steps with decodes (prefill_chunk_tokens)"
    else:
        suspect = "decode bandwidth: every token is slow, in this tier as in the reference"
    return _row(2, symptom, "over a limit: " + ", ".join(_bad(rules, "inter-token")), evidence, suspect)


def _throughput(run: TierRun) -> dict[str, Any]:
    symptom, pressure = "throughput", _pressure(run)
    overall = (run.load or {}).get("overall") or {}
    rate = overall.get("output_tokens_per_s")
    if rate is None:
        return _row(3, symptom, "not measured", run.missing("load") or "no rate", "unknown")
    evidence = (
        f"{rate:.0f} output and {overall.get('prompt_tokens_per_s') or 0:.0f} prompt tokens a second over all stages"
    )
    if pressure is None or run.samples is None:
        return _row(3, symptom, "reported", evidence, "unknown: no samples of the running batch")
    running = run.samples["requests_running"].drop_nulls()
    evidence += (
        f"; on average {float(running.mean() or 0):.1f} requests ran and {pressure[0]:.0%} of samples had a queue"  # type: ignore[arg-type]
    )
    if pressure[0] >= QUEUE_SHARE:
        suspect = "concurrency: the batch is full while requests wait (max_num_seqs, KV pool)"
        return _row(3, symptom, "bounded by the batch", evidence, suspect)
    return _row(3, symptom, "bounded by the load offered", evidence, "none")


def _quality(run: TierRun, reference: TierRun, rules: list[dict[str, Any]]) -> dict[str, Any]:
    symptom = "quality"
    mine = ((run.evaluation or {}).get("scenarios")) or {}
    theirs = ((reference.evaluation or {}).get("scenarios")) or {}
    if not mine or not theirs:
        return _row(4, symptom, "not measured", run.missing("eval") or f"{reference.tier} was not evaluated", "unknown")
    accuracy = (run.evaluation or {}).get("accuracy") or 0.0
    if run.tier == reference.tier:
        return _row(4, symptom, "this tier is the reference", f"accuracy {accuracy:.1%}", "none")
    losses = {s: (mine[s]["accuracy"] - theirs[s]["accuracy"]) * 100 for s in mine.keys() & theirs.keys()}
    worst = min(losses, key=lambda s: (losses[s], s))
    before = (reference.evaluation or {})["accuracy"]
    evidence = f"accuracy {accuracy:.1%} against {before:.1%}; worst scenario {worst} {losses[worst]:+.1f} points"
    failing = [r["title"] for r in rules if r["group"] == "quality" and r["outcome"] == "fail"]
    if not failing:
        return _row(4, symptom, "no rule fails", evidence, "none")
    long = [v for s, v in losses.items() if mine[s].get("kind") == "long_context"]
    others = [v for s, v in losses.items() if mine[s].get("kind") != "long_context"]
    if long and others and min(long) < sum(others) / len(others) - 10:
        suspect = "context handling: the loss is in long documents"
    else:
        suspect = f"the tier: {run.tier} loses across scenarios"
    return _row(4, symptom, "over a limit: " + ", ".join(failing), evidence, suspect)
