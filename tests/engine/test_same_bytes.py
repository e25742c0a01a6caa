"""A request's tokens and log-probabilities are the same bits whatever happens around it, on every tier and kernel set.

The model is tiny but runs through the real runner and kernels; ``test_same_bytes_real.py`` does the same with the
default model. What is compared are floats, for equality.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.process import build
from engine.request import SamplingParams
from engine.runner import ModelRunner
from tests.engine.runners import runner_on
from tests.engine.traffic import (
    Answer,
    Counting,
    Job,
    Run,
    alone,
    core_of,
    expect_same,
    mixed_jobs,
    noise,
    preempt,
    serve,
)
from tests.tiny import Family, Tier, make_tiny_artifact

VOCAB, LENGTH, BLOCK = 272, 512, 16
TIERS: list[Tier] = ["bf16", "int8", "int4", "int4-a8"]
# (tier, kernels, compute dtype, KV dtype). The reference is slow: each of its products and caches once, not all pairs.
ARITHMETIC = [
    *((tier, "cpu", dtype, kv) for tier in TIERS for dtype in ("float32", "bfloat16") for kv in ("auto", "int8")),
    *(("bf16", "cpu", dtype, "int4") for dtype in ("float32", "bfloat16")),
    ("bf16", "reference", "float32", "int8"),
    ("bf16", "reference", "bfloat16", "int4"),
    ("bf16", "reference", "bfloat16", "auto"),
    ("int8", "reference", "float32", "auto"),
    ("int8", "reference", "bfloat16", "int8"),
    ("int4", "reference", "float32", "auto"),
    ("int4", "reference", "bfloat16", "auto"),
    ("int4-a8", "reference", "bfloat16", "int8"),
]


@dataclass(frozen=True)
class Served:
    runner: ModelRunner
    jobs: list[Job]
    truth: dict[str, Answer]  # each job alone, its prompt in chunks of 256
    kernels: str

    def check(self, run: Run, without: tuple[str, ...] = ()) -> None:
        expect_same(run, self.truth, without)


def runner_of(artifact: Path, kernels: str, dtype: str, kv: str, **config: Any) -> ModelRunner:
    asked: dict[str, Any] = {
        "compute_dtype": dtype, "kv_dtype": kv, "max_model_len": LENGTH, "max_num_seqs": 48, "threads": 1, **config
    }  # fmt: skip
    return runner_on(kernels, artifact, EngineConfig(**asked))


@pytest.fixture(scope="module", params=ARITHMETIC, ids=lambda p: "-".join(p))
def served(request: pytest.FixtureRequest, artifacts: dict[str, Path]) -> Served:
    tier, kernels, dtype, kv = request.param
    runner = runner_of(artifacts[tier], kernels, dtype, kv)
    jobs = mixed_jobs(46, VOCAB, 400) if kernels == "cpu" else mixed_jobs(18, VOCAB, 200)
    truth = alone(runner, jobs)
    assert len({tuple(a.tokens) for a in truth.values() if a.tokens}) > len(jobs) // 2  # they do differ
    return Served(runner, jobs, truth, kernels)


def test_among_neighbours_in_any_order(served: Served) -> None:
    core = core_of(served.runner, max_num_batched_tokens=1 << 14, max_num_seqs=64)
    core.runner = counting = Counting(served.runner)
    served.check(serve(core, [*served.jobs, *noise(10, VOCAB, 60)], order=1))
    assert max(len({e.request_id for e in batch}) for batch in counting.batches) >= len(served.jobs)


def test_cold_and_warm_prefix_cache(served: Served) -> None:
    core = core_of(served.runner, prefill_chunk_tokens=512)
    served.check(serve(core, served.jobs, order=2))
    before, computed = core.stats()["prefix_hits_tokens"], core.counts["step_tokens"]
    served.check(serve(core, served.jobs, order=3))
    hits = core.stats()["prefix_hits_tokens"] - before
    assert hits > sum(len(j.prompt) for j in served.jobs) // 2
    assert core.counts["step_tokens"] - computed < computed - hits // 2


# Chunk, step budget and slots in every run, and one policy or another.
SETTINGS: dict[str, dict[str, Any]] = {
    "small chunks": {"prefill_chunk_tokens": 16, "max_num_batched_tokens": 16},
    "few slots, separate": {
        "prefill_chunk_tokens": 16, "max_num_batched_tokens": 100, "max_num_seqs": 3,
        "prefill": "separate", "decode_gap_tokens": 32,
    },
    "static": {"prefill_chunk_tokens": 128, "max_num_batched_tokens": 200, "max_num_seqs": 9, "batching": "static"},
    "contiguous": {
        "prefill_chunk_tokens": 64, "max_num_batched_tokens": 64, "prefix_caching": False,
        "kv_reservation": "contiguous",
    },
    "all the old ways": {
        "prefill_chunk_tokens": 256, "max_num_seqs": 7, "prefix_caching": False,
        "batching": "static", "prefill": "separate", "kv_reservation": "contiguous",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_any_chunk_budget_slots_and_policy(served: Served, name: str) -> None:
    core = core_of(served.runner, **SETTINGS[name])
    jobs = served.jobs
    if "contiguous" in SETTINGS[name].values():  # which has no samples of one prompt
        jobs = [j for j in jobs if j.samples == 1]
    run = serve(core, jobs, order=4, stagger=name != "small chunks")
    expect_same(run, {i: served.truth[i] for j in jobs for i in j.ids})


@pytest.mark.parametrize("caching", [False, True])
def test_preemption_in_any_state(served: Served, caching: bool) -> None:
    """Somebody loses all blocks after every other step: in the middle of a prompt, at a block edge, with samples that
    have not begun."""
    core = core_of(
        served.runner, num_blocks=100, prefill_chunk_tokens=48, max_num_batched_tokens=64, prefix_caching=caching
    )
    run = serve(core, served.jobs, order=5, stagger=True, storm=True)
    served.check(run)
    assert len(run.preempted & served.truth.keys()) > len(served.jobs) // 2
    assert core.stats()["recomputed_tokens"] > 0
    assert not caching or core.stats()["prefix_hits_tokens"] > 0


@pytest.mark.parametrize("caching", [False, True])
def test_prompts_that_begin_alike(served: Served, caching: bool) -> None:
    """Each alone, all its tokens scored; then as branches, from some token on, with neighbours, under a storm, and
    again from what the cache has by then."""
    draw = random.Random(12)
    groups, truth = list[Job](), dict[str, Answer]()
    for length, first in ((3, 2), (16, 16), (37, 30), (70, 1)):
        common = draw.choices(range(VOCAB), k=length)
        rests = tuple(tuple(draw.choices(range(VOCAB), k=n)) for n in (1, 2, 18, 5))
        name = f"group{length}"
        params = SamplingParams(0, prompt_logprobs=2)
        apart = [Job(f"{name}-{k}", (*common, *rest), params) for k, rest in enumerate(rests)]
        for (_, answer), k in zip(alone(served.runner, apart).items(), range(len(rests)), strict=True):
            assert answer.prompt_logprobs is not None
            truth[f"{name}.{k}"] = answer._replace(prompt_logprobs=answer.prompt_logprobs[first - 1 :])
        groups.append(Job(name, tuple(common), replace(params, scored_from=first), branches=rests))
    core = core_of(
        served.runner, num_blocks=60, prefill_chunk_tokens=48, max_num_batched_tokens=64, prefix_caching=caching,
        max_num_seqs=4,
    )  # fmt: skip
    for storm in (True, False):
        run = serve(core, [*groups, *noise(4, VOCAB, 60)], order=13, stagger=True, storm=storm)
        expect_same(run, truth)
        assert not storm or run.preempted & truth.keys()


def test_neighbours_that_are_aborted_half_way(served: Served) -> None:
    gone = tuple(j.name for j in served.jobs[1::4])
    core = core_of(served.runner, num_blocks=120, prefill_chunk_tokens=32, max_num_batched_tokens=96)
    extra = noise(12, VOCAB, 200)
    run = serve(core, [*served.jobs, *extra], order=6, stagger=True, aborts=[*gone, *(n.name for n in extra[::2])])
    served.check(run, gone)
    assert core.stats()["finished_abort"] > 0


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "gemma3"])
def test_every_family(tmp_path: Path, family: Family, kernels: str) -> None:
    """Windows shorter than the prompts, norms of heads, other activations: under pressure, then from the cache."""
    artifact = make_tiny_artifact(tmp_path, "int4", family=family)
    runner = runner_of(artifact, kernels, "auto", "int8")
    jobs = mixed_jobs(14, VOCAB, 150, seed=1)
    truth = alone(runner, jobs)
    core = core_of(runner, num_blocks=60, prefill_chunk_tokens=48, max_num_batched_tokens=64)
    stormy = serve(core, jobs, order=10, stagger=True, storm=True)
    expect_same(stormy, truth)
    assert stormy.preempted
    hits = core.stats()["prefix_hits_tokens"]
    expect_same(serve(core, jobs, order=11), truth)
    assert core.stats()["prefix_hits_tokens"] > hits


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("caching", [False, True])
def test_a_pool_that_is_too_small(artifacts: dict[str, Path], tier: Tier, caching: bool) -> None:
    """The scheduler preempts on its own: eight requests that grow, in blocks for two of them."""
    runner = runner_of(artifacts[tier], "cpu", "auto", "auto")
    hot = [SamplingParams(70, temperature=i / 4, seed=i, logprobs=1, ignore_eos=True) for i in range(8)]
    jobs = [Job(f"g{i}", tuple(range(i, i + 14 + i)), params) for i, params in enumerate(hot)]
    core = core_of(runner, num_blocks=14, prefill_chunk_tokens=32, prefix_caching=caching)
    run = serve(core, jobs)
    expect_same(run, alone(runner, jobs))
    assert len(run.preempted) >= 4
    stats = core.stats()
    assert stats["recomputed_tokens"] > 0
    assert stats["allocation_failures_exhausted"] + stats["allocation_failures_fragmented"] > 0


@pytest.mark.parametrize(
    ("tier", "kernels", "dtype", "threads"),
    [(t, "cpu", d, n) for t in TIERS for d in ("float32", "bfloat16") for n in (2, 3)]
    + [(t, "reference", "float32", 2) for t in TIERS],
)
def test_any_number_of_threads(artifacts: dict[str, Path], tier: Tier, kernels: str, dtype: str, threads: int) -> None:
    """Alone with one thread and together with several."""
    jobs = mixed_jobs(10 if kernels == "cpu" else 5, VOCAB, 150, seed=threads)
    several = runner_of(artifacts[tier], kernels, dtype, "auto", threads=threads)
    together = serve(core_of(several), jobs, order=8)
    expect_same(together, alone(runner_of(artifacts[tier], kernels, dtype, "auto"), jobs))


@pytest.mark.parametrize("tier", TIERS)
def test_preempted_at_every_length_around_the_block_edges(artifacts: dict[str, Path], tier: Tier) -> None:
    runner = runner_of(artifacts[tier], "cpu", "auto", "auto" if tier == "bf16" else "int8")
    params = SamplingParams(24, temperature=0.8, seed=3, logprobs=2, prompt_logprobs=0, ignore_eos=True)
    job, neighbour = (Job(n, tuple(range(n_prompt)), params) for n, n_prompt in (("a", 13), ("b", 20)))
    truth = alone(runner, [job, neighbour])
    for length in range(14, 37):
        core = core_of(runner, prefill_chunk_tokens=16, prefix_caching=length % 2 == 0)
        run = Run(core)
        for j in (job, neighbour):
            core.submit(j.request())
        while core.has_work:
            victim = core.requests.get("a.0")
            if victim in core.scheduler.running and victim.num_tokens == length and not victim.num_preemptions:
                preempt(core, victim)
            run.note(core.step())
        assert core.scheduler.num_preemptions == 1
        expect_same(run, truth)
        core.pool.check_idle()


@pytest.mark.parametrize("tier", TIERS)
def test_a_fully_cached_prompt_still_computes_a_token(artifacts: dict[str, Path], tier: Tier) -> None:
    runner = runner_of(artifacts[tier], "cpu", "auto", "auto")
    job = Job("a", tuple(range(4 * BLOCK)), SamplingParams(5, logprobs=3))
    core = core_of(runner)
    core.runner = counting = Counting(runner)
    cold = serve(core, [job])
    counting.batches.clear()
    warm = serve(core, [job])
    assert cold.answers == warm.answers
    assert core.stats()["prefix_hits_tokens"] == 3 * BLOCK
    assert counting.batches[0][0].start == 3 * BLOCK
    assert len(counting.batches[0][0].token_ids) == BLOCK


def test_the_key_of_a_block_names_model_and_arithmetic(artifacts: dict[str, Path]) -> None:
    roots = []
    for tier, dtype, kv in [
        ("bf16", "float32", "auto"), ("bf16", "float32", "bfloat16"), ("bf16", "float32", "int8"),
        ("bf16", "bfloat16", "auto"), ("int8", "float32", "auto"), ("bf16", "float32", "int4"),
    ]:  # fmt: skip
        config = EngineConfig(compute_dtype=dtype, kv_dtype=kv, max_model_len=64, threads=1)  # type: ignore[arg-type]
        core, _ = build(artifacts[tier], config)
        serve(core, [Job("a", tuple(range(32)), SamplingParams(1))])
        roots.append(frozenset(core.pool._known))
    assert all(len(keys) == 2 for keys in roots)
    assert len(frozenset.union(*roots)) == 12


def test_a_forged_collision_is_caught_by_the_tokens(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block has the same digest: the first one is found for all, and only its own tokens may use it."""
    forged = SimpleNamespace(digest=lambda: b"same")
    monkeypatch.setattr("engine.blocks.hashlib", SimpleNamespace(sha256=lambda _: forged))
    core = core_of(served.runner)
    jobs = served.jobs[:16]
    truth = {i: served.truth[i] for j in jobs for i in j.ids}
    for _ in range(2):
        expect_same(serve(core, jobs, order=9), truth)
    assert len(core.pool._known) == 1


@pytest.fixture(scope="module")
def quick(artifacts: dict[str, Path]) -> dict[str, Served]:
    found = {}
    for tier in TIERS:
        runner = runner_of(artifacts[tier], "cpu", "auto", "int8" if tier == "int8" else "auto")
        jobs = mixed_jobs(12, VOCAB, 90, seed=5, max_tokens=20)
        found[tier] = Served(runner, jobs, alone(runner, jobs), "cpu")
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_schedule(quick: dict[str, Served], data: st.DataObject) -> None:
    served = quick[data.draw(st.sampled_from(TIERS))]
    chunk = BLOCK * data.draw(st.integers(1, 4))
    caching = data.draw(st.booleans())
    core = core_of(
        served.runner,
        num_blocks=data.draw(st.integers(8, 40)),
        prefill_chunk_tokens=chunk,
        max_num_batched_tokens=data.draw(st.integers(chunk, 2 * chunk + 20)),
        max_num_seqs=data.draw(st.integers(1, 8)),
        prefix_caching=caching,
        batching=data.draw(st.sampled_from(["continuous", "static"])),
        prefill=data.draw(st.sampled_from(["mixed", "separate"])),
    )
    chosen = data.draw(st.lists(st.integers(0, len(served.jobs) - 1), min_size=1, max_size=6, unique=True))
    jobs = [served.jobs[i] for i in chosen]
    run = Run(core)
    gone: set[str] = set()
    for job in jobs:
        core.submit(job.request())
        for _ in range(data.draw(st.integers(0, 6))):
            run.note(core.step())
            core.pool.check()
        if data.draw(st.integers(0, 4)) == 0:
            victim = jobs[data.draw(st.integers(0, len(jobs) - 1))].name
            core.abort([i for i in core.requests if i.startswith(f"{victim}.")])
            gone.add(victim)
    while core.has_work:
        run.note(core.step())
    core.pool.check_idle()
    kept = {i: served.truth[i] for j in jobs for i in j.ids if j.name not in gone}
    if kept:
        expect_same(run, kept)
