"""What each policy does, on schedules that are short enough to be written down."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.request import RequestError
from engine.scheduler import QueueFullError, Scheduler
from tests.engine.scheduling import make, request, step

Steps = list[list[tuple[str, int, int]]]


def finish(scheduler: Scheduler, output_tokens: int = 4, limit: int = 200) -> Steps:
    """Steps until nothing is left; a request ends when it has so many output tokens."""
    steps: Steps = []
    while scheduler.has_work:
        steps.append(step(scheduler))
        for r in list(scheduler.running):
            if r.num_output_tokens >= output_tokens:
                scheduler.remove(r)
        assert len(steps) < limit
    scheduler.pool.check_idle()
    return steps


def names(steps: Steps) -> list[str]:
    return ["".join(sorted(name for name, _, _ in entries)) for entries in steps]


# Batching


def test_a_static_batch_is_as_many_as_there_are_and_ends_as_a_whole() -> None:
    scheduler = make(batching="static")
    for name in "abcde":
        scheduler.add(request(name, 3))
    assert [name for name, _, _ in step(scheduler)] == list("abcd")  # four slots
    for r in scheduler.running[:3]:
        scheduler.remove(r)
    scheduler.add(request("f", 3))
    assert names([step(scheduler), step(scheduler)]) == ["d", "d"]  # three slots stay empty
    scheduler.remove(scheduler.running[0])
    assert names([step(scheduler)]) == ["ef"]
    scheduler.add(request("g", 3))
    assert names([step(scheduler)]) == ["ef"]
    finish(scheduler)


def test_a_static_batch_takes_what_finds_blocks_together() -> None:
    scheduler = make(num_blocks=10, batching="static", max_num_batched_tokens=32)
    for name in "abc":
        scheduler.add(request(name, 15, max_tokens=1))  # four blocks each, and one to grow for each that runs
    assert names([step(scheduler)]) == ["ab"]
    assert names(finish(scheduler, output_tokens=1)) == ["ab", "c", "c"]


def test_a_member_of_a_static_batch_comes_back_after_a_preemption_and_newcomers_wait() -> None:
    scheduler = make(num_blocks=6, max_model_len=24, batching="static")
    for name, length in (("old", 8), ("young", 6)):
        scheduler.add(request(name, length, 16))
    step(scheduler)
    scheduler.add(request("new", 2))
    order = [n for entries in finish(scheduler, 16) for n, _, _ in entries]
    assert scheduler.num_preemptions >= 1
    assert order.index("new") > max(i for i, n in enumerate(order) if n != "new")


def test_a_static_batch_holds_every_sample_and_one_wider_than_the_slots() -> None:
    scheduler = make(batching="static", max_num_seqs=2)
    wide, fork, other = request("a", 4), [request(f"a{i}", 4) for i in range(2)], request("b", 4)
    for f in fork:
        f.parent = wide
    wide.forks = list(fork)
    scheduler.add(wide)
    scheduler.add(other)
    assert names([step(scheduler)]) == ["a"]
    for f in fork:
        f.tokens.append(8)
        scheduler.start_fork(f)
    assert [r.id for r in scheduler.running] == ["a", "a0"]
    assert [r.id for r in scheduler.waiting] == ["a1", "b"]
    scheduler.remove(wide)
    assert names([step(scheduler)]) == ["a0a1"]
    steps = names(finish(scheduler))
    assert "b" in steps
    assert all("b" not in s or s == "b" for s in steps)


def test_the_queue_of_a_static_engine_counts_no_slot_that_stays_empty() -> None:
    scheduler = make(batching="static", max_num_seqs=2, max_queue=1)
    for name in "abc":
        scheduler.add(request(name, 3))
    with pytest.raises(QueueFullError, match="3 requests wait, the queue holds 1"):
        scheduler.add(request("d", 3))
    step(scheduler)
    scheduler.remove(scheduler.running[0])
    with pytest.raises(QueueFullError, match="1 requests wait, the queue holds 1"):
        scheduler.add(request("d", 3))


# Prefill


def test_separate_steps_hold_one_kind_and_prefill_goes_first() -> None:
    scheduler = make(prefill="separate", decode_gap_tokens=16)
    scheduler.add(request("a", 3))
    assert step(scheduler) == [("a", 0, 3)]
    scheduler.add(request("b", 20))
    scheduler.add(request("c", 5))
    assert step(scheduler) == [("b", 0, 8), ("c", 0, 5)]  # 13 of 16
    assert step(scheduler) == [("a", 3, 4), ("c", 5, 6)]
    assert step(scheduler) == [("b", 8, 16)]
    assert step(scheduler) == [("b", 16, 20)]  # 12 of 16
    assert step(scheduler) == [("a", 4, 5), ("c", 6, 7), ("b", 20, 21)]
    finish(scheduler)


@pytest.mark.parametrize("prefill", ["mixed", "separate"])
@pytest.mark.parametrize("gap", [8, 12, 16, 40, None])
def test_a_very_long_prompt_stops_nobody(prefill: str, gap: int | None) -> None:
    """FAULT 18, with the bound met exactly, and the whole budget where nobody decodes."""
    budget = 32
    scheduler = make(
        num_blocks=51_000, max_model_len=101_000, max_num_batched_tokens=budget, prefill=prefill, decode_gap_tokens=gap
    )
    bound = budget if gap is None else gap
    for name in "ab":
        scheduler.add(request(name, 5, 1000))
    step(scheduler)
    scheduler.add(request("long", 100_000))
    scheduler.add(request("long2", 100_000))
    between, longest, prefilled = dict.fromkeys("ab", 0), 0, 0
    for _ in range(300):
        entries = step(scheduler, check=False)
        chunks = sum(end - start for name, start, end in entries if name.startswith("long"))
        prefilled += chunks
        for name in "ab":
            between[name] += chunks
            longest = max(longest, between[name])
            if name in {n for n, _, _ in entries}:
                between[name] = 0
    # Whole chunks of 8, one for each long prompt a step; two tokens of a mixed step's budget are decodes.
    most = min(bound, 16) if prefill == "mixed" else bound
    assert longest == most // 8 * 8
    assert prefilled >= 300 // (2 if prefill == "separate" else 1) * 8
    for r in list(scheduler.running):
        if r.id in "ab":
            scheduler.remove(r)
    assert sum(end - start for _, start, end in step(scheduler)) == 16


@pytest.mark.parametrize("prefill", ["mixed", "separate"])
def test_decodes_take_turns_where_the_budget_does_not_hold_them(prefill: str) -> None:
    scheduler = make(num_blocks=500, max_num_seqs=7, max_num_batched_tokens=4, prefill_chunk_tokens=4, prefill=prefill)
    for name in "abcdef":
        scheduler.add(request(name, 4, 300))
    while any(r.num_output_tokens == 0 for r in (*scheduler.waiting, *scheduler.running)):
        step(scheduler)
    scheduler.add(request("long", 300))
    counts, since = dict.fromkeys("abcdef", 0), 0
    for _ in range(60):
        entries = step(scheduler)
        since = 0 if any(name == "long" for name, _, _ in entries) else since + 1
        assert since <= 3, "prefill waits for no more than a round of the decodes"
        for name in counts:
            counts[name] = 0 if any(n == name for n, _, _ in entries) else counts[name] + 1
            assert counts[name] <= 4, "a decode waits for no more than the others and a chunk"


def test_small_prompts_do_not_slip_past_a_chunk_that_waits() -> None:
    """Seven tokens are always free, the chunk needs eight, and prompts of two keep coming."""
    scheduler = make(max_num_seqs=16, max_num_batched_tokens=8)
    scheduler.add(request("d", 2, 300))
    step(scheduler)
    scheduler.add(request("big", 24))
    for i in range(12):
        scheduler.add(request(f"s{i}", 2))
        step(scheduler)
    assert next(r for r in scheduler.running if r.id == "big").num_output_tokens > 0


def test_a_sample_that_begins_does_not_hold_up_prefill() -> None:
    scheduler = make()
    wide, fork = request("a", 8), request("b", 8)
    fork.parent, wide.forks = wide, [fork]
    scheduler.add(wide)
    scheduler.add(request("long", 40))
    assert step(scheduler) == [("a", 0, 8), ("long", 0, 8)]
    fork.tokens.append(8)
    scheduler.start_fork(fork)
    assert step(scheduler) == [("b", 8, 9), ("a", 8, 9), ("long", 8, 16)]
    with pytest.raises(ValueError, match="request b has started already"):
        scheduler.start_fork(fork)


# Priorities


def named(name: str, length: int, priority: int, max_tokens: int = 8) -> Any:
    made = request(name, length, max_tokens)
    made.priority = priority
    return made


def test_the_queue_is_in_order_of_importance_then_arrival() -> None:
    scheduler = make(max_num_seqs=1)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -5), ("e", 0)):
        scheduler.add(named(name, 3, priority))
    assert [r.id for r in scheduler.waiting] == list("dbeac")


def test_a_more_important_prompt_goes_before_a_chunk_of_a_running_one() -> None:
    scheduler = make(max_num_batched_tokens=8)
    scheduler.add(named("batch", 40, 1))
    assert step(scheduler) == [("batch", 0, 8)]
    scheduler.add(named("same", 8, 1))
    scheduler.add(named("urgent", 8, 0))
    assert step(scheduler) == [("urgent", 0, 8)]
    assert step(scheduler) == [("urgent", 8, 9)]
    assert step(scheduler) == [("batch", 8, 16)]


def test_the_victim_is_the_least_important_and_never_more_important_than_who_grows() -> None:
    scheduler = make(num_blocks=9, max_model_len=36)
    for name, priority, length in (("high", 0, 4), ("low", 1, 12), ("mid", 0, 8)):
        scheduler.add(named(name, length, priority, 20))
    while not scheduler.num_preemptions:
        step(scheduler)
    assert [r.id for r in scheduler.waiting] == ["low"], "not the cheaper ones"
    assert {r.id for r in scheduler.running} == {"high", "mid"}

    scheduler = make(num_blocks=7, max_model_len=28)
    for name, priority, length in (("low", 1, 12), ("high", 0, 8)):
        scheduler.add(named(name, length, priority, 4))
        step(scheduler)
    high = next(r for r in scheduler.running if r.id == "high")
    high.params = request("x", 8, 1).params
    while not scheduler.num_preemptions:
        step(scheduler)
    assert [r.id for r in scheduler.waiting] == ["low"]


def test_a_less_important_one_makes_way_for_a_slot() -> None:
    scheduler = make(max_num_seqs=2)
    for name, priority in (("a", 2), ("b", 1)):
        scheduler.add(named(name, 3, priority))
    step(scheduler)
    for name, priority in (("c", 1), ("d", 1)):
        scheduler.add(named(name, 3, priority))
    assert names([step(scheduler)]) == ["bc"]
    assert [r.id for r in scheduler.waiting] == ["d", "a"], "among equals nobody makes way"
    assert scheduler.num_preemptions == 1


def test_who_makes_way_gives_back_its_part_of_the_step() -> None:
    scheduler = make(max_num_seqs=1, max_num_batched_tokens=8)
    scheduler.add(named("low", 3, 1))
    step(scheduler)
    scheduler.add(named("urgent", 8, 0))
    assert step(scheduler) == [("urgent", 0, 8)]


def test_who_made_way_does_not_come_back_in_the_same_step() -> None:
    """`small`, the cheaper, goes first; `big` has to go as well, and then there is room for `small` again."""
    scheduler = make(num_blocks=16, max_model_len=64, max_num_batched_tokens=64, prefill_chunk_tokens=32)
    for name, length, priority in (("small", 8, 1), ("big", 40, 1)):
        scheduler.add(named(name, length, priority))
    step(scheduler)
    scheduler.add(named("new", 20, 0))  # five blocks and two to spare; two are free
    assert step(scheduler) == [("new", 0, 20)]
    assert [r.id for r in scheduler.waiting] == ["small", "big"]
    assert [r.id for r in scheduler.running] == ["new"]
    finish(scheduler)
    assert scheduler.num_preemptions == 2


def test_a_prefix_that_others_hold_counts_when_somebody_shall_make_way() -> None:
    scheduler = make(num_blocks=16, max_model_len=64, max_num_batched_tokens=64, prefill_chunk_tokens=32)
    for name, length, priority in (("keep", 31, 0), ("low", 21, 1)):
        scheduler.add(named(name, length, priority))
    step(scheduler)
    newcomer = named(
        "n", 31, 0
    )  # eight blocks and two to spare, as many as `low` gives back and are free, and two more
    newcomer.prompt[:] = newcomer.tokens[:] = scheduler.running[0].prompt[:28] + [999] * 3
    scheduler.add(newcomer)
    assert step(scheduler) == [("keep", 31, 32), ("n", 28, 31)]
    assert [r.id for r in scheduler.waiting] == ["low"]


def test_less_important_ones_make_way_for_blocks_but_not_in_vain() -> None:
    scheduler = make(num_blocks=14, max_model_len=48)
    for name, priority, length in (("keep", 0, 15), ("x", 1, 7), ("y", 1, 11)):
        scheduler.add(named(name, length, priority))  # 4 + 2 + 3 blocks
    for _ in range(3):
        step(scheduler)
    scheduler.add(named("too big", 36, 0))
    step(scheduler)
    assert scheduler.num_preemptions == 0, "x and y together would not be enough"
    scheduler.remove(scheduler.waiting[0])
    scheduler.add(named("fits", 8, 0))
    step(scheduler)
    assert [r.id for r in scheduler.running] == ["keep", "fits", "y"], "the cheaper of the two is enough"
    assert [r.id for r in scheduler.waiting] == ["x"]


# Reservation


def test_contiguous_reserves_all_at_once_and_says_what_it_wastes() -> None:
    scheduler = make(num_blocks=12, kv_reservation="contiguous", prefix_caching=False)
    a, b, c = request("a", 5, 11), request("b", 4, 4), request("c", 9, 7)
    for r in (a, b, c):
        scheduler.add(r)
    step(scheduler)
    assert [r.table.blocks for r in (a, b, c)] == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert (scheduler.pool.num_used, scheduler.num_kv_tokens) == (10, 5 + 4)  # no budget was left for c
    for _ in range(3):
        step(scheduler)
    assert (scheduler.pool.num_used, scheduler.num_kv_tokens) == (10, 5 + 4 + 9 + 3 + 3 + 1)
    scheduler.remove(b)
    scheduler.add(request("d", 8, 8))  # four of 4, 5, 10, 11
    for _ in range(3):
        step(scheduler)
        assert scheduler.num_blocks_stranded == 4
    assert scheduler.pool.failures == {"exhausted": 0, "fragmented": 1}, "asked again only when something has changed"
    scheduler.remove(c)
    step(scheduler)
    assert scheduler.num_blocks_stranded == 0
    assert [r.table.blocks for r in scheduler.running] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert scheduler.num_preemptions == 0


def test_contiguous_refuses_samples_by_name() -> None:
    scheduler = make(kv_reservation="contiguous", prefix_caching=False)
    wide = request("a", 4)
    wide.forks = [request("b", 4)]
    with pytest.raises(RequestError, match="n is 2, but kv_reservation contiguous shares no blocks"):
        scheduler.add(wide)
    assert not scheduler.has_work


def test_who_left_while_it_found_no_room_is_forgotten() -> None:
    scheduler = make(num_blocks=3, max_model_len=12, kv_reservation="contiguous", prefix_caching=False)
    tables = [request(n, 2, 2) for n in "abc"]
    for r in tables:
        scheduler.add(r)
    step(scheduler)
    scheduler.remove(tables[1])
    scheduler.remove(tables[2])
    scheduler.add(big := request("big", 8, 4))
    step(scheduler)
    assert scheduler.pool.failures["exhausted"] == 1
    scheduler.remove(big)
    assert scheduler.num_blocks_stranded == 0
    scheduler.add(request("small", 2, 2))
    assert names([step(scheduler)]) == ["asmall"]


# Settings


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="decode_gap_tokens is 255 but prefill_chunk_tokens is 256"):
        EngineConfig(decode_gap_tokens=255)
    with pytest.raises(ValueError, match="kv_reservation is contiguous but prefix_caching is true"):
        EngineConfig(kv_reservation="contiguous")
    assert EngineConfig(kv_reservation="contiguous", prefix_caching=False, decode_gap_tokens=256).batching
