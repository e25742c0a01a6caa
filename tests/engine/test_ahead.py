"""Steps launched before the tokens of the one before are known change nothing but when they are launched."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.protocol import Output
from tests.engine.fake_core import SIZE, add, end_of, greedy, make_core, prompt_of, run, tokens_of
from tests.engine.fake_runner import FakeRunner
from tests.engine.queued_runner import QueuedRunner


def queued_core(num_blocks: int = 64, unsure: int = 5, **settings: Any) -> tuple[EngineCore, QueuedRunner]:
    defaults = {"block_size": SIZE, "max_num_seqs": 8, "max_num_batched_tokens": 16, "prefill_chunk_tokens": 8}
    config = EngineConfig(**{**defaults, **settings})
    runner = QueuedRunner(num_blocks, config.block_size, config.max_model_len, unsure)
    return EngineCore(runner, config), runner


def test_while_the_host_reads_a_step_the_next_one_is_launched() -> None:
    core, runner = queued_core()
    core.submit(add(prompt_of(5), "a", max_tokens=10))
    core.submit(add(prompt_of(7, 1), "b", max_tokens=10))
    outputs = run(core)
    assert tokens_of(outputs, "a") == greedy(prompt_of(5), 10)
    assert tokens_of(outputs, "b") == greedy(prompt_of(7, 1), 10)
    assert runner.in_flight == 2
    assert runner.launches == 10, "each step once"
    assert runner.rows_launched == 20


def test_a_request_that_ends_costs_a_row_and_no_step() -> None:
    """Where it ends by its length nothing; by a token that nobody could know, its row of the step that was begun."""
    expected = greedy(prompt_of(5), 12)
    core, runner = queued_core()
    core.submit(add(prompt_of(5), "stops", max_tokens=12, stop_token_ids=(expected[4],)))
    core.submit(add(prompt_of(6, 1), "goes on", max_tokens=12))
    outputs = run(core)
    stopped = expected.index(expected[4]) + 1
    assert tokens_of(outputs, "stops") == expected[:stopped]
    assert end_of(outputs, "stops").finish_reason == "stop"
    assert tokens_of(outputs, "goes on") == greedy(prompt_of(6, 1), 12)
    assert runner.launches == 12
    assert runner.rows_launched == 12 + stopped + 1


def traffic(core: EngineCore, seed: int) -> dict[str, list[Output]]:
    """Requests of all kinds, some while others run, some of them aborted."""
    draw, found = random.Random(seed), dict[str, list[Output]]()
    kinds: list[dict[str, Any]] = [
        {}, {}, {"temperature": 0.9}, {"temperature": 0.7, "top_k": 5}, {"logprobs": 1}, {"frequency_penalty": 0.5},
        {"temperature": 1.2, "top_p": 0.8, "logprobs": 2}, {"prompt_logprobs": 1},
        {"stop_token_ids": (3, 14, 15, 9, 26)},
    ]  # fmt: skip
    count, steps = 0, 0
    while count < 14 or core.has_work:
        if count < 14 and draw.random() < 0.3:
            names = [f"r{count}.{k}" for k in range(draw.choice([1, 1, 1, 3]))]
            core.submit(
                add(
                    prompt_of(draw.randint(1, 20), draw.randint(0, 3)),
                    *names,
                    priority=draw.choice([0, 0, 1]),
                    max_tokens=draw.randint(1, 18),
                    seed=count,
                    **draw.choice(kinds),
                )
            )
            count += 1
        if draw.random() < 0.04 and core.requests:
            core.abort([draw.choice(sorted(core.requests))])
        for output in core.step():
            found.setdefault(output.id, []).append(output)
        core.pool.check()
        steps += 1
        assert steps < 2000
    core.pool.check_idle()
    return found


def told(outputs: list[Output]) -> list[Any]:
    """All but the times."""
    return [(o.token, o.logprob, o.prompt_logprobs, o.finish_reason, o.error) for o in outputs]


@pytest.mark.parametrize("blocks", [24, 90])
@pytest.mark.parametrize("seed", range(12))
def test_any_traffic_is_answered_as_without(seed: int, blocks: int) -> None:
    """With enough blocks and with too few of them; aborts fall on the same step of both."""
    settings: dict[str, Any] = {"max_model_len": 48, "max_num_seqs": 5, "prefix_caching": seed % 2 == 0}
    core, runner = queued_core(blocks, **settings)
    plain, _ = make_core(blocks, **settings)
    found, expected = traffic(core, seed), traffic(plain, seed)
    assert {name: told(outputs) for name, outputs in found.items()} == {
        name: told(outputs) for name, outputs in expected.items()
    }
    assert runner.in_flight >= 2
    assert core.integrity_errors == 0


def test_a_draw_that_the_device_leaves_to_the_host_is_computed_again() -> None:
    core, runner = queued_core(unsure=1)
    core.submit(add(prompt_of(5), "a", temperature=1.0, seed=4, max_tokens=12))
    plain, _ = make_core()
    plain.submit(add(prompt_of(5), "a", temperature=1.0, seed=4, max_tokens=12))
    assert tokens_of(run(core), "a") == tokens_of(run(plain), "a")
    assert runner.launches > 12


@pytest.mark.parametrize(
    "params", [{"frequency_penalty": 0.5}, {"prompt_logprobs": 0, "max_tokens": 1}, {"logit_bias": {3: 1.0}}]
)
def test_nothing_is_launched_ahead_for_tokens_that_the_host_must_draw(params: dict[str, Any]) -> None:
    core, runner = queued_core()
    core.submit(add(prompt_of(5), "a", **params))
    run(core)
    assert runner.in_flight == 1


def test_nothing_is_launched_ahead_while_others_wait_for_a_place() -> None:
    """The step in which one ends and another begins is one step."""
    core, runner = queued_core(max_num_seqs=1)
    core.submit(add(prompt_of(5), "a", max_tokens=4))
    core.submit(add(prompt_of(6), "b", max_tokens=4))
    outputs = run(core)
    assert tokens_of(outputs, "b") == greedy(prompt_of(6), 4)
    assert runner.launches == 8
    assert runner.rows_launched == 8


def test_the_last_blocks_are_left_to_others() -> None:
    core, _ = queued_core(num_blocks=4, max_model_len=16)
    core.submit(add(prompt_of(4), "a", max_tokens=12))
    core.step()
    core.step()
    assert core.pool.num_used == 2
    outputs = run(core)
    assert end_of(outputs, "a").finish_reason == "length"
    assert core.stats()["allocation_failures_exhausted"] == 0


def test_a_runner_that_does_not_look_ahead_is_never_asked_to() -> None:
    core, runner = make_core()
    assert isinstance(runner, FakeRunner)
    assert core._looking is None
