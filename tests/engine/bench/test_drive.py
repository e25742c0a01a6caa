"""Runs on a model whose steps take a known time on a clock of our own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.batch import BatchEntry
from engine.bench.drive import MeteredRunner, RunRecord, drive
from engine.bench.errors import BenchError
from engine.bench.traces import Lengths, Trace
from engine.bench.workload import Arrivals, Scaling, Workload
from engine.config import EngineConfig
from tests.engine.fake_runner import FakeRunner

SIZE = 4


class Clock:
    """Time passes in the model, 1 s a step and 0.1 s a token, and in sleep."""

    def __init__(self) -> None:
        self.now_s, self.slept_s = 100.0, 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert 0 <= seconds <= 0.05
        self.slept_s += seconds
        self.now_s += max(seconds, 1e-6)


class TimedRunner(FakeRunner):
    def __init__(self, clock: Clock, num_blocks: int = 64) -> None:
        super().__init__(num_blocks, SIZE)
        self.clock = clock

    def execute(self, batch: list[BatchEntry]) -> list[torch.Tensor | None]:
        logits = super().execute(batch)
        self.clock.now_s += 1.0 + 0.1 * sum(len(e.token_ids) for e in batch)
        return logits


class Timetable(Workload):
    """A workload whose arrival times are given."""

    times: list[float] = []  # noqa: RUF012

    def due_s(self, rate_per_s: float) -> list[float]:
        return self.times


def workload(rows: list[tuple[int, int]], times: list[float] | None = None) -> Workload:
    lengths = [Lengths(*r) for r in rows]
    prompts = [[(7 * i + j) % 50 for j in range(r.prompt)] for i, r in enumerate(lengths)]
    made = Timetable(Trace("t", "0" * 64, lengths), 0, lengths, prompts, Scaling(1.0, False, 512, 0, 0), 0)
    object.__setattr__(made, "times", times or [0.0] * len(rows))
    return made


def run(
    rows: list[tuple[int, int]], arrivals: Arrivals, times: list[float] | None = None, blocks: int = 64, **settings: Any
) -> tuple[RunRecord, Clock]:
    clock = Clock()
    defaults = {"block_size": SIZE, "max_num_seqs": 4, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 64}
    config = EngineConfig(**{**defaults, **settings})
    record = drive(
        TimedRunner(clock), config, workload(rows, times), arrivals,
        num_blocks=blocks, block_bytes=40, clock=clock, sleep=clock.sleep,
    )  # fmt: skip
    return record, clock


OPEN = Arrivals(rate_per_s=1.0)


def test_tokens_are_stamped_at_the_end_of_their_steps() -> None:
    record, _ = run([(4, 3)], OPEN)
    assert record.token_s == [pytest.approx([1.4, 2.5, 3.6])]
    assert record.end_s == pytest.approx(3.6)
    assert [s.batch_tokens for s in record.steps] == [4, 1, 1]
    assert [s.used_tokens for s in record.steps] == [4, 5, 6]
    assert [s.reserved_blocks for s in record.steps] == [1, 2, 2]
    assert [len(t) for t in record.tokens] == [3]
    assert [s.model_s for s in record.steps] == pytest.approx([1.4, 1.1, 1.1])
    assert [s.plan_s + s.draw_s for s in record.steps] == [0, 0, 0]
    assert record.stats["generation_tokens"] == 3


def test_latency_counts_from_due_even_if_a_step_was_running_then() -> None:
    """The second request is due at 0.5, in the middle of the first step, which ends at 1.4."""
    record, _ = run([(4, 3), (3, 1)], OPEN, [0.0, 0.5])
    assert record.due_s == [0.0, 0.5]
    assert record.token_s[1] == pytest.approx([1.4 + 1 + 0.1 * 4])
    assert [s.batch_requests for s in record.steps] == [1, 2, 1]


def test_nothing_runs_before_it_is_due() -> None:
    record, clock = run([(4, 1), (4, 1)], OPEN, [0.0, 10.0])
    assert clock.slept_s == pytest.approx(10 - 1.4, abs=1e-3)
    assert record.token_s[1] == pytest.approx([11.4], abs=1e-3)
    assert record.steps[1].start_s == pytest.approx(10, abs=1e-3)


def test_a_closed_loop_asks_when_an_answer_ends() -> None:
    record, clock = run([(4, 2)] * 5, Arrivals(concurrency=2))
    assert record.due_s[:2] == [0, 0]
    assert record.due_s[2] == record.token_s[0][-1]
    assert max(s.running for s in record.steps) == 2
    assert all(len(t) == 2 for t in record.token_s)
    assert clock.slept_s == 0


def test_static_batches_end_as_a_whole() -> None:
    """Two slots; the short one of the first pair leaves its slot empty under static, and is followed otherwise."""
    rows = [(4, 6), (4, 2), (4, 2)]
    static, _ = run(rows, OPEN, max_num_seqs=2, batching="static")
    assert [s.batch_requests for s in static.steps] == [2, 2, 1, 1, 1, 1, 1, 1]
    continuous, _ = run(rows, OPEN, max_num_seqs=2)
    assert [s.batch_requests for s in continuous.steps] == [2, 2, 2, 2, 1, 1]
    assert static.token_s[2][0] > continuous.token_s[2][0]


def test_a_smaller_pool_than_the_runners() -> None:
    rows = [(8, 8)] * 3
    record, _ = run(rows, OPEN, blocks=6, prefix_caching=False)
    assert record.num_blocks == 6
    assert max(s.reserved_blocks for s in record.steps) <= 6
    assert record.stats["preemptions"] > 0
    assert all(len(t) == 8 for t in record.token_s)
    contiguous, _ = run(rows, OPEN, blocks=6, prefix_caching=False, kv_reservation="contiguous")
    assert [s.reserved_blocks for s in contiguous.steps] == [4] * 24
    assert contiguous.stats["allocation_failures_exhausted"] > 0
    assert {s.stranded_blocks for s in contiguous.steps} == {0}
    with pytest.raises(ValueError, match="65 blocks are asked for, the runner has 64"):
        MeteredRunner(TimedRunner(Clock()), 65)


def test_free_blocks_in_the_wrong_places_are_stranded() -> None:
    """A pool of 4 blocks: four requests of one block, of which the second and fourth end in step 1; two more steps
    pass until the fifth finds two adjacent ones."""
    rows = [(2, 2), (2, 1), (2, 2), (2, 1), (7, 1)]
    record, _ = run(rows, OPEN, blocks=4, prefix_caching=False, kv_reservation="contiguous")
    assert [s.stranded_blocks for s in record.steps] == [0, 2, 0]
    assert record.stats["allocation_failures_fragmented"] == 1


def test_outputs_do_not_depend_on_the_policy() -> None:
    rows = [(3 + i % 5, 2 + i % 7) for i in range(12)]
    plain, _ = run(rows, OPEN)
    for policy in ({"batching": "static"}, {"prefill": "separate"}, {"kv_reservation": "contiguous"}):
        record, _ = run(rows, OPEN, prefix_caching=False, **policy)
        assert [len(t) for t in record.token_s] == [output for _, output in rows]
        assert record.tokens == plain.tokens


def test_a_failed_request_fails_the_run() -> None:
    with pytest.raises(
        BenchError, match=r"request 1 of 2 \(0 tokens so far\) failed: .* room for 70 tokens; the KV pool holds 64"
    ):
        run([(4, 1), (60, 10)], OPEN, blocks=16)
