"""Plain words, most of them one token in usual vocabularies, and generators that a key alone decides."""

from __future__ import annotations

import random


def _bank(words: str) -> tuple[str, ...]:
    return tuple(words.split())


WHO = _bank(
    "captain sailor farmer doctor teacher baker nurse painter writer pilot driver singer lawyer builder student "
    "mother father brother sister uncle cousin friend neighbor stranger guest guard judge mayor clerk chief"
)
THING = _bank(
    "boat lamp rope chart letter book table window door key box bag coat hat map clock bell glass plate knife wheel "
    "engine ladder basket candle mirror carpet hammer needle button bottle paper stone shell feather coin ring drum"
)
KIND = _bank(
    "old new small large red blue green white black heavy light broken clean dry wet cold warm bright dark quiet loud "
    "long short wide thin round flat plain strange common rare cheap simple empty full sharp soft hard rough smooth"
)
DID = _bank(
    "found lost bought sold carried moved painted opened closed watched cleaned fixed dropped lifted held kept gave "
    "took sent hid showed counted measured washed turned pulled pushed caught wanted needed"
)
PLACE = _bank(
    "harbor market garden kitchen school station church bridge river forest mountain valley island beach village "
    "street tower castle library museum theater hospital office factory farm field road corner cellar attic"
)
WHEN = _bank("today yesterday later early often once twice again soon first last there alone together slowly quickly")
WORDS = tuple(sorted({*WHO, *THING, *KIND, *DID, *PLACE, *WHEN}))
ASK = (
    "Tell me what happened next",
    "Say in a few words what this is about",
    "Name the people in this story",
    "Write the next line of this story",
    "Which thing here is the oldest",
    "Where did most of this happen",
    "Give this story a short title",
    "Explain why this could matter to them",
)


def rng_of(seed: int, *key: object) -> random.Random:
    """A generator of its own for each key; seeding by text goes through sha512, the same on every platform."""
    return random.Random("/".join(map(str, (seed, *key))))


def pick(rng: random.Random, bank: tuple[str, ...]) -> str:
    return bank[int(rng.random() * len(bank))]


def _sentence(rng: random.Random) -> list[str]:
    words = ["the", pick(rng, KIND), pick(rng, WHO), pick(rng, DID)]
    words += ["the", pick(rng, KIND), pick(rng, THING)]
    if rng.random() < 0.7:
        words += ["near", "the", pick(rng, PLACE)]
    if rng.random() < 0.5:
        words.append(pick(rng, WHEN))
    return words


def story_of(rng: random.Random, tokens: int) -> str:
    """Sentences of about ``tokens`` tokens in all, counting one for each word and each full stop."""
    out: list[str] = []
    left = tokens
    while left > 1:
        words = _sentence(rng)[: left - 1]
        left -= len(words) + 1
        out.append(" ".join(words).capitalize() + ".")
    return " ".join(out)


def about_tokens(text: str) -> int:
    """Tokens that a text made here is aimed at: its words and its full stops."""
    return len(text.split()) + text.count(".")
