"""``extract.match``: is the answer the phrase that was asked for?

The rule, in order:

1. The first line of the answer that is not blank is read; a leading "Answer:" or "The answer is" is dropped.
2. Both sides are normalised: compatibility forms, case, quotes, punctuation (but not inside a number or a time),
   thousands separators, the articles a, an, the, and runs of white space.
3. The answer is right if it equals one of the accepted answers, or if one of them occurs in it as whole words and the
   line has at most ``SLACK_WORDS`` words besides: "It is in Paris." answers "Paris"; copying the passage does not.

Token F1 (Rajpurkar et al. 2016, section 6.1) against the nearest accepted answer is reported as a detail, not graded.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from pipeline.evaluation.graders.base import Answer, Grade, GraderParams, GraderSpec, need_generation
from pipeline.evaluation.items import Item

SLACK_WORDS = 12

_LEAD = re.compile(r"^\W*(?:the\s+)?(?:final\s+|correct\s+)?answer\s*(?:is\b\s*:?|:)\s*", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PUNCTUATION = re.compile(r"(?<=\d)(?P<inside>[.:])(?=\d)|[^\w\s]|_")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Params(GraderParams):
    pass


def first_line(text: str) -> str:
    line = next((x.strip() for x in text.splitlines() if x.strip()), "")
    return _LEAD.sub("", line)


def normalise(text: str) -> str:
    """Rule 2 of the module: what is left is words separated by single spaces."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"['’]s\b", "s", text)
    text = _PUNCTUATION.sub(lambda m: m["inside"] or " ", _THOUSANDS.sub("", text))
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(answer: str, accepted: str) -> float:
    """Harmonic mean of precision and recall over the words of two normalised texts."""
    a, b = answer.split(), accepted.split()
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if common else 0.0


def accepted_answers(item: Item) -> list[str]:
    return [item.reference] if isinstance(item.reference, str) else list(item.reference)


def check(item: Item, params: Params) -> None:
    need_generation(item)
    ok = isinstance(item.reference, str) or (
        isinstance(item.reference, list) and item.reference and all(isinstance(x, str) for x in item.reference)
    )
    if not ok:
        raise ValueError(f"reference is {item.reference!r}; expected a text or a list of accepted texts")
    for text in accepted_answers(item):
        if not normalise(text):
            raise ValueError(f"the accepted answer {text!r} is nothing but punctuation, articles or white space")


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    line = first_line(answer.text)
    given = normalise(line)
    accepted = [normalise(x) for x in accepted_answers(item)]
    f1 = max(token_f1(given, x) for x in accepted)
    exact = given in accepted
    held = [x for x in accepted if f" {x} " in f" {given} "]
    close = any(len(given.split()) - len(x.split()) <= SLACK_WORDS for x in held)
    reason = None
    if not (exact or close):
        if not given:
            reason = "the answer is empty"
        elif held:
            reason = f"the phrase is there, among more than {SLACK_WORDS} other words"
        else:
            reason = "none of the accepted answers is in the first line"
    return Grade(exact or close, reason, line, detail={"exact": exact, "token_f1": f1})


SPEC = GraderSpec("extract.match", "1", Params, grade, check)
