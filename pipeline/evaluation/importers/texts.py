"""Sets that are answered in text: SQuAD and XQuAD, GSM8K, IFEval."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.graders.ifeval import Asked
from pipeline.evaluation.importers.base import Question, Row, Unsuitable, key_of, need, need_text

_FINAL = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)\s*$")


def squad_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each question of a SQuAD file with its paragraph.

    Raises:
        SeatrialError: not of that form.
    """
    try:
        data: Any = json.loads(path.read_bytes().decode("utf-8"))
        for a, article in enumerate(data["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for n, asked in enumerate(paragraph["qas"]):
                    where = f"{path}: data[{a}].paragraphs[{p}].qas[{n}]"
                    yield where, {**asked, "context": paragraph["context"], "paragraph": f"{a}.{p}"}
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as e:
        raise SeatrialError(f"{path} is not of the SQuAD form, data[].paragraphs[].qas[]: {e!r}") from e


def squad(row: Row) -> Question:
    answers = list(dict.fromkeys(a["text"] for a in row.get("answers") or []))
    if not answers:
        raise Unsuitable("has no answer in the passage")
    passage, question = need_text(row, "context"), need_text(row, "question").strip()
    return Question(
        kind="extract",
        grader="extract.match",
        key=key_of(row, "id"),
        cluster=str(row["paragraph"]),
        ask=f"{passage}\n\nAnswer with a phrase from the text above.\nQuestion: {question}",
        reference=answers,
        max_tokens=32,
    )


def gsm8k(row: Row) -> Question:
    found = _FINAL.search(need_text(row, "answer").strip())
    if not found:
        raise Unsuitable("the answer does not end in `#### NUMBER`")
    number = float(found[1].replace(",", ""))
    return Question(
        kind="math",
        grader="math.last_number",
        key=key_of(row, "id"),
        ask=f"{need_text(row, 'question').strip()}\n\nWork step by step and end with the answer as a number.",
        reference=int(number) if number.is_integer() else number,
        max_tokens=256,
    )


def ifeval(row: Row) -> Question:
    ids, arguments = need(row, "instruction_id_list"), need(row, "kwargs")
    if not isinstance(ids, list) or not isinstance(arguments, list) or len(ids) != len(arguments):
        raise Unsuitable("instruction_id_list and kwargs are not lists of one length")
    asked = [
        Asked(id=str(i), kwargs={k: v for k, v in (given or {}).items() if v is not None})
        for i, given in zip(ids, arguments, strict=True)
    ]
    if not asked:
        raise Unsuitable("asks for no instruction")
    if found := next(filter(None, (a.problem() for a in asked)), None):
        raise Unsuitable(found.partition(";")[0])
    return Question(
        kind="instruct",
        grader="instruct.ifeval",
        key=key_of(row, "key"),
        ask=need_text(row, "prompt"),
        params={"instructions": [a.model_dump() for a in asked]},
        max_tokens=512,
    )
