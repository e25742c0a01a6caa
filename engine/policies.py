"""What ``EngineConfig`` leaves open in the scheduler's rule: one class or function for each choice, a table for each.

batching        who may join     continuous: whoever is next, as soon as a slot and blocks are free
                                 static: a batch is taken from the queue when nothing runs, and nobody joins until all
                                 of it is finished; the slots of those that finish early stay empty
prefill         who shares a     mixed: decodes and chunks of prefill together
                step             separate: a step holds one or the other; prefill goes first, as long as the decode gap
                                 allows
kv_reservation  what a request   paged: blocks for the tokens it has, shared where they are known; it grows later
                holds            contiguous: adjacent blocks for all it may ever have, as servers did before paging

The second of each is there to be measured against the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.blocks import BlockPool
from engine.config import Batching, KvReservation, Prefill
from engine.plan import Plan
from engine.request import Request, RequestError

WATERMARK_SHARE = 0.01  # of the pool, kept for the growth of running requests when a new one is admitted


def spare_blocks(num_running: int, num_blocks: int) -> int:
    """What has to stay available beside a newcomer: a block of growth for everybody who runs."""
    return max(num_running, math.ceil(WATERMARK_SHARE * num_blocks)) if num_running else 0


# kv_reservation


class Reservation(Protocol):
    preempts: bool  # whether a running request may lose its blocks

    def check(self, request: Request) -> None:
        """Refuses (RequestError) what could never run."""

    def tokens_at_start(self, request: Request) -> int:
        """Positions for which a request gets blocks when it is admitted."""

    def hits(self, request: Request) -> list[int]:
        """Blocks with the first tokens of a waiting request, which it may share."""

    def start(self, request: Request, hits: list[int], spare: int) -> bool:
        """Gives a waiting request its blocks, the hits first, if there is room beside ``spare`` blocks."""


class Paged:
    preempts = True

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def check(self, request: Request) -> None:
        pass

    def tokens_at_start(self, request: Request) -> int:
        return request.num_tokens

    def hits(self, request: Request) -> list[int]:
        return self.pool.match(request.table, request.tokens, request.reusable_prefix_tokens)

    def start(self, request: Request, hits: list[int], spare: int) -> bool:
        return self.pool.start(request.table, hits, request.num_tokens, spare)


class Contiguous:
    preempts = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def check(self, request: Request) -> None:
        if request.forks:
            raise RequestError(
                f"n is {request.width}, but kv_reservation contiguous shares no blocks between samples; send "
                f"{request.width} requests, or start the engine with kv_reservation paged"
            )

    def tokens_at_start(self, request: Request) -> int:
        return request.max_total_tokens

    def hits(self, request: Request) -> list[int]:
        return []

    def start(self, request: Request, hits: list[int], spare: int) -> bool:
        return self.pool.reserve(request.table, request.max_total_tokens)  # nobody grows: no spare


RESERVATIONS: dict[KvReservation, Callable[[BlockPool], Reservation]] = {"paged": Paged, "contiguous": Contiguous}


# batching


class JoinRule(Protocol):
    def next(self, waiting: Sequence[Request], slots_taken: int) -> Request | None:
        """The first of the queue that may be admitted now, given a slot and blocks."""

    def open_slots(self, slots_taken: int) -> int:
        """Slots that requests in the queue are going to take without anybody ending before."""

    def ended(self, request: Request) -> None:
        """Called once or more often for every request that leaves."""


class Continuous:
    def __init__(self, max_num_seqs: int, pool: BlockPool, reservation: Reservation) -> None:
        self.max_num_seqs = max_num_seqs

    def next(self, waiting: Sequence[Request], slots_taken: int) -> Request | None:
        return waiting[0] if waiting else None

    def open_slots(self, slots_taken: int) -> int:
        return max(0, self.max_num_seqs - slots_taken)

    def ended(self, request: Request) -> None:
        pass


class Static:
    """The batch: up to ``max_num_seqs`` sequences from the front of the queue, as many as there are and as find blocks
    together. A member that is preempted comes back into the same batch."""

    def __init__(self, max_num_seqs: int, pool: BlockPool, reservation: Reservation) -> None:
        self.max_num_seqs, self.pool, self.reservation = max_num_seqs, pool, reservation
        self.batch: set[Request] = set()

    def next(self, waiting: Sequence[Request], slots_taken: int) -> Request | None:
        if not self.batch:
            self._take(waiting)
        if slots_taken >= min(self.max_num_seqs, len(self.batch)):
            return None
        return next((r for r in waiting if r in self.batch), None)

    def _take(self, waiting: Sequence[Request]) -> None:
        blocks = 0
        for request in waiting:
            blocks += self.pool.blocks_for(self.reservation.tokens_at_start(request))
            spare = spare_blocks(len(self.batch), self.pool.num_blocks)
            fits = blocks + spare <= self.pool.num_blocks and len(self.batch) + request.width <= self.max_num_seqs
            if self.batch and not fits:
                return
            self.batch |= {request, *request.forks}

    def open_slots(self, slots_taken: int) -> int:
        return (len(self.batch) or self.max_num_seqs) - slots_taken

    def ended(self, request: Request) -> None:
        self.batch.discard(request)


BATCHINGS: dict[Batching, Callable[[int, BlockPool, Reservation], JoinRule]] = {
    "continuous": Continuous,
    "static": Static,
}


# prefill


class Composer(Protocol):
    """What a scheduler can put into a step; see there."""

    owed_tokens: int

    def decode(self, plan: Plan, keep: int = 0) -> None: ...
    def prefill(self, plan: Plan) -> None: ...


def mixed(composer: Composer, plan: Plan) -> None:
    """Decodes first; but a chunk for which they left no room in the last step finds room in this one."""
    composer.decode(plan, keep=composer.owed_tokens)
    composer.prefill(plan)
    composer.decode(plan)  # whom the kept room pushed out, if not used, and who was admitted with nothing to prefill


def separate(composer: Composer, plan: Plan) -> None:
    composer.prefill(plan)
    if not plan.entries:
        composer.decode(plan)


COMPOSITIONS: dict[Prefill, Callable[[Composer, Plan], None]] = {"mixed": mixed, "separate": separate}
