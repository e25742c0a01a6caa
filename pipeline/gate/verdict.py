"""verdict.json, and the exit code that it stands for: 0 ship, 1 hold, 2 undecided."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.artifact import sha256_file
from pipeline.errors import SeatrialError
from pipeline.gate.inputs import input_digests
from pipeline.params import Params, load_params
from pipeline.provenance import digest_of
from pipeline.release.record import RELEASES

VERDICT = Path("reports/verdict.json")
EXIT_CODES = {"ship": 0, "hold": 1, "undecided": 2}
SYMBOLS = {"pass": "+", "fail": "x", "undecided": "?", "not_applicable": "."}


def what_was_asked(params: Params) -> str:
    """Digest of what a verdict rests on besides measurements: policies, waivers, roles, tiers and releases."""
    releases = {p.name: sha256_file(p) for p in sorted(RELEASES.glob("*.json"))}
    asked = {"gate": params.gate, "release": params.release.model_dump(), "tiers": params.tiers, "releases": releases}
    return digest_of(json.loads(json.dumps(asked, default=str)))


def verdict_exit_code(path: Path = VERDICT) -> tuple[int, str]:
    """(exit code, text). Run from the project's root. A verdict that is missing, unreadable or older than the results,
    the policy or the releases it rests on is undecided.

    Waivers are checked against today's date again: one that has expired since takes a "ship" back.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        text, code = _text(value), EXIT_CODES[value["verdict"]]
        judged = value["tiers"][value["candidate"]]
        if judged["verdict"] != value["verdict"]:
            raise ValueError(f"it says {value['verdict']}, but its candidate {judged['verdict']}")
        found, then = input_digests(list(value["tiers"])), value["inputs"]
        changed = [name for name in found | then if then.get(name) != found.get(name)]
        asked = value["asked"]
        lapsed = [r for r in judged["rules"] if r["severity"] == "blocking" and _lapsed(r)] if code == 0 else []
    except FileNotFoundError:
        return 2, f"UNDECIDED: there is no {path}; run `make trial` first"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
        why = f"{type(e).__name__}: {e}"
        return 2, f"UNDECIDED: {path} is not a verdict that this version reads ({why}); run `make trial` again"
    if changed:
        return 2, f"UNDECIDED: {path} is stale: {changed[0]} has changed since; run `make trial` again"
    try:
        now = what_was_asked(load_params())
    except (SeatrialError, OSError) as e:
        return 2, f"UNDECIDED: {path} cannot be held against today's params.yaml: {e}"
    if now != asked:
        why = "gate, release or tiers of params.yaml, or releases/, have changed since"
        return 2, f"UNDECIDED: {path} is stale: {why}; run `make trial` again"
    if lapsed:
        worst = next((r for r in lapsed if r["outcome"] == "fail"), lapsed[0])
        word, w = ("HOLD", worst["waiver"]) if worst["outcome"] == "fail" else ("UNDECIDED", worst["waiver"])
        said = f"the waiver of {w['rule']} for {w['tier']} by {w['owner']} expired on {w['expires']}"
        return EXIT_CODES[word.lower()], f"{word}: {said}\n\n{text}"
    return code, text


def _lapsed(rule: dict[str, Any]) -> bool:
    """Whether this rule got through by a waiver that has expired since."""
    waiver = rule["waiver"]
    today = datetime.now(UTC).date().isoformat()
    return bool(waiver) and not waiver["expired"] and waiver["expires"] < today


def _text(value: dict[str, Any]) -> str:
    lines = [
        f"{value['verdict'].upper()}: {value['reason']}",
        f"judged {value['as_of']} under policy {value['policy']}",
        "",
    ]
    for tier, judged in value["tiers"].items():
        mark = " (candidate)" if tier == value["candidate"] else " (reference)" if tier == value["reference"] else ""
        lines.append(f"{tier + mark:28} {judged['verdict']:10} {_counts(judged['rules'])}")
    notable = [r for r in value["tiers"][value["candidate"]]["rules"] if r["outcome"] in {"fail", "undecided"}]
    if notable:
        lines += ["", f"rules of {value['candidate']} that fail or are undecided:"]
    for r in notable:
        waived = " (waived)" if r["waiver"] and not r["waiver"]["expired"] else ""
        lines.append(f"  {SYMBOLS[r['outcome']]} {r['outcome']}{waived}, {r['severity']}: {r['title']}: {r['detail']}")
        if r["would_decide"]:
            lines.append(f"      would decide it: {r['would_decide']}")
    attempts = value["attempts"]
    if len(attempts) > 1:
        lines += ["", f"attempt {len(attempts)} at this build: " + ", ".join(a["verdict"] for a in attempts)]
    return "\n".join(lines)


def _counts(rules: list[dict[str, Any]]) -> str:
    blocking = [r for r in rules if r["severity"] == "blocking"]
    said = [
        (sum(r["outcome"] == o for r in blocking), w)
        for o, w in (("pass", "pass"), ("fail", "fail"), ("undecided", "undecided"))
    ]
    return "blocking rules: " + ", ".join(f"{n} {w}" for n, w in said if n)
