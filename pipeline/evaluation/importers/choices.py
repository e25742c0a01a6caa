"""Multiple choice: MMLU, ARC, PIQA, HellaSwag, and ``{question, choices, gold}`` in general.

``choice`` asks "Question: ... Answer:" and scores the options as they follow; ``continuation`` scores how the options
continue the context, as HellaSwag means them. Both divide by the number of tokens: options of one question differ in
length.
"""

from __future__ import annotations

from typing import Any

from pipeline.evaluation.importers.base import Question, Row, Unsuitable, key_of, need, need_text


def _options(row: Row) -> tuple[list[str], list[str] | None]:
    """The options and, where the form has them, their labels."""
    if "sol1" in row:
        return [need_text(row, "sol1"), need_text(row, "sol2")], None
    value: Any = need(row, "choices", "endings", "options")
    labels = None
    if isinstance(value, dict):
        value, labels = value.get("text"), [str(x) for x in value.get("label") or []]
    if not isinstance(value, list) or any(not isinstance(x, str) for x in value):
        raise Unsuitable("the choices are not a list of texts")
    return value, labels


def _gold(row: Row, labels: list[str] | None, n: int) -> int:
    value = need(row, "gold", "label", "answer", "answerKey", "target")
    if isinstance(value, str) and labels and value in labels:
        return labels.index(value)
    if isinstance(value, str) and len(value) == 1 and value.isalpha():
        value = ord(value.upper()) - ord("A")
    try:
        index = int(value)
    except (TypeError, ValueError):
        raise Unsuitable(f"the right choice is {str(value)[:20]!r}, not an index or a letter") from None
    if not 0 <= index < n:
        raise Unsuitable(f"the right choice is number {index} of {n}, counted from 0")
    return index


def _question(row: Row, prompt: str) -> Question:
    options, labels = _options(row)
    return Question(
        kind="choice",
        grader="choice.loglikelihood",
        key=key_of(row, "subject", "category", "id", "ind"),
        params={"normalise": "tokens"},
        prompt=prompt,
        choices=[f" {o.strip()}" if o.strip() else "" for o in options],
        reference=_gold(row, labels, len(options)),
    )


def asked(row: Row) -> Question:
    return _question(row, f"Question: {need_text(row, 'question', 'goal', 'query').strip()}\nAnswer:")


def continued(row: Row) -> Question:
    return _question(row, need_text(row, "ctx", "question", "context", "query").strip())
