"""The default model in every scheme: the same bits among neighbours, in chunks, from the cache, after preemptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.runner import ModelRunner
from tests.engine.traffic import Answer, Counting, Job, alone, core_of, expect_same, mixed_jobs, noise, serve

pytestmark = pytest.mark.slow

LENGTH, BLOCK = 320, 16


@pytest.fixture(scope="module")
def served(real_tier: Path) -> tuple[ModelRunner, list[Job], dict[str, Answer]]:
    """The runner, 46 jobs, and what every third of them is answered alone. Keys and values of int8 weights are int8."""
    asked: dict[str, Any] = {"kv_dtype": "int8" if real_tier.name.startswith("int8") else "auto"}
    config = EngineConfig(max_model_len=LENGTH, max_num_seqs=48, kv_pool_bytes=1 << 29, **asked)
    runner = ModelRunner(real_tier, config)
    jobs = mixed_jobs(46, runner.vocab_size, 300, typical=50)
    return runner, jobs, alone(runner, jobs[::3])


def test_among_neighbours_cold_and_warm(served: tuple[ModelRunner, list[Job], dict[str, Answer]]) -> None:
    runner, jobs, truth = served
    core = core_of(runner, max_num_batched_tokens=1024)
    core.runner = counting = Counting(runner)
    cold = serve(core, [*jobs, *noise(6, runner.vocab_size, 40)], order=1)
    expect_same(cold, truth)
    assert max(len({e.request_id for e in batch}) for batch in counting.batches) > 20
    before = core.stats()["prefix_hits_tokens"]
    warm = serve(core, jobs[::3], order=2)
    expect_same(warm, truth)
    hits = core.stats()["prefix_hits_tokens"] - before
    assert hits > sum(len(j.prompt) for j in jobs[::3]) // 2
    assert cold.answers.items() >= warm.answers.items()


def test_small_chunks_under_pressure(served: tuple[ModelRunner, list[Job], dict[str, Answer]]) -> None:
    """Few slots and blocks, somebody preempted at every other step, neighbours aborted, prefill in steps of its own."""
    runner, jobs, truth = served
    core = core_of(
        runner, num_blocks=80, prefill_chunk_tokens=48, max_num_batched_tokens=96, max_num_seqs=12,
        prefill="separate", decode_gap_tokens=48,
    )  # fmt: skip
    some = sorted(jobs[::3] + jobs[1::6], key=lambda j: j.name)
    gone = [n.name for n in noise(6, runner.vocab_size, 100)]
    run = serve(
        core, [*some, *noise(6, runner.vocab_size, 100)], order=3, stagger=True, storm=True, aborts=gone
    )  # fmt: skip
    expect_same(run, truth)
    assert len(run.preempted & truth.keys()) > 5
    assert core.stats()["recomputed_tokens"] > 0


def test_a_fully_cached_prompt_still_computes_a_token(
    served: tuple[ModelRunner, list[Job], dict[str, Answer]],
) -> None:
    runner, _, _ = served
    job = Job("a", tuple(range(1000, 1000 + 4 * BLOCK)), SamplingParams(4, logprobs=3))
    core = core_of(runner)
    core.runner = counting = Counting(runner)
    cold = serve(core, [job])
    counting.batches.clear()
    assert serve(core, [job]).answers == cold.answers
    assert core.stats()["prefix_hits_tokens"] == 3 * BLOCK
    assert len(counting.batches[0][0].token_ids) == BLOCK
