"""One run over several load clients: a master that plans and gathers, workers that drive. Carried by Locust's messages.

    master                                   worker k of n
    plan: profile, seed, model, k, n   -->   a Driver of its share
                                       <--   at: ready for stage i (prompts made, the last stage drained)
    ping, a few times                  <->   pong: its clock
    begin: stage i at a moment         -->   the stage begins there, on the worker's own clock, for all at once
                                       <--   rows: its records, in parts; end: its health
    stop                               -->   (another worker was lost, or somebody stopped the run)

Nothing here knows Locust; ``send`` is given. A lost worker ends the run: what it had measured is gone, so it is void.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.client import Endpoint
from loadtests.clocks import Offset, clock_id
from loadtests.driver import Driver
from loadtests.records import SCHEMA, ClientHealth, RunInfo, WorkerInfo
from loadtests.schedule import Share
from loadtests.workload import Profile

TO_WORKER = ("plan", "ping", "begin", "stop")
TO_MASTER = ("at", "pong", "rows", "end")
_PINGS = 8
_BEGIN_IN_S = 0.25  # until every worker knows when
_PART_ROWS = 2000

Send = Callable[[str, dict[str, Any]], None]


@dataclass
class _Peer:
    """A worker as the master knows it."""

    worker: int
    id: str
    name: str = ""
    at: int = -1  # the stage that it is ready for
    pings: int = 0
    offset: Offset = field(default_factory=Offset)
    parts: list[pl.DataFrame] = field(default_factory=list)
    info: RunInfo | None = None  # it has ended and handed over everything
    failure: str | None = None
    lost: str | None = None

    @property
    def over(self) -> bool:
        return self.info is not None or self.lost is not None or self.failure is not None


class Master:
    """``peers``: Locust's ids of the workers, in the order of their shares. ``send(kind, data, id)``."""

    def __init__(
        self, peers: list[str], plan: dict[str, Any], send: Callable[[str, dict[str, Any], str], None]
    ) -> None:
        self._peers = [_Peer(k, id) for k, id in enumerate(peers)]
        self._by_id = {p.id: p for p in self._peers}
        self._plan, self._send = plan, send
        self._clock_id = clock_id()
        self._zero = 0.0
        self._stopped = False

    def plan(self) -> None:
        for p in self._peers:
            self._send("plan", {**self._plan, "worker": p.worker, "workers": len(self._peers)}, p.id)

    @property
    def done(self) -> bool:
        """Every worker has handed over its records, or never will."""
        return all(p.over for p in self._peers)

    @property
    def failure(self) -> str | None:
        """Why the run is worth nothing."""
        return next((p.failure for p in self._peers if p.failure), None)

    def receive(self, kind: str, data: dict[str, Any], id: str) -> None:
        """A message from a worker."""
        peer = self._by_id.get(id)
        if peer is None or peer.lost:
            return
        match kind:
            case "at":
                peer.at, peer.name = data["stage"], data["name"]
                peer.offset.same = self._clock_id is not None and data["clock"] == self._clock_id
                self._meet()
            case "pong":
                peer.offset.trip(data["sent_s"], data["theirs_s"], time.monotonic())
                self._ping(peer)
            case "rows":
                peer.parts.append(pl.read_parquet(io.BytesIO(data["parquet"])))
            case "end":
                peer.failure = data["failure"]
                peer.info = RunInfo.model_validate_json(data["info"]) if data["info"] else None
                if peer.failure or peer.info is None:
                    peer.failure = peer.failure or "a worker ended before its first stage"
                    self.stop()

    def _meet(self) -> None:
        """When all are ready for the same stage: measure the clocks, then say when it begins."""
        if self._stopped or len({p.at for p in self._peers}) > 1:
            return
        for p in self._peers:
            p.pings = 0
            self._ping(p)

    def _ping(self, peer: _Peer) -> None:
        if peer.pings < _PINGS:
            peer.pings += 1
            return self._send("ping", {"sent_s": time.monotonic()}, peer.id)
        peer.pings += 1
        peer.offset.settle()
        if all(p.pings > _PINGS for p in self._peers):
            at_s = time.monotonic() + _BEGIN_IN_S
            if peer.at == 0:
                self._zero = at_s
            for p in self._peers:
                self._send("begin", {"stage": p.at, "at_s": at_s + p.offset.value_s}, p.id)

    def lost(self, id: str, why: str) -> None:
        """A worker is gone: the others are stopped."""
        peer = self._by_id.get(id)
        if peer is not None and not peer.over:
            peer.lost = why
            self.stop()

    def give_up(self, why: str) -> None:
        """Waits no longer for those that have not ended."""
        for p in self._peers:
            if not p.over:
                p.lost = why

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            for p in self._peers:
                if not p.over:
                    self._send("stop", {}, p.id)

    @property
    def ids(self) -> list[str]:
        """Of all workers, as Locust names them."""
        return [p.id for p in self._peers]

    def result(self) -> tuple[pl.DataFrame, RunInfo] | None:
        """The records of all workers together, and the run; None: no worker handed over anything."""
        infos = [p.info for p in self._peers if p.info is not None]
        if not infos:
            return None
        records = pl.concat([pl.DataFrame(schema=SCHEMA), *(part for p in self._peers for part in p.parts)])
        workers = [
            WorkerInfo(
                worker=p.worker, name=p.name or p.id, requests=sum(part.height for part in p.parts),
                same_clock=p.offset.same, clock_offset_s=p.offset.value_s, clock_error_s=p.offset.error_s,
                clock_moved_s=p.offset.moved_s, lost=p.lost, client=p.info.client if p.info else None,
            )
            for p in self._peers
        ]  # fmt: skip
        longest = max(infos, key=lambda info: len(info.stages))
        stages = [
            {
                **stage,
                "drained_s": max(s["drained_s"] for s in same),
                "requests": sum(s["requests"] for s in same),
            }
            for i, stage in enumerate(longest.stages)
            if (same := [info.stages[i] for info in infos if len(info.stages) > i])
        ]
        whole = {
            "stages": stages,
            "duration_s": max(info.duration_s for info in infos),
            "clock_zero_s": self._zero,
            "client": worst(workers),
            "workers": workers,
        }
        return records.sort("due_s"), longest.model_copy(update=whole)


def worst(workers: list[WorkerInfo]) -> ClientHealth:
    """The health of a run by several clients: of each figure the worst; void if one is, or is lost."""
    known = [w.client for w in workers if w.client is not None]
    late = max(known, key=lambda c: (c.lag_p99_ms or 0.0) / (c.lag_limit_ms or 1.0))
    reasons = [f"worker {w.worker} ({w.name}) was lost: {w.lost}" for w in workers if w.lost]
    reasons += [
        f"worker {w.worker} ({w.name}): {w.client.void_reason}" for w in workers if w.client and w.client.void_reason
    ]
    return ClientHealth(
        lag_p99_ms=late.lag_p99_ms,
        lag_limit_ms=late.lag_limit_ms,
        loop_lag_p99_ms=max((c.loop_lag_p99_ms for c in known if c.loop_lag_p99_ms is not None), default=None),
        cpu_share=max((c.cpu_share for c in known if c.cpu_share is not None), default=None),
        void=bool(reasons),
        void_reason="; ".join(reasons) or None,
    )


class Worker:
    """The worker's side of one run."""

    def __init__(self, plan: dict[str, Any], api_key: str | None, send: Send, **driver: Any) -> None:
        self.share = Share(plan["worker"], plan["workers"])
        self._send = send
        self._begins: dict[int, float] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self.delivered = threading.Event()
        profile = Profile.model_validate(plan["profile"], context={"folder": Path(plan["folder"])})
        self.driver = Driver(
            profile, Endpoint(plan["base_url"], api_key), plan["model"], plan["seed"],
            share=self.share, continuous_usage=plan["continuous_usage"], begins=self._wait_for, **driver,
        )  # fmt: skip
        threading.Thread(target=self._deliver, daemon=True).start()

    def receive(self, kind: str, data: dict[str, Any]) -> None:
        """A message from the master."""
        match kind:
            case "ping":
                self._send("pong", {"sent_s": data["sent_s"], "theirs_s": time.monotonic()})
            case "begin":
                with self._changed:
                    self._begins[data["stage"]] = data["at_s"]
                    self._changed.notify_all()
            case "stop":
                self.stop()

    def stop(self) -> None:
        self.driver.stop()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if not self.driver.started:
            self.driver.done.set()

    def _wait_for(self, stage: int) -> float | None:
        name = f"{socket.gethostname()} process {os.getpid()}"
        self._send("at", {"stage": stage, "name": name, "clock": clock_id()})
        with self._changed:
            self._changed.wait_for(lambda: stage in self._begins or self._stopped)
            return self._begins.get(stage)

    def _deliver(self) -> None:
        self.driver.done.wait()
        driver = self.driver
        rows = driver.rows()
        for i in range(0, len(rows), _PART_ROWS):
            part = io.BytesIO()
            pl.DataFrame(rows[i : i + _PART_ROWS], schema=SCHEMA).write_parquet(part)
            self._send("rows", {"parquet": part.getvalue()})
        info = driver.info().model_dump_json() if driver.stages else None
        self._send("end", {"failure": driver.failure, "info": info})
        self.delivered.set()
