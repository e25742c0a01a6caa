"""An abort frees a request's blocks within one step, whatever state the request is in, and disturbs no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.core import EngineCore
from tests.engine.fake_core import add, end_of, greedy, make_core, prompt_of, run, tokens_of


def steps_until(core: EngineCore, reached: Callable[[], bool]) -> None:
    for _ in range(200):
        if reached():
            return
        core.step()
    raise AssertionError("the state was not reached")


def arrived(core: EngineCore) -> list[str]:
    core.submit(add(prompt_of(20, 1), "x"))
    return ["x"]


def in_prefill(core: EngineCore) -> list[str]:
    core.submit(add(prompt_of(40, 1), "x"))
    steps_until(core, lambda: "x" in core.requests and 0 < core.requests["x"].num_computed_tokens < 40)
    return ["x"]


def decoding(core: EngineCore) -> list[str]:
    core.submit(add(prompt_of(5, 1), "x", max_tokens=30))
    steps_until(core, lambda: "x" in core.requests and core.requests["x"].num_output_tokens == 7)
    return ["x"]


def preempted(core: EngineCore) -> list[str]:
    for i in range(6):
        core.submit(add(prompt_of(20, i), f"p{i}", max_tokens=80))
    steps_until(core, lambda: any(r.num_preemptions and not r.table.blocks for r in core.requests.values()))
    return [next(r.id for r in core.requests.values() if r.num_preemptions and not r.table.blocks)]


def samples_not_begun(core: EngineCore) -> list[str]:
    core.submit(add(prompt_of(40, 1), "x", "x.1", "x.2", temperature=1.0))
    steps_until(core, lambda: "x" in core.requests and 0 < core.requests["x"].num_computed_tokens < 40)
    assert len(core.requests["x"].forks) == 2
    return ["x", "x.1", "x.2"]


def samples_some_begun(core: EngineCore) -> list[str]:
    """More samples than slots: some run, some wait without blocks."""
    names = [f"x.{i}" for i in range(10)]
    core.submit(add(prompt_of(6, 1), *names, temperature=1.0, max_tokens=50))
    steps_until(core, lambda: len(core.scheduler.running) == 8 and core.scheduler.num_waiting > 0)
    return names


STATES = [arrived, in_prefill, decoding, preempted, samples_not_begun, samples_some_begun]


@pytest.mark.parametrize("reach", STATES)
def test_blocks_are_back_within_one_step(reach: Callable[[EngineCore], list[str]]) -> None:
    core, _ = make_core(num_blocks=64, max_model_len=120)
    core.submit(add(prompt_of(9), "kept", max_tokens=60))
    ids = reach(core)
    held = {b for i in ids if i in core.requests for b in core.requests[i].table.blocks}
    core.abort(ids)
    outputs = core.step()
    assert sorted(o.id for o in outputs if o.finish_reason == "abort") == sorted(ids)
    core.pool.check()
    still = {b for r in core.requests.values() for b in r.table.blocks}
    assert core.pool.num_used == len(still)
    assert all(core.requests.get(i) is None for i in ids)
    for i in ids:
        assert end_of(outputs, i).timings is not None
    outputs += run(core)
    assert core.pool.num_free + core.pool.num_cached == core.pool.num_blocks
    assert reach is arrived or reach is preempted or held


def test_one_that_waits_leaves_and_the_others_do_not_notice() -> None:
    core, _ = make_core(num_blocks=64, max_num_seqs=2)
    for i in range(4):
        core.submit(add(prompt_of(5, i), f"r{i}", max_tokens=9))
    outputs = core.step()
    assert core.scheduler.num_waiting == 2
    core.abort(["r2"])
    outputs += core.step()
    assert end_of(outputs, "r2").finish_reason == "abort"
    outputs += run(core)
    for i in (0, 1, 3):
        assert tokens_of(outputs, f"r{i}") == greedy(prompt_of(5, i), 9)


def test_one_sample_leaves_before_it_has_begun() -> None:
    core, _ = make_core()
    core.submit(add(prompt_of(40), "a", "a.1", "a.2"))
    outputs = core.step()
    core.abort(["a.1"])
    outputs += core.step()
    assert end_of(outputs, "a.1").finish_reason == "abort"
    outputs += run(core)
    assert tokens_of(outputs, "a") == tokens_of(outputs, "a.2") == greedy(prompt_of(40), 6)
    assert tokens_of(outputs, "a.1") == []
