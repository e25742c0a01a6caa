"""One run over several load clients: a master that plans and gathers, workers that drive. Carried by Locust's messages.

    master                                   worker k of n
    plan: profile, seed, model, k, n   -->   a Driver of its share
                                       <--   at: ready for stage i (prompts made, the last stage drained)
    ping, a few times                  <->   pong: its clock when that came and when this goes
    begin: stage i at a moment         -->   the stage begins there, on the worker's own clock, for all at once
    ping, a few times, now and then    <->   pong
                                       <--   at: no stage is left
    ping, a few times                  <->   pong
    begin: no stage                    -->   what it measured may go
                                       <--   rows: its records, in parts; end: its health
    stop                               -->   (another worker was lost, or somebody stopped the run)

Nothing here knows Locust; ``send`` is given. Records travel as bytes of parquet in these messages, so that workers and
master share no filesystem. A lost worker ends the run: what it had measured is gone, so it is void.
"""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.client import Endpoint
from loadtests.clocks import Clock, Offset, RoundTrip
from loadtests.driver import Driver
from loadtests.merge import Part, merge
from loadtests.records import SCHEMA, RunInfo
from loadtests.schedule import Share
from loadtests.workload import Profile

TO_WORKER = ("plan", "ping", "begin", "stop")
TO_MASTER = ("at", "pong", "rows", "end")
_PINGS = 8
_AGAIN_S = 30.0  # from one round of pings to the next, within a stage
_BEGIN_IN_S = 0.25  # until every worker knows when
_PART_ROWS = 2000
_NOT_YET, _NO_STAGE = -1, -2  # besides the number of a stage

Send = Callable[[str, dict[str, Any]], None]


@dataclass
class _Peer:
    """A worker as the master knows it."""

    worker: int
    id: str
    name: str = ""
    at: int = _NOT_YET  # the stage that it is ready for
    waits: bool = False  # for a ``begin``, once its clock is known
    pings: int = 0  # still to come in the round that is under way
    read_s: float = 0.0  # when its clock was last read, on the master's
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
        self,
        peers: list[str],
        plan: dict[str, Any],
        send: Callable[[str, dict[str, Any], str], None],
        clock: Clock | None = None,
    ) -> None:
        self._peers = [_Peer(k, id) for k, id in enumerate(peers)]
        self._by_id = {p.id: p for p in self._peers}
        self._plan, self._send = plan, send
        self._clock = clock or Clock()
        self._begins_s: list[float] = []
        self._started_at = ""
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
                peer.offset.same = self._clock.same(data["clock"])
                self._arrived(peer)
            case "pong":
                back_s = self._clock.read()
                peer.offset.add(RoundTrip(data["sent_s"], data["received_s"], data["replied_s"], back_s))
                peer.pings -= 1
                self._ping(peer)
            case "rows":
                peer.parts.append(pl.read_parquet(io.BytesIO(data["parquet"])))
            case "end":
                peer.failure = data["failure"]
                peer.info = RunInfo.model_validate_json(data["info"]) if data["info"] else None
                if peer.failure or peer.info is None:
                    peer.failure = peer.failure or "a worker ended before its first stage"
                    self.stop()

    # --- the clocks and the beginnings ---

    def _arrived(self, peer: _Peer) -> None:
        """Reads the clocks of all when all are ready for the same stage, that of one that has no stage left at once."""
        if self._stopped:
            return
        if peer.at == _NO_STAGE:
            self._read(peer, waits=True)
        elif len({p.at for p in self._peers}) == 1:
            for p in self._peers:
                self._read(p, waits=True)

    def watch(self) -> None:
        """Call it now and then: reads the clocks again that were not read for a while."""
        now_s = self._clock.read()
        for p in self._peers:
            running = p.at >= 0 and not (p.over or p.waits or p.pings or p.offset.same)
            if running and now_s - p.read_s >= _AGAIN_S:
                self._read(p)

    def _read(self, peer: _Peer, *, waits: bool = False) -> None:
        peer.waits = peer.waits or waits
        under_way, peer.pings = peer.pings > 0, 0 if peer.offset.same else _PINGS
        if not under_way:
            self._ping(peer)

    def _ping(self, peer: _Peer) -> None:
        if peer.pings:
            return self._send("ping", {"sent_s": self._clock.read()}, peer.id)
        peer.offset.settle()
        peer.read_s = self._clock.read()
        if peer.at == _NO_STAGE:
            return self._begin(peer, peer.read_s)
        if peer.waits and all(p.waits and not p.pings for p in self._peers):
            at_s = self._clock.read() + _BEGIN_IN_S
            if not self._begins_s:
                self._started_at = self._clock.utc(at_s)
            self._begins_s.append(at_s)
            for p in self._peers:
                self._begin(p, at_s)

    def _begin(self, peer: _Peer, at_s: float) -> None:
        peer.waits = False
        self._send("begin", {"stage": peer.at, "at_s": at_s + peer.offset.value_s}, peer.id)

    # --- ends ---

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
        parts = [Part(p.worker, p.name or p.id, p.offset, p.info, p.parts, p.lost) for p in self._peers]
        return merge(parts, self._begins_s, self._started_at)


class Worker:
    """The worker's side of one run."""

    def __init__(
        self, plan: dict[str, Any], api_key: str | None, send: Send, clock: Clock | None = None, **driver: Any
    ) -> None:
        self.share = Share(plan["worker"], plan["workers"])
        self._send = send
        self._clock = clock or Clock()
        self._begins: dict[int, float] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self.delivered = threading.Event()
        profile = Profile.model_validate(plan["profile"], context={"folder": Path(plan["folder"])})
        self.driver = Driver(
            profile, Endpoint(plan["base_url"], api_key), plan["model"], plan["seed"],
            share=self.share, continuous_usage=plan["continuous_usage"], begins=self._wait_for, clock=self._clock.read,
            **driver,
        )  # fmt: skip
        threading.Thread(target=self._deliver, daemon=True).start()

    def receive(self, kind: str, data: dict[str, Any]) -> None:
        """A message from the master."""
        match kind:
            case "ping":
                received_s = self._clock.read()
                self._send(
                    "pong",
                    {"sent_s": data["sent_s"], "received_s": received_s, "replied_s": self._clock.read()},
                )
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
        self._send("at", {"stage": stage, "name": name, "clock": self._clock.id})
        with self._changed:
            self._changed.wait_for(lambda: stage in self._begins or self._stopped)
            return self._begins.get(stage)

    def _deliver(self) -> None:
        self.driver.done.wait()
        self._wait_for(_NO_STAGE)
        driver = self.driver
        rows = driver.rows()
        for i in range(0, len(rows), _PART_ROWS):
            part = io.BytesIO()
            pl.DataFrame(rows[i : i + _PART_ROWS], schema=SCHEMA).write_parquet(part)
            self._send("rows", {"parquet": part.getvalue()})
        info = driver.info().model_dump_json() if driver.stages else None
        self._send("end", {"failure": driver.failure, "info": info})
        self.delivered.set()
