"""Who computes what in the next step.

One rule: every request has ``num_due_tokens`` and ``num_computed_tokens``, and a step lets the second chase the first
under a budget of ``max_num_batched_tokens``. A decode is a request with its last drawn token to go; prefill, chunked
prefill, the way back after a preemption and what a prefix hit leaves over are the same rule with more to go.

    waiting --admit--> running --(token after token)--> removed        both lists are kept in order of (priority,
       ^                  |                                            arrival): a lower priority number runs sooner
       +-----preempt------+

Chunks. A request takes at most one chunk a step. A chunk ends at an absolute multiple of ``prefill_chunk_tokens`` or at
the last token, never where the budget ran out: a chunk that does not fit waits, and so does all prefill behind it.

Prefixes. A request takes the blocks that are known of its prompt when it is admitted, and before each chunk those that
have become known since. If one before it in the order is just computing at least half of what it still lacks, it lets
the step pass, and takes them when they are there: a burst of questions behind one long text computes that text once.
It holds up nobody, and nobody waits for it.

Branches. Prompts that are only scored and begin alike come as one request: a chunk of it also ends where they part, and
there each goes on by itself, on the same blocks. It takes no slot: what it has left is short, and while it waited for
one it could keep no blocks, so that the beginning would be computed again for each of them.

The decode gap. Between two tokens of a running request at most ``decode_gap_tokens`` tokens of prefill are computed,
whatever arrives. The scheduler counts all prefill tokens it ever planned (``_prefill_clock``); a request remembers the
count of its last step (``prefill_mark``); what the request that decodes and has waited longest allows is the step's
allowance. Neither side starves: a chunk that finds no room beside decodes is kept room for in the next step, and
decodes take turns where the budget does not hold them all, so that the allowance recovers.

Admission. A request is admitted when a slot and blocks for all its tokens are there, with a block to spare for each
that runs; it gets all of them at once, and only output tokens make a table grow later. Nobody overtakes the first of
the queue.

Pressure. Where a table cannot grow, somebody gives up all blocks and waits to compute its tokens again (is preempted):
of the running requests that are not more important than the growing one, the least important, and of those the one with
the fewest computed tokens, that is the cheapest; only one whose release frees a block, or the growing request itself.
So of the most important requests the one with the most computed tokens is never the victim while there are others, and
somebody always finishes.

Priority is strict. If the first of the queue finds no slot or no blocks, less important running requests make way for
it, but only if that really lets it in (and not with contiguous reservation, where nobody is preempted). A stream of
more important requests keeps less important ones from running for as long as it lasts. Requests of one priority never
make way for each other and start in order of arrival.

Batching, the mix of a step and the reservation of blocks are policies (``engine.policies``) inside this rule.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.plan import Plan, Scheduled
from engine.policies import BATCHINGS, COMPOSITIONS, RESERVATIONS, spare_blocks
from engine.request import Request, RequestError, TooLongError


class QueueFullError(RuntimeError):
    """The bounded queue has no room."""


@dataclass(frozen=True)
class _NoRoom:
    """Who found no blocks, after how many releases and with how many hits, and whether only for want of adjacent
    ones."""

    request: Request
    releases: int
    num_hits: int
    fragmented: bool


class Scheduler:
    def __init__(self, config: EngineConfig, pool: BlockPool, max_model_len: int) -> None:
        self.config, self.pool, self.max_model_len = config, pool, max_model_len
        self.reservation = RESERVATIONS[config.kv_reservation](pool)
        self.batching = BATCHINGS[config.batching](config.max_num_seqs, pool, self.reservation)
        self.decode_gap_tokens = config.decode_gap_tokens or config.max_num_batched_tokens
        self.running: list[Request] = []  # in order of (priority, arrival), as is the queue
        self.waiting: list[Request] = []
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prefix_queries_tokens = 0
        self.num_prefix_hits_tokens = 0
        self.owed_tokens = 0  # of the chunk that found no room in the last step, if no other did
        self._arrivals = 0
        self._steps = 0
        self._prefill_clock = 0  # prefill tokens planned so far
        self._no_room: _NoRoom | None = None

    @property
    def slots_taken(self) -> int:
        return sum(r.takes_slot for r in self.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run: those in the queue, and samples whose prompt is being computed."""
        return sum(1 + len(r.forks) for r in self.waiting) + sum(len(r.forks) for r in self.running)

    @property
    def num_kv_tokens(self) -> int:
        """Positions with computed keys and values in blocks that are held."""
        return self.pool.num_filled((r.table, r.num_computed_tokens) for r in self.running)

    @property
    def num_blocks_stranded(self) -> int:
        """Blocks that nobody holds and that are of no use to the first of the queue, because too few are adjacent."""
        found = self._no_room
        return self.pool.num_available if found and found.fragmented and found.releases == self.pool.releases else 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # Coming and going

    def add(self, request: Request) -> None:
        """Puts a new request into the queue.

        Raises:
            RequestError: the policies exclude it, or it has more samples than there will ever be places.
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
        if request.width > self.config.max_queue + self.config.max_num_seqs:
            raise RequestError(
                f"n is {request.width}; this engine runs {self.config.max_num_seqs} requests and lets "
                f"{self.config.max_queue} wait"
            )
        self.reservation.check(request)
        waiting, open_slots = self.num_waiting, self.batching.open_slots(self.slots_taken)
        if waiting + request.width > self.config.max_queue + open_slots:
            raise QueueFullError(f"{waiting} requests wait, the queue holds {self.config.max_queue}")
        for member in (request, *request.forks):
            member.arrival = self._arrivals
            self._arrivals += 1
        bisect.insort(self.waiting, request, key=_order)

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it is, and releases its blocks. Does nothing the second time."""
        if request.parent is not None:
            request.parent.forks.remove(request)
            request.parent = None
        for queue in (self.running, self.waiting):
            _take_out(queue, request)
        self.batching.ended(request)
        if self._no_room and self._no_room.request is request:
            self._no_room = None
        self.pool.release(request.table)

    def start_fork(self, fork: Request) -> None:
        """Lets ``fork`` run beside its parent: a sample, whose tokens are the parent's prompt and its own first draw,
        when that prompt has been computed; a branch when all that it shares with the parent has.

        Without a free slot a sample waits as a preempted request does, without blocks; a branch needs none.
        """
        parent = fork.parent
        if parent is None:
            raise ValueError(f"request {fork.id} has started already")
        parent.forks.remove(fork)
        fork.parent = None
        shared = fork.high_water_tokens = parent.num_computed_tokens
        fork.takes_slot = parent.branch_at is None
        if not fork.takes_slot or self.slots_taken < self.config.max_num_seqs:
            fork.table = self.pool.fork(parent.table, shared)
            fork.num_computed_tokens = fork.num_cached_tokens = shared
            fork.prefill_mark = self._prefill_clock
            fork.admitted_s = time.monotonic()
            bisect.insort(self.running, fork, key=_order)
        else:
            bisect.insort(self.waiting, fork, key=_order)

    # The step

    def schedule(self) -> Plan:
        self._steps += 1
        plan = Plan(self.config.max_num_batched_tokens, self._prefill_allowance())
        COMPOSITIONS[self.config.prefill](self, plan)
        prefill_tokens = plan.num_prefill_tokens
        self.owed_tokens = 0 if prefill_tokens else plan.chunk_waits
        self._prefill_clock += prefill_tokens
        for entry in plan.entries:
            entry.request.prefill_mark = self._prefill_clock
        return plan

    def _prefill_allowance(self) -> int:
        """Tokens of prefill that the running request which has waited longest for its next token still allows."""
        oldest = min((r.prefill_mark for r in self.running if r.is_decoding), default=None)
        if oldest is None:
            return self.config.max_num_batched_tokens
        return self.decode_gap_tokens - (self._prefill_clock - oldest)

    def decode(self, plan: Plan, keep: int = 0) -> None:
        """Adds decodes, those first that have waited longest, while more than ``keep`` tokens of budget are left."""
        ready = [r for r in self.running if r.last_step != self._steps and r.is_decoding]
        for request in sorted(ready, key=_last_step):
            if plan.budget <= keep:
                return
            if request not in plan.preempted:
                self._add(plan, request, request.num_tokens, is_decode=True)

    def prefill(self, plan: Plan) -> None:
        """Adds chunks in order of importance, the running before the waiting, until one does not fit. Admits whoever
        may join on the way."""
        for request in [r for r in self.running if not r.is_decoding]:
            if not self._admit(plan, before=request.priority):
                return
            if request not in plan.preempted and not self._add_chunk(plan, request):
                return
        self._admit(plan)

    def _is_computed_by_another(self, request: Request) -> bool:
        """Whether one before it in the order computes most of what it lacks. Takes what others have computed by now."""
        size = self.pool.block_size
        found = size * self.pool.adopt(
            request.table, request.tokens, request.num_computed_tokens, request.reusable_prefix_tokens
        )
        request.num_computed_tokens += found
        if not request.num_preemptions:
            request.num_cached_tokens += found
            self.num_prefix_hits_tokens += found
        start, own = request.num_computed_tokens, (request.table, request.tokens)
        most = request.reusable_prefix_tokens // size - start // size  # blocks
        if start % size or 2 * most * size < request.num_due_tokens - start or not self.pool.caching:
            return False
        for other in self.running:
            if other is request:
                return False
            if not other.is_decoding and other.num_computed_tokens < start + size:
                alike = min(most, self.pool.num_alike(own, (other.table, other.tokens), start // size))
                if 2 * alike * size >= request.num_due_tokens - start:
                    return True
        return False

    def _add_chunk(self, plan: Plan, request: Request) -> bool:
        """False if the next chunk does not fit; true also where none is computed for good reason."""
        if self._is_computed_by_another(request):
            return True
        chunk, start = self.config.prefill_chunk_tokens, request.num_computed_tokens
        end = min(request.next_stop, (start // chunk + 1) * chunk)
        if end - start > min(plan.budget, plan.allowance):
            plan.chunk_waits = end - start
            return False
        self._add(plan, request, end, is_decode=False)
        return True

    def _admit(self, plan: Plan, before: int | None = None) -> bool:
        """Starts waiting requests, more important than ``before`` if that is given, while slots and blocks last.

        Returns:
            False if a chunk did not fit.
        """
        while (request := self.batching.next(self.waiting, self.slots_taken)) is not None:
            if before is not None and request.priority >= before:
                return True
            if request in plan.preempted:  # whoever gave way in this step does not come back in it
                return True
            if self.slots_taken >= self.config.max_num_seqs and not self._make_way(plan, request):
                return True
            cached = self._find_room(request)
            if cached is None and self._make_way(plan, request):
                cached = self._find_room(request)
            if cached is None:
                return True
            self._count_admission(request, cached)
            _take_out(self.waiting, request)
            bisect.insort(self.running, request, key=_order)
            if not request.is_decoding and not self._add_chunk(plan, request):
                return False
        return True

    def _find_room(self, request: Request) -> int | None:
        """Blocks for a waiting request. Returns how many of its tokens need not be computed; None without room.

        It is asked in every step, but a failure is counted anew only after a release or when more hits are there.
        """
        hits, found = self.reservation.hits(request), self._no_room
        if found and found == _NoRoom(request, self.pool.releases, len(hits), found.fragmented):
            return None
        fragmented = self.pool.failures["fragmented"]
        if self.reservation.start(request, hits, self._spare_blocks):
            self._no_room = None
            return len(hits) * self.pool.block_size
        fragmented = self.pool.failures["fragmented"] - fragmented
        self._no_room = _NoRoom(request, self.pool.releases, len(hits), fragmented > 0)
        return None

    def _make_way(self, plan: Plan, request: Request) -> bool:
        """Preempts running requests that are less important than ``request``, the cheapest of the least important
        first, until there is a slot and there are blocks for it. Preempts nobody if all of them are not enough."""
        if not self.reservation.preempts or not self.running or self.running[-1].priority <= request.priority:
            return False
        hits = set(self.reservation.hits(request))
        kept = {b for r in self.running if hits and r.priority <= request.priority for b in r.table.blocks}
        wanted = self.pool.blocks_for(self.reservation.tokens_at_start(request)) - len(hits & kept) + self._spare_blocks
        available, victims, slots = self.pool.num_available, list[Request](), self.slots_taken
        for victim in sorted((r for r in self.running if r.priority > request.priority), key=_cheapness):
            victims.append(victim)
            available += self.pool.num_exclusive(victim.table)
            slots -= victim.takes_slot
            if available >= wanted and slots < self.config.max_num_seqs:
                for v in victims:
                    self._preempt(plan, v)
                return True
        return False

    @property
    def _spare_blocks(self) -> int:
        return spare_blocks(len(self.running), self.pool.num_blocks)

    def _add(self, plan: Plan, request: Request, end: int, is_decode: bool) -> None:
        """Puts the next tokens of a running request, up to ``end``, into the step, if there are blocks for them."""
        entry = Scheduled(request, request.num_computed_tokens, end, is_decode)
        if not self._make_room(plan, entry):
            return
        plan.entries.append(entry)
        plan.budget -= entry.num_tokens
        plan.allowance -= 0 if is_decode else entry.num_tokens
        request.last_step = self._steps

    def _make_room(self, plan: Plan, entry: Scheduled) -> bool:
        """Blocks for the entry, at the cost of others or, at last, of the request itself (False)."""
        request = entry.request
        while not self._writable(entry):
            victim = min(
                (
                    r
                    for r in self.running
                    if r is request or (r.priority >= request.priority and self.pool.num_exclusive(r.table))
                ),
                key=_cheapness,
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
        """Takes all blocks from ``victim`` and lets it wait, in its place, to compute its tokens again."""
        if victim.last_step == self._steps:
            (entry,) = (e for e in plan.entries if e.request is victim)
            plan.entries.remove(entry)
            plan.budget += entry.num_tokens
        plan.preempted.append(victim)
        _take_out(self.running, victim)
        victim.takes_slot = True  # from now on it is a request like others
        self.pool.release(victim.table)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.preempted_since_s = time.monotonic()
        self.num_preemptions += 1
        bisect.insort(self.waiting, victim, key=_order)

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


def _order(request: Request) -> tuple[int, int]:
    return request.order


def _cheapness(request: Request) -> tuple[int, int, int]:
    """Who gives way: the least important, of those the cheapest to compute again, of those the latest."""
    return -request.priority, request.num_computed_tokens, -request.arrival


def _last_step(request: Request) -> int:
    return request.last_step


def _take_out(queue: list[Request], request: Request) -> None:
    at = bisect.bisect_left(queue, request.order, key=_order)
    if at < len(queue) and queue[at] is request:
        del queue[at]
