"""How much of a change of accuracy is due to the set, and how much to the model.

After a version of the set the release in service is scored on the new content as well. Then

    candidate(new) - baseline(old)  =  [baseline(new) - baseline(old)]  +  [candidate(new) - baseline(new)]
                                        due to the set                     due to the model

holds exactly, with the first part of the same model on two contents and the second of two models on one content, paired
by item. Only the second is the gate's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import SeatrialError

Scores = Mapping[str, float]  # item id -> score from 0 to 1


@dataclass(frozen=True)
class Attribution:
    """In points of accuracy. ``model_flips``: items that the candidate newly got wrong and newly got right."""

    total: float
    due_to_set: float
    due_to_model: float
    model_flips: tuple[int, int]
    paired: int

    def lines(self) -> list[str]:
        worse, better = self.model_flips
        return [
            f"accuracy changed by {self.total:+.1f} points: {self.due_to_set:+.1f} due to the set, "
            f"{self.due_to_model:+.1f} due to the model",
            f"by item, on the new content: {worse} newly wrong, {better} newly right, of {self.paired}",
        ]


def attribute(baseline_old: Scores, baseline_new: Scores, candidate_new: Scores) -> Attribution:
    """
    Raises:
        SeatrialError: no items, or candidate and baseline were not asked the same on the new content.
    """
    if not baseline_old or not baseline_new:
        raise SeatrialError("a result has no items; evaluate the baseline on the old and on the new content")
    if baseline_new.keys() != candidate_new.keys():
        only = sorted(baseline_new.keys() ^ candidate_new.keys())
        raise SeatrialError(
            f"{len(only)} items were asked of one of baseline and candidate only, for instance {only[0]}; evaluate "
            "both on the same version"
        )

    def accuracy(scores: Scores) -> float:
        return 100 * sum(scores.values()) / len(scores)

    old, new, candidate = accuracy(baseline_old), accuracy(baseline_new), accuracy(candidate_new)
    worse = sum(candidate_new[i] < baseline_new[i] for i in baseline_new)
    better = sum(candidate_new[i] > baseline_new[i] for i in baseline_new)
    return Attribution(candidate - old, new - old, candidate - new, (worse, better), len(baseline_new))


def scores_of(folder: Path) -> Scores:
    """The scores of ``items.jsonl`` in a folder of results.

    Raises:
        SeatrialError: no such file, or not rows of an evaluation.
    """
    path = folder / "items.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
        return {str(r["id"]): float(r["score"]) for r in rows}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SeatrialError(f"{path}: {e!r}; expected the folder that the stage evaluate wrote") from e
