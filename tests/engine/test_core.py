"""The core on a model whose logits are a function of the whole history: any slip in the books changes the output."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import Output
from tests.engine.fake_core import SIZE, add, end_of, greedy, make_core, prompt_of, run, tokens_of
from tests.engine.fake_runner import fake_logits


def logprobs_of(prompt: list[int]) -> list[float]:
    rows = [torch.log_softmax(fake_logits(prompt[:i], 50), dim=-1) for i in range(1, len(prompt))]
    return [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 16, 17, 33])
def test_greedy_output_is_the_models(length: int) -> None:
    core, _ = make_core()
    core.submit(add(prompt_of(length), "a"))
    outputs = run(core)
    assert tokens_of(outputs, "a") == greedy(prompt_of(length), 6)
    assert end_of(outputs, "a").finish_reason == "length"


def test_output_does_not_depend_on_neighbours() -> None:
    alone = []
    for i in range(45):
        core, _ = make_core()
        core.submit(add(prompt_of(1 + i % 23, i), "x", temperature=0.9 if i % 2 else 0.0, seed=i, max_tokens=5 + i % 4))
        alone.append(tokens_of(run(core), "x"))
    core, _ = make_core(num_blocks=40)
    order = list(range(45))
    random.Random(1).shuffle(order)
    for i in order:
        core.submit(
            add(prompt_of(1 + i % 23, i), str(i), temperature=0.9 if i % 2 else 0.0, seed=i, max_tokens=5 + i % 4)
        )
    outputs = run(core)
    assert [tokens_of(outputs, str(i)) for i in range(45)] == alone


@pytest.mark.parametrize("chunk", [4, 8, 12, 16])
def test_chunks_end_at_absolute_multiples(chunk: int) -> None:
    core, runner = make_core(prefill_chunk_tokens=chunk, max_num_batched_tokens=16)
    prompts = [prompt_of(n, n) for n in (37, 5, 23, 16)]
    for i, prompt in enumerate(prompts):
        core.submit(add(prompt, str(i)))
    outputs = run(core)
    assert [tokens_of(outputs, str(i)) for i in range(4)] == [greedy(p, 6) for p in prompts]
    ends = {(e.request_id, e.start + len(e.token_ids)) for batch in runner.batches for e in batch}
    assert all(end % chunk == 0 or end >= len(prompts[int(name)]) for name, end in ends)
    assert max(sum(len(e.token_ids) for e in batch) for batch in runner.batches) <= 16


def test_a_chunk_as_large_as_the_budget_starves_nobody() -> None:
    core, _ = make_core(max_num_batched_tokens=8, prefill_chunk_tokens=8, max_num_seqs=4)
    core.submit(add(prompt_of(3), "decodes", max_tokens=40))
    core.step()
    core.submit(add(prompt_of(40, 1), "long"))
    core.submit(add(prompt_of(40, 2), "long2"))
    seen: list[str] = []
    while core.has_work:
        seen += [o.id for o in core.step() if o.token is not None]
    first_long = seen.index("long")
    assert 4 <= first_long <= 12, "the long prompts and the decode take turns"
    assert tokens_count(seen, "decodes") == 39


def tokens_count(seen: list[str], name: str) -> int:
    return seen.count(name)


def test_a_long_prompt_does_not_stop_decodes() -> None:
    core, _ = make_core(num_blocks=300, max_model_len=1100, max_num_batched_tokens=16, prefill_chunk_tokens=8)
    core.submit(add(prompt_of(3), "d", max_tokens=200))
    core.step()
    core.submit(add(prompt_of(800), "long"))
    gap = longest = 0
    for _ in range(110):
        gap = 0 if any(o.id == "d" and o.token is not None for o in core.step()) else gap + 1
        longest = max(longest, gap)
    assert longest == 0


@pytest.mark.parametrize("total", range(9, 26))
def test_preemption_at_every_length_changes_nothing(total: int) -> None:
    """Two requests grow in a pool that holds one and a half of them: at some length one must give way."""
    prompts = [prompt_of(5, 1), prompt_of(6, 2)]
    core, _ = make_core(num_blocks=-(-total // SIZE) + 2, max_model_len=total, prefix_caching=total % 2 == 0)
    for i, prompt in enumerate(prompts):
        core.submit(add(prompt, str(i), max_tokens=total - len(prompt)))
    outputs = run(core)
    for i, prompt in enumerate(prompts):
        assert tokens_of(outputs, str(i)) == greedy(prompt, total - len(prompt))
    if total > 16:
        assert core.scheduler.num_preemptions >= 1
        assert core.scheduler.num_recomputed_tokens > 0 or total % 2 == 0
        assert core.stats()["allocation_failures_exhausted"] + core.stats()["allocation_failures_fragmented"] >= 1


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("prefill", ["mixed", "separate"])
@pytest.mark.parametrize("steps", range(1, 16))
def test_giving_way_after_every_number_of_steps_changes_nothing(steps: int, prefill: str, caching: bool) -> None:
    """A prompt of 10 in chunks of 4, then outputs: one slot, which a more important request takes after each step, so
    that the other loses its blocks at every length around a block's edge."""
    core, runner = make_core(
        prefill_chunk_tokens=4, max_num_batched_tokens=4, max_num_seqs=1, prefill=prefill, prefix_caching=caching
    )
    core.submit(add(prompt_of(10), "a", max_tokens=16, temperature=1.0, seed=3, prompt_logprobs=0))
    outputs = [o for _ in range(steps) for o in core.step()]
    computed = core.requests["a"].num_computed_tokens
    assert computed == min(4 * steps, 10) + max(0, steps - 3)
    core.submit(add(prompt_of(3, 9), "urgent", priority=-1))
    outputs += core.step()
    assert core.requests["a"].num_preemptions == 1
    assert core.pool.num_used == 1
    outputs += run(core)
    alone, _ = make_core()
    alone.submit(add(prompt_of(10), "a", max_tokens=16, temperature=1.0, seed=3, prompt_logprobs=0))
    assert tokens_of(outputs, "a") == tokens_of(run(alone), "a")
    assert tokens_of(outputs, "urgent") == greedy(prompt_of(3, 9), 6)
    assert core.stats()["preemptions"] == 1
    # With the cache only what is no full block is computed again, and prompt rows whose logits are still owed.
    again = core.stats()["recomputed_tokens"]
    assert again == (computed % SIZE if caching else computed)
    assert sum(len(e.token_ids) for b in runner.batches for e in b if e.request_id == "a") == 25 + again


STATES = {
    "queued": lambda r: r.arrival > 0 and r.admitted_s is None,
    "in prefill": lambda r: 0 < r.num_computed_tokens < r.num_prompt_tokens,
    "decoding": lambda r: r.num_output_tokens > 2 and bool(r.table.blocks),
    "preempted": lambda r: r.preempted_since_s is not None,
    "a sample whose prompt is computed": lambda r: r.parent is not None and r.parent.num_computed_tokens > 0,
    "a sample that waits for a slot": lambda r: r.parent is None and r.num_output_tokens == 1 and not r.table.blocks,
}


@pytest.mark.parametrize("state", STATES)
def test_an_abort_frees_within_one_step_in_every_state(state: str) -> None:
    core, _ = make_core(num_blocks=12, max_model_len=48, max_num_seqs=3, max_num_batched_tokens=8)
    for i in range(4):
        core.submit(add(prompt_of(10, i), f"a{i}", f"a{i}0", max_tokens=14))
    outputs: list[Output] = []
    while not (found := [r for r in core.requests.values() if STATES[state](r)]):
        outputs += core.step()
    victim = found[0]
    gone = {victim.id, *(f.id for f in victim.forks)}
    others = {r.id for r in core.requests.values()} - gone
    core.abort([victim.id, victim.id])
    news = core.step()
    assert {o.id for o in news if o.finish_reason == "abort"} == gone
    assert victim.table.blocks == []
    assert not any(r in (*core.scheduler.running, *core.scheduler.waiting) for r in (victim, *victim.forks))
    outputs += news + run(core)
    for name in others:
        assert tokens_of(outputs, name) == greedy(prompt_of(10, int(name[1])), 14)
    assert core.integrity_errors == 0


def test_contiguous_reservation_refuses_samples_and_serves_the_rest() -> None:
    core, _ = make_core(num_blocks=12, max_model_len=48, kv_reservation="contiguous", prefix_caching=False)
    core.submit(add(prompt_of(5), "a", "b"))
    for i in range(6):
        core.submit(add(prompt_of(5 + 3 * i, i), str(i), max_tokens=12))
    outputs = run(core)
    refused = [o for o in outputs if o.refusal]
    assert [o.id for o in refused] == ["a", "b"]
    assert all(o.refusal == "invalid" and "n is 2" in str(o.error) for o in refused)
    assert [tokens_of(outputs, str(i)) for i in range(6)] == [greedy(prompt_of(5 + 3 * i, i), 12) for i in range(6)]
    stats, rows = core.stats(), core.step_log
    assert stats["preemptions"] == 0
    assert stats["allocation_failures_exhausted"] > 0
    assert max(r.blocks_used * SIZE - r.kv_tokens_used for r in rows) >= 12
    assert all(0 < r.kv_tokens_used <= r.blocks_used * SIZE for r in rows if r.running)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_traffic_gives_each_request_its_own_output(data: st.DataObject) -> None:
    chunk = data.draw(st.sampled_from([4, 8, 16]))
    core, _ = make_core(
        num_blocks=data.draw(st.integers(8, 30)),
        max_model_len=32,
        max_num_seqs=data.draw(st.integers(1, 6)),
        max_num_batched_tokens=data.draw(st.integers(chunk, 24)),
        prefill_chunk_tokens=chunk,
        prefix_caching=data.draw(st.booleans()),
    )
    expected: dict[str, list[int]] = {}
    scores: dict[str, list[float] | None] = {}
    aborted: set[str] = set()
    outputs: list[Output] = []
    for i in range(data.draw(st.integers(1, 10))):
        prompt = [7] * data.draw(st.integers(0, 8)) + prompt_of(
            data.draw(st.integers(1, 14)), data.draw(st.integers(0, 2))
        )
        count = data.draw(st.integers(1, 32 - len(prompt)))
        ids = [f"{i}.{k}" for k in range(data.draw(st.integers(1, 3)))]
        scored = data.draw(st.booleans())
        core.submit(add(prompt, *ids, max_tokens=count, prompt_logprobs=0 if scored else None))
        scores |= {name: logprobs_of(prompt) if scored else None for name in ids}
        expected |= dict.fromkeys(ids, greedy(prompt, count))
        for _ in range(data.draw(st.integers(0, 4))):
            outputs += core.step()
            core.pool.check()
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(sorted(expected)))
            core.abort([victim])
            aborted.add(victim.split(".")[0])
    outputs += run(core)
    for name, tokens in expected.items():
        found = tokens_of(outputs, name)
        assert found == tokens[: len(found)]
        if name.split(".")[0] not in aborted:
            assert found == tokens
        assert end_of(outputs, name).finish_reason in ("length", "abort")
        if found:
            first = next(o for o in outputs if o.id == name).prompt_logprobs
            assert (first and [p.logprob for p in first]) == scores[name]


def test_warm_prefix_gives_the_same_tokens_and_counts_the_hit() -> None:
    core, _ = make_core()
    prompt = prompt_of(24)
    core.submit(add(prompt, "cold"))
    cold = run(core)
    core.submit(add(prompt, "warm"))
    warm = run(core)
    assert tokens_of(cold, "cold") == tokens_of(warm, "warm") == greedy(prompt, 6)
    assert end_of(cold, "cold").cached_tokens == 0
    assert end_of(warm, "warm").cached_tokens == 20  # not 24: one token at least is computed
    assert core.stats()["prefix_hits_tokens"] == 20
    assert core.stats()["prefix_queries_tokens"] == 48


def test_samples_of_one_prompt_share_it_and_differ() -> None:
    core, runner = make_core()
    core.submit(add(prompt_of(11), "a", "b", "c", temperature=1.5, seed=3))
    outputs = run(core)
    drawn = [tuple(tokens_of(outputs, i)) for i in "abc"]
    assert len(set(drawn)) == 3
    assert sum(len(e.token_ids) for b in runner.batches for e in b if e.start < 11) == 11
    core2, _ = make_core(max_num_seqs=1)
    core2.submit(add(prompt_of(11), "a", "b", "c", temperature=1.5, seed=3))
    outputs = run(core2)
    assert [tuple(tokens_of(outputs, i)) for i in "abc"] == drawn


def test_seed_is_reproducible_among_others_without_seed() -> None:
    core, _ = make_core()
    core.submit(add([1, 2, 3], "a", temperature=1.0, seed=11))
    alone = tokens_of(run(core), "a")
    core, _ = make_core()
    core.submit(add([1, 2, 3], "x", temperature=1.0))
    core.submit(add([1, 2, 3], "a", temperature=1.0, seed=11))
    core.submit(add([1, 2, 3], "y", temperature=1.0))
    outputs = run(core)
    assert tokens_of(outputs, "a") == alone
    assert len({tuple(tokens_of(outputs, i)) for i in "axy"}) == 3


@pytest.mark.parametrize("chunk", [4, 8, 16])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 21])
def test_prompt_logprobs_across_chunks(chunk: int, length: int) -> None:
    core, _ = make_core(prefill_chunk_tokens=chunk)
    prompt = prompt_of(length)
    core.submit(add(prompt, "warm"))
    run(core)
    core.submit(add(prompt, "a", prompt_logprobs=2, logprobs=1, max_tokens=2))
    outputs = run(core)
    first = next(o for o in outputs if o.id == "a")
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == length - 1
    for i, found in enumerate(first.prompt_logprobs):
        truth = torch.log_softmax(fake_logits(prompt[: i + 1], 50), dim=-1)
        assert math.isclose(found.logprob, float(truth[prompt[i + 1]]), abs_tol=1e-6)
        assert found.top_ids == truth.topk(2).indices.tolist()
    assert first.logprob is not None
    assert first.logprob.top_ids == [first.token]


def test_scoring_without_output() -> None:
    core, _ = make_core()
    core.submit(add(prompt_of(9), "a", "b", prompt_logprobs=0, max_tokens=0))
    outputs = run(core)
    assert [o.id for o in outputs if o.finish_reason == "length"] == ["b", "a"]
    assert all(o.prompt_logprobs is not None and len(o.prompt_logprobs) == 8 for o in outputs)
    assert core.stats()["prompt_tokens"] == 9


def test_stop_tokens_min_tokens_and_ignore_eos() -> None:
    expected = greedy([1, 2, 3], 6)
    stop = expected[2]
    assert stop not in expected[:2]
    core, _ = make_core()
    core.submit(add([1, 2, 3], "stop", stop_token_ids=(stop,)))
    core.submit(add([1, 2, 3], "ignore", stop_token_ids=(stop,), ignore_eos=True))
    core.submit(add([1, 2, 3], "min", stop_token_ids=(stop,), min_tokens=4))
    outputs = run(core)
    assert tokens_of(outputs, "stop") == expected[:3]
    assert end_of(outputs, "stop").finish_reason == "stop"
    assert tokens_of(outputs, "ignore") == expected
    assert stop not in tokens_of(outputs, "min")[:3]
    assert len(tokens_of(outputs, "min")) >= 4


def test_refusals_name_both_numbers_and_hold_nothing() -> None:
    core, _ = make_core(num_blocks=4, max_model_len=64)
    core.submit(add(prompt_of(70), "long"))
    core.submit(add(prompt_of(20), "pool"))
    core.submit(add([50], "vocab"))
    core.submit(add([1], "bias", logit_bias={50: 1.0}))
    refused = {o.id: o for o in run(core)}
    assert refused["long"].refusal == "too_long"
    assert "76 together; this model serves at most 64" in str(refused["long"].error)
    assert "needs room for 26 tokens; the KV pool holds 16" in str(refused["pool"].error)
    assert refused["vocab"].error == "token id 50 is outside the vocabulary of 50"
    assert refused["bias"].refusal == "invalid"


def test_queue_is_bounded() -> None:
    core, _ = make_core(max_num_seqs=2, max_queue=3)
    for i in range(8):
        core.submit(add([1, 2], str(i)))
    outputs = run(core)
    assert [o.id for o in outputs if o.refusal == "queue_full"] == ["5", "6", "7"]
    assert sum(o.finish_reason == "length" for o in outputs) == 5


def test_abort_takes_the_exact_id_within_one_step() -> None:
    core, _ = make_core(max_num_seqs=2)
    for name in ("a1", "a10", "a100"):
        core.submit(add(prompt_of(6), name))
    core.step()
    assert core.scheduler.num_waiting == 1
    core.abort(["a1", "a100", "a1", "nobody"])
    ended = [o.id for o in core.step() if o.finish_reason == "abort"]
    assert ended == ["a1", "a100"]
    assert set(core.requests) == {"a10"}
    assert core.pool.num_used == len(core.requests["a10"].table.blocks)
    assert tokens_of(run(core), "a10")


def test_logits_that_are_not_finite_end_one_request_only() -> None:
    core, runner = make_core()
    runner.poison = {9}
    core.submit(add(prompt_of(10), "bad"))
    core.submit(add(prompt_of(3), "good", max_tokens=4))
    outputs = run(core)
    assert end_of(outputs, "bad").finish_reason == "error"
    assert "not finite" in str(end_of(outputs, "bad").error)
    assert tokens_of(outputs, "good") == greedy(prompt_of(3), 4)


def test_step_log_and_timings() -> None:
    core, _ = make_core()
    core.submit(add(prompt_of(20), "a", max_tokens=3))
    outputs = run(core)
    rows = core.take_steps()
    assert [r.prefill_tokens for r in rows] == [8, 8, 4, 0, 0]
    assert [r.decode_requests for r in rows] == [0, 0, 0, 1, 1]
    assert rows[-1].finished == 1
    assert rows[1].blocks_used == 5
    assert [r.step for r in rows] == [1, 2, 3, 4, 5]
    assert core.take_steps() == []
    timings = end_of(outputs, "a").timings
    assert timings is not None
    assert all(v is not None and v >= 0 for v in timings.values())


@pytest.mark.parametrize("caching", [False, True])
def test_prompt_logprobs_survive_a_preemption_between_chunks(caching: bool) -> None:
    """Four decodes that all need a block at once push out a prompt that is half way."""
    core, _ = make_core(
        num_blocks=57, max_model_len=80, prefill_chunk_tokens=4, max_num_batched_tokens=32, prefix_caching=caching
    )
    for i in range(4):
        core.submit(add(prompt_of(40, i), f"grows{i}", max_tokens=30))
    outputs = [o for _ in range(9) for o in core.step()]
    prompt = prompt_of(50, 9)
    core.submit(add(prompt, "scored", prompt_logprobs=0, max_tokens=3))
    half_way = 0
    while core.requests.get("scored") is None or not core.requests["scored"].num_preemptions:
        outputs += core.step()
        half_way = len(core.requests["scored"].prompt_logprobs)
    assert 0 < half_way < 49
    outputs += run(core)
    first = next(o for o in outputs if o.id == "scored").prompt_logprobs
    assert first is not None
    assert [p.logprob for p in first] == logprobs_of(prompt)
    assert tokens_of(outputs, "scored") == greedy(prompt, 3)
    assert caching or core.scheduler.num_recomputed_tokens >= half_way
