"""Whether the evidence itself can be believed: the regression set, provenance, the load client, the ledger."""

from __future__ import annotations

from pipeline.gate.context import Context, result
from pipeline.gate.inputs import CHECKED_BY, EVALSET
from pipeline.gate.policy import ClientHealth, EvalsetHealth, KvIntegrity, LedgerMatch, Provenance
from pipeline.gate.result import Outcome, RuleResult
from pipeline.provenance import Header, differing, seam_of
from pipeline.stage import why_it_failed


def is_foreign(header: Header) -> bool:
    """Another engine's result: what it says of itself is recorded and cannot be checked."""
    return header.engine.name.startswith("foreign ")


def evalset_health(rule: EvalsetHealth, context: Context) -> list[RuleResult]:
    title, report = "health of the regression set", context.evalset
    if report is None:
        return [result(rule, "evalset", title, "undecided", context.evalset_problem or "not checked", unit="checks")]
    if why := why_it_failed(CHECKED_BY):
        detail = f"{EVALSET} is of an earlier run: the last run of {CHECKED_BY} did not end well ({why})"
        would = "that stage, run well: seatrial trial"
        return [result(rule, "evalset", title, "undecided", detail, would_decide=would, unit="checks")]
    checks = report.get("checks") or []
    evaluated = context.run.evaluation or {}
    asked, checked = evaluated.get("evalset") or {}, report.get("evalset") or {}
    if evaluated and (asked.get("name"), asked.get("version")) != (checked.get("name"), checked.get("version")):
        detail = (
            f"checked {checked.get('name')} v{checked.get('version')}, but {context.run.tier} was evaluated on "
            f"{asked.get('name')} v{asked.get('version')}"
        )
        return [result(rule, "evalset", title, "fail", detail, unit="checks")]
    if not checks:
        return [result(rule, "evalset", title, "undecided", "the report lists no check", unit="checks", n=0)]
    if any(not isinstance(c, dict) or "name" not in c for c in checks):
        detail = f"{EVALSET} lists a check without a name: it is not what the stage check_evalsets writes"
        return [result(rule, "evalset", title, "undecided", detail, unit="checks")]
    bad = [c for c in checks if not c.get("success") and c.get("blocking", True)]
    if not bad and report.get("success") is not True:
        detail = f"{EVALSET} says that the set is not healthy, but names no blocking check that fails"
        return [result(rule, "evalset", title, "fail", detail, unit="checks", n=len(checks))]
    noted = [c for c in checks if not c.get("success") and not c.get("blocking", True)]
    detail = f"{len(checks) - len(bad) - len(noted)} of {len(checks)} checks hold"
    if bad or noted:
        worst = (bad or noted)[0]
        examples = ", ".join(map(str, (worst.get("examples") or [])[:3]))
        names = ", ".join(c["name"] for c in bad + noted)
        detail += f"; broken: {names} ({worst.get('what')}{': ' + examples if examples else ''})"
    return [
        result(
            rule, "evalset", title, "fail" if bad else "pass", detail, value=float(len(bad)), unit="checks", limit=0.0,
            n=len(checks),
        )
    ]  # fmt: skip


def provenance(rule: Provenance, context: Context) -> list[RuleResult]:
    """Fails on a contradiction; undecided where a comparison could not be attributed or the set was not run whole."""
    title, run = "provenance", context.run

    def said(outcome: Outcome, detail: str, would: str | None = None) -> list[RuleResult]:
        return [result(rule, "provenance", title, outcome, detail, would_decide=would)]

    if why := run.missing("eval/eval", "load/load"):
        return said("undecided", f"no result without its identities: {why}")
    evaluated, loaded = run.header("evaluation"), run.header("load")
    if evaluated is None or loaded is None:
        return said("fail", run.missing("evaluation header", "load header") or "a result has no header")
    if seam := seam_of(evaluated) or seam_of(loaded):
        return said("fail", f"measured on an engine with {seam} planted through its seam: never to be released")
    for part in ("model", "engine", "quantisation"):
        a, b = getattr(evaluated, part), getattr(loaded, part)
        if a.digest != b.digest:
            return said("fail", f"quality was measured with {part} {a.name}, latency with {b.name}: not one build")
    if not is_foreign(evaluated) and evaluated.quantisation.name != run.tier:
        return said("fail", f"results/{run.tier} holds results of {evaluated.quantisation.name}")
    began_anew = [f"under load {w}" for w in run.restarts("load")]
    began_anew += [f"while it was asked the regression set {w}" for w in run.restarts("evaluation")]
    if began_anew:
        return said(
            "undecided",
            f"not one server throughout: {'; '.join(began_anew)}; what answered before and after may be two builds",
            "a run in which the server stays up",
        )
    reference_runs = [] if context.is_reference else [context.reference]
    if earlier := [words for r in (run, *reference_runs) for words in r.earlier]:
        return said("undecided", "; ".join(dict.fromkeys(earlier)), "those stages, run well: seatrial trial")
    if (run.evaluation or {}).get("partial"):
        return said(
            "undecided",
            "only a part of the regression set was run (evaluation.items is set)",
            "the whole set: evaluation.items: null",
        )
    if not context.is_reference:
        reference, under = context.reference.header("evaluation"), context.reference.header("load")
        if reference is None or under is None:
            return said("undecided", f"{context.reference.tier} has no provenance to compare with")
        names = {"workload": "evalset"}
        changed = [names.get(k, k) for k in differing(evaluated, reference)]
        if loaded.workload.digest != under.workload.digest:
            changed.append("load workload")
        if len(changed) > 1:
            return said(
                "undecided",
                f"confounded: {', '.join(changed)} differ from {context.reference.tier} at once, so a difference "
                "cannot be attributed",
                "one change at a time",
            )
    where = f"{evaluated.machine.machine_class} at {evaluated.measured_at} (quality)"
    if loaded.machine != evaluated.machine:
        where += f" and {loaded.machine.machine_class} at {loaded.measured_at} (latency)"
    else:
        where += f" and {loaded.measured_at} (latency)"
    return said(
        "pass",
        f"model {evaluated.model.name}, engine {evaluated.engine.name}, quantisation {evaluated.quantisation.name}, "
        f"evalset {evaluated.workload.name}, workload {loaded.workload.name}; measured on {where}",
    )


def client_health(rule: ClientHealth, context: Context) -> list[RuleResult]:
    title, load = "the load client", context.run.load
    if load is None:
        why = context.run.missing("load/load") or "no load test"
        return [result(rule, "latency", title, "undecided", f"not measured: {why}", unit="ms")]
    client, profile = load.get("client") or {}, str(load.get("profile"))
    values = {"value": client.get("lag_p99_ms"), "unit": "ms", "limit": client.get("lag_limit_ms")}
    if profile not in rule.profiles:
        detail = f"profile {profile!r} decides nothing under policy {context.policy.name}"
        would = f"a run with profile {' or '.join(rule.profiles)}"
        return [result(rule, "latency", title, "undecided", detail, would_decide=would, **values)]
    if client.get("void", True):
        detail = f"the run is void: {client.get('void_reason') or 'the client says nothing of its own health'}"
        would = "a run in which the client keeps its schedule (an idle machine, or the client on another one)"
        return [result(rule, "latency", title, "undecided", detail, would_decide=would, **values)]
    share = client.get("cpu_share")
    detail = "requests were sent when they were due" + (f"; the client used {share:.0%} of a core" if share else "")
    return [result(rule, "latency", title, "pass", detail, **values)]


def ledger(rule: LedgerMatch, context: Context) -> list[RuleResult]:
    title = "memory as planned"
    plan, server, header = context.run.plan, context.run.server, context.run.header("load")
    if header is not None and is_foreign(header):
        detail = f"not measurable here: {header.engine.name} does not say what memory it holds"
        return [result(rule, "provenance", title, "not_applicable", detail, unit="%", limit=rule.within_percent)]
    if plan is None or server is None:
        why = context.run.missing("plan", "load/server") or "not measured"
        return [result(rule, "provenance", title, "undecided", why, unit="%", limit=rule.within_percent)]
    planned, found = plan["ledger"], (server.get("info") or {}).get("memory") or {}
    worst, parts = 0.0, []
    for key, name in (("weights_bytes", "weights"), ("kv_pool_bytes", "KV pool")):
        if not found.get(key):
            detail = f"the server does not say its {name}"
            return [result(rule, "provenance", title, "undecided", detail, unit="%", limit=rule.within_percent)]
        off = (found[key] - planned[key]) / planned[key] * 100
        worst = max(worst, abs(off), key=abs)
        parts.append(f"{name} {found[key] / 1024**2:.1f} MiB against {planned[key] / 1024**2:.1f} planned")
    outcome: Outcome = "pass" if worst <= rule.within_percent else "fail"
    return [
        result(
            rule, "provenance", title, outcome, "; ".join(parts), value=worst, unit="%", limit=rule.within_percent
        )
    ]  # fmt: skip


KV_ERRORS = "seatrial_kv_integrity_errors_total"


def kv_integrity(rule: KvIntegrity, context: Context) -> list[RuleResult]:
    """Counted by the engine over the load test, its idle moments after it included."""
    title, values = "the KV pool's books", {"unit": "errors", "limit": 0.0}
    server, header = context.run.server, context.run.header("load")
    if header is not None and is_foreign(header):
        return [result(rule, "errors", title, "not_applicable", f"not measurable here: {header.engine.name}", **values)]
    if server is None:
        why = context.run.missing("load/server") or "no load test"
        return [result(rule, "errors", title, "undecided", f"not measured: {why}", **values)]
    before, after = ((server.get(k) or {}).get(KV_ERRORS) for k in ("metrics_before", "metrics_after"))
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        detail = f"not measured: load/server.json holds no {KV_ERRORS} from before and after"
        return [result(rule, "errors", title, "undecided", detail, would_decide="a load test", **values)]
    errors = float(after) - float(before)
    detail = f"{errors:g} idle checks of the KV pool found that its books did not balance"
    outcome: Outcome = "pass" if errors == 0 else "fail"
    return [result(rule, "errors", title, outcome, detail, value=errors, **values)]
