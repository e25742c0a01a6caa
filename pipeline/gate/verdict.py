"""verdict.json, and the exit code that it stands for: 0 ship, 1 hold, 2 undecided."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.gate.inputs import input_digests

VERDICT = Path("reports/verdict.json")
EXIT_CODES = {"ship": 0, "hold": 1, "undecided": 2}
SYMBOLS = {"pass": "+", "fail": "x", "undecided": "?", "not_applicable": "."}


def verdict_exit_code(path: Path = VERDICT) -> tuple[int, str]:
    """(exit code, text). A verdict that is missing, unreadable or older than the results it rests on is undecided.

    Waivers are checked against today's date again: one that has expired since takes a "ship" back.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        code = EXIT_CODES[value["verdict"]]
        changed = [
            name for name, digest in input_digests(list(value["tiers"])).items() if value["inputs"][name] != digest
        ]
    except FileNotFoundError:
        return 2, f"UNDECIDED: there is no {path}; run `make trial` first"
    except (OSError, ValueError, KeyError, TypeError) as e:
        return (
            2,
            f"UNDECIDED: {path} is not a verdict that this version reads ({type(e).__name__}: {e}); run the gate again",
        )
    if changed:
        return 2, f"UNDECIDED: {path} is stale: {changed[0]} has changed since; run `make trial` again"
    text = _text(value)
    today = datetime.now(UTC).date().isoformat()
    if lapsed := [w for w in value["waivers"] if not w["expired"] and w["expires"] < today and code == 0]:
        w = lapsed[0]
        return 1, f"HOLD: the waiver of {w['rule']} for {w['tier']} by {w['owner']} expired on {w['expires']}\n\n{text}"
    return code, text


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
