"""Prompts from a seed: the i-th request of a stage is the same in every run, whoever sends it and when.

Text is made of plain words, most of them one token in usual vocabularies, so a length in tokens is aimed at by counting
words. What a prompt really came to is the server's to say (``usage``). Each request draws
from a generator of its own, keyed by seed, stage and index: no two share a beginning unless the profile asks for a
shared system message, so the prefix cache is not warmed by accident.

Any change to what comes out of here needs a new ``TRAFFIC_VERSION``; a test holds the two together.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

from loadtests.distributions import Lengths, draw_length, seconds_at
from loadtests.replay.scale import Planned
from loadtests.words import ASK, KIND, PLACE, THING, WHO, about_tokens, pick, rng_of, story_of
from loadtests.workload import StageSpec, SystemPrompts

TRAFFIC_VERSION = 1
_TEMPLATE_TOKENS = 8  # marks that a chat template puts around a message, about


@dataclass(frozen=True)
class Prompt:
    """One request's content, and what its user does.

    ``messages`` holds what is new in this turn, as (role, text). What is sent from the second turn on is the session so
    far with the answers that really came, and these messages: ``Conversation`` puts the two together.
    """

    messages: tuple[tuple[str, str], ...]
    max_tokens: int
    session: str | None = None  # None: the only request of its user's visit
    turn: int = 0
    think_s: float = 0.0  # the user's pause between the end of this request and the next one, of whatever session
    leave_after_s: float | None = None  # the user leaves: the client closes the connection so long after sending


class Conversation:
    """What has been said in one session, kept by whoever sends it.

    A session ends with the first turn that did not come to its end, whether it failed or its user left: its later turns
    are never due. A reply without text is an answer too, an empty one.
    """

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []

    def ask(self, prompt: Prompt) -> tuple[tuple[str, str], ...]:
        """The messages to send for a turn."""
        return (*self._said, *prompt.messages)

    def answered(self, prompt: Prompt, text: str) -> None:
        """The turn came to its end with this answer."""
        self._said += [*prompt.messages, ("assistant", text)]


def _system(spec: StageSpec, seed: int, index: int) -> str | None:
    if spec.system == "none":
        return None
    if isinstance(spec.system, SystemPrompts):
        which = _system_index(spec.system, rng_of(seed, spec.name, "which system", index))
        return None if which is None else _system_text(rng_of(seed, spec.name, "system", which), spec.system, which)
    rng = rng_of(seed, spec.name, "system", *(() if spec.system == "shared" else (index,)))
    head = _head(rng)
    if spec.system == "unique":
        return head + " Answer in plain words."
    return head + " You read short stories and answer questions about them. " + story_of(rng, 40)


def _head(rng: random.Random) -> str:
    """Starts with drawn words, so that one that differs does so within its first block."""
    head = [pick(rng, bank) for bank in (KIND, THING, PLACE, WHO, KIND, THING)]
    return " ".join(head).capitalize() + "."


def _system_index(system: SystemPrompts, rng: random.Random) -> int | None:
    if rng.random() >= system.share:
        return None
    below = list(accumulate(p.weight for p in system.prompts))
    return min(bisect_right(below, rng.random() * below[-1]), len(below) - 1)


def _system_text(rng: random.Random, system: SystemPrompts, which: int) -> str:
    head = _head(rng)
    return f"{head} {story_of(rng, max(system.prompts[which].tokens - len(head.split()) - 1, 2))}"


def _turn(spec: StageSpec, lengths: Lengths | None, seed: int, index: int, turn: int) -> Prompt:
    """One turn without its system message."""
    if lengths is None or spec.output_tokens is None:
        raise TypeError(f"stage {spec.name} has no lengths of its own")  # a replay, which does not come here
    key = (spec.name, index) if turn == 0 else (spec.name, index, "turn", turn)
    rng = rng_of(seed, *key)
    asked, max_tokens = draw_length(lengths, rng), draw_length(spec.output_tokens, rng)
    question = pick(rng, ASK)
    story = story_of(rng, max(asked - len(question.split()) - 1, 2))
    return Prompt(
        messages=(("user", f"{story} {question}."),),
        max_tokens=max_tokens,
        session=None if spec.sessions is None else f"{spec.name}-{index}",
        turn=turn,
        think_s=_think_s(spec, seed, *key),
        leave_after_s=_leave_after_s(spec, seed, *key),
    )


def _replayed(spec: StageSpec, requests: list[Planned], seed: int, index: int) -> Prompt:
    _, _, prompt_tokens, output_tokens, blocks = requests[index]
    if spec.blocks is not None:
        text = spec.blocks.text(seed, blocks, prompt_tokens)
    else:
        text = story_of(rng_of(seed, spec.name, index), max(prompt_tokens, 2))
    leave_after_s = _leave_after_s(spec, seed, spec.name, index)
    return Prompt((("user", text),), output_tokens, leave_after_s=leave_after_s)


def _think_s(spec: StageSpec, seed: int, *key: object) -> float:
    """Drawn apart from the text, so that the one does not depend on the other; likewise patience."""
    return 0.0 if spec.think is None else seconds_at(spec.think, rng_of(seed, *key, "think").random())


def _leave_after_s(spec: StageSpec, seed: int, *key: object) -> float | None:
    if spec.abandon is None:
        return None
    rng = rng_of(seed, *key, "abandon")
    return seconds_at(spec.abandon.patience, rng.random()) if rng.random() < spec.abandon.share else None


def prompt_of(spec: StageSpec, seed: int, index: int) -> Prompt:
    """The first request of arrival ``index`` of a stage; the only one where the stage has no sessions."""
    if spec.replayed is not None:
        return _replayed(spec, spec.replayed.requests, seed, index)
    prompt = _turn(spec, spec.prompt_tokens, seed, index, 0)
    system = _system(spec, seed, index)
    return replace(prompt, messages=(("system", system), *prompt.messages)) if system else prompt


def session_of(spec: StageSpec, seed: int, index: int) -> tuple[Prompt, ...]:
    """All turns of arrival ``index`` of a stage, as far as they fit ``sessions.context_tokens``; at least the first."""
    turns = [prompt_of(spec, seed, index)]
    if spec.sessions is None:
        return tuple(turns)
    going_on = rng_of(seed, spec.name, index, "go on")
    lengths = spec.sessions.next_tokens or spec.prompt_tokens
    most = _most_tokens(turns[0])
    while len(turns) < spec.sessions.turns and going_on.random() < spec.sessions.go_on_share:
        following = _turn(spec, lengths, seed, index, len(turns))
        most += _most_tokens(following)
        if most > spec.sessions.context_tokens:
            break
        turns.append(following)
    return tuple(turns)


def _most_tokens(prompt: Prompt) -> int:
    """What a turn adds to its session at most, the chat template's marks included."""
    return sum(about_tokens(text) + _TEMPLATE_TOKENS for _, text in prompt.messages) + prompt.max_tokens
