"""Against the release in service. Without one the rules do not apply, and say so."""

from __future__ import annotations

from pipeline.gate.context import Context, result
from pipeline.gate.policy import LatencyBaseline, QualityBaseline
from pipeline.gate.result import RuleResult
from pipeline.gate.rules.quality import delta_result, margin_of, not_measurable
from pipeline.provenance import differing

NONE_YET = "no baseline yet: nothing has been released"


def quality_baseline(rule: QualityBaseline, context: Context) -> list[RuleResult]:
    title = "accuracy against the release in service"
    base, run = context.baseline, context.run
    if base is None:
        return [result(rule, "baseline", title, "not_applicable", NONE_YET, **margin_of(rule))]
    header = run.header("evaluation")
    if run.items is None or header is None:
        why = run.missing("eval") or "not evaluated"
        return [result(rule, "baseline", title, "undecided", why, **margin_of(rule))]
    asked = base.evaluation.workload
    if header.workload.digest != asked.digest:
        detail = f"{base.name} was asked {asked.name}, this run {header.workload.name}: not the same items"
        would = f"an evaluation of {base.name} on {header.workload.name}"
        return [result(rule, "baseline", title, "undecided", detail, would_decide=would, **margin_of(rule))]
    if base.scores.keys() != {row["id"] for row in run.items}:
        both = sum(row["id"] in base.scores for row in run.items)
        detail = f"{base.name} has scores for {both} of {len(run.items)} items"
        return [result(rule, "baseline", title, "undecided", detail, **margin_of(rule))]
    asked_here = [row for row in run.items if not row.get("lacks")]
    scores = [(float(row["score"]), base.scores[row["id"]]) for row in asked_here]
    skipped = not_measurable(run.items)
    judged = delta_result(
        rule, context, asked_here, scores, f"accuracy against {base.name}", "baseline", skipped=skipped
    )
    changed = differing(header, base.evaluation)
    if len(changed) > 1:
        more = f"confounded: {', '.join(changed)} differ from {base.name} at once, so a difference cannot be attributed"
        judged = judged.model_copy(update={"detail": f"{judged.detail}; {more}"})
    return [judged]


def latency_baseline(rule: LatencyBaseline, context: Context) -> list[RuleResult]:
    """Reports the ratio stage by stage. One run of each cannot decide it (requests within a run are correlated; the
    unit is the interleaved round), so the outcome is undecided and says what would decide.
    """
    title = f"P{rule.quantile * 100:g} {rule.metric.upper()} against the release in service"
    base, run, quantile = context.baseline, context.run, f"p{rule.quantile * 100:g}"
    unit = {"unit": "%", "limit": rule.margin_percent}
    if base is None:
        return [result(rule, "baseline", title, "not_applicable", NONE_YET, **unit)]
    header = run.header("load")
    if run.load is None or header is None:
        return [result(rule, "baseline", title, "undecided", run.missing("load") or "not measured", **unit)]
    if header.machine.machine_class != base.load.machine.machine_class:
        detail = (
            f"{base.name} was measured on {base.load.machine.machine_class}: latency is not compared across machines"
        )
        return [result(rule, "baseline", title, "not_applicable", detail, **unit)]
    if header.workload.digest != base.load.workload.digest:
        detail = f"{base.name} was measured under {base.load.workload.name}, this run under {header.workload.name}"
        return [result(rule, "baseline", title, "not_applicable", detail, **unit)]
    out = []
    for stage, figures in run.load["stages"].items():
        now = (figures.get(f"{rule.metric}_ms") or {}).get(quantile)
        then = (base.latency.get(stage, {}).get(f"{rule.metric}_ms") or {}).get(quantile)
        if now is None or then is None:
            out.append(
                result(rule, "baseline", title, "undecided", "one of the two has no figure", stage=stage, **unit)
            )
            continue
        out.append(
            result(
                rule,
                "baseline",
                title,
                "undecided",
                f"{now:.1f} ms against {then:.1f} ms, one run of each, not interleaved",
                value=(now / then - 1) * 100,
                stage=stage,
                would_decide=f"interleaved rounds of {base.name} and this build on one machine",
                **unit,
            )
        )
    return out
