"""Prompts that begin alike and are only scored: the beginning is computed once, and nothing else is different."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.branches import MOST_BRANCH_TOKENS, Group, grouped
from engine.protocol import AddRequest, Output
from engine.request import Request, RequestError, SamplingParams
from tests.engine.fake_core import end_of, greedy, make_core, prompt_of, run, tokens_of
from tests.engine.fake_runner import FakeRunner
from tests.engine.test_core import logprobs_of
from tests.engine.test_schedules import MAX_LEN, make, policies


def scored(name: str, common: list[int], rests: list[list[int]], first: int = 1, **more: Any) -> AddRequest:
    params = SamplingParams(0, prompt_logprobs=0, scored_from=first)
    ids = [f"{name}.{k}" for k in range(len(rests))]
    return AddRequest(ids, common, params.to_wire(), branches=rests, **more)


def values(output: Output) -> list[float]:
    assert output.finish_reason == "length", output
    assert output.prompt_logprobs is not None
    return [p.logprob for p in output.prompt_logprobs]


def computed(runner: FakeRunner) -> int:
    return sum(len(e.token_ids) for batch in runner.batches for e in batch)


def rows(runner: FakeRunner) -> int:
    return sum(e.num_rows for batch in runner.batches for e in batch)


# Which prompts are put together


def naive(a: list[int], b: list[int]) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=2, max_size=8), st.integers(1, 3)), max_size=8))
def test_groups_are_neighbours_that_have_in_common_what_is_said(drawn: list[tuple[list[int], int]]) -> None:
    prompts, first = [p for p, _ in drawn], [min(f, len(p) - 1) for p, f in drawn]
    found = list(grouped(prompts, first))
    assert [k for group in found for k in group.members] == list(range(len(prompts)))
    for group in found:
        mine = [prompts[k] for k in group.members]
        if len(mine) == 1:
            assert group.common == len(mine[0])
            continue
        assert group.common == min(*(naive(mine[0], other) for other in mine[1:]), *(len(p) - 1 for p in mine))
        assert {first[k] for k in group.members} == {first[group.members.start]}
        assert 1 <= first[group.members.start] <= group.common
        assert max(len(p) for p in mine) - group.common <= MOST_BRANCH_TOKENS


def test_choices_are_a_group_and_the_next_question_is_another() -> None:
    one, two = [1, *prompt_of(20, 1)], [1, *prompt_of(20, 2)]
    prompts = [[*one, 3], [*one, 4, 5], [*one, 4, 6], [*two, 3], [*two, 9]]
    assert list(grouped(prompts, [21] * 5)) == [Group(range(3), 21), Group(range(3, 5), 21)]


def test_prompts_are_apart_that_ask_from_different_tokens_or_differ_in_much() -> None:
    assert len(list(grouped([[1, 2, 3, 4], [1, 2, 3, 5]], [3, 2]))) == 2
    assert len(list(grouped([[1, 2, 3, 4], [1, 2, 9, 5]], [3, 3]))) == 2  # the row before token 3 is another
    long = [7] * MOST_BRANCH_TOKENS
    assert len(list(grouped([[1, *long], [1, 2]], [1, 1]))) == 1
    assert len(list(grouped([[1, 7, *long], [1, 2]], [1, 1]))) == 2
    assert len(list(grouped([[1], [1]], [1, 1]))) == 2  # one token is predicted by nothing


# What is computed


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 13])
@pytest.mark.parametrize("caching", [False, True])
def test_the_beginning_is_computed_once(length: int, caching: bool) -> None:
    common, rests = prompt_of(length), [[1], [2, 3, 4], [2, 5], [6, 7, 8, 9, 1, 2]]
    core, runner = make_core(prefix_caching=caching, max_num_batched_tokens=32, prefill_chunk_tokens=32)
    core.submit(scored("a", common, rests))
    outputs = run(core)
    for k, rest in enumerate(rests):
        end = end_of(outputs, f"a.{k}")
        assert values(end) == logprobs_of([*common, *rest])
        assert end.cached_tokens == (0 if k == 0 else length)
    assert computed(runner) == length + sum(len(rest) - 1 for rest in rests)  # no row that predicts nothing
    assert rows(runner) == computed(runner)
    assert core.stats()["prompt_tokens"] == sum(length + len(rest) for rest in rests)
    assert len(runner.batches) == 2  # the beginning; then all that is left, at once


@pytest.mark.parametrize("first", [1, 4, 5, 8, 9])
def test_rows_in_front_are_not_looked_at(first: int) -> None:
    common, rests = prompt_of(9), [[1, 2], [3], [4, 5, 6]]
    core, runner = make_core()
    core.submit(scored("a", common, rests, first))
    outputs = run(core)
    for k, rest in enumerate(rests):
        assert values(end_of(outputs, f"a.{k}")) == logprobs_of([*common, *rest])[first - 1 :]
    assert rows(runner) == computed(runner) - (first - 1)


def test_what_the_cache_has_in_front_of_the_first_row_is_not_computed() -> None:
    """17 tokens, asked for from token 14 on: the row at 13 is needed, so that 12 may come from the cache."""
    core, runner = make_core()
    prompt = prompt_of(17)
    core.submit(AddRequest(["warm"], prompt, SamplingParams(1).to_wire()))
    run(core)
    runner.batches.clear()
    params = SamplingParams(0, prompt_logprobs=0, scored_from=14)
    core.submit(AddRequest(["a"], prompt, params.to_wire()))
    outputs = run(core)
    assert values(end_of(outputs, "a")) == logprobs_of(prompt)[13:]
    assert end_of(outputs, "a").cached_tokens == 12
    assert [(e.start, len(e.token_ids), e.num_rows) for batch in runner.batches for e in batch] == [(12, 4, 3)]


def test_log_probabilities_from_a_token_on_and_a_drawn_token() -> None:
    core, _ = make_core()
    prompt = prompt_of(13)
    params = SamplingParams(3, prompt_logprobs=2, scored_from=6)
    core.submit(AddRequest(["a", "b"], prompt, params.to_wire()))
    outputs = run(core)
    for name in ("a", "b"):
        (found,) = [o.prompt_logprobs for o in outputs if o.id == name and o.prompt_logprobs is not None]
        assert [p.logprob for p in found] == logprobs_of(prompt)[5:]
        assert tokens_of(outputs, name) == greedy(prompt, 3)


def test_branches_take_no_slots() -> None:
    """Two slots, three questions with four choices each: each question is in one slot, and all its choices at once."""
    core, runner = make_core(max_num_seqs=2, max_num_batched_tokens=64)
    for i in range(3):
        core.submit(scored(f"q{i}", prompt_of(6, i), [[1, k, 2] for k in range(4)], 6))
    outputs = run(core)
    entries = [[e.request_id for e in batch] for batch in runner.batches]
    assert entries[0] == ["q0.0", "q1.0"]
    assert sorted(entries[1]) == sorted(f"q{i}.{k}" for i in range(2) for k in range(4))
    assert entries[2] == ["q2.0"]
    for i in range(3):
        for k in range(4):
            assert values(end_of(outputs, f"q{i}.{k}")) == logprobs_of([*prompt_of(6, i), 1, k, 2])[5:]


def test_a_branch_that_lost_its_blocks_waits_for_a_slot_like_others() -> None:
    core, _ = make_core(max_num_seqs=1)
    core.submit(scored("a", prompt_of(6), [[1, 2], [3, 4]]))
    core.step()
    branch = core.requests["a.1"]
    assert not branch.takes_slot
    core.submit(AddRequest(["urgent"], prompt_of(5, 3), SamplingParams(1).to_wire(), -1))
    outputs = core.step()
    assert branch.num_preemptions == 1
    assert branch.takes_slot
    outputs += run(core)
    for k, rest in enumerate([[1, 2], [3, 4]]):
        assert values(end_of(outputs, f"a.{k}")) == logprobs_of([*prompt_of(6), *rest])


def test_all_go_with_the_first_before_they_part_and_each_alone_behind() -> None:
    core, _ = make_core(prefill_chunk_tokens=4, max_num_batched_tokens=4)
    core.submit(scored("a", prompt_of(9), [[1, 2], [3, 4]]))
    core.step()
    core.abort(["a.0"])
    assert sorted((o.id, o.finish_reason) for o in run(core)) == [("a.0", "abort"), ("a.1", "abort")]
    core.submit(scored("b", prompt_of(3), [[1, 2], [3, 4], [5, 6]]))
    core.step()
    core.abort(["b.0"])
    outputs = run(core)
    assert end_of(outputs, "b.0").finish_reason == "abort"
    for k, rest in ((1, [3, 4]), (2, [5, 6])):
        assert values(end_of(outputs, f"b.{k}")) == logprobs_of([*prompt_of(3), *rest])


@pytest.mark.parametrize("position", [1, 5, 6])
def test_a_row_that_is_no_distribution_ends_all_that_need_it(position: int) -> None:
    core, runner = make_core()
    runner.poison = {position}
    core.submit(scored("a", prompt_of(6), [[1], [2, 3], [4, 5, 6]]))
    outputs = run(core)
    for k, length in enumerate([7, 8, 9]):
        end = end_of(outputs, f"a.{k}")
        if position <= length - 2:
            assert end.finish_reason == "error"
            assert f"logits at position {position + 1} are not finite" in str(end.error)
        else:
            assert values(end) == logprobs_of([*prompt_of(6), 1])


@pytest.mark.parametrize(
    ("params", "branches", "message"),
    [
        ({"max_tokens": 0}, [[1], [2], [3]], "3 branches for 2 ids"),
        ({"max_tokens": 0}, [[1], []], "none of them empty"),
        ({"max_tokens": 1}, [[1], [2]], "only prompts that are scored have branches"),
        ({"max_tokens": 0, "scored_from": 4}, [[1, 2], [2, 3]], "from a token on that is at most 3"),
        ({"max_tokens": 0}, [[1], [99]], "token id 99 is outside the vocabulary of 50"),
    ],
)
def test_other_branches_are_refused(params: dict[str, Any], branches: list[list[int]], message: str) -> None:
    core, _ = make_core()
    wire = SamplingParams(**{"prompt_logprobs": 0, **params}).to_wire()
    core.submit(AddRequest(["a", "b"], [1, 2, 3], wire, branches=branches))
    outputs = run(core)
    assert [o.refusal for o in outputs] == ["invalid"] * 2
    assert message in str(outputs[0].error)


def test_from_where_a_prompt_can_be_scored() -> None:
    with pytest.raises(RequestError, match="scored_from is 3 in a prompt of 3 tokens; its last token is number 2"):
        Request("a", [1, 2, 3], SamplingParams(0, prompt_logprobs=0, scored_from=3))
    with pytest.raises(RequestError, match="scored_from is 2, expected 1 with store or reference"):
        SamplingParams(0, prompt_logprobs=0, scored_from=2, store="x")
    assert Request("a", [1], SamplingParams(0, prompt_logprobs=0)).num_due_tokens == 1


# Among others, under every policy and pressure


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies(), st.integers(8, 16), st.data())
def test_groups_among_other_requests(chosen: dict[str, Any], num_blocks: int, data: st.DataObject) -> None:
    chosen |= {"kv_reservation": "paged"}
    watched = make(num_blocks, **chosen)
    expected: dict[str, list[float]] = {}
    ended: set[str] = set()
    for i in range(data.draw(st.integers(1, 6))):
        prompt = [7] * data.draw(st.sampled_from([0, 4, 9])) + prompt_of(data.draw(st.integers(1, 9)), i)
        priority = data.draw(st.sampled_from([0, 0, -3, 5]))
        if data.draw(st.booleans()):
            most = MAX_LEN - len(prompt)
            rests = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=most), min_size=2, max_size=5))
            first = data.draw(st.integers(1, len(prompt)))
            watched.submit(scored(f"g{i}", prompt, rests, first, priority=priority))
            for k, rest in enumerate(rests):
                expected[f"g{i}.{k}"] = logprobs_of([*prompt, *rest])[first - 1 :]
        else:
            params = SamplingParams(data.draw(st.integers(1, MAX_LEN - len(prompt))))
            watched.submit(AddRequest([f"n{i}"], prompt, params.to_wire(), priority))
        for _ in range(data.draw(st.integers(0, 4))):
            watched.step()
        if expected and data.draw(st.integers(0, 5)) == 0:
            victim = data.draw(st.sampled_from(sorted(expected)))
            ended |= {n for n in expected if n.split(".")[0] == victim.split(".")[0]}
            watched.core.abort([victim])
    watched.run(limit=3000)
    event(f"preemptions: {min(watched.core.scheduler.num_preemptions, 3)}")
    for name, found in expected.items():
        (end,) = [o for o in watched.outputs if o.id == name and o.finish_reason]
        if end.finish_reason == "abort":
            assert name in ended
        else:
            assert values(end) == found
