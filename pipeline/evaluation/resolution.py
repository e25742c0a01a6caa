"""In which scenarios a loss would hardly show, by how the evaluated model does in them.

A scenario at the level of guessing cannot see one: a model that knows nothing does as well. Where nearly all is wrong
there is little to lose, and where nearly all is right the items are easy enough for a worse model too. Such a scenario
still shows answers that change (flips, pinned cases, divergence); its accuracy is no evidence that nothing was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.evaluation.items import Item

LOWEST, HIGHEST = 0.20, 0.85


def chance_of(item: Item) -> float:
    """Share of such items that a guess gets right: of one that is written, none."""
    return 1 / len(item.choices) if item.choices else 0.0


def sees_little(items: Iterable[Item], rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Scenario -> why a loss would hardly show in it; scenarios that see one are left out.

    Guessing is told from knowing by the Wilson interval of the accuracy at 95 % (Wilson 1927).
    """
    from scipy import stats

    chance = {i.id: chance_of(i) for i in items}
    found: dict[str, str] = {}
    measured = [r for r in rows if not r.get("lacks")]  # what the server cannot do says nothing of the model
    for name in dict.fromkeys(r["scenario"] for r in measured):
        mine = [r for r in measured if r["scenario"] == name]
        n, right = len(mine), round(sum(r["score"] for r in mine))
        guessed = sum(chance[r["id"]] for r in mine) / n
        ends = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
        said = f"{right} of {n} right"
        if guessed and ends.low <= guessed:
            found[name] = f"{said} ({ends.low:.0%} to {ends.high:.0%}), and guessing gives {guessed:.0%}: no loss shows"
        elif right / n > HIGHEST:
            found[name] = f"{said}, over {HIGHEST:.0%}: items that a worse model gets right as well"
        elif right / n < LOWEST:
            found[name] = f"{said}, under {LOWEST:.0%}: there is little to lose"
    return found
