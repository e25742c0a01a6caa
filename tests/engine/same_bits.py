"""One check for every model, tier and backend: what is beside a request, and how it is cut, leaves no trace."""

from __future__ import annotations

import random

import torch

from engine.batch import BatchEntry
from engine.runner import ModelRunner
from tests.engine.runners import compute

LENGTHS = (1, 3, 16, 29, 33, 50, 64, 71)
PLACES = 8  # blocks of 16 positions for each request


def sequences(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in LENGTHS[:count]]


def check_any_batch_and_any_split(runner: ModelRunner, tokens: list[list[int]], rounds: int) -> None:
    """Each of ``tokens`` alone in one piece, then all among each other in pieces of random size, in random blocks."""
    alone = []
    for ids in tokens:
        (logits,) = compute(runner, [BatchEntry("x", ids, 0, list(range(PLACES)), "all")])
        assert logits is not None
        assert logits.shape == (len(ids), 272)
        alone.append(logits)
    for seed in range(rounds):
        draw = random.Random(seed)
        blocks = list(range(runner.num_blocks))
        draw.shuffle(blocks)
        done = [0] * len(tokens)
        while any(d < len(t) for d, t in zip(done, tokens, strict=True)):
            left = [i for i, t in enumerate(tokens) if done[i] < len(t)]
            draw.shuffle(left)
            batch, spans = [], []
            for i in left[: draw.randint(1, len(left))]:
                stop = min(len(tokens[i]), done[i] + draw.choice([1, 1, 5, 16, 40]))
                wanted = draw.choice(["none", "last", "all"])
                table = blocks[i * PLACES : i * PLACES + -(-stop // 16)]
                batch.append(BatchEntry(str(i), tokens[i][done[i] : stop], done[i], table, wanted))  # type: ignore[arg-type]
                spans.append((i, done[i], stop, wanted))
                done[i] = stop
            for (i, start, stop, wanted), logits in zip(spans, compute(runner, batch), strict=True):
                if wanted == "none":
                    assert logits is None
                    continue
                assert logits is not None
                first = start if wanted == "all" else stop - 1
                assert torch.equal(logits, alone[i][first:stop]), f"request {i}, positions {start} to {stop - 1}"
