"""Prompts from a seed: the i-th request of a stage is the same in every run, whoever sends it and when.

Text is made of plain words from the banks below, most of them one token in usual vocabularies, so a length in tokens
is aimed at by counting words. What a prompt really came to is the server's to say (``usage``). Each request draws
from a generator of its own, keyed by seed, stage and index: no two share a beginning unless the profile asks for a
shared system message, so the prefix cache is not warmed by accident.

Any change to what comes out of here needs a new ``TRAFFIC_VERSION``; a test holds the two together.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

from loadtests.workload import Fixed, Lognormal, StageSpec, Uniform

TRAFFIC_VERSION = 1


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
    """One request's content."""

    messages: tuple[tuple[str, str], ...]  # (role, text)
    max_tokens: int


def _rng(seed: int, *key: object) -> random.Random:
    """A generator of its own for each key; seeding by text goes through sha512, the same on every platform."""
    return random.Random("/".join(map(str, (seed, *key))))


def _pick(rng: random.Random, bank: tuple[str, ...]) -> str:
    return bank[int(rng.random() * len(bank))]


def draw_length(lengths: Fixed | Uniform | Lognormal, rng: random.Random) -> int:
    """One length in tokens. The log-normal is cut to its bounds by inversion, so nothing piles up at the ends."""
    match lengths:
        case Fixed():
            return lengths.tokens
        case Uniform():
            return lengths.min + int(rng.random() * (lengths.max - lengths.min + 1))
        case Lognormal():
            normal = NormalDist(math.log(lengths.median), lengths.sigma)
            low, high = normal.cdf(math.log(lengths.min)), normal.cdf(math.log(lengths.max))
            p = min(max(low + rng.random() * (high - low), 1e-12), 1 - 1e-12)
            return min(max(round(math.exp(normal.inv_cdf(p))), lengths.min), lengths.max)


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
    rng = _rng(seed, spec.name, "system", *(() if spec.system == "shared" else (index,)))
    # Starts with drawn words, so that one that differs does so within its first block.
    head = [_pick(rng, bank) for bank in (_KIND, _THING, _PLACE, _WHO, _KIND, _THING)]
    if spec.system == "unique":
        return " ".join(head).capitalize() + ". Answer in plain words."
    return " ".join(head).capitalize() + ". You read short stories and answer questions about them. " + _story(rng, 40)


def prompt_of(spec: StageSpec, seed: int, index: int) -> Prompt:
    """The content of request ``index`` of a stage."""
    rng = _rng(seed, spec.name, index)
    asked, max_tokens = draw_length(spec.prompt_tokens, rng), draw_length(spec.output_tokens, rng)
    question = _pick(rng, _ASK)
    story = _story(rng, max(asked - len(question.split()) - 1, 2))
    user = f"{story} {question}."
    system = _system(spec, seed, index)
    messages = ([("system", system)] if system else []) + [("user", user)]
    return Prompt(tuple(messages), max_tokens)
