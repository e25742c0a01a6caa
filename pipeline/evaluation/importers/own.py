"""One's own questions, of mixed kinds in one file: what a row is judged by says which kind it is.

choices      with `answer`: the right one's text, its letter or its index from 0   -> choice
constraints  as `instruct.constraints` takes them                                  -> instruct
tests        with `entry_point`: Python asserts that call it                       -> code
answer       a number                                                              -> math
answer       a text, or a list of texts that are all right                         -> extract

The question is asked as it stands; `id`, `scenario`, `source` and `max_tokens` may be given. `watches_for` makes a row
a pinned case and says which mistake it guards against. A scenario holds one kind, so a row that names none is in that
of its kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline.evaluation.importers import choices
from pipeline.evaluation.importers.base import Question, Row, Unsuitable, key_of, need_text
from pipeline.evaluation.items import Kind

MAX_TOKENS: dict[Kind, int] = {"extract": 32, "math": 128, "instruct": 128, "code": 512}
FIELDS = {
    "question", "choices", "answer", "constraints", "tests", "entry_point", "id", "scenario", "source", "max_tokens",
    "watches_for",
}  # fmt: skip
_JUDGED_BY = ("choices", "constraints", "tests", "answer")


def question(row: Row) -> Question:
    """
    Raises:
        Unsuitable: a field that is not known, or nothing that an answer could be judged by.
    """
    if unknown := sorted(row.keys() - FIELDS):
        raise Unsuitable(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(FIELDS))}")
    by = next((name for name in _JUDGED_BY if row.get(name) is not None), None)
    if by is None:
        raise Unsuitable(f"nothing to judge an answer by; expected one of {', '.join(_JUDGED_BY)}")
    if by == "choices":
        return _choice(row)
    if by == "constraints":
        return _written(row, "instruct", "instruct.constraints", params={"constraints": row["constraints"]})
    if by == "tests":
        params = {"entry_point": need_text(row, "entry_point"), "tests": need_text(row, "tests")}
        return _written(row, "code", "code.unit_tests", params=params)
    answer = row["answer"]
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return _written(row, "math", "math.last_number", reference=answer)
    if isinstance(answer, str) or (isinstance(answer, list) and answer and all(isinstance(a, str) for a in answer)):
        return _written(row, "extract", "extract.match", reference=answer)
    raise Unsuitable(f"the answer is {str(answer)[:20]!r}; expected a number, a text or a list of texts")


def _choice(row: Row) -> Question:
    options, answer = row["choices"], row.get("answer")
    if isinstance(options, list) and isinstance(answer, str) and options.count(answer) == 1:
        answer = options.index(answer)  # before it is taken for a letter or an index: choices may be "1" and "2"
    asked = choices.asked({"question": row.get("question"), "choices": options, "answer": answer})
    return replace(asked, **_named(row, "choice"))


def _written(
    row: Row, kind: Kind, grader: str, *, params: dict[str, Any] | None = None, reference: Any = None
) -> Question:
    most = row.get("max_tokens", MAX_TOKENS[kind])
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise Unsuitable(f"max_tokens is {str(most)[:20]!r}; expected a whole number from 1 on")
    return Question(
        kind=kind,
        grader=grader,
        params=params or {},
        ask=need_text(row, "question"),
        reference=reference,
        max_tokens=most,
        **_named(row, kind),
    )


def _named(row: Row, kind: Kind) -> dict[str, Any]:
    scenario, source, watches_for = (
        None if row.get(name) is None else need_text(row, name) for name in ("scenario", "source", "watches_for")
    )
    return {
        "key": key_of(row, "id"),
        "cluster": source,
        "scenario": scenario or kind,
        "origin": "pinned" if watches_for else "written",
        "watches_for": watches_for,
    }
