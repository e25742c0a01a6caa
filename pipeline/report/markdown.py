"""``reports/summary.md``: the verdict in a few lines of GitHub Markdown, for a pull-request comment."""

from __future__ import annotations

import re

from pipeline.report import numbers as say
from pipeline.report.inputs import RunData
from pipeline.report.plots import worst
from pipeline.report.summary import Rule, Summary, rules_of
from pipeline.report.tiers import TierFigures

SYMBOLS = {"ship": "🟢", "hold": "🔴", "undecided": "🟡"}
MOST_RULES = 12


def inline(text: object) -> str:
    """Text that Markdown, HTML and a table cell leave alone: no markup, mention or link can come out of it."""
    one_line = " ".join(str(text).split())
    # A plus or a minus opens a list at the start of a line only; escaped elsewhere it would be shown with its backslash
    # wherever the file is read as text.
    escaped = re.sub(r"([\\`*_{}\[\]#!|~<>]|^[+-])", r"\\\1", one_line)
    escaped = re.sub(r"\\([<>])", lambda m: {"<": "&lt;", ">": "&gt;"}[m[1]], escaped)
    return re.sub(r"(?i)(@|://|www\.)", lambda m: m[1][0] + "\u200b" + m[1][1:], escaped)


def _ms(value: float | None) -> str:
    return say.ABSENT if value is None else f"{say.milliseconds(value)} ms"


def _tier_row(run: RunData, f: TierFigures) -> list[str]:
    role = {run.candidate: " (candidate)", run.reference: " (reference)"}.get(f.tier, "")
    accuracy = say.share(f.accuracy.value)
    if f.delta.value is not None:
        accuracy += f" ({say.points(f.delta.value)})"
    speed = f.output_tokens_per_s.value
    weights = f.weights_bytes.value
    return [
        f"{inline(f.tier)}{role}",
        f"{SYMBOLS.get(f.verdict or '', '⚪')} {f.verdict or 'none'}",
        say.ABSENT if weights is None else f"{say.mebibytes(weights)} MiB",
        say.ABSENT if speed is None else f"{say.number(float(speed))} tok/s",
        _ms(worst(f, "ttft_ms", "p95")),
        _ms(worst(f, "itl_ms", "p95")),
        accuracy,
    ]


def _rule_line(rule: Rule) -> str:
    raw = rule.raw
    kind = "" if rule.blocking else " (advisory)"
    limit = f", limit {rule.limit}" if rule.limit else ""
    title = inline(raw.get("title") or raw.get("id"))
    line = f"- {rule.symbol} **{rule.word}**{kind}: {title}: {inline(rule.value + limit)}"
    if raw.get("detail"):
        line += f". {inline(raw['detail'])}"
    if raw.get("would_decide") and rule.outcome == "undecided":
        line += f" *Would decide it:* {inline(raw['would_decide'])}"
    if raw.get("waiver"):
        line += " *Its waiver has expired.*" if raw["waiver"].get("expired") else " *Waived.*"
    return line


def markdown(run: RunData, summary: Summary, figures: dict[str, TierFigures]) -> str:
    """Verdict, reason, what changed, the tier table, and each failing or undecided rule of the candidate."""
    mark = SYMBOLS.get(summary.verdict, "⚪")
    lines = [
        f"## {mark} Seatrial: {summary.word.upper()}",
        "",
        inline(summary.reason),
        "",
        f"Candidate **{inline(summary.candidate)}** against **{inline(summary.reference)}**, baseline: "
        f"{inline(summary.baseline)}. {inline(summary.headline)}.",
        "",
    ]
    if summary.settle:
        lines += ["### What would settle it", ""]
        lines += [f"- {inline(row.text)}" for row in summary.settle[:MOST_RULES]]
        lines += [""] if not summary.settle_time else ["", f"{inline(summary.settle_time)}", ""]
    head = ["tier", "verdict", "weights", "output", "worst P95 TTFT", "worst P95 ITL", "accuracy"]
    lines += [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * 2 + ['---:'] * 5)} |"]
    lines += [f"| {' | '.join(_tier_row(run, f))} |" for f in figures.values()]
    rules = [r for r in rules_of(run, run.candidate) if r.outcome in {"fail", "undecided"}]
    lines += ["", f"### {len(rules)} failing or undecided rule{'' if len(rules) == 1 else 's'}", ""] if rules else []
    lines += [_rule_line(r) for r in rules[:MOST_RULES]]
    if len(rules) > MOST_RULES:
        lines.append(f"- and {len(rules) - MOST_RULES} more on the scorecard")
    if run.verdict is not None and not rules:
        lines += ["", "No rule of the candidate fails or is undecided."]
    where = "; ".join(summary.machines)
    if where:
        lines += [
            "",
            f"Measured {inline(summary.measured)} on {inline(where)}. The evidence: `reports/scorecard.html`.",
        ]
    return "\n".join(lines) + "\n"
