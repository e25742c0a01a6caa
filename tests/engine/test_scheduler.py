from __future__ import annotations

import pytest

from engine.request import Request, RequestError, SamplingParams, TooLongError
from engine.scheduler import QueueFullError
from tests.engine.scheduling import make, request, step


def test_decodes_first_then_chunks_then_the_queue() -> None:
    scheduler = make()
    scheduler.add(request("a", 3))
    step(scheduler)
    scheduler.add(request("b", 20))
    assert step(scheduler) == [("a", 3, 4), ("b", 0, 8)]
    scheduler.add(request("c", 5))
    assert step(scheduler) == [("a", 4, 5), ("b", 8, 16), ("c", 0, 5)]
    assert step(scheduler) == [("a", 5, 6), ("c", 5, 6), ("b", 16, 20)]


def test_a_chunk_that_does_not_fit_waits_whole() -> None:
    scheduler = make(max_num_batched_tokens=10)
    scheduler.add(request("a", 8))
    scheduler.add(request("b", 8))
    assert step(scheduler) == [("a", 0, 8)]
    assert step(scheduler) == [("a", 8, 9), ("b", 0, 8)]


def test_chunk_and_decodes_take_turns_when_only_one_fits() -> None:
    scheduler = make(max_num_batched_tokens=8)
    scheduler.add(request("a", 2))
    step(scheduler)
    scheduler.add(request("b", 24))
    turns = [step(scheduler) for _ in range(6)]
    assert turns == [
        [("a", 2, 3)], [("b", 0, 8)], [("a", 3, 4)], [("b", 8, 16)], [("a", 4, 5)], [("b", 16, 24)],
    ]  # fmt: skip


def test_after_a_prefix_hit_the_chunk_ends_at_the_same_multiple() -> None:
    scheduler = make()
    scheduler.add(request("a", 20, first=5))
    for _ in range(3):
        step(scheduler)
    scheduler.add(Request("b", [5, *range(11), 999, *range(9)], SamplingParams(4)))
    assert step(scheduler) == [("a", 20, 21), ("b", 12, 16)]
    assert scheduler.num_prefix_hits_tokens == 12


def test_a_fully_cached_prompt_computes_a_token() -> None:
    scheduler = make()
    scheduler.add(request("a", 8, first=5))
    step(scheduler)
    scheduler.add(request("b", 8, first=5))
    assert step(scheduler)[1] == ("b", 4, 8)


def test_admission_looks_at_the_whole_prompt_and_leaves_a_watermark() -> None:
    scheduler = make(num_blocks=10)
    scheduler.add(request("a", 20))  # 5 blocks
    scheduler.add(request("b", 20))  # 5 more are free, but then nothing is left for a to grow
    assert step(scheduler) == [("a", 0, 8)]
    assert [r.id for r in scheduler.waiting] == ["b"]
    scheduler.remove(scheduler.running[0])
    assert step(scheduler) == [("b", 0, 8)]


def test_first_come_first_served_behind_a_big_one() -> None:
    scheduler = make(num_blocks=10)
    for name, length in (("a", 8), ("big", 36), ("small", 4)):
        scheduler.add(request(name, length, max_tokens=1))
    assert step(scheduler) == [("a", 0, 8)]
    assert [r.id for r in scheduler.waiting] == ["big", "small"]


def test_the_cheapest_gives_way_and_comes_back_in_order() -> None:
    scheduler = make(num_blocks=6, max_model_len=24)
    old, young = request("old", 8, 16), request("young", 6, 16)
    for r in (old, young):
        scheduler.add(r)
        step(scheduler)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert [r.id for r in scheduler.running] == ["old"]
    assert [r.id for r in scheduler.waiting] == ["young"]
    assert (young.num_computed_tokens, young.table.blocks) == (0, [])
    assert young.num_preemptions == 1
    scheduler.add(request("later", 2))
    assert [r.id for r in scheduler.waiting] == ["young", "later"]
    computed = young.high_water_tokens
    scheduler.remove(old)
    while young.remaining_tokens > 1:
        step(scheduler)
    assert 0 < scheduler.num_recomputed_tokens <= computed


def test_no_preemption_storm_at_a_full_pool() -> None:
    scheduler = make(num_blocks=20, max_model_len=60, max_num_seqs=8, max_queue=50)
    for i in range(12):
        scheduler.add(request(f"r{i}", 20, 20))
    finished = steps = 0
    while scheduler.has_work:
        step(scheduler)
        steps += 1
        for r in list(scheduler.running):
            if r.num_output_tokens >= 20:
                scheduler.remove(r)
                finished += 1
        assert steps < 2000
    assert finished == 12
    assert scheduler.num_preemptions <= 12
    scheduler.pool.check_idle()


def test_what_can_never_fit_is_refused() -> None:
    scheduler = make(num_blocks=4, max_model_len=50)
    with pytest.raises(TooLongError, match="51 together; this model serves at most 50"):
        scheduler.add(request("a", 43))
    with pytest.raises(TooLongError, match="needs room for 17 tokens; the KV pool holds 16"):
        scheduler.add(request("a", 9))
    scheduler.add(request("b", 8))


def test_the_queue_counts_every_sample() -> None:
    scheduler = make(max_num_seqs=2, max_queue=3)
    wide = request("a", 4)
    wide.forks = [request("a1", 4), request("a2", 4)]
    scheduler.add(wide)
    scheduler.add(request("b", 4))
    scheduler.add(request("c", 4))
    with pytest.raises(QueueFullError, match="5 requests wait, the queue holds 3"):
        scheduler.add(request("d", 4))


def test_the_queue_counts_samples_whose_prompt_is_being_computed() -> None:
    scheduler = make(max_num_seqs=2, max_queue=3)
    wide = request("a", 20)
    wide.forks = [request("a1", 20), request("a2", 20)]
    scheduler.add(wide)
    step(scheduler)
    assert (len(scheduler.running), scheduler.num_waiting) == (1, 2)
    scheduler.add(request("b", 4))
    scheduler.add(request("c", 4))
    with pytest.raises(QueueFullError, match="4 requests wait, the queue holds 3"):
        scheduler.add(request("d", 4))


def test_more_samples_than_places_are_refused_for_good() -> None:
    scheduler = make(max_num_seqs=2, max_queue=3)
    for samples in (5, 6):
        wide = request("a", 4)
        wide.forks = [request(f"a{i}", 4) for i in range(samples - 1)]
        if samples == 6:
            with pytest.raises(RequestError, match="n is 6; this engine runs 2 requests and lets 3 wait"):
                scheduler.add(wide)
        else:
            scheduler.add(wide)
            scheduler.remove(wide)


def test_remove_is_idempotent() -> None:
    scheduler = make()
    r = request("a", 10)
    scheduler.add(r)
    step(scheduler)
    scheduler.remove(r)
    scheduler.remove(r)
    scheduler.pool.check_idle()
    assert not scheduler.has_work
