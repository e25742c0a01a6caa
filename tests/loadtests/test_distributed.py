"""Master and workers in one process, their messages carried by queues instead of Locust."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadtests.clocks import Clock
from loadtests.distributed import Master, Worker
from loadtests.schedule import due_times
from loadtests.workload import Profile
from tests.loadtests.mock_server import MockServer, Reply, mock_server
from tests.loadtests.test_driver import CLOSED, profile

PEERS = ["a", "b"]


def ahead(seconds: float, rate: float = 1.0) -> Clock:
    """The clock of another machine: set differently, and running at ``rate`` times the speed of ours."""
    began_s = time.monotonic()
    return Clock(lambda: began_s + seconds + (time.monotonic() - began_s) * rate, f"ahead by {seconds} s")


class Hub:
    """Carries messages, each side's in order, by one thread. ``clocks``: of the workers, where not the machine's."""

    def __init__(self, p: Profile, server: MockServer, clocks: dict[str, Clock] | None = None) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.workers: dict[str, Worker] = {}
        self.clocks = clocks or {}
        self.dead: set[str] = set()
        plan = {
            "profile": p.model_dump(mode="json", exclude_none=True),
            "folder": ".",
            "base_url": server.url,
            "model": "mock",
            "continuous_usage": True,
            "seed": 1,
        }
        self.master = Master(PEERS, plan, self._to_worker)
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()
        self.master.plan()

    def _carry(self) -> None:
        while (call := self._queue.get()) is not None:
            call()

    def _to_worker(self, kind: str, data: dict[str, Any], id: str) -> None:
        def deliver() -> None:
            if kind == "plan":
                clock = self.clocks.get(id)
                self.workers[id] = Worker(data, None, lambda kind, data: self._to_master(kind, data, id), clock)
                driver = self.workers[id].driver
                for slot in iter(driver.take_slot, None):
                    threading.Thread(target=driver.run_slot, args=(slot,), daemon=True).start()
                driver.start()
            elif id not in self.dead:
                self.workers[id].receive(kind, data)

        self._queue.put(deliver)

    def _to_master(self, kind: str, data: dict[str, Any], id: str) -> None:
        if id not in self.dead:
            self._queue.put(lambda: self.master.receive(kind, data, id))

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.stop()
            assert worker.driver.done.wait(240)
        self._queue.put(None)
        self.thread.join(240)


def test_two_workers_make_one_run() -> None:
    p = profile(CLOSED, {"kind": "poisson", "rate_per_s": 60})
    with mock_server(Reply(first_s=0.01)) as server:
        hub = Hub(p, server)
        hub.wait(lambda: hub.master.done)
        served = len(server.seen)
        hub.close()
    found = hub.master.result()
    assert found is not None
    records, info = found
    assert records.height == served == sum(s["requests"] for s in info.stages) == sum(w.requests for w in info.workers)
    assert records["request_id"].is_unique().all()
    assert set(records["worker"]) == {0, 1}
    assert records["due_s"].is_sorted()
    assert set(records["status"]) == {"ok"}
    for worker in hub.workers.values():  # one start moment for all, in each stage
        assert [s.start_s for s in worker.driver.stages] == [s["start_s"] for s in info.stages]
        assert worker.driver._zero == info.clock_zero_s
    assert [(w.same_clock, w.clock_offset_s) for w in info.workers] == [(True, 0.0)] * 2
    # Together they hold the users of the stage, no more.
    closed = records.filter(records["stage"] == "s0")
    for at_s in (info.stages[0]["start_s"] + x / 10 for x in range(1, 8)):
        assert closed.filter((closed["sent_s"] <= at_s) & (closed["end_s"] > at_s)).height <= 3


def test_between_hosts_every_time_is_put_on_the_masters_clock() -> None:
    """One worker's clock is 3.7 s ahead of the master's, the other's 120 s behind it and faster by 200 ppm.

    The server runs on the master's: on that, no request came before it was sent and no token before the server sent it,
    as far as the clocks are known, and each request was due when one client would have found it due.
    """
    p = profile(CLOSED, {"kind": "poisson", "rate_per_s": 60})
    with mock_server(Reply(first_s=0.01)) as server:
        hub = Hub(p, server, {"a": ahead(3.7), "b": ahead(-120, 1.0002)})
        hub.wait(lambda: hub.master.done)
        hub.close()
    found = hub.master.result()
    assert found is not None
    records, info = found
    assert info.clock_zero_s is not None
    assert [w.same_clock for w in info.workers] == [False, False]
    errors = {w.worker: w.clock_error_s + 1e-9 for w in info.workers}
    assert abs(info.workers[0].clock_offset_s - 3.7) <= errors[0]
    assert set(records["worker"]) == set(errors)
    served = {seen.request_id: seen for seen in server.seen}
    assert set(records["request_id"]) == set(served)
    for row in records.iter_rows(named=True):
        seen, error_s = served[row["request_id"]], errors[row["worker"]]
        assert row["status"] == "ok"
        assert info.clock_zero_s + row["sent_s"] <= seen.received_s + error_s
        for got_s, told_s in zip(row["token_times_s"], seen.sent_s, strict=True):
            assert info.clock_zero_s + got_s >= told_s - error_s
    due = dict(due_times(p.stages[1], 1))
    rows = records.filter(stage="s1")
    assert set(rows["arrival"]) == set(due)
    for arrival, due_s, worker in rows.select("arrival", "due_s", "worker").iter_rows():
        assert abs(due_s - info.stages[1]["start_s"] - due[arrival]) <= errors[worker]


def test_a_lost_worker_voids_the_run_and_is_named() -> None:
    with mock_server(Reply(first_s=0.02)) as server:
        hub = Hub(profile(CLOSED, duration_s=60), server)
        hub.wait(lambda: len(server.seen) > 10)
        hub.dead.add("b")
        hub.master.lost("b", "it sent no heartbeat any more")
        hub.wait(lambda: hub.master.done)
        hub.close()
    found = hub.master.result()
    assert found is not None
    records, info = found
    assert set(records["worker"]) == {0}
    assert info.client.void
    assert "worker 1 (" in (info.client.void_reason or "")
    assert "was lost: it sent no heartbeat any more" in (info.client.void_reason or "")
    assert info.workers[1].client is None


def test_a_server_without_usage_fails_the_whole() -> None:
    with mock_server(Reply(usage="none")) as server:
        hub = Hub(profile(CLOSED, duration_s=60), server)
        hub.wait(lambda: hub.master.done)
        hub.close()
    assert "without usage" in (hub.master.failure or "")


def test_no_worker_came_back() -> None:
    with mock_server() as server:
        master = Master(["x"], {}, lambda kind, data, id: None)
        assert not master.done
        master.give_up("gone")
        assert master.done
        assert master.result() is None
        assert server.seen == []


@pytest.mark.parametrize("users", [1, 3])
def test_more_workers_than_users_leave_some_idle(users: int) -> None:
    p = profile({"kind": "closed", "concurrency": users}, duration_s=0.3)
    with mock_server(Reply(first_s=0.02)) as server:
        hub = Hub(p, server)
        hub.wait(lambda: hub.master.done)
        hub.close()
    found = hub.master.result()
    assert found is not None
    assert (found[0]["concurrency"].max() or 0) <= -(-users // 2)  # type: ignore[operator]
    assert set(found[0]["worker"]) == ({0} if users == 1 else {0, 1})
