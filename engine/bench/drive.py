"""One run: an EngineCore stepped in this process, requests handed to it as they fall due, every token stamped.

The clock is given, and so is the way to wait, so that a simulator with a known truth can stand in. A token is
stamped at the end of the step that drew it, which is when a client could be told.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from engine.batch import BatchEntry
from engine.bench.errors import BenchError
from engine.bench.workload import Arrivals, Workload
from engine.config import EngineConfig
from engine.core import EngineCore, Runner

Clock = Callable[[], float]
LONGEST_SLEEP_S = 0.05


class Step(NamedTuple):
    """One step that ran the model. The three durations add up to the step's: before, in and after the runner."""

    start_s: float  # since the run began
    plan_s: float  # arrivals, scheduling, block tables
    model_s: float
    draw_s: float  # sampling, books, ends of requests
    batch_requests: int
    batch_tokens: int
    running: int
    waiting: int
    reserved_blocks: int
    used_tokens: int  # positions whose keys and values are there when the step ends
    stranded_blocks: int  # free, but too few in a row for the request in front of the queue

    @property
    def duration_s(self) -> float:
        return self.plan_s + self.model_s + self.draw_s


@dataclass
class RunRecord:
    """What one run leaves behind. Times are seconds since its start; index i is request i of the workload."""

    slots: int
    block_bytes: int
    block_size: int
    num_blocks: int
    due_s: list[float]
    token_s: list[list[float]]
    tokens: list[list[int]]
    steps: list[Step] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)
    end_s: float = 0.0


class MeteredRunner:
    """The loaded model as one run's core sees it: with a pool of ``num_blocks``, and every execution noted.

    The tensors of the KV pool are the model's own, whatever was in them: a fresh core knows none of their content.
    """

    def __init__(self, runner: Runner, num_blocks: int, clock: Clock = time.monotonic) -> None:
        if num_blocks > runner.num_blocks:
            raise ValueError(f"{num_blocks} blocks are asked for, the runner has {runner.num_blocks}")
        self.runner, self.num_blocks, self.clock = runner, num_blocks, clock
        self.vocab_size, self.max_model_len = runner.vocab_size, runner.max_model_len
        self.core: EngineCore | None = None
        self._noted: tuple[float, float, Step] | None = None

    def execute(self, batch: list[BatchEntry]) -> list[Tensor | None]:
        began = self.clock()
        logits = self.runner.execute(batch)
        ended = self.clock()
        if self.core is not None:
            running, tokens = self.core.scheduler.running, sum(len(e.token_ids) for e in batch)
            self._noted = (
                began,
                ended,
                Step(
                    0.0,
                    0.0,
                    ended - began,
                    0.0,
                    len(batch),
                    tokens,
                    len(running),
                    self.core.scheduler.num_waiting,
                    self.core.pool.num_used,
                    tokens + self.core.scheduler.num_kv_tokens,
                    self.core.scheduler.num_blocks_stranded,
                ),
            )
        return logits

    def take_note(self) -> tuple[float, float, Step] | None:
        """When the model began and ended in the step just taken, and what is known of it; None if it did not run."""
        noted, self._noted = self._noted, None
        return noted

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        self.runner.copy_blocks(pairs)


def drive(
    runner: Runner,
    config: EngineConfig,
    workload: Workload,
    arrivals: Arrivals,
    *,
    num_blocks: int | None = None,
    block_bytes: int = 0,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunRecord:
    """Runs the whole workload on a fresh core and returns what happened.

    Raises:
        BenchError: a request fails, the engine stops making progress, or leaves blocks behind.
    """
    metered = MeteredRunner(runner, num_blocks or runner.num_blocks, clock)
    core = EngineCore(metered, config)
    metered.core = core
    source = _source(workload, arrivals)
    record = RunRecord(
        config.max_num_seqs,
        block_bytes,
        config.block_size,
        metered.num_blocks,
        [0.0] * len(workload.lengths),
        [[] for _ in workload.lengths],
        [[] for _ in workload.lengths],
    )
    origin, idle_steps = clock(), 0
    while source.waiting or core.has_work:
        now = clock() - origin
        for index, due_s in source.take(now):
            record.due_s[index] = due_s
            core.submit(workload.request(index))
        if not core.has_work:
            sleep(min(LONGEST_SLEEP_S, max(0.0, source.next_due_s - (clock() - origin))))
            continue
        idle_steps = 0 if _step(core, metered, record, source, origin, clock) else idle_steps + 1
        if idle_steps > 1000:
            raise BenchError(
                f"the engine took 1,000 steps without computing anything, {core.scheduler.num_waiting} requests wait "
                f"and {len(core.scheduler.running)} run under {config.batching}/{config.prefill}/"
                f"{config.kv_reservation}: a defect of the scheduler"
            )
    record.end_s = clock() - origin
    record.stats = core.stats()
    if record.stats["integrity_errors"]:
        raise BenchError(f"{record.stats['integrity_errors']} integrity errors of the KV pool: a defect of the engine")
    return record


def _step(
    core: EngineCore, metered: MeteredRunner, record: RunRecord, source: _Source, origin: float, clock: Clock
) -> bool:
    """One step and its stamps; whether anything happened."""
    began = clock()
    outputs = core.step()
    ended = clock()
    noted = metered.take_note()
    if noted is not None:
        model_began, model_ended, step = noted
        record.steps.append(
            step._replace(start_s=began - origin, plan_s=model_began - began, draw_s=ended - model_ended)
        )
    for output in outputs:
        index = int(output.id)
        if output.token is not None:
            record.token_s[index].append(ended - origin)
            record.tokens[index].append(output.token)
        if output.error is not None:
            raise BenchError(
                f"request {index} of {len(record.due_s)} ({len(record.token_s[index])} tokens so far) failed: "
                f"{output.error}"
            )
        if output.finish_reason is not None:
            source.ended(ended - origin)
    return noted is not None or bool(outputs)


class _Source:
    """Requests that are still to come, in order: (index, due)."""

    def __init__(self, due: Iterable[float], count: int) -> None:
        self._due = deque(due)
        self._next, self._count = 0, count

    @property
    def waiting(self) -> bool:
        return self._next < self._count

    @property
    def next_due_s(self) -> float:
        return self._due[0] if self._due else 0.0

    def take(self, now_s: float) -> Iterable[tuple[int, float]]:
        while self.waiting and self._due and self._due[0] <= now_s:
            yield self._next, self._due.popleft()
            self._next += 1

    def ended(self, now_s: float) -> None:
        """In an open loop nobody waits for an answer before asking the next."""


class _ClosedSource(_Source):
    def ended(self, now_s: float) -> None:
        """The user whose request has ended asks the next at once."""
        self._due.append(now_s)


def _source(workload: Workload, arrivals: Arrivals) -> _Source:
    count = len(workload.lengths)
    if arrivals.rate_per_s is not None:
        return _Source(workload.due_s(arrivals.rate_per_s), count)
    return _ClosedSource([0.0] * arrivals.concurrency, count)
