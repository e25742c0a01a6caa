"""The items that both sides are asked, by what is done with them, and the same items as tasks of lm-eval."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.graders import grader_of
from pipeline.evaluation.items import EVALSETS, Item, load_evalset
from pipeline.evaluation.run import select

ROOT = Path(__file__).resolve().parents[2]
CHOICES, GENERATED = "choices", "generated"
KINDS = (CHOICES, GENERATED)  # in the order in which both sides answer them
TASK = "seatrial_speed"

LogLikelihoods = dict[tuple[str, str], float]  # in nats, by prompt and continuation
Texts = dict[str, str]  # by item


def core_items(per_scenario: int) -> dict[str, list[Item]]:
    """The first ``per_scenario`` items of each scenario of the core set: those whose choices are scored, and those that
    are answered with a text."""
    items = select(load_evalset(ROOT / EVALSETS / "core").items, per_scenario)
    scored = [grader_of(item).scores_choices for item in items]
    return {
        CHOICES: [item for item, s in zip(items, scored, strict=True) if s],
        GENERATED: [item for item, s in zip(items, scored, strict=True) if not s],
    }


def write_tasks(items: dict[str, list[Item]], render: Callable[[Item], str], folder: Path) -> list[str]:
    """The items as tasks, whose names are returned: one of choices, and one for each length of an answer, since that is
    a setting of a task there. Nothing is put between a prompt and what follows it.

    ``render``: the text that an item's answer continues, the chat template applied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    if items[CHOICES]:
        rows = [{"id": x.id, "prompt": x.prompt, "choices": x.choices, "answer": x.reference} for x in items[CHOICES]]
        how = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}"}
        names.append(_write(folder, CHOICES, rows, how, "acc"))
    for tokens in sorted({item.max_tokens for item in items[GENERATED]}):
        rows = [{"id": x.id, "prompt": render(x)} for x in items[GENERATED] if x.max_tokens == tokens]
        how = {
            "output_type": "generate_until",
            "doc_to_target": "",
            "generation_kwargs": {"until": [], "max_gen_toks": tokens, "do_sample": False},
        }
        names.append(_write(folder, f"{GENERATED}_{tokens}", rows, how, "exact_match"))
    return names


def _write(folder: Path, kind: str, rows: Iterable[dict[str, Any]], how: dict[str, Any], metric: str) -> str:
    name = f"{TASK}_{kind}"
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        **how,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    return name


def same_choices(items: Sequence[Item], ours: LogLikelihoods, theirs: LogLikelihoods) -> tuple[int, float]:
    """Items in which both find the same choice likeliest, and the largest difference of a log-likelihood, in nats.

    Raises:
        SeatrialError: one side has no answer to a question that was put to both.
    """
    asked = {(item.prompt or "", choice) for item in items for choice in item.choices or []}
    _expect_all(asked, ours.keys(), theirs.keys())
    same = sum(_likeliest(item, ours) == _likeliest(item, theirs) for item in items)
    return same, max((abs(ours[key] - theirs[key]) for key in asked), default=0.0)


def _likeliest(item: Item, answers: LogLikelihoods) -> str:
    return max(item.choices or [], key=lambda choice: answers[item.prompt or "", choice])


def same_texts(items: Sequence[Item], ours: Texts, theirs: Texts) -> int:
    """Items to which both sides give the same text, but for space around it.

    Raises:
        SeatrialError: one side has no answer to a question that was put to both.
    """
    _expect_all({item.id for item in items}, ours.keys(), theirs.keys())
    return sum(ours[item.id].strip() == theirs[item.id].strip() for item in items)


def _expect_all(asked: set[Any], ours: Iterable[Any], theirs: Iterable[Any]) -> None:
    for side, answers in (("our evaluation", ours), ("lm-eval", theirs)):
        if missing := asked - set(answers):
            raise SeatrialError(f"{side} has no answer to {len(missing)} of {len(asked)} questions: {min(missing)!r}")
