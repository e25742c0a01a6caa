"""Items of one set that ask the same thing: word for word, or reworded.

Two items are a reworded pair if they have the same numbers in the same order and the same right answer, and their words
and pairs of neighbouring words are ``ALIKE`` (Jaccard). Numbers and answer are what tells the items of a template from
each other; wording is what is left of a question that was only said again. Lines that several items have (a passage
that many questions are about, solved examples, a list of options) are left out of the comparison, and so are sentences
that ``TEMPLATE`` items have (a long frame around a short case). Candidates come from
MinHash and locality-sensitive hashing (Broder 1997), so a large set takes seconds; the similarity reported is exact.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pipeline.evaluation import leaks
from pipeline.evaluation.items import Item

ALIKE = 0.6
ALIKE_IN_FAMILY = 0.85  # items of one source differ by what stands in a slot of its template, and are one cluster
TEMPLATE = 3  # a reworded pair may share a sentence; of more items it is the frame that they were made in
MIN_WORDS = 6
PERMUTATIONS = 64
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


Sentence = tuple[str, ...]  # its words
Line = tuple[Sentence, ...]


def _lines(item: Item) -> list[Line]:
    """The last user turn, or the prompt with all of its choices, line by line and sentence by sentence."""
    text = leaks.question_of(item) if item.messages else "\n".join([item.prompt or "", *(item.choices or ())])
    lines = [tuple(w for s in _SENTENCE_END.split(line) if (w := leaks.words(s))) for line in text.splitlines()]
    return [line for line in lines if line]


def own_words(items: Sequence[Item]) -> list[tuple[str, ...]]:
    """Of each item the words of the lines that no other item has, without sentences that ``TEMPLATE`` items have."""
    lines = [_lines(item) for item in items]
    times = Counter(line for mine in lines for line in set(mine))
    framed = Counter(s for mine in lines for s in {s for line in mine for s in line})
    return [
        tuple(w for line in mine if times[line] == 1 for s in line if framed[s] < TEMPLATE for w in s) for mine in lines
    ]


def exact(items: Iterable[Item]) -> list[str]:
    """Items with equal words in the prompt, its choices and every turn."""
    same: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for item in items:
        turns = [m.content for m in item.messages or []]
        text = "\n".join(turns) if turns else " ".join([item.prompt or "", *sorted(item.choices or ())])
        same[leaks.words(text)].append(item.id)
    return [f"{', '.join(ids)} ask the same, word for word" for ids in same.values() if len(ids) > 1]


def reworded(items: Sequence[Item]) -> list[str]:
    """Pairs that say the same in other words; equal wording is left to :func:`exact`."""
    found: list[str] = []
    groups: dict[str, list[tuple[Item, frozenset[str]]]] = defaultdict(list)
    for item, words in zip(items, own_words(items), strict=True):
        if len(words) >= MIN_WORDS:
            groups[_sense(item, words)].append((item, features(words)))
    for group in groups.values():
        if len(group) < 2:
            continue
        index = leaks.index_of(ALIKE, PERMUTATIONS)
        for n, (item, mine) in enumerate(group):
            sketch = leaks.minhash(mine, PERMUTATIONS)
            for key in sorted(index.query(sketch)):
                other, theirs = group[key]
                needed = ALIKE_IN_FAMILY if other.source == item.source else ALIKE
                if (alike := leaks.jaccard(mine, theirs)) >= needed:
                    found.append(f"{other.id} and {item.id}: reworded, {alike:.0%} alike")
            index.insert(n, sketch)
    return found


def features(words: tuple[str, ...]) -> frozenset[str]:
    """Words and pairs of neighbours: a word that is replaced costs three of them, two that change places as many."""
    return frozenset(words) | frozenset(f"{a} {b}" for a, b in pairwise(words))


def _sense(item: Item, words: tuple[str, ...]) -> str:
    """What a rewording keeps: the numbers, and what is right."""
    right = item.reference
    if item.choices and isinstance(right, int) and 0 <= right < len(item.choices):
        right = item.choices[right].strip()
    numbers = [w for w in words if w.isdigit()]
    return json.dumps([item.kind, numbers, right, item.grader.params], sort_keys=True)
