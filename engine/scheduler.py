"""Who computes what in the next step.

One rule: every request has ``num_tokens`` and ``num_computed_tokens``, and a step lets the second chase the first under
a budget of ``max_num_batched_tokens``. A decode is a request with one token to go; prefill, chunked prefill, the way
back after a preemption and what a prefix hit leaves over are the same rule with more to go.

Order within a step: decodes, then running requests with more to go, then the queue, first come first served. A request
takes at most one chunk a step; a chunk ends at an absolute multiple of ``prefill_chunk_tokens`` or at the last token,
never where the budget ran out: a chunk that does not fit waits. If it has to wait because of decodes, the next step
serves it before them, so that with a chunk as large as the budget neither starves.

A request is admitted when blocks for all its tokens are there, and it gets all of them at once; only output tokens
make a table grow later. Where a table cannot grow, the request that is cheapest to compute again gives up its blocks:
the one with the fewest computed tokens among those whose release frees a block, or the growing request itself. The
request with the most computed tokens is therefore never the victim while there are others, so somebody always
finishes.
"""

from __future__ import annotations

import bisect
import math
import time
from dataclasses import dataclass, field

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.request import Request, TooLongError

WATERMARK_SHARE = 0.01  # of the pool, kept for the growth of running requests when a new one is admitted


class QueueFullError(RuntimeError):
    """The bounded queue has no room."""


@dataclass(eq=False)
class Scheduled:
    """Positions ``start`` up to ``end`` of a request, and the block copies that must precede them."""

    request: Request
    start: int
    end: int
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == 1 and self.end > self.request.num_prompt_tokens

    @property
    def reaches_end(self) -> bool:
        """Whether the last known token is in it, so that the next one can be drawn."""
        return self.end == self.request.num_tokens


@dataclass(eq=False)
class Plan:
    """One step."""

    entries: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries)

    @property
    def copies(self) -> list[tuple[int, int]]:
        return [pair for entry in self.entries for pair in entry.copies]


class Scheduler:
    def __init__(self, config: EngineConfig, pool: BlockPool, max_model_len: int) -> None:
        self.config, self.pool, self.max_model_len = config, pool, max_model_len
        self.running: list[Request] = []  # in order of arrival
        self.waiting: list[Request] = []  # in order of arrival
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prefix_queries_tokens = 0
        self.num_prefix_hits_tokens = 0
        self._arrivals = 0
        self._chunk_waits = False  # in the last step decodes left no room for any chunk

    @property
    def num_waiting(self) -> int:
        return sum(r.width for r in self.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # Coming and going

    def add(self, request: Request) -> None:
        """Puts a new request at the end of the queue.

        Raises:
            TooLongError: it could never be served; names both numbers.
            QueueFullError: ``max_queue`` requests wait already, beyond those for which a slot is free.
        """
        total, pool_tokens = request.max_total_tokens, self.pool.num_blocks * self.pool.block_size
        if total > self.max_model_len:
            raise TooLongError(
                f"the prompt has {request.num_prompt_tokens} tokens and max_tokens is {request.params.max_tokens}, "
                f"{total} together; this model serves at most {self.max_model_len}"
            )
        if total > pool_tokens:
            raise TooLongError(f"the request needs room for {total} tokens; the KV pool holds {pool_tokens}")
        free_slots = max(0, self.config.max_num_seqs - len(self.running))
        waiting = self.num_waiting
        if waiting + request.width > self.config.max_queue + free_slots:
            raise QueueFullError(f"{waiting} requests wait, the queue holds {self.config.max_queue}")
        for member in (request, *request.forks):
            member.arrival = self._arrivals
            self._arrivals += 1
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it is, and releases its blocks. Does nothing the second time."""
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.pool.release(request.table)

    def start_fork(self, parent: Request, fork: Request) -> None:
        """Lets ``fork``, whose tokens are the parent's prompt and its own first draw, run beside its parent.

        Called when the parent's prompt has been computed. Without a free slot the fork waits as a preempted request
        does, without blocks.
        """
        if len(self.running) < self.config.max_num_seqs:
            fork.table = self.pool.fork(parent.table)
            fork.num_computed_tokens = fork.high_water_tokens = fork.num_prompt_tokens
            fork.num_cached_tokens = fork.num_prompt_tokens
            fork.admitted_s = time.monotonic()
            bisect.insort(self.running, fork, key=_arrival)
        else:
            fork.high_water_tokens = fork.num_prompt_tokens
            bisect.insort(self.waiting, fork, key=_arrival)

    # The step

    def schedule(self) -> Plan:
        plan, budget = Plan(), self.config.max_num_batched_tokens
        chunk_first, self._chunk_waits = self._chunk_waits, False
        behind = next((r for r in self.running if r.remaining_tokens > 1), None) if chunk_first else None
        if behind is not None:
            self._continue(plan, behind, budget)
        elif chunk_first:
            self._admit(plan, budget, limit=1)
        decodes = [r for r in self.running if r.remaining_tokens == 1]
        for request in [*decodes, *(r for r in self.running if r.remaining_tokens > 1)]:
            if request in self.running and all(e.request is not request for e in plan.entries):
                self._continue(plan, request, budget - plan.num_tokens)
        if not plan.preempted:
            self._admit(plan, budget - plan.num_tokens, limit=self.config.max_num_seqs)
        self._chunk_waits = self._chunk_waits and all(e.num_tokens == 1 for e in plan.entries)
        return plan

    def _chunk_end(self, request: Request, start: int) -> int:
        chunk = self.config.prefill_chunk_tokens
        return min(request.num_tokens, (start // chunk + 1) * chunk)

    def _continue(self, plan: Plan, request: Request, budget: int) -> None:
        """Adds the next tokens of a running request, if they fit."""
        start = request.num_computed_tokens
        end = self._chunk_end(request, start)
        if end - start > budget:
            self._chunk_waits |= end - start > 1
            return
        entry = Scheduled(request, start, end)
        if self._make_room(plan, entry):
            plan.entries.append(entry)

    def _make_room(self, plan: Plan, entry: Scheduled) -> bool:
        """Blocks for the entry, at the cost of others or, at last, of the request itself (False)."""
        request = entry.request
        while not self._writable(entry):
            victim = min(
                (r for r in self.running if r is request or self.pool.num_exclusive(r.table)),
                key=lambda r: (r.num_computed_tokens, -r.arrival),
            )
            self._preempt(plan, victim)
            if victim is request:
                return False
        return True

    def _writable(self, entry: Scheduled) -> bool:
        table, size = entry.request.table, self.pool.block_size
        if not self.pool.grow(table, entry.end):
            return False
        for index in range(entry.start // size, self.pool.blocks_for(entry.end)):
            worked, pair = self.pool.make_writable(table, index * size)
            if not worked:
                return False
            if pair:
                entry.copies.append(pair)
        return True

    def _preempt(self, plan: Plan, victim: Request) -> None:
        """Takes all blocks from ``victim`` and lets it wait, by its arrival, to compute its tokens again."""
        plan.entries = [e for e in plan.entries if e.request is not victim]
        plan.preempted.append(victim)
        self.running.remove(victim)
        self.pool.release(victim.table)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.preempted_since_s = time.monotonic()
        self.num_preemptions += 1
        bisect.insort(self.waiting, victim, key=_arrival)

    def _admit(self, plan: Plan, budget: int, limit: int) -> None:
        """Starts waiting requests, in order, while slots, blocks and budget last."""
        while self.waiting and limit and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            hits = self.pool.match(request.table, request.tokens, request.reusable_prefix_tokens)
            start = len(hits) * self.pool.block_size
            end = self._chunk_end(request, start)
            watermark = max(len(self.running), math.ceil(WATERMARK_SHARE * self.pool.num_blocks))
            if not self.pool.fits(hits, request.num_tokens, watermark if self.running else 0):
                return
            if end - start > budget:
                self._chunk_waits = True
                return
            self.pool.share(request.table, hits)
            if not self.pool.grow(request.table, request.num_tokens):
                raise AssertionError("blocks that were there a moment ago are gone")  # one thread owns the pool
            self._count_admission(request, start)
            entry = Scheduled(request, start, end)
            self.waiting.pop(0)
            bisect.insort(self.running, request, key=_arrival)
            plan.entries.append(entry)
            budget -= entry.num_tokens
            limit -= 1

    def _count_admission(self, request: Request, cached_tokens: int) -> None:
        now = time.monotonic()
        if request.admitted_s is None:
            request.admitted_s = now
            request.num_cached_tokens = cached_tokens
            self.num_prefix_queries_tokens += request.num_prompt_tokens
            self.num_prefix_hits_tokens += cached_tokens
        if request.preempted_since_s is not None:
            request.preempted_s += now - request.preempted_since_s
            request.preempted_since_s = None
        request.num_computed_tokens = cached_tokens

    def advance(self, plan: Plan) -> None:
        """After the plan was executed: counts its tokens as computed and makes full blocks shareable."""
        for entry in plan.entries:
            request = entry.request
            self.num_recomputed_tokens += max(0, min(entry.end, request.high_water_tokens) - entry.start)
            request.num_computed_tokens = entry.end
            request.high_water_tokens = max(request.high_water_tokens, entry.end)
            self.pool.commit(request.table, request.tokens, entry.end)


def _arrival(request: Request) -> int:
    return request.arrival
