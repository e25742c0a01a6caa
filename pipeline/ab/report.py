"""ab.json as Markdown, for a pull request's comment or a terminal."""

from __future__ import annotations

from typing import Any

EXIT_CODES = {"ship": 0, "hold": 1, "undecided": 2}
UNITS = {"throughput": "tokens/s"}


def markdown(value: dict[str, Any]) -> str:
    """The verdict first, then one row a figure; above 1 is worse, for throughput too."""
    lines = [
        f"**{value['verdict'].upper()}**: {value['reason']}",
        "",
        *_cause(value.get("cause")),
        _side("base", value["base"]),
        _side("candidate", value["candidate"]),
        f"- {_differs(value['what_differs'])}",
        f"- {value['minutes']:.1f} minutes, {len(value['rounds'])} rounds ({_void(value)}), profile "
        f"{value['profile']}, seed {value['seed']}, margin {value['policy']['margin_percent']:g} %",
        f"- {_turns(value['turns'])}",
    ]
    if rows := [_row(e) for e in value["estimates"] if e["ratio"] is not None]:
        lines += [
            "",
            "| stage | figure | base | candidate | times worse | interval | outcome |",
            "| --- | --- | ---: | ---: | ---: | --- | --- |",
            *rows,
        ]
    lines += _work(value.get("work") or [])
    if missing := [e for e in value["estimates"] if e["ratio"] is None]:
        lines += ["", "Not compared: " + "; ".join(f"{e['stage']} {e['figure']}: {e['why']}" for e in missing) + "."]
    if gaps := value["not_comparable"]:
        lines += ["", "Cannot be compared:", "", *(f"- {gap}" for gap in gaps)]
    if told := _resolves(value):
        lines += ["", told]
    if quality := value.get("quality"):
        lines += [
            "",
            f"Quality ({quality['evalset']}, {quality['items']} items): {quality['answers_changed']} answers changed, "
            f"{quality['lost']} turned wrong, {quality['gained']} right (McNemar p = {quality['mcnemar_p']:.2g}).",
        ]
        for name, count in quality["not_comparable"].items():
            lines += [f"{count} more items were asked of one side only, since the other lacks {name}."]
        for side, problems in quality["seed_problems"].items():
            lines += [f"Seeds are not kept by the {side}: {'; '.join(problems)}."] if problems else []
    return "\n".join(lines) + "\n"


def _turns(turns: dict[str, Any]) -> str:
    if turns["turn_s"] is None:
        return f"whole rounds one after the other: {turns['why_not']}"
    return f"both sides in turns of {turns['turn_s']:g} s, each to its last answer, {turns['guard_s']:g} s between two"


def _void(value: dict[str, Any]) -> str:
    shares = [r["stolen_share"] for r in value["rounds"]]
    host = f"; the host took {min(shares):.1%} to {max(shares):.1%} of a round" if any(shares) else ""
    reasons = sorted({r["void"] for r in value["rounds"] if r["void"]})
    return f"{value['void_pairs']} pairs void{host}" + "".join(f"; {x}" for x in reasons[:1])


def _cause(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    if not found["causes"]:
        return [f"**Cause**: {found['why_none']}", ""]
    first, *more = found["causes"]
    lines = [f"**Cause**: {first['words']} ({first['symptom']}: {first['figure']}); try: {first['try']}", ""]
    others = [f"{c['words']} ({c['symptom']}: {c['figure']})" for c in more]
    return lines + ([f"Then: {'; '.join(others)}", ""] if others else [])


def _side(role: str, side: dict[str, Any]) -> str:
    commit = f" at {side['commit'][:12]}" if side["commit"] else ""
    return f"- {role}: `{side['given']}`{commit}: engine {side['engine']['name']}, {side['quantisation']['name']}"


def _differs(names: list[str]) -> str:
    if not names:
        return "both sides are the same build"
    if len(names) == 1:
        return f"they differ in {names[0]}"
    return f"confounded: {', '.join(names)} differ at once, so a difference cannot be attributed"


def _row(e: dict[str, Any]) -> str:
    unit = UNITS.get(e["figure"], "ms")
    a, b = ("" if e.get(k) is None else f"{e[k]:.1f} {unit}" for k in ("base", "candidate"))
    low, high = e["interval"]
    interval = f"{low:.3f} to {high:.3f}"
    return f"| {e['stage']} | {e['figure']} | {a} | {b} | {e['ratio']:.3f} | {interval} | {e['outcome']}{_role(e)} |"


def _work(rows: list[dict[str, Any]]) -> list[str]:
    """What was counted; counts that are the same on both sides share one line."""
    requests = sum({r["stage"]: r["requests"] for r in rows}.values())
    if not requests:
        return []
    lines = ["", f"Counted, so without noise, of {requests} requests that both sides answered:", ""]
    same = [r for r in rows if r["ratio"] == 1 and r["outcome"] == "pass"]
    lines += [f"- {r['stage']} {r['count']}: {r['outcome']}{_role(r)}: {r['why']}" for r in rows if r not in same]
    if same:
        lines.append("- the same on both sides: " + ", ".join(f"{r['stage']} {r['count']}" for r in same))
    return lines


def _role(row: dict[str, Any]) -> str:
    return "" if row["blocking"] else " (reported)"


def _resolves(value: dict[str, Any]) -> str | None:
    """Of the blocking figures the one that the machine resolves worst."""
    names = [f"{e['stage']}/{e['figure']}" for e in value["estimates"] if e["blocking"]]
    known = {n: value["resolves"][n] for n in names if n in value["resolves"]}
    if not known:
        return None
    worst = max(known, key=lambda n: known[n]["half_width_percent"])
    after = known[worst]["resolves_percent_after_minutes"]
    times = ", ".join(f"{p:.1f} % after {m} minutes" for m, p in after.items() if p is not None)
    return (
        f"This machine: half-width {known[worst]['half_width_percent']:.1f} % at most ({worst}); at this spread a "
        f"slowdown is told from none, with 80 % power, from {times}."
    )
