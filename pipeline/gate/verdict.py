"""verdict.json, and the exit code that it stands for: 0 ship, 1 hold, 2 undecided."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from engine.artifact import sha256_file
from pipeline.errors import SeatrialError
from pipeline.gate.inputs import input_digests
from pipeline.gate.model import Verdict
from pipeline.gate.result import RuleResult
from pipeline.params import Params, load_params
from pipeline.provenance import digest_of
from pipeline.release.record import RELEASES
from pipeline.stage import FAILED, why_it_failed

VERDICT = Path("reports/verdict.json")
JUNIT = Path("reports/junit.xml")
EXIT_CODES = {"ship": 0, "hold": 1, "undecided": 2}
SYMBOLS = {"pass": "+", "fail": "x", "undecided": "?", "not_applicable": "."}


def what_was_asked(params: Params) -> str:
    """Digest of what a verdict rests on besides measurements: policies, waivers, roles, tiers and releases."""
    releases = {p.name: sha256_file(p) for p in sorted(RELEASES.glob("*.json"))}
    asked = {
        "gate": params.gate,
        "release": params.release.model_dump(),
        "tiers": params.measured,
        "releases": releases,
    }
    return digest_of(json.loads(json.dumps(asked, default=str)))


def verdict_exit_code(path: Path = VERDICT) -> tuple[int, str]:
    """(exit code, text). Run from the project's root. A verdict that is missing, unreadable or older than the results,
    the policy or the releases it rests on is undecided.

    Waivers are checked against today's date again: one that has expired since takes a "ship" back.
    """
    try:
        value = Verdict.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return 2, f"UNDECIDED: there is no {path}; run `seatrial trial` first"
    except (OSError, ValueError) as e:
        why = _first(e) if isinstance(e, ValidationError) else str(e)
        return 2, f"UNDECIDED: {path} is not a verdict that this version reads ({why}); run `seatrial trial` again"
    found, then = input_digests(list(value.tiers)), value.inputs
    changed = [name for name in found | then if then.get(name) != found.get(name)]
    if changed and changed[0].startswith(f"{FAILED.as_posix()}/") and changed[0] in found:
        label = Path(changed[0]).stem
        why = f"the last run of {label} did not end well ({why_it_failed(label)})"
        return 2, f"UNDECIDED: {path} is of an earlier run: {why}; run `seatrial trial` again once that is mended"
    if changed:
        return 2, f"UNDECIDED: {path} is stale: {changed[0]} has changed since; run `seatrial trial` again"
    try:
        now = what_was_asked(load_params())
    except (SeatrialError, OSError) as e:
        return 2, f"UNDECIDED: {path} cannot be held against today's params.yaml: {e}"
    if now != value.asked:
        why = "gate, release or tiers of params.yaml, or releases/, have changed since"
        return 2, f"UNDECIDED: {path} is stale: {why}; run `seatrial trial` again"
    return held_today(value)


def held_today(value: Verdict) -> tuple[int, str]:
    """(exit code, text) of a verdict as it holds today, whatever became of the files that it rests on: a waiver that
    has expired since takes a "ship" back.
    """
    text, code = _text(value), EXIT_CODES[value.verdict]
    lapsed = [r for r in value.judged.rules if r.severity == "blocking" and _lapsed(r)] if code == 0 else []
    if lapsed:
        worst = next((r for r in lapsed if r.outcome == "fail"), lapsed[0])
        word, w = "HOLD" if worst.outcome == "fail" else "UNDECIDED", worst.waiver or {}
        said = f"the waiver of {w['rule']} for {w['tier']} by {w['owner']} expired on {w['expires']}"
        return EXIT_CODES[word.lower()], f"{word}: {said}\n\n{text}"
    return code, text


def _lapsed(rule: RuleResult) -> bool:
    """Whether this rule got through by a waiver that has expired since."""
    today = datetime.now(UTC).date().isoformat()
    return rule.waiver is not None and not rule.waiver["expired"] and rule.waiver["expires"] < today


def _first(e: ValidationError) -> str:
    x = e.errors()[0]
    return f"{'.'.join(map(str, x['loc'])) or 'content'}: {x['msg']}"


def _text(value: Verdict) -> str:
    lines = [
        f"{value.verdict.upper()}: {value.reason}",
        f"judged {value.as_of} under policy {value.policy}" + _limits(value),
        *_changed(value),
        "",
    ]
    for tier, judged in value.tiers.items():
        mark = " (candidate)" if tier == value.candidate else " (reference)" if tier == value.reference else ""
        lines.append(f"{tier + mark:28} {judged.verdict:10} {_counts(judged.rules)}")
    notable = [r for r in value.judged.rules if r.outcome in {"fail", "undecided"}]
    if notable:
        lines += ["", f"rules of {value.candidate} that fail or are undecided:"]
    for r in notable:
        waived = " (waived)" if r.waiver and not r.waiver["expired"] else ""
        lines.append(f"  {SYMBOLS[r.outcome]} {r.outcome}{waived}, {r.severity}: {r.title}: {r.detail}")
        if r.would_decide:
            lines.append(f"      would decide it: {r.would_decide}")
    for row in value.diagnosis:
        if row.cause is not None:
            lines += ["", f"{row.symptom}: {row.cause} ({row.figure}); try: {row.knob}"]
    if value.settle:
        lines += ["", *_settle(value)]
    if len(value.attempts) > 1:
        words = ", ".join(a.verdict for a in value.attempts)
        lines += ["", f"attempt {len(value.attempts)} at this build: {words}"]
    return "\n".join(lines)


def _limits(value: Verdict) -> str:
    return "" if value.limits_for is None else f", whose latency limits are for machines of class {value.limits_for}"


def _changed(value: Verdict) -> list[str]:
    if value.what_changed is None:
        return []
    lines = []
    for against, parts in value.what_changed.changed.items():
        mixed = " (confounded: no difference can be attributed)" if against in value.what_changed.confounded else ""
        lines.append(f"changed against {against}: {', '.join(parts) or 'nothing'}{mixed}")
    return lines


def _settle(value: Verdict) -> list[str]:
    """The whole of what would settle it: each rule's need stands above, so here only the time and the budget."""
    times = [s.minutes for s in value.settle if s.minutes is not None]
    other = [s.rule for s in value.settle if s.minutes is None]
    lines = []
    if times:
        budget = value.budget_minutes
        within = "" if budget is None else f" ({'within' if max(times) <= budget else 'over'} the budget of {budget:g})"
        lines.append(f"would settle it: about {max(times):.1f} more minutes of measuring{within}")
    if other:
        lines.append(f"not settled by measuring longer: {', '.join(other)}")
    return lines


def _counts(rules: list[RuleResult]) -> str:
    blocking = [r for r in rules if r.severity == "blocking"]
    said = [
        (sum(r.outcome == o for r in blocking), w)
        for o, w in (("pass", "pass"), ("fail", "fail"), ("undecided", "undecided"))
    ]
    return "blocking rules: " + ", ".join(f"{n} {w}" for n, w in said if n)
