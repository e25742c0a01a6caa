"""``choice.loglikelihood``: which continuation of the prompt the model finds likeliest.

Each choice is scored as ``sum log p(token | everything before)`` over the choice's own tokens (the scheme of
Brown et al. 2020, section 2.4); ``normalise: tokens`` divides by their number, which takes away the advantage of
short choices. On a tie the lowest index wins, so that a model that cannot tell the choices apart has one answer.
"""

from __future__ import annotations

import math
from typing import Literal

from pipeline.evaluation.graders.base import Answer, Grade, GraderParams, GraderSpec
from pipeline.evaluation.items import Item


class Params(GraderParams):
    normalise: Literal["none", "tokens"] = "none"


def check(item: Item, params: Params) -> None:
    if item.prompt is None or item.messages is not None:
        raise ValueError("choices continue a raw `prompt`; expected `prompt` and no `messages`")
    if not item.choices or len(item.choices) < 2 or any(not c for c in item.choices):
        raise ValueError("expected `choices` with at least two texts, none of them empty")
    if len(set(item.choices)) != len(item.choices):
        raise ValueError("two of `choices` are the same text; only one of them could ever be chosen")
    if isinstance(item.reference, bool) or not isinstance(item.reference, int):
        raise ValueError(f"reference is {item.reference!r}; expected the 0-based index of the right choice")
    if not 0 <= item.reference < len(item.choices):
        raise ValueError(f"reference is {item.reference}, but there are {len(item.choices)} choices, counted from 0")
    if item.max_tokens != 0:
        raise ValueError(f"max_tokens is {item.max_tokens}; expected 0, nothing is generated for a choice")
    if not item.prompt or item.prompt[-1].isspace():
        raise ValueError("the prompt is empty or ends in white space; put the space at the start of each choice")


def score(logprobs: list[float], normalise: Literal["none", "tokens"]) -> float:
    """Log-likelihood of one choice from those of its tokens."""
    total = math.fsum(logprobs)
    return total / len(logprobs) if normalise == "tokens" else total


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    if item.choices is None or answer.choice_logprobs is None:
        raise ValueError(f"item {item.id}: choice.loglikelihood needs the log-probabilities of its choices")
    scores = [score(x, params.normalise) for x in answer.choice_logprobs]
    chosen = max(range(len(scores)), key=lambda i: (scores[i], -i))
    right = chosen == item.reference
    others = [s for i, s in enumerate(scores) if i != item.reference]
    return Grade(
        correct=right,
        reason=None if right else f"chose {chosen}, the right one is {item.reference}",
        shown=f"{chosen}: {item.choices[chosen].strip()}",
        detail={"scores": scores, "margin": scores[item.reference] - max(others)},
    )


SPEC = GraderSpec("choice.loglikelihood", "1", Params, grade, check, scores_choices=True)
