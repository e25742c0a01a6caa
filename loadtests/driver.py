"""Walks through a profile's stages and sends what is due. Plain threads: under Locust's patches these are greenlets.

    control thread   begins a stage, waits for its end (or dispatches open-loop arrivals), drains, begins the next
    slots            closed-loop users, held by Locust (``run_slot`` each); a slot sends while the schedule says
    carriers         threads for open-loop arrivals, as many as are in flight; they are kept for the next arrival
    ahead            writes the prompts of the arrivals that come next (``loadtests.visits``)
    probe            sleeps briefly again and again and notes how late it woke

A request due inside a stage is followed to its end during the drain. What still runs after that is cut and recorded as
censored. One of several workers drives its ``Share`` of the same plan; when a stage begins is then for the master to
say (``begins``). A client that shares the machine with another one sends in turns (``loadtests.turns``): a user who is
free outside of them is due when the next one begins, and a stage is as long as its turns are together.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from loadtests.arrivals import OpenLoop
from loadtests.client import Endpoint, Exchange, StreamClient, encoded
from loadtests.clocks import Clock
from loadtests.health import StageCpu, client_health
from loadtests.records import ClientHealth, RunInfo
from loadtests.schedule import WHOLE, ClosedLoop, Share, closed_loop, due_times
from loadtests.slices import ask_for_short_slices
from loadtests.traffic import Conversation, Prompt, session_of
from loadtests.turns import Seat, Turn, turn_lengths
from loadtests.visits import Ahead, Visit
from loadtests.workload import Profile, StageSpec, workload_digest

_PROBE_S = 0.02
_CUT_S = 5.0  # how long to wait for cut requests to notice
_PAUSE_S = 0.25  # a user whose request failed waits so long, or as long as Retry-After says
_PAUSE_MOST_S = 5.0
_AHEAD = 64  # visits made ahead, beside one for each closed-loop user


class StageRun:
    """One stage under way. Times are seconds since the run's start. ``turns``: None where its client takes none."""

    def __init__(
        self, spec: StageSpec, seed: int, start_s: float, ahead: Ahead, turns: list[Turn] | None = None
    ) -> None:
        self.spec, self.start_s, self.ahead, self.turns = spec, start_s, ahead, turns
        self.open = turns is None  # whether there is a turn, and something may be sent in it
        self.end_s = start_s + spec.length_s
        self.loop: ClosedLoop | None = None if isinstance(spec.arrivals, OpenLoop) else closed_loop(spec, seed)
        self.drained_s = self.end_s
        self.over = False
        self.cpu_s = 0.0  # of this process, from the start to the end of the stage
        self.idle: list[queue.SimpleQueue[Visit | None]] = []  # of carriers that wait for an arrival
        self.handed = 0  # arrivals given to a carrier that has not sent them yet

    @property
    def measured_from_s(self) -> float:
        if self.turns is None:
            return self.start_s + self.spec.warmup_s
        return next((t.start_s for t in self.turns if t.measured), self.end_s)

    def phase(self, due_s: float) -> str:
        return "warmup" if due_s < self.measured_from_s else "measured"

    def begin(self, now_s: float, length_s: float, *, measured: bool) -> Turn:
        """A turn of its client."""
        assert self.turns is not None
        before_s = self.turns[-1].before_s + self.turns[-1].until_s - self.turns[-1].start_s if self.turns else 0.0
        self.turns.append(Turn(now_s, now_s + length_s, before_s, measured))
        self.open, self.end_s = True, math.inf
        return self.turns[-1]

    def due_in_turn(self, slot: int | None, at_s: float) -> float | None:
        """As ``next_due``, in the turn that is under way."""
        assert self.turns
        assert self.loop is not None
        turn = self.turns[-1]
        at_s = max(at_s, turn.start_s)
        within_s = turn.before_s + at_s - turn.start_s
        active = self.loop.next_active(slot or 0, within_s)
        at_s = math.inf if active is None else at_s + (active - within_s)
        return at_s if at_s < turn.until_s else None

    def next_due(self, slot: int | None, at_s: float) -> float | None:
        """The first moment from ``at_s`` on at which a user may send; None: not in this stage any more."""
        if slot is not None and self.loop is not None:
            active = self.loop.next_active(slot, at_s - self.start_s)
            at_s = self.end_s if active is None else self.start_s + active
        return at_s if at_s < self.end_s else None


class Driver:
    """One run of a profile, or of a worker's share of it, against one server.

    ``on_end`` is called after each request. ``failure`` says why a run is worth nothing (a server without usage).
    ``begins`` gives the moment on ``clock``, the machine's monotonic one, at which stage i begins; it may wait for that
    to be settled, and says None when it will not be. Default: now. ``seat``: where this client is given its turns, if
    it takes turns with another.

    Raises:
        ValueError: a stage's arrivals wait for nobody, so not for a turn either.
    """

    def __init__(
        self,
        profile: Profile,
        endpoint: Endpoint,
        model: str,
        seed: int,
        *,
        share: Share = WHOLE,
        continuous_usage: bool = True,
        on_end: Callable[[Exchange], None] = lambda exchange: None,
        begins: Callable[[int], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        seat: Seat | None = None,
    ) -> None:
        if seat is not None and (name := profile.waits_for_nobody) is not None:
            raise ValueError(f"stage {name} has open-loop arrivals, which wait for nobody, so for no turn either")
        self.profile, self.endpoint, self.model, self.seed, self.share = profile, endpoint, model, seed, share
        self._continuous, self._on_end = continuous_usage, on_end
        self._clock, self._begins, self._seat = clock, begins or (lambda stage: clock()), seat
        self.exchanges: list[Exchange] = []
        self.stages: list[StageRun] = []
        self.failure: str | None = None
        self.started = False
        self.done = threading.Event()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._running: dict[str, tuple[Exchange, StreamClient]] = {}
        self._short_slices: bool | None = None
        self._loop_lag_s: dict[str, list[float]] = {}
        self._slots = iter(share.slots(profile.users))
        self._started_at, self._zero, self._duration_s = "", 0.0, 0.0

    def clock(self) -> float:
        """Seconds since the run's start."""
        return self._clock() - self._zero

    def start(self) -> None:
        """Begins the first stage; returns at once. Call it when the slots are (about to be) there."""
        self.started = True
        self._short_slices = ask_for_short_slices()
        threading.Thread(target=self._control, daemon=True).start()
        threading.Thread(target=self._probe, daemon=True).start()

    def stop(self) -> None:
        """Ends the run early: no new requests, those under way are cut and recorded as censored."""
        self._stopping.set()
        if self._seat is not None:
            self._seat.leave()
        self._cut("the run was stopped")
        with self._changed:
            self._changed.notify_all()

    # --- control -----------------------------------------------------------------------------------------------------

    def _control(self) -> None:
        try:
            for i, spec in enumerate(self.profile.stages):
                ahead = self._ahead(spec)
                ahead.fill()
                moment = self._beginning(i)
                if moment is None or self._stopping.is_set():
                    ahead.close()
                    break
                self._stage(spec, moment, ahead)
        except RuntimeError as e:
            self.failure = f"{e}: {e.__cause__}"
        finally:
            self._duration_s = self.clock() if self.stages else 0.0
            if self._seat is not None:
                self._seat.end()
            self.done.set()
            with self._changed:
                self._changed.notify_all()

    def _beginning(self, stage: int) -> float | None:
        """When stage ``stage`` begins; with turns, with the first of them. None: it will not."""
        if self._stopping.is_set():
            return None
        if self._seat is not None and not self._turn_comes(self._seat):
            return None
        return self._begins(stage)

    def _turn_comes(self, seat: Seat) -> bool:
        if seat.next():
            return True
        if not self._stopping.is_set():
            self.failure = "whoever gives the turns is gone"
        return False

    def _stage(self, spec: StageSpec, moment: float, ahead: Ahead) -> None:
        if not self.stages:
            self._zero = moment
            self._started_at = Clock(self._clock).utc(moment)
        if self._seat is not None:
            self._turns(StageRun(spec, self.seed, moment - self._zero, ahead, []), self._seat)
            return ahead.close()
        run = StageRun(spec, self.seed, moment - self._zero, ahead)
        cpu_s = time.process_time()
        with self._changed:
            self.stages.append(run)
            self._changed.notify_all()
        if run.loop is None:
            self._dispatch(run)
        self._stopping.wait(max(run.end_s - self.clock(), 0))
        run.cpu_s = time.process_time() - cpu_s
        self._drain(run)
        ahead.close()

    def _turns(self, run: StageRun, seat: Seat) -> None:
        """The stage's turns, of which the first is ours already."""
        lengths = turn_lengths(run.spec.warmup_s, run.spec.duration_s, seat.turn_s)
        for k, (length_s, measured) in enumerate(lengths):
            if k and (self._stopping.is_set() or not self._turn_comes(seat)):
                break
            cpu_s = time.process_time()
            with self._changed:
                turn = run.begin(self.clock() if k else run.start_s, length_s, measured=measured)
                if not k:
                    self.stages.append(run)
                self._changed.notify_all()
            self._stopping.wait(max(turn.until_s - self.clock(), 0))
            self._drain(run, last=k == len(lengths) - 1)
            turn.end_s = run.end_s = self.clock()
            run.cpu_s += time.process_time() - cpu_s
        with self._changed:
            run.over = True
            self._changed.notify_all()

    def _drain(self, run: StageRun, *, last: bool = True) -> None:
        """Waits for what was sent in the stage, or (``last`` unset) in a turn of it."""
        until = self.clock() + self.profile.drain_s
        with self._changed:
            while (self._running or run.handed) and self.clock() < until and not self._stopping.is_set():
                self._changed.wait(min(until - self.clock(), 0.5))
            run.open, run.over = False, last  # from here on nothing of it is sent, however late a thread wakes up
        until = self.clock() + _CUT_S
        while self._running and self.clock() < until:  # again and again: one may have been about to connect
            what = "stage" if run.turns is None else "turn"
            self._cut(f"still running {self.profile.drain_s:g} s after the end of the {what}")
            with self._changed:
                self._changed.wait_for(lambda: not self._running, timeout=0.1)
        run.drained_s = self.clock()
        with self._changed:
            for jobs in run.idle:
                jobs.put(None)

    def _cut(self, why: str) -> None:
        for exchange, client in list(self._running.values()):
            exchange.cut = exchange.cut or why
            client.abort()

    def _probe(self) -> None:
        while not self.done.is_set():
            before = time.monotonic()
            time.sleep(_PROBE_S)
            if self.stages and (self._seat is None or self.stages[-1].open):
                lags = self._loop_lag_s.setdefault(self.stages[-1].spec.name, [])
                lags.append(time.monotonic() - before - _PROBE_S)

    # --- closed loop -------------------------------------------------------------------------------------------------

    def take_slot(self) -> int | None:
        """A closed-loop user of this share that nobody runs yet; None: all are taken."""
        return next(self._slots, None)

    def run_slot(self, slot: int) -> None:
        """The life of one closed-loop user, until the run is over. Blocks."""
        client = self._client()
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda n=seen: len(self.stages) > n or self._over())  # type: ignore[misc]
                if len(self.stages) <= seen:
                    break
                run = self.stages[-1]
                seen = len(self.stages)
            if run.loop is not None:
                self._serve(run, slot, client)
        client.close()

    def _over(self) -> bool:
        return self.done.is_set() or self._stopping.is_set()

    def _serve(self, run: StageRun, slot: int, client: StreamClient) -> None:
        free_s = run.start_s
        while not (run.over or self._over()):
            if run.turns is None and run.next_due(slot, free_s) is None:
                return
            visit = run.ahead.take()
            if visit is None:
                return
            free_s = self._visit(run, visit, free_s, slot, client)

    # --- open loop ---------------------------------------------------------------------------------------------------

    def _dispatch(self, run: StageRun) -> None:
        assert isinstance(run.spec.arrivals, OpenLoop)
        most = -(-run.spec.arrivals.max_in_flight // self.share.workers)
        while (visit := run.ahead.take()) is not None:
            assert visit.due_s is not None
            due_s = run.start_s + visit.due_s
            if self._stopping.wait(max(due_s - self.clock(), 0)):
                break
            with self._changed:
                in_flight = len(self._running) + run.handed
                run.handed += in_flight < most
            if in_flight >= most:
                exchange = self._exchange(run, visit, 0, due_s)
                exchange.reason = (
                    f"not sent: {in_flight} requests were in flight, the profile's max_in_flight; the server does not "
                    "keep up with the rate"
                )
                self._ended(exchange)
            elif run.idle:
                run.idle.pop().put(visit)
            else:
                jobs: queue.SimpleQueue[Visit | None] = queue.SimpleQueue()
                jobs.put(visit)
                threading.Thread(target=self._carry, args=(run, jobs), daemon=True).start()

    def _carry(self, run: StageRun, jobs: queue.SimpleQueue[Visit | None]) -> None:
        client = self._client()
        while (visit := jobs.get()) is not None:
            self._visit(run, visit, run.start_s + (visit.due_s or 0.0), None, client)
            with self._changed:
                if run.over:
                    break
                run.idle.append(jobs)
        client.close()

    # --- one visit ---------------------------------------------------------------------------------------------------

    def _ahead(self, spec: StageSpec) -> Ahead:
        arrivals: Iterator[tuple[int, float | None]]
        if isinstance(spec.arrivals, OpenLoop):
            arrivals = iter(due_times(spec, self.seed, self.share))
        else:
            arrivals = ((n, None) for n in self.share.indices())

        def make(number: int, due_s: float | None) -> Visit:
            turns = session_of(spec, self.seed, number)
            return Visit(number, due_s, turns, self._body(turns[0], turns[0].messages))

        return Ahead(arrivals, make, _AHEAD + len(self.share.slots(self.profile.users)))

    def _client(self) -> StreamClient:
        return StreamClient(self.endpoint, self.profile.timeout_s, self.clock)

    def _body(self, prompt: Prompt, messages: tuple[tuple[str, str], ...]) -> bytes:
        return encoded(request_body(self.profile, self.model, messages, prompt.max_tokens, self._continuous))

    def _visit(self, run: StageRun, visit: Visit, free_s: float, slot: int | None, client: StreamClient) -> float:
        """All turns of a visit, as far as they come to their ends inside the stage; when its user is free again."""
        conversation, body = Conversation(), visit.body
        for turn, prompt in enumerate(visit.turns):
            due_s = run.next_due(slot, free_s) if run.turns is None else self._next_in_turns(run, slot, free_s)
            if due_s is None or self._stopped_before(due_s):
                return run.end_s
            exchange = self._send(run, visit, turn, due_s, body, client)
            free_s = (self.clock() if exchange.end_s is None else exchange.end_s) + prompt.think_s
            if exchange.status == "abandoned":
                return free_s
            if exchange.status != "ok":
                return free_s + min(max(exchange.retry_after_s or 0, _PAUSE_S), _PAUSE_MOST_S)
            if turn + 1 < len(visit.turns):
                conversation.answered(prompt, exchange.text)
                following = visit.turns[turn + 1]
                body = self._body(following, conversation.ask(following))
            exchange.text = ""  # hours of it would add up
        return free_s

    def _next_in_turns(self, run: StageRun, slot: int | None, free_s: float) -> float | None:
        """As ``StageRun.next_due``. Waits for the turn it lies in, which then does not end before it was sent."""
        with self._changed:
            while not (run.over or self._over()):
                if run.open and (due_s := run.due_in_turn(slot, free_s)) is not None:
                    run.handed += 1
                    return due_s
                self._changed.wait()
        return None

    def _stopped_before(self, due_s: float) -> bool:
        """Waits until then; a request that is due at once, as most of a closed loop, takes no lock."""
        wait_s = due_s - self.clock()
        return self._stopping.wait(wait_s) if wait_s > 0 else self._stopping.is_set()

    def _exchange(self, run: StageRun, visit: Visit, turn: int, due_s: float) -> Exchange:
        prompt = visit.turns[turn]
        return Exchange(
            request_id=f"{run.spec.name}-{visit.arrival}" + (f".{turn}" if turn else ""),
            stage=run.spec.name,
            phase=run.phase(due_s),
            seed=self.seed,
            due_s=due_s,
            max_tokens=prompt.max_tokens,
            arrival=visit.arrival,
            session=prompt.session,
            turn=turn,
            leave_after_s=prompt.leave_after_s,
            worker=self.share.worker,
        )

    def _send(
        self, run: StageRun, visit: Visit, turn: int, due_s: float, body: bytes, client: StreamClient
    ) -> Exchange:
        exchange = self._exchange(run, visit, turn, due_s)
        with self._changed:
            run.handed -= run.turns is not None or (run.loop is None and turn == 0)
            if run.open and not run.over:
                self._running[exchange.request_id] = (exchange, client)
                exchange.concurrency = len(self._running)
        if not exchange.concurrency:
            exchange.status, exchange.reason = "censored", "not sent: its stage was over before its turn came"
            if run.loop is None:  # it was due, whoever was late
                self._ended(exchange)
            return exchange
        try:
            client.send(exchange, body)
        except BaseException:  # Locust ends a user by raising in it
            exchange.cut = exchange.cut or "the user was stopped"
            raise
        finally:
            if exchange.cut and exchange.status not in ("ok", "abandoned"):
                exchange.status, exchange.reason = "censored", exchange.cut
            self._ended(exchange)
        return exchange

    def _ended(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if exchange.usage_missing and exchange.status != "censored" and not self.failure:
            self.failure = exchange.reason
            self._stopping.set()
        with self._changed:
            self._running.pop(exchange.request_id, None)
            self._changed.notify_all()
        self._on_end(exchange)

    # --- what came of it ---------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Every request as a row of ``records.parquet``, in order of due time. Call it when ``done`` is set."""
        left = [exchange for exchange, _ in self._running.values()]
        for exchange in left:
            exchange.status, exchange.reason = "censored", exchange.cut or "still running at the end"
        return [e.row() for e in sorted([*self.exchanges, *left], key=lambda e: e.due_s)]

    def health(self) -> ClientHealth:
        cpu = {r.spec.name: StageCpu(r.cpu_s, self._length_s(r)) for r in self.stages}
        health = client_health(self.exchanges, self._loop_lag_s, cpu)
        return health.model_copy(update={"short_slices": self._short_slices})

    def _length_s(self, run: StageRun) -> float:
        if run.turns is None:
            return min(run.spec.length_s, self._duration_s - run.start_s)
        return sum(min(t.end_s, self._duration_s) - t.start_s for t in run.turns)

    def info(self) -> RunInfo:
        """``run.json``. Call it when ``done`` is set."""
        stages = [
            {
                **run.spec.model_dump(mode="json"),
                "start_s": run.start_s,
                "end_s": run.end_s,
                "drained_s": run.drained_s,
                "requests": sum(e.stage == run.spec.name for e in self.exchanges),
                "users": [list(level) for level in run.loop.levels] if run.loop else None,
                "replay": run.spec.replayed.scaling.model_dump(mode="json") if run.spec.replayed else None,
                "turns": None if run.turns is None else [asdict(t) for t in run.turns],
            }
            for run in self.stages
        ]
        return RunInfo(
            profile=self.profile.name,
            workload_digest=workload_digest(self.profile, self.seed, self._seat.turn_s if self._seat else None),
            base_url=self.endpoint.url,
            model=self.model,
            started_at=self._started_at,
            clock_zero_s=self._zero,
            duration_s=self._duration_s,
            stages=stages,
            client=self.health(),
        )


def request_body(
    profile: Profile, model: str, messages: tuple[tuple[str, str], ...], max_tokens: int, continuous_usage: bool
) -> dict[str, Any]:
    """The JSON of one chat completion; greedy, streaming, with usage."""
    options: dict[str, Any] = {"include_usage": True}
    if continuous_usage:
        options["continuous_usage_stats"] = True
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": role, "content": text} for role, text in messages],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": options,
    }
    if profile.output.fixed_by == "ignore_eos":
        body["ignore_eos"] = True
    return body
