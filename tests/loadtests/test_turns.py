"""Turns of two clients at one machine: who has one, what is due in it, and that no two overlap."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from loadtests.client import Endpoint
from loadtests.driver import Driver, StageRun
from loadtests.turns import Place, Seat, Table, turn_lengths
from loadtests.workload import Profile, StageSpec, workload_digest
from tests.loadtests.mock_server import MockServer, Reply, mock_server
from tests.loadtests.test_driver import CLOSED, profile

TURN_S = 0.2


def seat_of(place: Place) -> Seat:
    return Seat(place.wire, place.turn_s)


def test_turns_are_equal_and_none_both_warms_up_and_measures() -> None:
    assert turn_lengths(1.5, 7, 1.5) == [(1.5, False), *[(pytest.approx(1.4), True)] * 5]
    assert turn_lengths(0, 0.4, 1.5) == [(0.4, True)]


def test_the_table_gives_one_turn_at_a_time_in_order_and_lets_nobody_go_before_all_are_done() -> None:
    said: list[str] = []
    lock = threading.Lock()

    def play(name: str, seat: Seat, turns: int) -> None:
        for _ in range(turns):
            assert seat.next()
            with lock:
                said.append(f"{name} begins")
            with lock:
                said.append(f"{name} ends")
        seat.end()
        with lock:
            said.append(f"{name} goes")

    with Table(2, 1.0, 0.0) as table:
        players = [
            threading.Thread(target=play, args=(name, seat_of(place), turns))
            for name, place, turns in zip("ab", table.places, (3, 4), strict=True)
        ]
        for p in reversed(players):  # whoever comes first waits for the other
            p.start()
        for p in players:
            p.join(60)
    assert said[:14] == [f"{n} {x}" for n in "abababb" for x in ("begins", "ends")]
    assert sorted(said[14:]) == ["a goes", "b goes"]


def test_who_is_gone_is_left_out() -> None:
    with Table(2, 1.0, 0.0) as table:
        first, second = (seat_of(p) for p in table.places)
        waiting = threading.Thread(target=first.next)
        waiting.start()
        second.leave()
        waiting.join(60)
        assert first.next()
        first.end()
        assert not first.next()


def test_who_waits_is_told_when_there_is_no_table_any_more() -> None:
    with Table(2, 1.0, 0.0) as table:
        first = Seat(table.places[0].wire.dup(), 1.0)
        got: list[bool] = []
        waiting = threading.Thread(target=lambda: got.append(first.next()))
        waiting.start()
    waiting.join(60)
    assert got == [False]
    first._wire.close()


# --- what is due in a turn ---


def spec_of(arrivals: dict[str, Any], warmup_s: float = 0.0, duration_s: float = 4.0) -> StageSpec:
    return profile(arrivals, warmup_s=warmup_s, duration_s=duration_s).stages[0]


def run_of(spec: StageSpec) -> StageRun:
    return StageRun(spec, 1, 0.0, None, [])  # type: ignore[arg-type]


def test_who_is_free_outside_a_turn_is_due_when_the_next_begins() -> None:
    run = run_of(spec_of(CLOSED, warmup_s=1.0))
    run.begin(10.0, 1.0, measured=False)
    assert run.due_in_turn(0, 3.0) == 10.0
    assert run.due_in_turn(0, 10.25) == 10.25
    assert run.due_in_turn(0, 11.0) is None
    assert run.phase(10.5) == "warmup"
    run.begin(14.0, 1.0, measured=True)
    assert run.due_in_turn(0, 11.0) == 14.0
    assert run.phase(14.0) == "measured"
    assert [t.before_s for t in run.turns or []] == [0.0, 1.0]


def test_levels_follow_the_stage_in_its_turns() -> None:
    """Two users from 0 s, one more from 1.5 s of the stage on: half way through the second turn."""
    run = run_of(spec_of({"kind": "steps", "levels": [[0, 2], [1.5, 3]]}))
    run.begin(10.0, 1.0, measured=True)
    assert run.due_in_turn(1, 0.0) == 10.0
    assert run.due_in_turn(2, 0.0) is None
    run.begin(20.0, 1.0, measured=True)
    assert run.due_in_turn(2, 0.0) == 20.5


# --- two drivers ---


def drive_both(p: Profile, servers: tuple[MockServer, MockServer]) -> tuple[Driver, Driver]:
    with Table(2, TURN_S, 0.01) as table:
        drivers = tuple(
            Driver(p, Endpoint(s.url), "mock", 1, seat=seat_of(place))
            for s, place in zip(servers, table.places, strict=True)
        )
        threads = [threading.Thread(target=d.run_slot, args=(i,)) for d in drivers for i in iter(d.take_slot, None)]
        for t in threads:
            t.start()
        for d in drivers:
            d.start()
        for d in drivers:
            assert d.done.wait(240)
        for t in threads:
            t.join(240)
    assert not any(t.is_alive() for t in threads)
    return drivers[0], drivers[1]


def spans(driver: Driver) -> list[tuple[float, float]]:
    """Of all its turns, on the machine's clock."""
    turns = [t for run in driver.stages for t in run.turns or []]
    return [(driver._zero + t.start_s, driver._zero + t.end_s) for t in turns]


@pytest.fixture(scope="module")
def both() -> tuple[tuple[Driver, Driver], list[list[Any]]]:
    p = profile(CLOSED, {"kind": "closed", "concurrency": 1}, duration_s=0.5)
    with mock_server(Reply(first_s=0.01, gap_s=0.02)) as a, mock_server(Reply(first_s=0.02, gap_s=0.03)) as b:
        drivers = drive_both(p, (a, b))
        return drivers, [a.seen, b.seen]


Both = tuple[tuple[Driver, Driver], list[list[Any]]]


def test_turns_alternate_and_never_overlap(both: Both) -> None:
    """By the servers' own clocks: whatever one works at, the other is idle."""
    drivers, seen = both
    order = sorted((*((s, "a") for s in spans(drivers[0])), *((s, "b") for s in spans(drivers[1]))))
    assert [name for _, name in order] == list("ab") * 8
    assert all(x[0][1] <= y[0][0] for x, y in itertools.pairwise(order))
    for driver, served in zip(drivers, seen, strict=True):
        for s in served:
            assert any(start <= s.received_s and s.sent_s[-1] <= end for start, end in spans(driver))


def test_a_request_that_waited_for_its_turn_is_due_at_its_beginning(both: Both) -> None:
    for driver in both[0]:
        for run in driver.stages:
            due = [e.due_s for e in driver.exchanges if e.stage == run.spec.name]
            users = run.spec.arrivals.concurrency  # type: ignore[union-attr]
            for t in run.turns or []:
                assert due.count(t.start_s) == users
                assert all(d < t.until_s for d in due if d >= t.start_s and d < t.end_s)
        assert {e.status for e in driver.exchanges} == {"ok"}


def test_both_see_the_same_prompts(both: Both) -> None:
    _, (a, b) = both
    told = [[s.body["messages"][-1]["content"] for s in seen] for seen in (a, b)]
    for driver in both[0]:
        for run in driver.stages:
            mine = sorted(e.arrival for e in driver.exchanges if e.stage == run.spec.name)
            assert set(mine) <= set(range(len(mine) + 3))  # a user may hold one that no turn was left for
    assert len(set(told[0]) & set(told[1])) >= min(map(len, told)) - 6


def test_a_stage_is_as_long_as_its_turns_together(both: Both) -> None:
    for driver in both[0]:
        for run, told in zip(driver.stages, driver.info().stages, strict=True):
            turns = run.turns or []
            assert sum(t.until_s - t.start_s for t in turns) == pytest.approx(run.spec.length_s)
            assert [t["measured"] for t in told["turns"]] == [False, True, True, True]
            assert (told["start_s"], told["end_s"]) == (turns[0].start_s, turns[-1].end_s)
            begins = turns[1].start_s
            mine = [e for e in driver.exchanges if e.stage == run.spec.name]
            assert all((e.phase == "measured") == (e.due_s >= begins) for e in mine)
            # What the client's share of a core is of: its own turns, not those of the other one.
            assert driver._length_s(run) == pytest.approx(sum(t.end_s - t.start_s for t in turns))
        assert driver.info().workload_digest == workload_digest(driver.profile, 1, TURN_S)
    assert workload_digest(driver.profile, 1, TURN_S) != workload_digest(driver.profile, 1)


def test_an_answer_that_takes_too_long_is_cut_and_the_other_goes_on() -> None:
    p = profile({"kind": "closed", "concurrency": 1}, warmup_s=0, duration_s=0.4, drain_s=0.1)
    with mock_server(Reply(first_s=0.01, gap_s=20)) as a, mock_server(Reply(first_s=0.01)) as b:
        slow, quick = drive_both(p, (a, b))
    assert {e.status for e in slow.exchanges} == {"censored"}
    assert all("after the end of the turn" in (e.reason or "") for e in slow.exchanges)
    assert {e.status for e in quick.exchanges} == {"ok"}
    assert len(spans(slow)) == len(spans(quick)) == 2


def test_a_client_that_is_stopped_while_it_waits_ends() -> None:
    p = profile(CLOSED)
    with mock_server() as server, Table(2, TURN_S, 0.0) as table:
        driver = Driver(p, Endpoint(server.url), "mock", 1, seat=seat_of(table.places[0]))
        driver.start()  # the other never comes
        driver.stop()
        assert driver.done.wait(60)
    assert (driver.stages, driver.failure) == ([], None)


def test_without_a_table_a_run_is_worth_nothing() -> None:
    with mock_server() as server:
        with Table(2, TURN_S, 0.0) as table:
            seat = Seat(table.places[0].wire.dup(), TURN_S)
        driver = Driver(profile(CLOSED), Endpoint(server.url), "mock", 1, seat=seat)
        driver.start()
        assert driver.done.wait(60)
    seat._wire.close()
    assert driver.failure == "whoever gives the turns is gone"


def test_open_loop_traffic_waits_for_no_turn() -> None:
    with Table(1, TURN_S, 0.0) as table, pytest.raises(ValueError, match="stage s0 has open-loop arrivals"):
        Driver(
            profile({"kind": "constant", "rate_per_s": 1}), Endpoint("http://127.0.0.1:1"), "m", 1,
            seat=seat_of(table.places[0]),
        )  # fmt: skip


# --- why: a machine that is slower for a while ---


def served(spec: StageSpec, at_s: list[float], slow: tuple[float, float]) -> list[float]:
    """TTFT of one user, 0.1 s each on a machine that is a quarter slower from ``slow[0]`` to ``slow[1]``. ``at_s``:
    when each turn begins, by length; one for the whole stage where there are no turns.
    """
    out: list[float] = []
    lengths = turn_lengths(spec.warmup_s, spec.duration_s, spec.duration_s / len(at_s))
    run, free_s = run_of(spec), 0.0
    for start_s, (length_s, measured) in zip(at_s, lengths, strict=True):
        run.begin(start_s, length_s, measured=measured)
        while (due_s := run.due_in_turn(0, free_s)) is not None:
            free_s = due_s + 0.1 * (1.25 if slow[0] <= due_s < slow[1] else 1.0)
            out.append(free_s - due_s)
    return out


def test_a_spell_moves_the_ratio_of_whole_rounds_and_not_that_of_turns() -> None:
    spec = spec_of({"kind": "closed", "concurrency": 1}, duration_s=7.0)
    slow = (2.0, 7.0)  # in the middle of what is sent first
    mean = [sum(x) / len(x) for x in (served(spec, [0.0], slow), served(spec, [12.0], slow))]
    assert mean[0] / mean[1] > 1.15
    turns = [[k * 3.2 + side * 1.6 for k in range(5)] for side in (0, 1)]  # 1.4 s and a pause each
    mean = [sum(x) / len(x) for x in (served(spec, at_s, slow) for at_s in turns)]
    assert min(mean) > 1.05 * 0.1  # both were met
    assert 0.97 < mean[0] / mean[1] < 1.03
