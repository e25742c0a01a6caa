"""Prompts from a seed: the i-th request of a stage is the same in every run, whoever sends it and when.

Text is made of plain words from the banks below, most of them one token in usual vocabularies, so a length in tokens
is aimed at by counting words. What a prompt really came to is the server's to say (``usage``). Each request draws
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
from loadtests.workload import StageSpec, SystemPrompts

TRAFFIC_VERSION = 1
_TEMPLATE_TOKENS = 8  # marks that a chat template puts around a message, about


def _bank(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_WHO = _bank(
    "captain sailor farmer doctor teacher baker nurse painter writer pilot driver singer lawyer builder student "
    "mother father brother sister uncle cousin friend neighbor stranger guest guard judge mayor clerk chief"
)
_THING = _bank(
    "boat lamp rope chart letter book table window door key box bag coat hat map clock bell glass plate knife wheel "
    "engine ladder basket candle mirror carpet hammer needle button bottle paper stone shell feather coin ring drum"
)
_KIND = _bank(
    "old new small large red blue green white black heavy light broken clean dry wet cold warm bright dark quiet loud "
    "long short wide thin round flat plain strange common rare cheap simple empty full sharp soft hard rough smooth"
)
_DID = _bank(
    "found lost bought sold carried moved painted opened closed watched cleaned fixed dropped lifted held kept gave "
    "took sent hid showed counted measured washed turned pulled pushed caught wanted needed"
)
_PLACE = _bank(
    "harbor market garden kitchen school station church bridge river forest mountain valley island beach village "
    "street tower castle library museum theater hospital office factory farm field road corner cellar attic"
)
_WHEN = _bank("today yesterday later early often once twice again soon first last there alone together slowly quickly")
_ASK = (
    "Tell me what happened next",
    "Say in a few words what this is about",
    "Name the people in this story",
    "Write the next line of this story",
    "Which thing here is the oldest",
    "Where did most of this happen",
    "Give this story a short title",
    "Explain why this could matter to them",
)


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


def _rng(seed: int, *key: object) -> random.Random:
    """A generator of its own for each key; seeding by text goes through sha512, the same on every platform."""
    return random.Random("/".join(map(str, (seed, *key))))


def _pick(rng: random.Random, bank: tuple[str, ...]) -> str:
    return bank[int(rng.random() * len(bank))]


def _sentence(rng: random.Random) -> list[str]:
    words = ["the", _pick(rng, _KIND), _pick(rng, _WHO), _pick(rng, _DID)]
    words += ["the", _pick(rng, _KIND), _pick(rng, _THING)]
    if rng.random() < 0.7:
        words += ["near", "the", _pick(rng, _PLACE)]
    if rng.random() < 0.5:
        words.append(_pick(rng, _WHEN))
    return words


def _story(rng: random.Random, tokens: int) -> str:
    """Sentences of about ``tokens`` tokens in all, counting one for each word and each full stop."""
    out: list[str] = []
    left = tokens
    while left > 1:
        words = _sentence(rng)[: left - 1]
        left -= len(words) + 1
        out.append(" ".join(words).capitalize() + ".")
    return " ".join(out)


def _system(spec: StageSpec, seed: int, index: int) -> str | None:
    if spec.system == "none":
        return None
    if isinstance(spec.system, SystemPrompts):
        which = _system_index(spec.system, _rng(seed, spec.name, "which system", index))
        return None if which is None else _system_text(_rng(seed, spec.name, "system", which), spec.system, which)
    rng = _rng(seed, spec.name, "system", *(() if spec.system == "shared" else (index,)))
    head = _head(rng)
    if spec.system == "unique":
        return head + " Answer in plain words."
    return head + " You read short stories and answer questions about them. " + _story(rng, 40)


def _head(rng: random.Random) -> str:
    """Starts with drawn words, so that one that differs does so within its first block."""
    head = [_pick(rng, bank) for bank in (_KIND, _THING, _PLACE, _WHO, _KIND, _THING)]
    return " ".join(head).capitalize() + "."


def _system_index(system: SystemPrompts, rng: random.Random) -> int | None:
    if rng.random() >= system.share:
        return None
    below = list(accumulate(p.weight for p in system.prompts))
    return min(bisect_right(below, rng.random() * below[-1]), len(below) - 1)


def _system_text(rng: random.Random, system: SystemPrompts, which: int) -> str:
    head = _head(rng)
    return f"{head} {_story(rng, max(system.prompts[which].tokens - len(head.split()) - 1, 2))}"


def _turn(spec: StageSpec, lengths: Lengths, seed: int, index: int, turn: int) -> Prompt:
    """One turn without its system message. Its user's ways are drawn apart: the text does not depend on them."""
    key = (spec.name, index) if turn == 0 else (spec.name, index, "turn", turn)
    rng = _rng(seed, *key)
    asked, max_tokens = draw_length(lengths, rng), draw_length(spec.output_tokens, rng)
    question = _pick(rng, _ASK)
    story = _story(rng, max(asked - len(question.split()) - 1, 2))
    think_s, leave_after_s = 0.0, None
    if spec.think is not None:
        think_s = seconds_at(spec.think, _rng(seed, *key, "think").random())
    if spec.abandon is not None:
        ways = _rng(seed, *key, "abandon")
        if ways.random() < spec.abandon.share:
            leave_after_s = seconds_at(spec.abandon.patience, ways.random())
    return Prompt(
        messages=(("user", f"{story} {question}."),),
        max_tokens=max_tokens,
        session=None if spec.sessions is None else f"{spec.name}-{index}",
        turn=turn,
        think_s=think_s,
        leave_after_s=leave_after_s,
    )


def prompt_of(spec: StageSpec, seed: int, index: int) -> Prompt:
    """The first request of arrival ``index`` of a stage; the only one where the stage has no sessions."""
    prompt = _turn(spec, spec.prompt_tokens, seed, index, 0)
    system = _system(spec, seed, index)
    return replace(prompt, messages=(("system", system), *prompt.messages)) if system else prompt


def session_of(spec: StageSpec, seed: int, index: int) -> tuple[Prompt, ...]:
    """All turns of arrival ``index`` of a stage, as far as they fit ``sessions.context_tokens``; at least the first."""
    turns = [prompt_of(spec, seed, index)]
    if spec.sessions is None:
        return tuple(turns)
    going_on = _rng(seed, spec.name, index, "go on")
    lengths = spec.sessions.next_tokens or spec.prompt_tokens
    most = _most_tokens(turns[0])
    while len(turns) < spec.sessions.turns and going_on.random() < spec.sessions.go_on_share:
        following = _turn(spec, lengths, seed, index, len(turns))
        most += _most_tokens(following)
        if most > spec.sessions.context_tokens:
            break
        turns.append(following)
    return tuple(turns)


def about_tokens(text: str) -> int:
    """Tokens that a text made here is aimed at: its words and its full stops."""
    return len(text.split()) + text.count(".")


def _most_tokens(prompt: Prompt) -> int:
    """What a turn adds to its session at most, the chat template's marks included."""
    return sum(about_tokens(text) + _TEMPLATE_TOKENS for _, text in prompt.messages) + prompt.max_tokens
