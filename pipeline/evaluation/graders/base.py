"""What every grader has: a name, a version, strict parameters, and one function from an answer to a grade.

A grader's behaviour belongs to its version. Whoever changes the one changes the other: results name the versions they
were graded with, and the golden-output tests hold each version to what it did when it was introduced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.evaluation.items import Item


class GraderParams(BaseModel):
    """Parameters of a grader; an unknown one is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Answer:
    """What the model said: ``text`` of a generation, or for choices the log-probabilities of each choice's tokens."""

    text: str = ""
    choice_logprobs: list[list[float]] | None = None


@dataclass(frozen=True)
class Grade:
    """A judgement. ``reason`` says why an answer is not correct; ``status`` is "error" where it could not be judged."""

    correct: bool
    reason: str | None = None
    shown: str | None = None  # the answer as the grader read it, where that is not the whole text
    status: Literal["ok", "error"] = "ok"
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GraderSpec:
    """An entry of the registry.

    ``check`` raises ``ValueError`` when an item (reference, choices, messages) does not suit the grader.
    ``needs_process`` marks graders that start processes: a few of those run at a time, in threads.
    ``for_people`` marks items that no program judges; they are in no accuracy.
    """

    name: str
    version: str
    params: type[GraderParams]
    grade: Callable[[Item, Any, Answer], Grade]
    check: Callable[[Item, Any], None]
    scores_choices: bool = False
    needs_process: bool = False
    for_people: bool = False


def need_messages_or_prompt(item: Item) -> None:
    if (item.prompt is None) == (item.messages is None):
        raise ValueError("expected exactly one of `prompt` and `messages`")


def need_generation(item: Item) -> None:
    need_messages_or_prompt(item)
    if item.max_tokens < 1:
        raise ValueError(f"max_tokens is {item.max_tokens}; expected at least 1 for an item that is answered in text")
    if item.choices is not None:
        raise ValueError("`choices` is given, but this grader reads a text; remove it or use choice.loglikelihood")


def need_no_reference(item: Item) -> None:
    if item.reference is not None:
        raise ValueError(f"reference is {item.reference!r}; expected null, the grader's parameters say what is right")
