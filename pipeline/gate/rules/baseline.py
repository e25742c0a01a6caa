"""Against the release in service. Without one the rules do not apply, and say so.

The scores in a release's record are of the set as it was then. Where the set has changed since, the release must have
been scored on the new content as well (`seatrial evalset rescore`): the rule then judges candidate and release on that,
item by item, and says beside it how much of the change since the release is the set's, which no candidate can help.
"""

from __future__ import annotations

from pipeline.evaluation.attribution import attribute
from pipeline.gate.context import Context, result
from pipeline.gate.inputs import IN_SERVICE, RESULTS
from pipeline.gate.policy import LatencyBaseline, QualityBaseline
from pipeline.gate.result import RuleResult
from pipeline.gate.rules.quality import delta_result, margin_of, not_measurable
from pipeline.provenance import Header, differing
from pipeline.release.record import Release

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
    theirs, then = base.scores, base.evaluation
    rotated = header.workload.digest != then.workload.digest
    if rotated:
        found = _scored_again(base, context, header)
        if isinstance(found, str):
            would = f"an evaluation of {base.name} on {header.workload.name}: seatrial evalset rescore"
            return [result(rule, "baseline", title, "undecided", found, would_decide=would, **margin_of(rule))]
        theirs, then = found
    mine = {row["id"]: float(row["score"]) for row in run.items}
    if theirs.keys() != mine.keys():
        both = sum(i in theirs for i in mine)
        detail = f"{base.name} has scores for {both} of {len(run.items)} items"
        return [result(rule, "baseline", title, "undecided", detail, **margin_of(rule))]
    asked_here = [row for row in run.items if not row.get("lacks")]
    here = {row["id"]: mine[row["id"]] for row in asked_here}
    scores = [(here[i], theirs[i]) for i in here]
    skipped = not_measurable(run.items)
    judged = delta_result(
        rule, context, asked_here, scores, f"accuracy against {base.name}", "baseline", skipped=skipped
    )
    more = []
    if rotated and here:
        split = attribute(base.scores, {i: theirs[i] for i in here}, here).lines()[0]
        more.append(f"the set has changed since {base.name}, which was scored on the new content too: {split}")
    if len(changed := differing(header, then)) > 1:
        more.append(
            f"confounded: {', '.join(changed)} differ from {base.name} at once, so a difference cannot be attributed"
        )
    return [judged.model_copy(update={"detail": "; ".join([judged.detail, *more])})]


def _scored_again(base: Release, context: Context, header: Header) -> tuple[dict[str, float], Header] | str:
    """Scores of the release on the content of this run, and their provenance; or why there are none."""
    again = context.in_service
    theirs = None if again is None else again.header("evaluation")
    if again is None or again.items is None or theirs is None:
        then, now = base.evaluation.workload.name, header.workload.name
        return f"{base.name} was asked {then}, this run {now}: not the same items"
    where = RESULTS / IN_SERVICE
    if others := [k for k in differing(theirs, base.evaluation) if k != "workload"]:
        return f"{where} is of another build than {base.name}: {', '.join(others)} differ"
    if theirs.workload.digest != header.workload.digest:
        return f"{where} is of {base.name} on another content of {theirs.workload.name} than this run's"
    return {row["id"]: float(row["score"]) for row in again.items}, theirs


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
