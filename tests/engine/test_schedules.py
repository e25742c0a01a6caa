"""Random traffic under every combination of policies, watched step by step: what is promised holds for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.plan import Plan, Scheduled
from engine.protocol import AddRequest, Output
from engine.request import Request, SamplingParams
from tests.engine.fake_core import SIZE, prompt_of
from tests.engine.fake_runner import FakeRunner

MAX_LEN = 32


@dataclass
class Watched:
    """A core whose every step is checked against the promises of ``engine.scheduler`` and ``engine.policies``."""

    core: EngineCore
    outputs: list[Output] = field(default_factory=list)
    clock: int = 0  # prefill tokens so far
    mark: dict[str, int] = field(default_factory=dict)  # the clock at a running request's last token
    begun: dict[str, int] = field(default_factory=dict)  # requests that were ever computed -> number of their batch
    arrived: dict[str, int] = field(default_factory=dict)  # request -> number of the batch that ran when it came
    batch: int = 0
    longest_gap: int = 0

    def __post_init__(self) -> None:
        scheduler = self.core.scheduler
        preempt, schedule, make_room = scheduler._preempt, scheduler.schedule, scheduler._make_room
        growing: list[Request] = []

        def watched_room(plan: Plan, entry: Scheduled) -> bool:
            growing.append(entry.request)
            found = make_room(plan, entry)
            growing.pop()
            return found

        def watched_preempt(plan: Plan, victim: Request) -> None:
            before = self.core.pool.num_available
            for_whom = growing[-1] if growing else scheduler.batching.next(scheduler.waiting, 0)
            assert for_whom is not None
            if growing:
                assert victim.priority >= for_whom.priority
                cheaper = [
                    r
                    for r in scheduler.running
                    if (r.priority, -r.num_computed_tokens) > (victim.priority, -victim.num_computed_tokens)
                ]
                assert all(self.core.pool.num_exclusive(r.table) == 0 for r in cheaper)
            else:
                assert victim.priority > for_whom.priority
            preempt(plan, victim)
            # A request that grows needs blocks; one that is admitted may need the slot alone.
            assert not growing or victim is for_whom or self.core.pool.num_available > before
            self.mark.pop(victim.id, None)

        def watched_schedule() -> Plan:
            plan = schedule()
            self.check_plan(plan)
            return plan

        scheduler._preempt = watched_preempt  # type: ignore[method-assign]
        scheduler.schedule = watched_schedule  # type: ignore[method-assign]
        scheduler._make_room = watched_room  # type: ignore[method-assign]

    def submit(self, arrival: AddRequest) -> None:
        self.core.submit(arrival)

    def check_plan(self, plan: Plan) -> None:
        config, running = self.core.config, self.core.scheduler.running
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert sum(r.takes_slot for r in running) <= config.max_num_seqs
        assert len({e.request for e in plan.entries}) == len(plan.entries)
        if config.prefill == "separate":
            assert len({e.is_decode for e in plan.entries}) <= 1
        assert running == sorted(running, key=lambda r: r.order)
        for entry in plan.entries:
            assert entry.request in running
            chunk = config.prefill_chunk_tokens
            assert entry.end % chunk == 0 or entry.reaches_end or entry.end == entry.request.branch_at
            assert entry.start // chunk == (entry.end - 1) // chunk
        self.clock += plan.num_prefill_tokens
        self.check_batch(plan)

    def check_batch(self, plan: Plan) -> None:
        """Static: those who are computed for the first time came before the batch began."""
        alive = {n for n in self.begun if n in self.core.requests}
        if not alive and plan.entries:
            self.batch += 1
        for name in {e.request.id for e in plan.entries} - set(self.begun):
            if self.core.config.batching == "static":
                assert self.arrived[name] < self.batch
            self.begun[name] = self.batch

    def step(self) -> None:
        core = self.core
        for ids, *_ in core._arrivals:
            self.arrived |= dict.fromkeys(ids, self.batch)
        news = core.step()
        for output in news:
            if output.token is not None:
                if output.id in self.mark:
                    gap = self.clock - self.mark[output.id]
                    self.longest_gap = max(self.longest_gap, gap)
                    assert gap <= core.scheduler.decode_gap_tokens
                self.mark[output.id] = self.clock
        for name in self.mark.keys() - {r.id for r in core.scheduler.running}:
            del self.mark[name]  # ended, or a sample that waits for a slot
        self.outputs += news
        core.pool.check()
        if core.config.kv_reservation == "paged":
            assert core.pool.failures["fragmented"] == core.scheduler.num_blocks_stranded == 0
        else:
            assert core.scheduler.num_preemptions == 0
            for r in core.scheduler.running:
                first = r.table.blocks[0]
                assert r.table.blocks == list(range(first, first + -(-r.max_total_tokens // SIZE)))
        assert core.scheduler.num_kv_tokens == held_positions(core)

    def run(self, limit: int) -> None:
        for _ in range(limit):
            if not self.core.has_work:
                self.core.pool.check_idle()
                assert self.core.integrity_errors == 0
                return
            self.step()
        raise AssertionError(f"work left after {limit} steps")


def held_positions(core: EngineCore) -> int:
    """As the scheduler counts them, the slow way."""
    return len(
        {(r.table.blocks[p // SIZE], p % SIZE) for r in core.scheduler.running for p in range(r.num_computed_tokens)}
    )


def make(num_blocks: int, **policies: Any) -> Watched:
    config = EngineConfig(**{"block_size": SIZE, "max_model_len": MAX_LEN, **policies})
    return Watched(EngineCore(FakeRunner(num_blocks, SIZE, max_model_len=config.max_model_len), config))


@cache
def undisturbed(prompt: tuple[int, ...], n: int, params: SamplingParams) -> list[list[int]]:
    """What each sample gives when the request is alone in a pool that is never short."""
    config = EngineConfig(block_size=SIZE, max_num_batched_tokens=64, prefill_chunk_tokens=64, prefix_caching=False)
    core = EngineCore(FakeRunner(200, SIZE), config)
    core.submit(AddRequest([str(i) for i in range(n)], list(prompt), params.to_wire()))
    outputs: list[Output] = []
    while core.has_work:
        outputs += core.step()
    return [[o.token for o in outputs if o.id == str(i) and o.token is not None] for i in range(n)]


class HashableParams(SamplingParams):
    def __hash__(self) -> int:
        return hash((self.max_tokens, self.temperature, self.seed))


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    chunk = draw(st.sampled_from([4, 8, 16]))
    reservation = draw(st.sampled_from(["paged", "paged", "paged", "contiguous"]))
    return {
        "prefill_chunk_tokens": chunk,
        "max_num_batched_tokens": draw(st.integers(chunk, 24)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "batching": draw(st.sampled_from(["continuous", "static"])),
        "prefill": draw(st.sampled_from(["mixed", "separate"])),
        "kv_reservation": reservation,
        "prefix_caching": reservation == "paged" and draw(st.booleans()),
        "decode_gap_tokens": draw(st.none() | st.integers(chunk, 30)),
    }


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies(), st.integers(8, 16), st.data())
def test_every_policy_keeps_its_promises(chosen: dict[str, Any], num_blocks: int, data: st.DataObject) -> None:
    watched = make(num_blocks, **chosen)
    expected: dict[str, list[int]] = {}
    ended: set[str] = set()
    work = 0
    for i in range(data.draw(st.integers(1, 8))):
        shared = [7] * data.draw(st.sampled_from([0, 0, 4, 9]))
        prompt = shared + prompt_of(data.draw(st.integers(1, 14)), data.draw(st.integers(0, 2)))
        n = 1 if chosen["kv_reservation"] == "contiguous" else data.draw(st.sampled_from([1, 1, 2, 3]))
        seed = data.draw(st.none() | st.integers(0, 3))
        params = HashableParams(
            data.draw(st.integers(1, MAX_LEN - len(prompt))), temperature=0.0 if seed is None else 1.0, seed=seed
        )
        ids = [f"{i}.{k}" for k in range(n)]
        watched.submit(AddRequest(ids, prompt, params.to_wire(), data.draw(st.sampled_from([0, 0, -3, 5]))))
        expected |= dict(zip(ids, undisturbed(tuple(prompt), n, params), strict=True))
        work += n * (len(prompt) + params.max_tokens)
        for _ in range(data.draw(st.integers(0, 5))):
            watched.step()
        if data.draw(st.integers(0, 5)) == 0:
            ended.add(victim := data.draw(st.sampled_from(sorted(expected))))
            if victim in watched.core.requests:
                ended |= {f.id for f in watched.core.requests[victim].forks}
            if any(victim in ids for ids, *_ in watched.core._arrivals):
                ended |= {n for n in expected if n.split(".")[0] == victim.split(".")[0]}
            watched.core.abort([victim])
    watched.run(limit=20 + 10 * work)
    event(f"preemptions: {min(watched.core.scheduler.num_preemptions, 3)}")
    for name, tokens in expected.items():
        found = [o.token for o in watched.outputs if o.id == name and o.token is not None]
        (reason,) = [o.finish_reason for o in watched.outputs if o.id == name and o.finish_reason]
        assert found == tokens if reason == "length" else found == tokens[: len(found)]
        assert reason == "length" or name in ended
