"""Prompts that share exactly the prefixes that their traces' blocks share.

Each block hash stands for a run of words of its own. It begins with the hash's number, written in words as digits, the
lowest first: no two blocks are the same, and neighbours in number differ from the first word on, so a cache finds what
the trace shares and, but for a word or two, no more.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import lru_cache

from loadtests.words import WORDS, pick, rng_of


class BlockWords:
    """The words of each block hash of a trace, for blocks of ``block_words`` words and a seed.

    Raises:
        ValueError: blocks so short cannot all differ.
    """

    def __init__(self, hashes: Iterable[int], block_words: int) -> None:
        self._numbers = {h: i for i, h in enumerate(dict.fromkeys(hashes))}
        self._block_words = block_words
        self._digits = 1
        while len(WORDS) ** self._digits < len(self._numbers):
            self._digits += 1
        if block_words < self._digits:
            raise ValueError(
                f"a block of the trace becomes {block_words} words, and {len(self._numbers)} blocks need "
                f"{self._digits} to differ: raise length_factor (or fit less: fit_share)"
            )

    def text(self, seed: int, blocks: Iterable[int], words: int) -> str:
        """A prompt of ``words`` words, block after block."""
        out: list[str] = []
        for block in blocks:
            out += self._block(seed, _digit_words(seed), self._numbers[block])
        return " ".join(out[:words])

    def _block(self, seed: int, digits: tuple[str, ...], number: int) -> list[str]:
        rng, out = rng_of(seed, "block", number), list[str]()
        for _ in range(self._digits):
            number, digit = divmod(number, len(digits))
            out.append(digits[digit])
        return out + [pick(rng, WORDS) for _ in range(self._block_words - self._digits)]


@lru_cache(maxsize=16)
def _digit_words(seed: int) -> tuple[str, ...]:
    return tuple(random.Random(f"{seed}/block digits").sample(WORDS, len(WORDS)))
