"""How many requests of a trace fit a KV pool, and what of it is reserved, used and wasted. No model is needed.

The engine's own scheduler and block pool are walked with the trace's lengths in order of arrival: all requests are
there from the beginning, slots and step budget never bind, so that memory alone decides. A step computes the prompts
that were admitted and one token of each running request, as a step of the engine does.

    pool  +---- used ----+-- internal waste --+---- external waste ----+-- idle --+
          | keys, values | reserved, nothing  | free, but the request  | free,    |
          |              | computed there yet | in front does not fit  | no queue |

Reservations (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP
2023, section 3.1, compare the same three): `paged` takes blocks as tokens come; `contiguous` takes one piece for
prompt and output, whose length is known beforehand here; `contiguous-max` takes one piece as long as the longest
request of the trace, as a server must that does not know where an answer will end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.bench.errors import BenchError
from engine.bench.traces import Lengths
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

RESERVATIONS = ("paged", "contiguous", "contiguous-max")
MOST_STEPS = 10_000_000
QUEUE = 8  # requests that are held ready; only the one in front can start


@dataclass(frozen=True)
class Fit:
    """Means are over the steps in which a request waited for memory (over all, if none ever did): the end of the
    trace, when the pool drains, says nothing about what fits. Bytes but for the names that say otherwise."""

    reservation: str
    pool_bytes: int
    requests: int
    refused_requests: int  # longer than the pool by themselves
    steps: int
    steps_waiting: int
    at_once_mean: float
    at_once_most: int
    reserved_bytes: float
    used_bytes: float
    internal_waste_bytes: float
    external_waste_bytes: float
    idle_bytes: float
    preemptions: int
    recomputed_tokens: int
    failures_exhausted: int
    failures_fragmented: int

    @property
    def used_share(self) -> float:
        return self.used_bytes / self.pool_bytes


@dataclass
class _Sums:
    steps: int = 0
    running: int = 0
    reserved_blocks: int = 0
    used_tokens: int = 0
    external_blocks: int = 0

    def note(self, running: int, reserved: int, used: int, external: int) -> None:
        self.steps += 1
        self.running += running
        self.reserved_blocks += reserved
        self.used_tokens += used
        self.external_blocks += external


def fit(lengths: list[Lengths], reservation: str, pool_bytes: int, bytes_per_token: int, block_size: int) -> Fit:
    """Walks the pool until every request has had its turn.

    Raises:
        BenchError: not one request fits the pool.
    """
    block_bytes = bytes_per_token * block_size
    num_blocks = pool_bytes // block_bytes
    room = num_blocks * block_size
    fitting = [r for r in lengths if r.total <= room]
    if not fitting:
        raise BenchError(
            f"a pool of {pool_bytes:,} bytes holds {room} tokens ({bytes_per_token:,} bytes each), the shortest of "
            f"{len(lengths)} requests has {min(r.total for r in lengths)}; give a larger pool"
        )
    pool = BlockPool(num_blocks, block_size, caching=False)
    scheduler = Scheduler(_config(reservation, len(fitting), room, block_size), pool, room)
    left: dict[Request, int] = {}
    longest = max(r.total for r in fitting)
    coming = deque(enumerate(fitting))
    queued, every, most = _Sums(), _Sums(), 0
    while coming or scheduler.has_work:
        while coming and scheduler.num_waiting < QUEUE:
            i, r = coming.popleft()
            declared = (longest if reservation == "contiguous-max" else r.total) - r.prompt
            request = Request(str(i), [0] * r.prompt, SamplingParams(max_tokens=declared, ignore_eos=True))
            scheduler.add(request)
            left[request] = r.output
        if every.steps >= MOST_STEPS:
            raise BenchError(f"{len(left)} of {len(fitting)} requests are not done after {MOST_STEPS:,} steps")
        plan = scheduler.schedule()
        if not plan.entries and not plan.preempted:
            raise BenchError(f"{scheduler.num_waiting} requests wait and nothing runs: a defect of the scheduler")
        scheduler.advance(plan)
        running = len(scheduler.running)
        waits = scheduler.num_waiting > 0
        for sums in (every, queued) if waits else (every,):
            sums.note(running, pool.num_used, scheduler.num_kv_tokens, pool.num_available if waits else 0)
        most = max(most, running)
        for entry in plan.entries:
            if entry.reaches_end:
                _draw(scheduler, entry.request, left)
    pool.check_idle()
    means = queued if queued.steps else every
    n = means.steps
    reserved, used_bytes = means.reserved_blocks * block_bytes / n, means.used_tokens * bytes_per_token / n
    external = means.external_blocks * block_bytes / n
    return Fit(
        reservation=reservation,
        pool_bytes=num_blocks * block_bytes,
        requests=len(fitting),
        refused_requests=len(lengths) - len(fitting),
        steps=every.steps,
        steps_waiting=queued.steps,
        at_once_mean=means.running / n,
        at_once_most=most,
        reserved_bytes=reserved,
        used_bytes=used_bytes,
        internal_waste_bytes=reserved - used_bytes,
        external_waste_bytes=external,
        idle_bytes=(num_blocks * n - means.reserved_blocks - means.external_blocks) * block_bytes / n,
        preemptions=scheduler.num_preemptions,
        recomputed_tokens=scheduler.num_recomputed_tokens,
        failures_exhausted=pool.failures["exhausted"],
        failures_fragmented=pool.failures["fragmented"],
    )


def fit_all(lengths: list[Lengths], pool_bytes: int, bytes_per_token: int, block_size: int) -> list[Fit]:
    """The three reservations on one pool."""
    return [fit(lengths, name, pool_bytes, bytes_per_token, block_size) for name in RESERVATIONS]


def _config(reservation: str, requests: int, room: int, block_size: int) -> EngineConfig:
    """Slots, queue, budget and chunk beyond what the trace can ask for: memory alone decides."""
    chunk = room  # a multiple of the block size
    return EngineConfig(
        block_size=block_size,
        max_model_len=max(2, room),
        max_num_seqs=requests,
        max_num_batched_tokens=requests * chunk,
        prefill_chunk_tokens=chunk,
        max_queue=QUEUE,
        prefix_caching=False,
        kv_reservation="paged" if reservation == "paged" else "contiguous",
    )


def _draw(scheduler: Scheduler, request: Request, left: dict[Request, int]) -> None:
    """The next token of a request; its end when that was the last."""
    request.tokens.append(0)
    left[request] -= 1
    if not left[request]:
        del left[request]
        scheduler.remove(request)
