"""Master and workers in one process, their messages carried by queues instead of Locust."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadtests.distributed import Master, Worker, worst
from loadtests.records import ClientHealth, WorkerInfo
from loadtests.workload import Profile
from tests.loadtests.mock_server import MockServer, Reply, mock_server
from tests.loadtests.test_driver import CLOSED, profile

PEERS = ["a", "b"]


class Hub:
    """Carries messages, each side's in order, by one thread; ``skew_s`` moves the clock that worker b tells."""

    def __init__(self, p: Profile, server: MockServer, skew_s: float = 0.0) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.workers: dict[str, Worker] = {}
        self.skew_s = skew_s
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
                self.workers[id] = Worker(data, None, lambda kind, data: self._to_master(kind, data, id))
                driver = self.workers[id].driver
                for slot in iter(driver.take_slot, None):
                    threading.Thread(target=driver.run_slot, args=(slot,), daemon=True).start()
                driver.start()
            elif id not in self.dead:
                if kind == "begin" and id == "b":
                    data["at_s"] -= self.skew_s  # what b's own clock shows then
                self.workers[id].receive(kind, data)

        self._queue.put(deliver)

    def _to_master(self, kind: str, data: dict[str, Any], id: str) -> None:
        if kind == "at" and self.skew_s:
            data["clock"] = f"of {id}"
        if kind == "pong" and id == "b":
            data["theirs_s"] += self.skew_s
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


def test_between_hosts_the_offset_is_measured_and_recorded() -> None:
    with mock_server(Reply(first_s=0.01)) as server:
        hub = Hub(profile(CLOSED), server, skew_s=1000.0)
        hub.wait(lambda: hub.master.done)
        hub.close()
    found = hub.master.result()
    assert found is not None
    a, b = found[1].workers
    assert not a.same_clock
    for w, truth in ((a, 0.0), (b, 1000.0)):
        assert abs(w.clock_offset_s - truth) <= w.clock_error_s + 1e-9
    starts = [w.driver._zero for w in hub.workers.values()]
    assert abs(starts[0] - starts[1]) <= a.clock_error_s + b.clock_error_s + 1e-9


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


def health(**kwargs: Any) -> ClientHealth:
    base = {"lag_p99_ms": 1.0, "lag_limit_ms": 5.0, "cpu_share": 0.1, "void": False, "void_reason": None}
    return ClientHealth.model_validate(base | kwargs)


def info(worker: int, client: ClientHealth) -> WorkerInfo:
    zero = {"same_clock": True, "clock_offset_s": 0.0, "clock_error_s": 0.0, "clock_moved_s": 0.0}
    return WorkerInfo(worker=worker, name=f"h{worker}", requests=1, client=client, **zero)  # type: ignore[arg-type]


def test_the_health_of_a_run_is_the_worst_of_its_workers() -> None:
    good = health(lag_p99_ms=9.0, lag_limit_ms=90.0, loop_lag_p99_ms=4.0)
    late = health(lag_p99_ms=8.0, cpu_share=0.9, void=True, void_reason="late")
    found = worst([info(0, good), info(1, late)])
    assert (found.lag_p99_ms, found.lag_limit_ms, found.loop_lag_p99_ms, found.cpu_share) == (8.0, 5.0, 4.0, 0.9)
    assert (found.void, found.void_reason) == (True, "worker 1 (h1): late")
    assert not worst([info(0, good)]).void


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
