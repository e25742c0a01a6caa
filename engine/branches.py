"""Prompts that are only scored and begin alike, as the choices of a question do: the beginning is computed once.

One request of the core stands for all of them (``AddRequest.branches``). It computes what they have in common; the last
row of that predicts the next token of each. Then they part, on the same blocks, of which whoever writes first makes a
copy (``engine.blocks``), and each computes the rest of its own:

    What is the opposite of "empty"? Answer: | late                 common | branches
                                             | smooth er            13     | 0, 1 more to compute

Blocks of the prefix cache would share less: nothing behind the last full one, and nothing that is computed just now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.protocol import AddRequest
from engine.request import RequestError, SamplingParams

MOST_BRANCH_TOKENS = 64  # a branch takes no slot of those that run (engine.scheduler), so it must end soon


@dataclass(frozen=True)
class Group:
    """Neighbours in a list of prompts, by number, and how many first tokens they have in common (one alone: all)."""

    members: range
    common: int


def grouped(prompts: Sequence[Sequence[int]], scored_from: Sequence[int]) -> Iterator[Group]:
    """All prompts in their order, those together that are computed with fewer tokens so. ``scored_from``: of each the
    first token whose log-probability is asked for; those of a group ask from the same on, and have what is before it in
    common."""
    start = 0
    while start < len(prompts):
        common, stop = len(prompts[start]), start + 1
        while stop < len(prompts) and scored_from[stop] == scored_from[start]:
            found = _common(prompts[start], prompts[stop], common)
            longest = max(len(p) for p in prompts[start : stop + 1])
            gained = found * (stop - start) - common * (stop - start - 1)  # tokens; the others share less than before
            if found < scored_from[start] or longest - found > MOST_BRANCH_TOKENS or gained <= 0:
                break
            common, stop = found, stop + 1
        yield Group(range(start, stop), common)
        start = stop


def _common(a: Sequence[int], b: Sequence[int], most: int) -> int:
    """Tokens with which both begin, ``most`` at most and never all of one: something is left to part with."""
    most = min(most, len(a) - 1, len(b) - 1)
    return next((i for i in range(most) if a[i] != b[i]), most)


def prompts_of(arrival: AddRequest, params: SamplingParams) -> list[list[int]]:
    """The prompt of each of its ids.

    Raises:
        RequestError: branches of something that cannot have any.
    """
    ids, prompt, branches = arrival.ids, arrival.prompt, arrival.branches
    if branches is None:
        return [prompt] * len(ids)
    if len(branches) != len(ids) or not all(branches):
        raise RequestError(f"{len(branches)} branches for {len(ids)} ids; expected one for each, none of them empty")
    if not params.only_scores or params.scored_from > len(prompt):
        raise RequestError(f"only prompts that are scored have branches, from a token on that is at most {len(prompt)}")
    return [[*prompt, *rest] for rest in branches]
