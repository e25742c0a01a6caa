"""The first screen: the verdict, why, of what, what changed, where and when, and what would settle it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pipeline.provenance import FOUR, Header, Machine
from pipeline.report import numbers as say
from pipeline.report.inputs import Json, RunData, TierData

WORDS = {"ship": "Ship", "hold": "Hold", "undecided": "Undecided"}
NONE = "No verdict"
OUTCOMES = {
    "pass": ("✓", "pass"),
    "fail": ("✗", "fail"),
    "undecided": ("?", "undecided"),
    "not_applicable": ("–", "not applicable"),
}


@dataclass(frozen=True)
class Identity:
    """One of the four, for the reference and the candidate."""

    what: str
    candidate: tuple[str, str] | None  # name, digest
    reference: tuple[str, str] | None
    same: bool | None  # None: unknown


@dataclass(frozen=True)
class PairRow:
    """One of the four identities in the candidate, the reference and the baseline: (name, digest, differs)."""

    what: str
    candidate: tuple[str, str] | None
    reference: tuple[str, str, bool] | None
    baseline: tuple[str, str, bool] | None


@dataclass(frozen=True)
class SettleRow:
    """What would settle a rule that leaves the verdict undecided."""

    title: str
    what: str
    minutes: float | None

    @property
    def text(self) -> str:
        time = "" if self.minutes is None else f" (about {say.number(float(self.minutes), 2)} min of measuring)"
        return f"{self.title}: {self.what}{time}"


@dataclass(frozen=True)
class Rule:
    """A rule of the gate, made ready for a row."""

    raw: Json
    symbol: str
    word: str
    value: str
    limit: str
    interval: str
    bullet: dict[str, float] | None

    @property
    def blocking(self) -> bool:
        return self.raw.get("severity") == "blocking"

    @property
    def outcome(self) -> str:
        return str(self.raw.get("outcome") or "undecided")

    @property
    def counts(self) -> bool:
        return not self.raw.get("waiver")


def header_of(tier: TierData | None, part: str) -> Header | None:
    """The provenance of a tier's ``eval`` or ``load`` result; None where it has none that this version reads."""
    source = getattr(tier, part, None) if tier else None
    try:
        return Header.model_validate((source or {}).get("header"))
    except ValidationError:
        return None


def identities(run: RunData, tier: str, against: str) -> list[Identity]:
    """Model, engine and quantisation once; the workload twice: evalset and load profile."""
    rows = []
    for what in (*FOUR[:3], "evalset", "workload"):
        part = "load" if what == "workload" else "eval"
        names: list[tuple[str, str] | None] = []
        for name in (tier, against):
            header = header_of(run.tiers.get(name), part)
            if header is None and what in FOUR[:3]:
                header = header_of(run.tiers.get(name), "load")
            named = getattr(header, "workload" if what in {"evalset", "workload"} else what) if header else None
            names.append((named.name, named.digest) if named else None)
        a, b = names
        rows.append(Identity(what, a, b, None if a is None or b is None else a[1] == b[1]))
    return rows


def changed_in_words(rows: list[Identity]) -> tuple[str, str]:
    """(headline, detail): what a difference between the two may be attributed to."""
    unknown = [r.what for r in rows if r.same is None]
    changed = [r for r in rows if r.same is False]
    causes = {"workload" if r.what == "evalset" else r.what for r in changed}
    gap = f" Unknown: {', '.join(unknown)} (no provenance)." if unknown else ""
    if not changed:
        return ("Nothing known to differ" if unknown else "Nothing differs"), gap.strip()
    told = "; ".join(f"{r.what}: {r.reference[0]} → {r.candidate[0]}" for r in changed if r.reference and r.candidate)
    if len(causes) > 1:
        return f"{len(causes)} of the four differ: confounded", f"{told}. A difference cannot be attributed.{gap}"
    return f"Only the {changed[0].what} differs", f"{told}.{gap}"


def _bullet(rule: Json) -> dict[str, float] | None:
    """Positions 0..100 of interval, value and limit on an axis of their own, and which side of the limit is good."""
    value, limit, interval = rule.get("value"), rule.get("limit"), rule.get("interval")
    if value is None or limit is None or not say.is_number(value) or not say.is_number(limit):
        return None
    ends = [v for v in (interval or []) if say.is_number(v)]
    marks = [float(v) for v in (value, limit, *ends)]
    if rule.get("better") == "lower" and min(marks) >= 0:
        marks.append(0.0)
    low, high = min(marks), max(marks)
    if high == low:
        low, high = low - 1, high + 1
    pad = 0.08 * (high - low)
    low, high = (low if 0.0 in marks and low == 0 else low - pad), high + pad

    def at(v: float) -> float:
        return round(100 * (v - low) / (high - low), 2)

    # An open end (null, a one-sided bound) runs to the edge of the axis.
    first, last = interval if interval and len(interval) == 2 else (value, value)
    lo, hi = low if first is None else first, high if last is None else last
    good_left = rule.get("better") != "higher"
    return {
        "value": at(value),
        "limit": at(limit),
        "lo": at(lo),
        "hi": at(hi),
        "good_from": 0.0 if good_left else at(limit),
        "good_to": at(limit) if good_left else 100.0,
    }


def _span(interval: Any, unit: str | None) -> str:
    """[240, 420] -> "240 … 420 ms": the unit once where both ends have the same. [None, 420] -> "up to 420 ms"."""
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return ""
    low, high = (None if v is None else say.with_unit(v, unit) for v in interval)
    if low is None or high is None:
        return f"up to {high}" if high else f"from {low}" if low else "unbounded"
    (a, _, first), (b, _, second) = low.partition(" "), high.partition(" ")
    return f"{a} … {b} {first}".strip() if first == second else f"{low} … {high}"


def ready(rule: Json) -> Rule:
    symbol, word = OUTCOMES.get(str(rule.get("outcome")), ("?", str(rule.get("outcome"))))
    unit = rule.get("unit")
    return Rule(
        raw=rule,
        symbol=symbol,
        word=word,
        value=say.with_unit(rule.get("value"), unit),
        limit=say.with_unit(rule.get("limit"), unit) if rule.get("limit") is not None else "",
        interval=_span(rule.get("interval"), unit),
        bullet=_bullet(rule),
    )


def rules_of(run: RunData, tier: str) -> list[Rule]:
    """A tier's rules, most serious first: failing, undecided, then the rest; blocking before advisory."""
    order = {"fail": 0, "undecided": 1, "pass": 2, "not_applicable": 3}
    rules = [ready(r) for r in run.verdict_of(tier).get("rules") or [] if isinstance(r, dict)]
    return sorted(rules, key=lambda r: (order.get(r.outcome, 1), not r.blocking))


@dataclass(frozen=True)
class Summary:
    """All that the first screen and the Markdown summary say."""

    verdict: str  # ship | hold | undecided | none
    word: str
    reason: str
    candidate: str
    reference: str
    baseline: str
    policy: str
    headline: str
    detail: str
    identities: list[Identity]
    machines: list[str]
    measured: str
    as_of: str
    counts: dict[str, int]
    advisory: int
    against_baseline: str
    would_decide: list[tuple[str, str, bool]]  # rule, what would settle it, whether it blocks
    waivers: list[Json]
    attempts: list[Any]
    pair: list[PairRow]
    confounded: list[str]  # against which of reference and baseline more than one of the four differ
    settle: list[SettleRow]  # empty unless undecided
    settle_time: str
    deciding: str  # id of the rule that decided, empty where none did


def _pair(run: RunData, rows: list[Identity]) -> list[PairRow]:
    """Side by side. The baseline's identities are those that its release record holds."""
    release, out = run.release, []
    for r in rows:
        then = None
        if release is not None:
            header = release.load if r.what == "workload" else release.evaluation
            named = getattr(header, "workload" if r.what in {"evalset", "workload"} else r.what)
            then = (named.name, named.digest, r.candidate is not None and named.digest != r.candidate[1])
        reference = None if r.reference is None else (*r.reference, r.same is False)
        out.append(PairRow(r.what, r.candidate, reference, then))
    return out


def _settle(verdict: Json, rules: list[Rule]) -> tuple[list[SettleRow], str]:
    """(the rules' needs, the time in all against the policy's budget)."""
    titles = {str(r.raw.get("id")): str(r.raw.get("title") or r.raw.get("id")) for r in rules}
    rows = []
    for entry in verdict.get("settle") or []:
        minutes = entry.get("minutes")
        known = float(minutes) if say.is_number(minutes) else None
        rule = str(entry.get("rule"))
        rows.append(SettleRow(titles.get(rule, rule), str(entry.get("what") or "more evidence"), known))
    times = [r.minutes for r in rows if r.minutes is not None]
    if not times:
        return rows, ""
    budget = verdict.get("budget_minutes")
    within = "within" if say.is_number(budget) and max(times) <= float(budget or 0) else "over"
    held = f", {within} the policy's budget of {say.number(budget)} min" if say.is_number(budget) else ""
    return rows, f"In all about {say.number(max(times), 2)} more minutes of measuring{held}."


def _machines(run: RunData) -> tuple[list[str], list[str]]:
    classes: dict[str, None] = {}
    moments: set[str] = set()
    for tier in run.tiers.values():
        for part in ("eval", "load"):
            header = header_of(tier, part)
            if header:
                machine: Machine = header.machine
                classes.setdefault(machine.machine_class)
                moments.add(header.measured_at)
    return list(classes), sorted(moments)


def _against_baseline(verdict: Json, pair: list[PairRow]) -> str:
    """What differs from the release in service, as the gate found it, else as its record says; empty where there is
    none.
    """
    parts = ((verdict.get("what_changed") or {}).get("against") or {}).get("baseline")
    rows = []
    if not isinstance(parts, dict):
        if not any(r.baseline for r in pair):
            return ""
        parts = {}
        rows = [
            Identity(r.what, r.candidate, r.baseline[:2] if r.baseline else None, not r.baseline[2])
            for r in pair
            if r.baseline and r.candidate
        ]
    for part, sides in parts.items():
        now, then = ((sides[k]["name"], sides[k]["digest"]) for k in ("now", "then"))
        rows.append(Identity("evalset" if part == "workload" else part, now, then, not sides["differs"]))
    headline, detail = changed_in_words(rows)
    return f"{headline}. {detail}".strip()


def summarise(run: RunData) -> Summary:
    verdict = run.verdict or {}
    word = str(verdict.get("verdict") or "none")
    rows = identities(run, run.candidate, run.reference)
    headline, detail = changed_in_words(rows)
    if run.candidate == run.reference:
        headline, detail = (
            "The candidate is the reference tier",
            "There is nothing to compare it with but absolute limits.",
        )
    machines, moments = _machines(run)
    measured = " to ".join(dict.fromkeys(say.moment(m) for m in (moments[:1] + moments[-1:])))
    rules = rules_of(run, run.candidate)
    baseline = verdict.get("baseline")
    settle, settle_time = _settle(verdict, rules)
    pair = _pair(run, rows)
    decided = run.verdict_of(run.candidate).get("deciding") or []
    return Summary(
        verdict=word if word in WORDS else "none",
        word=WORDS.get(word, NONE),
        reason=str(verdict.get("reason") or run.missing.get("verdict") or "The gate gave no reason."),
        candidate=run.candidate,
        reference=run.reference,
        baseline=str(baseline.get("name") or "unnamed release") if isinstance(baseline, dict) else "none yet",
        policy=str(verdict.get("policy") or run.params.gate.get("policy") or "unknown"),
        headline=headline,
        detail=detail,
        identities=rows,
        machines=machines,
        measured=measured,
        as_of=say.moment(verdict.get("as_of")) if verdict.get("as_of") else "",
        counts=dict(Counter(r.outcome for r in rules)),
        advisory=sum(not r.blocking and r.outcome in {"fail", "undecided"} for r in rules),
        against_baseline=_against_baseline(verdict, pair),
        would_decide=[
            (str(r.raw.get("title") or r.raw.get("id")), str(r.raw["would_decide"]), r.blocking)
            for r in rules
            if r.outcome == "undecided" and r.raw.get("would_decide")
        ],
        waivers=[w for w in verdict.get("waivers") or [] if isinstance(w, dict)],
        attempts=list(verdict.get("attempts") or []),
        pair=pair,
        confounded=[str(c) for c in (verdict.get("what_changed") or {}).get("confounded") or []],
        settle=settle,
        settle_time=settle_time,
        deciding=str(decided[0]) if decided else "",
    )
