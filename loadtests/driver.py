"""Walks through a profile's stages and sends what is due. Plain threads: under Locust's patches these are greenlets.

    control thread   begins a stage, waits for its end (or dispatches open-loop arrivals), drains, begins the next
    slots            closed-loop users, held by Locust (``run_slot`` each); a slot sends while the schedule says
    probe            sleeps briefly again and again and notes how late it woke

A request due inside a stage is followed to its end during the drain. What still runs after that is cut and recorded as
censored.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from loadtests.arrivals import OpenLoop
from loadtests.client import Endpoint, Exchange, StreamClient
from loadtests.health import client_health
from loadtests.records import ClientHealth, RunInfo
from loadtests.schedule import ClosedLoop, closed_loop, open_arrivals
from loadtests.traffic import prompt_of
from loadtests.workload import Profile, StageSpec, workload_digest

_PROBE_S = 0.05
_CUT_S = 5.0  # how long to wait for cut requests to notice
_PAUSE_S = 0.25  # a closed-loop user whose request failed waits so long, or as long as Retry-After says
_PAUSE_MOST_S = 5.0


class StageRun:
    """One stage under way. Times are seconds since the run's start."""

    def __init__(self, spec: StageSpec, seed: int, start_s: float) -> None:
        self.spec, self.start_s = spec, start_s
        self.end_s = start_s + spec.warmup_s + spec.duration_s
        self.loop: ClosedLoop | None = None if isinstance(spec.arrivals, OpenLoop) else closed_loop(spec, seed)
        self.indices = itertools.count()
        self.drained_s = self.end_s
        self.over = False
        self.idle: list[StreamClient] = []  # open loop: clients whose connection can be used again

    def phase(self, due_s: float) -> str:
        return "warmup" if due_s < self.start_s + self.spec.warmup_s else "measured"


class Driver:
    """One run of a profile against one server.

    ``on_end`` is called after each request. ``failure`` says why a run is worth nothing (a server without usage).
    """

    def __init__(
        self,
        profile: Profile,
        endpoint: Endpoint,
        model: str,
        seed: int,
        *,
        continuous_usage: bool = True,
        on_end: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        self.profile, self.endpoint, self.model, self.seed = profile, endpoint, model, seed
        self._continuous, self._on_end = continuous_usage, on_end
        self.exchanges: list[Exchange] = []
        self.stages: list[StageRun] = []
        self.failure: str | None = None
        self.done = threading.Event()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._running: dict[str, tuple[Exchange, StreamClient]] = {}
        self._loop_lag_s: dict[str, list[float]] = {}
        self.started_at = ""
        self._zero = self._cpu = self._duration_s = self._cpu_s = 0.0

    def clock(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._zero

    def start(self) -> None:
        """Begins the first stage; returns at once. Call it when the slots are (about to be) there."""
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._zero, self._cpu = time.monotonic(), time.process_time()
        threading.Thread(target=self._control, daemon=True).start()
        threading.Thread(target=self._probe, daemon=True).start()

    def stop(self) -> None:
        """Ends the run early: no new requests, those under way are cut and recorded as censored."""
        self._stopping.set()
        self._cut("the run was stopped")
        with self._changed:
            self._changed.notify_all()

    # --- control -----------------------------------------------------------------------------------------------------

    def _control(self) -> None:
        try:
            for spec in self.profile.stages:
                run = StageRun(spec, self.seed, self.clock())
                with self._changed:
                    self.stages.append(run)
                    self._changed.notify_all()
                if run.loop is None:
                    self._dispatch(run)
                self._stopping.wait(max(run.end_s - self.clock(), 0))
                self._drain(run)
                if self._stopping.is_set():
                    break
        finally:
            self._duration_s = self.clock()
            self._cpu_s = time.process_time() - self._cpu
            self.done.set()
            with self._changed:
                self._changed.notify_all()

    def _drain(self, run: StageRun) -> None:
        until = self.clock() + self.profile.drain_s
        with self._changed:
            while self._running and self.clock() < until and not self._stopping.is_set():
                self._changed.wait(min(until - self.clock(), 0.5))
        until = self.clock() + _CUT_S
        while self._running and self.clock() < until:  # again and again: one may have been about to connect
            self._cut(f"still running {self.profile.drain_s:g} s after the end of the stage")
            with self._changed:
                self._changed.wait_for(lambda: not self._running, timeout=0.1)
        run.drained_s = self.clock()
        with self._changed:
            run.over = True
        for client in run.idle:
            client.close()

    def _cut(self, why: str) -> None:
        for exchange, client in list(self._running.values()):
            exchange.cut = exchange.cut or why
            client.abort()

    def _probe(self) -> None:
        while not self.done.is_set():
            before = time.monotonic()
            time.sleep(_PROBE_S)
            if self.stages:
                lags = self._loop_lag_s.setdefault(self.stages[-1].spec.name, [])
                lags.append(time.monotonic() - before - _PROBE_S)

    # --- closed loop -------------------------------------------------------------------------------------------------

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
                self._serve(run, run.loop, slot, client)
        client.close()

    def _over(self) -> bool:
        return self.done.is_set() or self._stopping.is_set()

    def _serve(self, run: StageRun, loop: ClosedLoop, slot: int, client: StreamClient) -> None:
        free_s = run.start_s
        while not self._over():
            active = loop.next_active(slot, free_s - run.start_s)
            if active is None or run.start_s + active >= run.end_s:
                return
            due_s = run.start_s + active
            if self._stopping.wait(max(due_s - self.clock(), 0)):
                return
            exchange = self._send(run, due_s, client)
            free_s = exchange.end_s or self.clock()
            if exchange.status != "ok":
                free_s += min(max(exchange.retry_after_s or 0, _PAUSE_S), _PAUSE_MOST_S)

    # --- open loop ---------------------------------------------------------------------------------------------------

    def _dispatch(self, run: StageRun) -> None:
        assert isinstance(run.spec.arrivals, OpenLoop)

        def one(due_s: float) -> None:
            with self._changed:
                client = run.idle.pop() if run.idle else self._client()
            self._send(run, due_s, client)
            with self._changed:
                if not run.over:
                    return run.idle.append(client)
            client.close()

        for at_s in open_arrivals(run.spec, self.seed):
            due_s = run.start_s + at_s
            if self._stopping.wait(max(due_s - self.clock(), 0)):
                break
            if len(self._running) >= run.spec.arrivals.max_in_flight:
                exchange = self._exchange(run, due_s)[0]
                exchange.reason = (
                    f"not sent: {len(self._running)} requests were in flight, the profile's max_in_flight; the server "
                    "does not keep up with the rate"
                )
                self._ended(exchange)
                continue
            threading.Thread(target=one, args=(due_s,), daemon=True).start()

    # --- one request -------------------------------------------------------------------------------------------------

    def _client(self) -> StreamClient:
        return StreamClient(self.endpoint, self.profile.timeout_s, self.clock)

    def _exchange(self, run: StageRun, due_s: float) -> tuple[Exchange, dict[str, Any]]:
        index = next(run.indices)
        prompt = prompt_of(run.spec, self.seed, index)
        exchange = Exchange(
            request_id=f"{run.spec.name}-{index}",
            stage=run.spec.name,
            phase=run.phase(due_s),
            seed=self.seed,
            due_s=due_s,
            max_tokens=prompt.max_tokens,
        )
        return exchange, request_body(self.profile, self.model, prompt.messages, prompt.max_tokens, self._continuous)

    def _send(self, run: StageRun, due_s: float, client: StreamClient) -> Exchange:
        exchange, body = self._exchange(run, due_s)
        self._running[exchange.request_id] = (exchange, client)
        exchange.concurrency = len(self._running)
        try:
            client.send(exchange, body)
        except BaseException:  # Locust ends a user by raising in it
            exchange.cut = exchange.cut or "the user was stopped"
            raise
        finally:
            if exchange.cut and exchange.status != "ok":
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
        share = self._cpu_s / self._duration_s if self._duration_s > 0 else None
        return client_health(self.exchanges, self._loop_lag_s, share)

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
            }
            for run in self.stages
        ]
        return RunInfo(
            profile=self.profile.name,
            workload_digest=workload_digest(self.profile, self.seed),
            base_url=self.endpoint.url,
            model=self.model,
            started_at=self.started_at,
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
