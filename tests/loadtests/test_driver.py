"""The driver on real threads against the mock server. Times are compared with the server's own, never with a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loadtests.client import Endpoint, Exchange, StreamClient
from loadtests.driver import Driver, StageRun
from loadtests.output import read_run, write_run
from loadtests.preflight import PreflightError, preflight
from loadtests.schedule import WHOLE, ClosedLoop, Share
from loadtests.traffic import session_of
from loadtests.visits import Visit
from loadtests.workload import Profile
from tests.loadtests.mock_server import MockServer, Reply, mock_server

CLOSED = {"kind": "closed", "concurrency": 3}


def profile(*arrivals: dict[str, Any], duration_s: float = 0.6, warmup_s: float = 0.2, **kwargs: Any) -> Profile:
    stages = [
        {
            "name": f"s{i}",
            "warmup_s": warmup_s,
            "duration_s": duration_s,
            "arrivals": a,
            "prompt_tokens": {"kind": "fixed", "tokens": 12},
            "output_tokens": {"kind": "uniform", "min": 2, "max": 4},
        }
        for i, a in enumerate(arrivals)
    ]
    base = {"name": "t", "kind": "smoke", "drain_s": 240, "output": {"fixed_by": "ignore_eos"}, "stages": stages}
    return Profile.model_validate(base | kwargs)


def drive(
    p: Profile, server: MockServer, during: Callable[[Driver], None] = lambda d: None, share: Share = WHOLE
) -> Driver:
    driver = Driver(p, Endpoint(server.url), "mock", 1, share=share)
    slots = [threading.Thread(target=driver.run_slot, args=(i,)) for i in iter(driver.take_slot, None)]
    for t in slots:
        t.start()
    driver.start()
    during(driver)
    assert driver.done.wait(240)
    for t in slots:
        t.join(240)
    assert not any(t.is_alive() for t in slots)
    return driver


def frame(driver: Driver, tmp_path: Path) -> pl.DataFrame:
    write_run(tmp_path, driver.rows(), driver.info())
    return read_run(tmp_path)[0]


def test_closed_loop_over_two_stages(tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.01, gap_s=0.005)) as server:
        driver = drive(profile(CLOSED, CLOSED), server)
        truth = [[t - driver._zero for t in s.sent_s] for s in server.seen]
    records = frame(driver, tmp_path)
    assert set(records["stage"]) == {"s0", "s1"}
    assert set(records["phase"]) == {"warmup", "measured"}
    assert set(records["status"]) == {"ok"}
    assert records["request_id"].is_unique().all()
    assert records.height == len(truth)
    assert (records["output_tokens"] == records["max_tokens"]).all()
    assert (records["output_tokens"] == records["token_times_s"].list.len()).all()
    assert records["concurrency"].max() == 3
    for row in records.iter_rows(named=True):
        times = [row["due_s"], row["sent_s"], row["first_byte_s"], *row["token_times_s"], row["end_s"]]
        assert times == sorted(times)
        assert row["first_token_s"] == row["token_times_s"][0]


def test_phase_is_by_due_time(tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.03)) as server:
        driver = drive(profile(CLOSED), server)
    _, info = (frame(driver, tmp_path), driver.info())
    begins = info.stages[0]["start_s"] + info.stages[0]["warmup_s"]
    for e in driver.exchanges:
        assert e.phase == ("warmup" if e.due_s < begins else "measured")
        assert e.due_s < info.stages[0]["end_s"]
    crossed = [e for e in driver.exchanges if e.due_s < begins < (e.end_s or 0)]
    assert {e.phase for e in crossed} == {"warmup"}


def test_a_next_request_is_due_when_the_last_has_ended() -> None:
    with mock_server(Reply(first_s=0.02)) as server:
        driver = drive(profile({"kind": "closed", "concurrency": 1}), server)
    runs = sorted(driver.exchanges, key=lambda e: e.due_s)
    assert len(runs) > 2
    assert all(b.due_s == a.end_s for a, b in pairwise(runs))


def test_users_come_and_go_with_the_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [(0.0, 1), (0.2, 4), (0.5, 1)]
    monkeypatch.setattr("loadtests.driver.closed_loop", lambda spec, seed: ClosedLoop(levels))
    walk = {"kind": "walk", "min": 1, "max": 4, "step": 3, "every_s": 0.1}
    with mock_server(Reply(first_s=0.02)) as server:
        for _ in range(20):  # until no pause of the machine leaves room for one request only
            driver = drive(profile(walk), server)
            start = driver.stages[0].start_s
            due = sorted((e.due_s - start, (e.end_s or 0) - start) for e in driver.exchanges)
            joined = [d for d, _ in due if d == pytest.approx(0.2)]
            assert len(joined) == 3  # three more users begin at the very moment of the level
            parts = [x for x in due if x[0] < 0.19], [x for x in due if x[0] >= 0.5]
            for part in parts:  # one user: one after the other
                assert all(b[0] >= a[1] for a, b in pairwise(part))
            if all(len(part) > 1 for part in parts):
                return
    raise AssertionError("a single user never sent a second request")


def test_open_loop_latency_runs_from_when_a_request_was_due() -> None:
    """The server stalls for 0.3 s from the first on; requests go on being due and sent, and carry the stall."""
    began: list[float] = []

    def stalled(body: dict[str, Any]) -> Reply:
        began.append(time.monotonic())
        return Reply(first_s=max(0.3 - (began[-1] - began[0]), 0.0))

    with mock_server(stalled) as server:
        p = profile({"kind": "constant", "rate_per_s": 40}, warmup_s=0, duration_s=0.5)
        driver = drive(p, server)
        first_token_s = min(s.sent_s[0] for s in server.seen) - driver._zero
    runs = sorted(driver.exchanges, key=lambda e: e.due_s)
    start = driver.stages[0].start_s
    assert [round((e.due_s - start) * 40) for e in runs] == list(range(20))
    waiting = [e for e in runs if e.due_s < first_token_s]
    assert len(waiting) > 3  # they were sent although nothing had come back yet
    assert all(e.token_times_s[0] - e.due_s >= first_token_s - e.due_s for e in waiting)
    assert all((e.sent_s or 0) >= e.due_s for e in runs)


def test_arrivals_beyond_max_in_flight_are_failures_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread begins to send some time after it was handed an arrival: that one counts as well."""

    def client(self: Driver) -> StreamClient:
        time.sleep(0.1)
        return StreamClient(self.endpoint, self.profile.timeout_s, self.clock)

    monkeypatch.setattr(Driver, "_client", client)
    with mock_server(Reply(first_s=20)) as server:
        arrivals = {"kind": "constant", "rate_per_s": 40, "max_in_flight": 4}
        driver = drive(profile(arrivals, warmup_s=0, duration_s=1, drain_s=0.1), server)
    records = frame(driver, tmp_path)
    unsent = records.filter(pl.col("sent_s").is_null())
    assert records.height == 40
    assert unsent.height == 40 - 4
    assert set(unsent["status"]) == {"error"}
    assert unsent["reason"].str.contains("max_in_flight").all()


def test_failures_stay_in_the_records(tmp_path: Path) -> None:
    kinds = [Reply(), Reply(status=429, headers={"Retry-After": "0"}), Reply(cut_after=1), Reply(status=500)]
    count = iter(range(10**6))
    with mock_server(lambda body: kinds[next(count) % 4]) as server:
        driver = drive(profile({"kind": "constant", "rate_per_s": 40}, warmup_s=0, duration_s=0.5), server)
    records = frame(driver, tmp_path)
    assert records.height == 20
    assert dict(records.group_by("status").len().iter_rows()) == {"ok": 5, "refused": 5, "error": 10}
    assert records.filter(pl.col("status") == "ok")["reason"].is_null().all()
    assert records.filter(pl.col("status") != "ok")["reason"].is_not_null().all()


def test_a_refused_user_waits_before_the_next_request() -> None:
    with mock_server(Reply(status=429, headers={"Retry-After": "1"})) as server:
        driver = drive(profile(CLOSED), server)
    assert len(driver.exchanges) == 3  # one each: the second would have been due after the end


def test_what_runs_at_the_end_is_censored(tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.01, gap_s=20)) as server:
        driver = drive(profile(CLOSED, drain_s=0.1), server)
    records = frame(driver, tmp_path)
    assert records.height == 3
    assert set(records["status"]) == {"censored"}
    assert records["reason"].str.contains("still running 0.1 s after the end").all()
    assert (records["token_times_s"].list.len() == 1).all()


def test_stop_censors_and_ends() -> None:
    with mock_server(Reply(first_s=20)) as server:

        def during(driver: Driver) -> None:
            while len(server.seen) < 3:
                time.sleep(0.01)
            driver.stop()

        driver = drive(profile(CLOSED, duration_s=60), server, during)
    assert [e["status"] for e in driver.rows()] == ["censored"] * 3
    assert len(driver.info().stages) == 1


def test_missing_usage_ends_the_run_with_a_reason() -> None:
    with mock_server(Reply(usage="none")) as server:
        driver = drive(profile(CLOSED, duration_s=60), server)
    assert "without usage" in (driver.failure or "")


def test_requests_carry_what_the_profile_says() -> None:
    with mock_server() as server:
        drive(profile(CLOSED, duration_s=0.1, warmup_s=0), server)
        fixed = server.seen[0].body
    with mock_server() as server:
        drive(profile(CLOSED, duration_s=0.1, warmup_s=0, output={"fixed_by": "max_tokens"}), server)
        free = server.seen[0].body
    assert fixed["ignore_eos"] is True
    assert "ignore_eos" not in free
    assert fixed["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert fixed["temperature"] == 0


def test_the_same_seed_sends_the_same_requests() -> None:
    def sent() -> set[str]:
        with mock_server() as server:
            drive(profile({"kind": "constant", "rate_per_s": 50}, warmup_s=0, duration_s=0.2), server)
            return {str(s.body["messages"]) for s in server.seen}

    assert sent() == sent()


def test_preflight_finds_the_model_and_the_form_of_usage() -> None:
    def strict(body: dict[str, Any]) -> Reply:
        if "continuous_usage_stats" in body["stream_options"]:
            return Reply(status=400, message="unknown stream option")
        return Reply(usage="final")

    with mock_server() as server:
        ready = preflight(profile(CLOSED), Endpoint(server.url), None)
        assert (ready.model, ready.continuous_usage) == ("mock", True)
    with mock_server(strict) as server:
        ready = preflight(profile(CLOSED), Endpoint(server.url), "other")
        assert (ready.model, ready.continuous_usage) == ("other", False)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(usage="none"), "without usage"),
        (Reply(status=400, message="unknown parameter ignore_eos"), "ignore_eos.*fixed_by: max_tokens"),
        (Reply(status=404, message="no such model"), "no such model"),
    ],
)
def test_preflight_says_why_not(reply: Reply, message: str) -> None:
    with mock_server(reply) as server, pytest.raises(PreflightError, match=message):
        preflight(profile(CLOSED), Endpoint(server.url), "mock")


def test_preflight_of_nobody() -> None:
    with mock_server() as server:
        pass
    with pytest.raises(PreflightError, match="expected an OpenAI-compatible server"):
        preflight(profile(CLOSED), Endpoint(server.url), None)


# --- sessions, users who think and who leave ---


def by_session(server: MockServer) -> dict[str, list[dict[str, Any]]]:
    """Bodies of each session, in order of their length, keyed by the first user message."""
    out: dict[str, list[dict[str, Any]]] = {}
    for seen in server.seen:
        out.setdefault(seen.body["messages"][0]["content"], []).append(seen.body)
    return {k: sorted(v, key=lambda body: len(body["messages"])) for k, v in out.items()}


def with_stage(p: Profile, **changes: Any) -> Profile:
    value = p.model_dump(mode="json", exclude_none=True)
    value["stages"][0] |= changes
    return Profile.model_validate(value)


SESSIONS = {"turns": 3, "context_tokens": 1000}


@pytest.mark.parametrize("arrivals", [CLOSED, {"kind": "constant", "rate_per_s": 10}])
def test_a_session_carries_the_answers_that_came(arrivals: dict[str, Any], tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.01, chunks=[("an", 1), (" answer", 1)])) as server:
        lengths = {"kind": "fixed", "tokens": 40}  # long enough that no two sessions begin alike
        one = profile(arrivals, duration_s=1.2)  # long enough for three turns on any machine
        driver = drive(with_stage(one, sessions=SESSIONS, prompt_tokens=lengths), server)
        sessions = by_session(server)
    records = frame(driver, tmp_path)
    assert max(len(bodies) for bodies in sessions.values()) == 3
    for bodies in sessions.values():
        for turn, body in enumerate(bodies):
            assert [m["role"] for m in body["messages"]] == ["user", "assistant"] * turn + ["user"]
            assert all(m["content"] == "an answer" for m in body["messages"][1::2])
            assert body["messages"][: 2 * turn] == bodies[-1]["messages"][: 2 * turn]
    for _, session in records.group_by("session"):
        turns = session.sort("turn")
        assert turns["turn"].to_list() == list(range(turns.height))
        assert (turns["due_s"][1:] >= turns["end_s"][:-1]).all()


def test_a_session_ends_with_a_turn_that_fails(tmp_path: Path) -> None:
    with mock_server(lambda body: Reply(status=500) if len(body["messages"]) > 1 else Reply()) as server:
        driver = drive(with_stage(profile(CLOSED, warmup_s=0), sessions=SESSIONS), server)
    records = frame(driver, tmp_path)
    assert records["turn"].max() == 1
    assert set(records.filter(pl.col("turn") == 1)["status"]) == {"error"}


def test_a_user_thinks_before_the_next_request() -> None:
    think = {"kind": "fixed", "s": 0.05}
    one = {"kind": "closed", "concurrency": 1}
    with mock_server() as server:
        driver = drive(with_stage(profile(one, duration_s=1, warmup_s=0), think=think), server)
    runs = sorted(driver.exchanges, key=lambda e: e.due_s)
    assert len(runs) > 2
    assert all(b.due_s == (a.end_s or 0) + 0.05 for a, b in pairwise(runs))


def test_users_who_leave_are_abandoned_and_stay_in_the_records(tmp_path: Path) -> None:
    """They have their first token and would wait long for the second; whoever stays is answered at once."""
    abandon = {"share": 0.5, "patience": {"kind": "fixed", "s": 0.1}}
    p = with_stage(profile({"kind": "constant", "rate_per_s": 20}, warmup_s=0, duration_s=1), abandon=abandon)
    turns = [session_of(p.stages[0], 1, n)[0] for n in range(20)]
    leavers = {str(t.messages[0][1]) for t in turns if t.leave_after_s is not None}

    def reply(body: dict[str, Any]) -> Reply:
        return Reply(gap_s=1.0 if body["messages"][0]["content"] in leavers else 0.0)

    with mock_server(reply) as server:
        driver = drive(p, server)
        deadline = time.monotonic() + 240
        while not any(s.broken for s in server.seen):  # when it writes to one who has left
            assert time.monotonic() < deadline
            time.sleep(0.02)
    records = frame(driver, tmp_path)
    assert records.height == 20
    left = records.filter(pl.col("status") == "abandoned")
    assert left["request_id"].to_list() == records.filter(pl.col("leave_after_s").is_not_null())["request_id"].to_list()
    assert 0 < left.height < 20
    assert set(records.filter(pl.col("status") != "abandoned")["status"]) == {"ok"}
    assert (left["end_s"] - left["sent_s"] >= 0.1).all()
    assert left["reason"].str.contains("user left 0.1 s after sending").all()


# --- workers ---


@pytest.mark.parametrize("arrivals", [CLOSED, {"kind": "poisson", "rate_per_s": 60}])
def test_workers_send_together_what_one_would_have_sent(arrivals: dict[str, Any]) -> None:
    p = profile(arrivals, warmup_s=0, duration_s=0.5)
    found = []
    for shares in ([Share()], [Share(0, 2), Share(1, 2)]):
        with mock_server(Reply(first_s=0.02)) as server:
            drivers = [drive(p, server, share=share) for share in shares]
            ids = sorted(e.request_id for d in drivers for e in d.exchanges)
        assert len(ids) == len(set(ids))
        assert {e.worker for d in drivers for e in d.exchanges} == {s.worker for s in shares}
        found.append(ids)
    if arrivals is not CLOSED:
        assert found[0] == found[1]


def test_a_stage_begins_when_it_is_told_to() -> None:
    asked: list[int] = []
    base = time.monotonic()

    def begins(stage: int) -> float | None:
        asked.append(stage)
        return None if stage == 2 else base + 0.3 + stage

    with mock_server() as server:
        driver = Driver(profile(CLOSED, CLOSED, CLOSED), Endpoint(server.url), "mock", 1, begins=begins)
        slots = [threading.Thread(target=driver.run_slot, args=(i,)) for i in range(3)]
        for t in slots:
            t.start()
        driver.start()
        assert driver.done.wait(240)
        for t in slots:
            t.join(240)
    assert asked == [0, 1, 2]
    assert [s.start_s for s in driver.stages] == pytest.approx([0.0, 1.0])
    assert driver.info().clock_zero_s == base + 0.3
    assert min(e.due_s for e in driver.exchanges) == 0.0


class Late(Driver):
    """A thread that holds an arrival wakes up only when its stage is over."""

    def _exchange(self, run: StageRun, visit: Visit, turn: int, due_s: float) -> Exchange:
        while self.clock() < run.end_s + 0.1:
            time.sleep(0.01)
        return super()._exchange(run, visit, turn, due_s)


def test_the_end_of_a_stage_waits_for_arrivals_that_are_about_to_be_sent() -> None:
    p = profile({"kind": "constant", "rate_per_s": 20}, duration_s=0.1, warmup_s=0)
    with mock_server(Reply()) as server:
        driver = Late(p, Endpoint(server.url), "mock", 1)
        driver.start()
        assert driver.done.wait(240)
        assert [row["status"] for row in driver.rows()] == ["ok", "ok"]
        assert len(server.seen) == 2


@pytest.mark.parametrize(("arrivals", "kept"), [({"kind": "constant", "rate_per_s": 1}, 1), (CLOSED, 0)])
def test_nothing_of_a_stage_is_sent_when_it_is_over(arrivals: dict[str, Any], kept: int) -> None:
    """An arrival that was due stays among the requests; a user who would have been free for another is none."""
    p = profile(arrivals)
    with mock_server() as server:
        driver = Driver(p, Endpoint(server.url), "mock", 1)
        ahead = driver._ahead(p.stages[0])
        ahead.fill()
        run, visit = StageRun(p.stages[0], 1, 0.0, ahead), ahead.take()
        assert visit is not None
        run.over = True
        exchange = driver._send(run, visit, 0, 0.0, visit.body, StreamClient(driver.endpoint, 240))
        ahead.close()
        assert (exchange.status, exchange.sent_s) == ("censored", None)
        assert len(driver.rows()) == kept
        assert server.seen == []
