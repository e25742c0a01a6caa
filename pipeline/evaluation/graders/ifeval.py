"""``instruct.ifeval``: instructions in the public form of Zhou et al. 2023 (IFEval), checked as they define them.

An item names instructions by their published ids with their published arguments; an answer is right if it obeys all of
them as it stands (the paper's strict accuracy). An empty answer obeys none.

Where the published checker leans on a language library this one has a rule of its own: sentences end at ``.``, ``!``
or ``?`` before white space, words are runs of letters, digits and underscores, and "in English" is not looked at for
the two instructions on capitals. ``language:response_language`` is not checked at all, so an item that has it is
refused rather than judged in part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.evaluation.graders.base import (
    Answer,
    Grade,
    GraderParams,
    GraderSpec,
    need_generation,
    need_no_reference,
)
from pipeline.evaluation.items import Item

_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]]*(?=\s|$)")
_RELATIONS = {"at least": lambda n, limit: n >= limit, "less than": lambda n, limit: n < limit}
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _matches(relation: str, n: int, limit: int) -> bool:
    return bool(_RELATIONS[relation](n, limit))


def _paragraphs(text: str) -> list[str] | None:
    """Parts between ``***``; None where one between two others is empty."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not p.strip() for p in parts[1:-1]):
        return None
    return [p for p in parts if p.strip()]


def _sentences(text: str, num_sentences: int, relation: str) -> bool:
    n = sum(bool(re.search(r"\w", s)) for s in _SENTENCE_END.split(text))
    return _matches(relation, n, num_sentences)


def _nth_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = [p.strip() for p in re.split(r"\n\n", text) if p.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
        return False
    first = re.match(r"[\"'“‘(*_]*([^\s.,?!'\"’”:;)*_]+)", parts[nth_paragraph - 1])
    return bool(first) and first[1].casefold() == first_word.casefold()  # type: ignore[index]


def _postscript(text: str, postscript_marker: str) -> bool:
    spaced = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    wanted = spaced.get(postscript_marker, re.escape(postscript_marker.casefold()))
    return bool(re.search(wanted, text.casefold()))


def _bullets(text: str, num_bullets: int) -> bool:
    starred = re.findall(r"^\s*\*[^*].*$", text, re.MULTILINE)
    dashed = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(starred) + len(dashed) == num_bullets


def _highlights(text: str, num_highlights: int) -> bool:
    single = [h for h in re.findall(r"\*[^\n*]*\*", text) if h.strip("*").strip()]
    double = [h for h in re.findall(r"\*\*[^\n*]*\*\*", text) if h.strip("*").strip()]
    return len(single) + len(double) >= num_highlights


def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.split(rf"\s?{re.escape(section_spliter)}\s?\d+\s?", text)) - 1 >= num_sections


def _json(text: str) -> bool:
    body = re.sub(r"^```(?:json|JSON|Json)?\s*|\s*```$", "", text.strip())
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(text: str) -> bool:
    parts = text.split("******")
    if any(not p.strip() for p in parts[1:-1]):
        return False
    said = [p.strip() for p in parts if p.strip()]
    return len(said) == 2 and said[0] != said[1]


def _capital_words(text: str, capital_frequency: int, capital_relation: str) -> bool:
    n = sum(w.isupper() for w in re.findall(r"\w+(?:['’.-]\w+)*", text))
    return _matches(capital_relation, n, capital_frequency)


def _letters(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _matches(let_relation, text.casefold().count(letter.casefold()), let_frequency)


def _frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _matches(relation, len(re.findall(re.escape(keyword), text, re.IGNORECASE)), frequency)


@dataclass(frozen=True)
class Instruction:
    """``obeyed(text, **arguments)``; ``arguments`` are those that the published form gives, with their types."""

    obeyed: Callable[..., bool]
    arguments: dict[str, type] | None = None


INSTRUCTIONS: dict[str, Instruction] = {
    "keywords:existence": Instruction(
        lambda text, keywords: all(re.search(re.escape(k), text, re.IGNORECASE) for k in keywords), {"keywords": list}
    ),
    "keywords:frequency": Instruction(_frequency, {"keyword": str, "frequency": int, "relation": str}),
    "keywords:forbidden_words": Instruction(
        lambda text, forbidden_words: (
            not any(re.search(rf"\b{re.escape(w)}\b", text, re.IGNORECASE) for w in forbidden_words)
        ),
        {"forbidden_words": list},
    ),
    "keywords:letter_frequency": Instruction(_letters, {"letter": str, "let_frequency": int, "let_relation": str}),
    "length_constraints:number_sentences": Instruction(_sentences, {"num_sentences": int, "relation": str}),
    "length_constraints:number_paragraphs": Instruction(
        lambda text, num_paragraphs: len(_paragraphs(text) or ()) == num_paragraphs, {"num_paragraphs": int}
    ),
    "length_constraints:number_words": Instruction(
        lambda text, num_words, relation: _matches(relation, len(re.findall(r"\w+", text)), num_words),
        {"num_words": int, "relation": str},
    ),
    "length_constraints:nth_paragraph_first_word": Instruction(
        _nth_first_word, {"num_paragraphs": int, "nth_paragraph": int, "first_word": str}
    ),
    "detectable_content:number_placeholders": Instruction(
        lambda text, num_placeholders: len(re.findall(r"\[.*?\]", text)) >= num_placeholders,
        {"num_placeholders": int},
    ),
    "detectable_content:postscript": Instruction(_postscript, {"postscript_marker": str}),
    "detectable_format:number_bullet_lists": Instruction(_bullets, {"num_bullets": int}),
    "detectable_format:constrained_response": Instruction(lambda text: any(a in text for a in _ANSWERS)),
    "detectable_format:number_highlighted_sections": Instruction(_highlights, {"num_highlights": int}),
    "detectable_format:multiple_sections": Instruction(_sections, {"section_spliter": str, "num_sections": int}),
    "detectable_format:json_format": Instruction(_json),
    "detectable_format:title": Instruction(
        lambda text: any(t.strip("<>").strip() for t in re.findall(r"<<[^\n]+>>", text))
    ),
    "combination:two_responses": Instruction(_two_responses),
    "combination:repeat_prompt": Instruction(
        lambda text, prompt_to_repeat: text.strip().casefold().startswith(prompt_to_repeat.strip().casefold()),
        {"prompt_to_repeat": str},
    ),
    "startend:end_checker": Instruction(
        lambda text, end_phrase: text.strip().strip('"').casefold().endswith(end_phrase.strip().casefold()),
        {"end_phrase": str},
    ),
    "startend:quotation": Instruction(lambda text: len(t := text.strip()) > 1 and t[0] == t[-1] == '"'),
    "change_case:capital_word_frequency": Instruction(
        _capital_words, {"capital_frequency": int, "capital_relation": str}
    ),
    "change_case:english_capital": Instruction(str.isupper),
    "change_case:english_lowercase": Instruction(str.islower),
    "punctuation:no_comma": Instruction(lambda text: "," not in text),
}


class Asked(BaseModel):
    """One instruction of an item."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    kwargs: dict[str, Any] = {}

    def problem(self) -> str | None:
        """Why it cannot be checked; None where it can."""
        known = INSTRUCTIONS.get(self.id)
        if known is None:
            return f"instruction {self.id!r} is not one that can be checked here; there are {', '.join(INSTRUCTIONS)}"
        wanted = known.arguments or {}
        if set(self.kwargs) != set(wanted):
            return f"instruction {self.id} has the arguments {sorted(self.kwargs)}, expected {sorted(wanted)}"
        for name, kind in wanted.items():
            value = self.kwargs[name]
            if isinstance(value, bool) or not isinstance(value, kind):
                return f"instruction {self.id}: {name} is {value!r}, expected {kind.__name__}"
            if name.endswith("relation") and value not in _RELATIONS:
                return f"instruction {self.id}: {name} is {value!r}, expected one of {', '.join(_RELATIONS)}"
            if isinstance(value, list) and not (value and all(isinstance(x, str) for x in value)):
                return f"instruction {self.id}: {name} is {value!r}, expected a list of texts"
        return None

    def obeyed(self, text: str) -> bool:
        return INSTRUCTIONS[self.id].obeyed(text, **self.kwargs)


class Params(GraderParams):
    instructions: list[Asked] = Field(min_length=1)


def check(item: Item, params: Params) -> None:
    need_generation(item)
    need_no_reference(item)
    if found := next(filter(None, (a.problem() for a in params.instructions)), None):
        raise ValueError(found)


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    said = bool(answer.text.strip())
    broken = [a.id for a in params.instructions if not (said and a.obeyed(answer.text))]
    of = len(params.instructions)
    reason = f"does not obey {', '.join(broken)}" if said else "the answer is empty"
    return Grade(not broken, reason if broken else None, detail={"met": of - len(broken), "of": of})


SPEC = GraderSpec("instruct.ifeval", "1", Params, grade, check)
