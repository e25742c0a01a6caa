"""Prompts that begin alike and arrive together: the beginning is computed by the first of them."""

from __future__ import annotations

import pytest

from engine.protocol import AddRequest
from engine.request import SamplingParams
from tests.engine.fake_core import add, end_of, greedy, make_core, prompt_of, run, tokens_of
from tests.engine.fake_runner import FakeRunner
from tests.engine.test_core import logprobs_of

HEAD = prompt_of(40, 100)


def computed(runner: FakeRunner) -> dict[str, list[tuple[int, int]]]:
    """The chunks of each request, as (start, end)."""
    found: dict[str, list[tuple[int, int]]] = {}
    for batch in runner.batches:
        for entry in batch:
            if len(entry.token_ids) > 1:
                found.setdefault(entry.request_id, []).append((entry.start, entry.start + len(entry.token_ids)))
    return found


@pytest.mark.parametrize("budget", [16, 64, 200])
def test_a_burst_behind_one_text_computes_it_once(budget: int) -> None:
    core, runner = make_core(num_blocks=200, max_num_batched_tokens=budget)
    prompts = [[*HEAD, *prompt_of(6, i)] for i in range(5)]
    for i, prompt in enumerate(prompts):
        core.submit(add(prompt, str(i), max_tokens=3))
    outputs = run(core)
    for i, prompt in enumerate(prompts):
        assert tokens_of(outputs, str(i)) == greedy(prompt, 3)
        assert end_of(outputs, str(i)).cached_tokens == (40 if i else 0)
    chunks = computed(runner)
    assert chunks["0"] == [(0, 8), (8, 16), (16, 24), (24, 32), (32, 40), (40, 46)]
    assert all(chunks[str(i)] == [(40, 46)] for i in range(1, 5))
    assert core.stats()["prefix_hits_tokens"] == 4 * 40


def test_others_go_on_meanwhile() -> None:
    core, runner = make_core(max_num_batched_tokens=32)
    for name, prompt in (("a", HEAD), ("b", [*HEAD, 1]), ("c", prompt_of(8, 7))):
        core.submit(add(prompt, name, max_tokens=1))
    core.step()
    assert [e.request_id for e in runner.batches[0]] == ["a", "c"]
    run(core)


def test_less_than_half_of_the_rest_is_not_waited_for() -> None:
    core, runner = make_core(max_num_batched_tokens=32)
    for name, prompt in (("a", HEAD), ("b", [*HEAD[:8], *prompt_of(10, 1)]), ("c", [*HEAD[:8], *prompt_of(7, 2)])):
        core.submit(add(prompt, name, max_tokens=1))
    core.step()
    assert [e.request_id for e in runner.batches[0]] == ["a", "b"]
    outputs = run(core)
    assert tokens_of(outputs, "c") == greedy([*HEAD[:8], *prompt_of(7, 2)], 1)
    assert computed(runner)["c"][0][0] == 8


def test_a_request_that_is_waited_for_may_go() -> None:
    core, runner = make_core(max_num_batched_tokens=32)
    for name in ("a", "b", "c"):
        core.submit(add([*HEAD, ord(name) % 50], name, max_tokens=2))
    for _ in range(2):
        core.step()
    core.abort(["a"])
    outputs = run(core)
    assert tokens_of(outputs, "b") == greedy([*HEAD, ord("b") % 50], 2)
    assert tokens_of(outputs, "c") == greedy([*HEAD, ord("c") % 50], 2)
    assert computed(runner)["b"][0] == (16, 24)
    assert "c" not in computed(runner)  # but for its last token


def test_rows_that_are_asked_for_are_not_taken_from_others() -> None:
    core, runner = make_core(max_num_batched_tokens=64)
    core.submit(add(HEAD, "a", max_tokens=1))
    whole = SamplingParams(0, prompt_logprobs=0).to_wire()
    end = SamplingParams(0, prompt_logprobs=0, scored_from=30).to_wire()
    core.submit(AddRequest(["all"], HEAD, whole))
    core.submit(AddRequest(["end"], HEAD, end))
    outputs = run(core)
    for name, first in (("all", 0), ("end", 29)):
        found = end_of(outputs, name).prompt_logprobs
        assert found is not None
        assert [p.logprob for p in found] == logprobs_of(HEAD)[first:]
    assert computed(runner)["all"][0] == (0, 8)
    assert computed(runner)["end"][0] == (24, 32)  # what it lacked by then was mostly its own


def test_without_a_cache_each_computes_its_own() -> None:
    core, runner = make_core(prefix_caching=False, max_num_batched_tokens=64)
    for name in ("a", "b"):
        core.submit(add(HEAD, name, max_tokens=1))
    run(core)
    assert computed(runner)["a"] == computed(runner)["b"]
