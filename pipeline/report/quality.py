"""Quality by scenario, flips against the reference, pinned cases, and the difference of two answers word by word."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipeline.report.inputs import Json, RunData, TierData

LONGEST = 2000  # characters of an answer that are compared and shown


@dataclass(frozen=True)
class Flip:
    """One item whose grade differs between the reference and a tier."""

    id: str
    scenario: str
    pinned: bool
    lost: bool  # right in the reference, wrong in the tier
    prompt: str
    expected: str
    reference_answer: Markup
    tier_answer: Markup
    reference_note: str
    tier_note: str


@dataclass(frozen=True)
class Flips:
    """A tier against the reference over the items that both have."""

    compared: int
    same_text: int
    lost: list[Flip]
    gained: list[Flip]
    unpaired: int

    @property
    def all(self) -> list[Flip]:
        return self.lost + self.gained


def _clip(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text):,} characters in all)"


def word_diff(before: str, after: str) -> tuple[Markup, Markup]:
    """Both texts escaped, words only in the first in ``<del>``, words only in the second in ``<ins>``."""
    a, b = (re.findall(r"\s+|[^\W_]+|[\W_]", _clip(t)) for t in (before, after))
    left, right = Markup(), Markup()
    for op, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        old, new = escape("".join(a[i:j])), escape("".join(b[k:m]))
        if op == "equal":
            left, right = left + old, right + new
        else:
            left += Markup("<del>") + old + Markup("</del>") if old else Markup()
            right += Markup("<ins>") + new + Markup("</ins>") if new else Markup()
    return left, right


def _answer(item: Json) -> str:
    answer = item.get("answer")
    return "" if answer is None else str(answer)


def _note(item: Json) -> str:
    if item.get("status") == "error":
        return f"error: {item.get('reason') or 'no reason given'}"
    parts = ["right" if item.get("correct") else f"wrong{': ' + str(item['reason']) if item.get('reason') else ''}"]
    if item.get("finish_reason") == "length":
        parts.append("cut off at max_tokens")
    return ", ".join(parts)


def _flip(before: Json, after: Json) -> Flip:
    left, right = word_diff(_answer(before), _answer(after))
    return Flip(
        id=str(before["id"]),
        scenario=str(before.get("scenario", "")),
        pinned=before.get("origin") == "pinned",
        lost=bool(before.get("correct")),
        prompt=str(before.get("prompt_text") or ""),
        expected="" if before.get("reference") is None else str(before["reference"]),
        reference_answer=left,
        tier_answer=right,
        reference_note=_note(before),
        tier_note=_note(after),
    )


def flips_of(reference: TierData, tier: TierData) -> Flips | None:
    """Pairs the items by id; pinned flips first. None where one side has no items."""
    if reference.items is None or tier.items is None:
        return None
    there = {str(i["id"]): i for i in tier.items}
    pairs = [(i, there[str(i["id"])]) for i in reference.items if str(i["id"]) in there]
    changed = [_flip(a, b) for a, b in pairs if bool(a.get("correct")) != bool(b.get("correct"))]
    changed.sort(key=lambda f: (not f.pinned, f.scenario, f.id))
    return Flips(
        compared=len(pairs),
        same_text=sum(_answer(a) == _answer(b) for a, b in pairs),
        lost=[f for f in changed if f.lost],
        gained=[f for f in changed if not f.lost],
        unpaired=len(reference.items) + len(tier.items) - 2 * len(pairs),
    )


@dataclass(frozen=True)
class PinnedCase:
    id: str
    scenario: str
    prompt: str
    outcomes: dict[str, bool | None]  # tier: right; None where the tier has no answer
    broken: list[str]  # tiers that fail what the reference passes


def pinned_cases(run: RunData) -> list[PinnedCase]:
    """Every pinned item with its outcome in each tier; those that a tier breaks come first."""
    by_tier = {name: {str(i["id"]): i for i in t.items or []} for name, t in run.tiers.items()}
    found: dict[str, Json] = {}
    for items in by_tier.values():
        for key, item in items.items():
            if item.get("origin") == "pinned":
                found.setdefault(key, item)
    cases = []
    for key, item in found.items():
        outcomes = {t: bool(items[key].get("correct")) if key in items else None for t, items in by_tier.items()}
        good = outcomes.get(run.reference)
        cases.append(
            PinnedCase(
                id=key,
                scenario=str(item.get("scenario", "")),
                prompt=str(item.get("prompt_text") or ""),
                outcomes=outcomes,
                broken=[t for t, right in outcomes.items() if good and right is False],
            )
        )
    return sorted(cases, key=lambda c: (not c.broken, c.scenario, c.id))


@dataclass(frozen=True)
class Blind:
    """Scenarios in which a loss would hardly show, each with the reason, by how ``tier`` does in them."""

    tier: str
    scenarios: dict[str, str]


def blind_of(run: RunData) -> Blind | None:
    """By the reference, since a loss is counted from it, else by the candidate; None where neither says."""
    for name in (run.reference, run.candidate):
        tier = run.tiers.get(name)
        told = (tier.eval or {}).get("sees_little") if tier else None
        if isinstance(told, dict):
            return Blind(name, {str(k): str(v) for k, v in told.items()})
    return None


def scenarios_of(run: RunData) -> list[str]:
    names: dict[str, None] = {}
    for tier in run.tiers.values():
        for name in (tier.eval or {}).get("scenarios") or {}:
            names.setdefault(str(name))
    return list(names)
