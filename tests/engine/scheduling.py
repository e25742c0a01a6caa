"""A scheduler without a core: requests for it, and steps that compute nothing."""

from __future__ import annotations

import zlib
from typing import Any

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.plan import Plan
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler


def make(num_blocks: int = 100, max_model_len: int = 400, **settings: Any) -> Scheduler:
    defaults = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16, "prefill_chunk_tokens": 8}
    config = EngineConfig(**{**defaults, **settings})
    pool = BlockPool(num_blocks, config.block_size, caching=config.prefix_caching)
    return Scheduler(config, pool, max_model_len)


def request(name: str, length: int, max_tokens: int = 8, first: int | None = None) -> Request:
    """A prompt that shares no prefix with another name's."""
    return Request(
        name,
        [zlib.crc32(name.encode()) % 1000 if first is None else first, *range(length - 1)],
        SamplingParams(max_tokens),
    )


def shape(plan: Plan) -> list[tuple[str, int, int]]:
    return [(e.request.id, e.start, e.end) for e in plan.entries]


def step(scheduler: Scheduler, check: bool = True) -> list[tuple[str, int, int]]:
    """Plans, "runs", and appends a token wherever one can be drawn."""
    plan = scheduler.schedule()
    scheduler.advance(plan)
    for entry in plan.entries:
        if entry.reaches_end:
            entry.request.tokens.append(7)
    if check:
        scheduler.pool.check()
    return shape(plan)
