"""A core on the fake model, requests for it, and what they must be answered."""

from __future__ import annotations

import random
from typing import Any

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.protocol import AddRequest, Output
from engine.request import SamplingParams
from tests.engine.fake_runner import FakeRunner, fake_logits

SIZE = 4


def make_core(num_blocks: int = 64, **settings: Any) -> tuple[EngineCore, FakeRunner]:
    defaults = {"block_size": SIZE, "max_num_seqs": 8, "max_num_batched_tokens": 16, "prefill_chunk_tokens": 8}
    config = EngineConfig(**{**defaults, **settings})
    runner = FakeRunner(num_blocks, config.block_size, max_model_len=config.max_model_len)
    return EngineCore(runner, config), runner


def add(prompt: list[int], *ids: str, priority: int = 0, **params: Any) -> AddRequest:
    return AddRequest(list(ids), prompt, SamplingParams(**{"max_tokens": 6, **params}).to_wire(), priority)


def run(core: EngineCore, limit: int = 2000) -> list[Output]:
    outputs: list[Output] = []
    for _ in range(limit):
        if not core.has_work:
            core.pool.check()
            core.pool.check_idle()
            return outputs
        outputs += core.step()
        core.pool.check()
    raise AssertionError(f"work left after {limit} steps")


def tokens_of(outputs: list[Output], name: str) -> list[int]:
    return [o.token for o in outputs if o.id == name and o.token is not None]


def end_of(outputs: list[Output], name: str) -> Output:
    (end,) = [o for o in outputs if o.id == name and o.finish_reason]
    return end


def greedy(prompt: list[int], count: int) -> list[int]:
    """What the fake model says, without any engine."""
    history = list(prompt)
    for _ in range(count):
        history.append(int(fake_logits(history, 50).argmax()))
    return history[len(prompt) :]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(50), k=length)
