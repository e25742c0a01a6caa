"""Greedy answers of both sides to the same items: which changed, and which of those turned right or wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from scipy import stats

from pipeline.ab.seeds import seed_problems
from pipeline.ab.sides import Side
from pipeline.errors import SeatrialError
from pipeline.evaluation import outputs
from pipeline.evaluation.cache import open_cache
from pipeline.evaluation.items import EVALSETS, Item, load_evalset
from pipeline.evaluation.run import Judged, answer_all, judge_all, select
from pipeline.params import Params
from pipeline.stage import Stage
from pipeline.targets.capabilities import PREFIX
from pipeline.targets.target import Target

SHOWN = 10


def compare_answers(
    base: Side, candidate: Side, params: Params, per_scenario: int | None, logs: Path, s: Stage
) -> dict[str, Any]:
    """Asks both sides the current evalset, one after the other.

    Args:
        per_scenario: the first so many items of each scenario; None: all.

    Raises:
        SeatrialError: a server that does not come up, dies or answers nonsense.
    """
    evalset = load_evalset(EVALSETS / params.evaluation.evalset)
    items = select(evalset.items, per_scenario)
    a, b = (
        judged_answers(side, items, params.evaluation.concurrency, logs / f"quality-{name}.log", s)
        for name, side in (("base", base), ("candidate", candidate))
    )
    seeds = {}
    for name, side in (("base", base), ("candidate", candidate)):
        with side.open(logs / f"seeds-{name}.log") as target:
            seeds[name] = _seeds(target)
    return compared(a, b) | {"seed_problems": seeds, "evalset": evalset.identity.name}


def _seeds(target: Target) -> list[str]:
    """A server of another project may refuse a seed: that is told, and says nothing against the answers."""
    try:
        return seed_problems(target.base_url, target.model_name, target.key)
    except SeatrialError as e:
        if target.bundled:
            raise
        return [f"{PREFIX}: {e}"]


def compared(base: list[Judged], candidate: list[Judged]) -> dict[str, Any]:
    """Of the same items in the same order. ``mcnemar_p``: two-sided and exact, on the items that turned.

    Items that one side lacks a capability for are counted in ``not_comparable`` and nowhere else.
    """
    changed, lost, gained = [], [], []
    lacking = [a.answered.lacks or b.answered.lacks for a, b in zip(base, candidate, strict=True)]
    pairs = [(a, b) for a, b, lacks in zip(base, candidate, lacking, strict=True) if lacks is None]
    for a, b in pairs:
        item = a.answered.item.id
        if answer_of(a) != answer_of(b):
            changed.append(item)
        if a.grade.correct and not b.grade.correct:
            lost.append(item)
        if b.grade.correct and not a.grade.correct:
            gained.append(item)
    turned = len(lost) + len(gained)
    p = float(stats.binomtest(len(lost), turned, 0.5).pvalue) if turned else 1.0
    return {
        "items": len(pairs),
        "not_comparable": dict(Counter(name for name in lacking if name is not None)),
        "answers_changed": len(changed),
        "lost": len(lost),
        "gained": len(gained),
        "mcnemar_p": p,
        "examples": {"changed": changed[:SHOWN], "lost": lost[:SHOWN], "gained": gained[:SHOWN]},
    }


def answer_of(j: Judged) -> Any:
    """What was answered, to the last byte; of scored choices their log-probabilities."""
    reply = j.answered.reply
    return None if reply is None else (reply.text, reply.finish_reason, reply.choice_logprobs)


def judged_answers(side: Side, items: list[Item], concurrency: int, log: Path, s: Stage) -> list[Judged]:
    """Every item asked of a fresh boot of the side, nothing reused, and judged.

    Raises:
        SeatrialError: the server does not come up, dies or answers nonsense.
    """
    with side.open(log) as target, open_cache(None) as cache, s.progress(len(items), "items") as bar:
        answered = answer_all(items, target, cache, concurrency, bar.advance)
    outputs.remember(outputs.of_answers(answered, f"{target.model_name} {side.identities[0].digest[:12]}"))
    return judge_all(answered, lambda: None)
