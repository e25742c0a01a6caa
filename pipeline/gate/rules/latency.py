"""Absolute limits on the tail of TTFT and ITL, on the share of requests that failed, and of answers cut short."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from loadtests.quantiles import min_samples, nearest_rank
from pipeline.gate.context import Context, result
from pipeline.gate.machines import class_of
from pipeline.gate.policy import ErrorRate, LatencyLimit, Truncation
from pipeline.gate.result import Outcome, RuleResult
from pipeline.gate.statistics.shares import judge_share, needed_for_pass, share_interval, share_p_value
from pipeline.gate.statistics.tails import Tail, judge_tail
from pipeline.load.samples import Sample, measured, samples

NAMES = {"ttft": "time to first token", "itl": "inter-token latency"}


def latency_limit(rule: LatencyLimit, context: Context) -> list[RuleResult]:
    """One result a stage: the binomial rule on the share of samples over the limit, at the effective sample size.

    On a machine of another class than the limits are for nothing is decided, whatever the figures.
    """
    results = [_one_stage(rule, context, stage, limit) for stage, limit in rule.limits_ms.items()]
    for stage in sorted(set((context.run.load or {}).get("stages", {})) - set(rule.limits_ms)):
        detail = f"the policy sets no limit for stage {stage} (limits_ms of rule {rule.id})"
        results.append(result(rule, "latency", _title(rule, stage), "not_applicable", detail, stage=stage, unit="ms"))
    return results


def _title(rule: LatencyLimit, stage: str) -> str:
    return f"P{rule.quantile * 100:g} {NAMES[rule.metric]}, {stage}"


def _one_stage(rule: LatencyLimit, context: Context, stage: str, limit: float) -> RuleResult:
    q, confidence, title = rule.quantile, context.confidence(rule), _title(rule, stage)
    records = context.run.records
    if records is None:
        why = context.run.missing("load/records") or "no records"
        return result(rule, "latency", title, "undecided", f"not measured: {why}", stage=stage, limit=limit, unit="ms")
    s = samples(records, stage)[rule.metric]
    n = len(s.values)
    elsewhere, few = _another_machine(context), _too_few(rule, s)
    if n == 0:
        detail = f"not measured: the load test has no measured requests in stage {stage}"
        return result(rule, "latency", title, "undecided", detail, stage=stage, limit=limit, unit="ms", n=0)
    t = judge_tail(s.values, limit, q, confidence, lambda level: s.effective(rule.metric, level), rule.headroom)
    words = _words(t, "requests" if rule.metric == "ttft" else "gaps", q, limit)
    outcome: Outcome = "undecided" if elsewhere or (few and t.outcome == "pass") else t.outcome
    more, minutes = (few or _more(s, t)) if outcome == "undecided" else (None, None)
    if elsewhere:
        words, more, minutes = f"{elsewhere[0]}; {words}", elsewhere[1], None
    return result(
        rule,
        "latency",
        title,
        outcome,
        words,
        value=nearest_rank(sorted(s.values), q) if n >= min_samples(q) else None,
        unit="ms",
        limit=limit,
        interval=list(t.interval),
        confidence=confidence,
        n=n,
        n_effective=t.n_effective,
        stage=stage,
        p_value=None if elsewhere else t.p_value,
        would_decide=more,
        minutes_needed=minutes,
    )


def _another_machine(context: Context) -> tuple[str, str] | None:
    """Why the policy's limits say nothing of this machine, and what would; None where they are for it."""
    header, limits = context.run.header("load"), context.policy.limits_for
    if header is None or limits is None or (why := limits.machines.mismatch(header.machine)) is None:
        return None
    said = f"limits are for class {limits.name}, measured on {class_of(header.machine)} ({why})"
    return said, f"a measurement on a machine of class {limits.name}, or a policy with limits for this one"


def _too_few(rule: LatencyLimit, s: Sample) -> tuple[str, float] | None:
    missing = rule.min_requests - s.requests
    if missing <= 0:
        return None
    minutes = s.span_s * missing / max(1, s.requests) / 60
    return f"{missing} more requests of this kind: the rule asks for {rule.min_requests}", minutes


def _words(t: Tail, what: str, q: float, limit: float) -> str:
    allowed = 100 * (1 - q)
    text = (
        f"{t.over} of {t.n} {what} over {t.level:g} ms; they are worth {t.n_effective:.0f} independent ones, so the "
        f"share over it lies between {t.low:.2%} and {t.high:.2%}; a P{q * 100:g} allows {allowed:.3g}% over the limit"
    )
    if t.factor > 1:
        text += (
            f", hence {t.factor * allowed:.3g}% over {t.level:g} ms, 1/{t.factor} of it (a sample this small cannot be "
            f"judged at {limit:g} ms itself)"
        )
    return text


def _more(s: Sample, t: Tail) -> tuple[str, float | None]:
    """What would settle it, and in how many more minutes of this stage."""
    if t.times_needed is None:
        return "more of the same would not pass it: the share over the limit is not below what the limit allows", None
    minutes = s.span_s * (t.times_needed - 1) / 60
    return (
        f"about {math.ceil(s.requests * (t.times_needed - 1)):,} more requests of this kind, so a stage of "
        f"{s.span_s / 60 + minutes:.1f} minutes instead of {s.span_s / 60:.1f}"
    ), minutes


def error_rate(rule: ErrorRate, context: Context) -> list[RuleResult]:
    """Failed, refused, timed-out and never-ended requests over all measured ones."""
    title = "requests that failed"
    records = context.run.records
    if records is None:
        return [_no_records(rule, context, title)]
    rows = measured(records)
    failed = rows.filter(~pl.col("status").is_in(["ok", "abandoned"]))  # a user who leaves is the profile's doing
    kinds = ", ".join(f"{c} {s}" for s, c in sorted(failed.group_by("status").len().iter_rows()))
    detail = f"{failed.height} of {rows.height} requests failed{f' ({kinds})' if kinds else ''}"
    if failed.height and (began_anew := context.run.restarts("load")):
        detail += f"; {'; '.join(began_anew)}"
    return [_share(rule, context, title, failed.height, rows.height, detail, "fewer failures")]


def truncation(rule: Truncation, context: Context) -> list[RuleResult]:
    """Answers that the server says reached their length, although they have fewer tokens than were asked for; and the
    load stage's prompts that were sent again when the server was idle.
    """
    title = "answers cut short under load"
    records = context.run.records
    if records is None:
        return [_no_records(rule, context, title)]
    rows = measured(records).filter(pl.col("status") == "ok")
    short = rows.filter((pl.col("finish_reason") == "length") & (pl.col("output_tokens") < pl.col("max_tokens")))
    detail = f"{short.height} of {rows.height} answers have fewer tokens than asked for, though they end with 'length'"
    if short.height:
        mean = short.select((pl.col("output_tokens") / pl.col("max_tokens")).mean()).item()
        detail += f" (on average {mean:.0%} of them)"
    share = _share(rule, context, title, short.height, rows.height, detail, "fewer of them")
    looked = (context.run.load or {}).get("truncation")
    return [_with_reasons(_with_pairs(share, looked), looked)]


def _with_reasons(judged: RuleResult, looked: dict[str, Any] | None) -> RuleResult:
    """A pass rests on the finish reasons: where the lengths contradict them nothing is known."""
    lied = (looked or {}).get("stop_at_limit")
    if not lied or judged.outcome == "fail":
        return judged
    said = str(lied.get("words"))
    detail = judged.detail if said in judged.detail else f"{judged.detail}; {said}"
    would = "a server that says 'length' of an answer that ends at its limit"
    changes = {"outcome": "undecided", "detail": detail, "would_decide": would, "minutes_needed": None}
    return judged.model_copy(update=changes)


def _with_pairs(share: RuleResult, looked: dict[str, Any] | None) -> RuleResult:
    """A difference between loaded and idle answers fails where the engine promises none; elsewhere answers are shorter
    under load if the whole interval of the length ratio is below one. Without pairs a pass is not proven.
    """
    paired = (looked or {}).get("paired") or {}
    if looked is None or not paired.get("n"):
        detail = f"{share.detail}; no prompt was sent again when the server was idle, so equal answers are not proven"
        if share.outcome != "pass":
            return share.model_copy(update={"detail": detail})
        would = "a load test whose requests end well"
        return share.model_copy(update={"outcome": "undecided", "detail": detail, "would_decide": would})
    detail = f"{share.detail}; {looked.get('words')}"
    high = (paired.get("interval") or [None, None])[1]
    worse = paired.get("different", 0) or paired.get("shorter", 0) if looked.get("deterministic") else None
    if worse or (worse is None and high is not None and high < 1):
        # A difference where none is promised is no test that chance could fail, so it has no p-value.
        p_value = None if worse else paired.get("p_value")
        changes = {"outcome": "fail", "detail": detail, "would_decide": None, "p_value": p_value}
        return share.model_copy(update=changes)
    return share.model_copy(update={"detail": detail})


def _no_records(rule: ErrorRate | Truncation, context: Context, title: str) -> RuleResult:
    why = context.run.missing("load/records") or "no records"
    return result(rule, "errors", title, "undecided", f"not measured: {why}", limit=rule.limit * 100, unit="%")


def _share(
    rule: ErrorRate | Truncation, context: Context, title: str, k: int, n: int, detail: str, fewer: str
) -> RuleResult:
    confidence = context.confidence(rule)
    few = n < rule.min_requests
    outcome: Outcome = judge_share(k, n, rule.limit, confidence) if n else "undecided"
    if few and outcome == "pass":
        outcome = "undecided"
    low, high = share_interval(k, n, confidence)
    needed = needed_for_pass(k, n, rule.limit, confidence)
    needed = max(needed, rule.min_requests) if needed else None
    would = f"{needed - n} more requests" if needed else f"{fewer}: their share is not below the limit"
    return result(
        rule,
        "errors",
        title,
        outcome,
        detail,
        value=k / n * 100 if n else None,
        unit="%",
        limit=rule.limit * 100,
        interval=[low * 100, high * 100],
        confidence=confidence,
        n=n,
        p_value=share_p_value(k, n, rule.limit),
        would_decide=would if outcome == "undecided" else None,
        minutes_needed=_minutes(context, n, needed) if outcome == "undecided" else None,
    )


def _minutes(context: Context, n: int, needed: int | None) -> float | None:
    """Of measuring until so many requests are there, beyond what was measured, at the rate that was seen."""
    if not n or needed is None or context.run.records is None:
        return None
    due = (
        measured(context.run.records).group_by("stage").agg((pl.col("due_s").max() - pl.col("due_s").min()).alias("s"))
    )
    return float(due["s"].sum()) / 60 * (needed - n) / n
