"""Who runs when, and what becomes of engines that fail: with engines that only count."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from engine.bench.engines import rotation
from engine.bench.engines.engine import Engine, EngineError, Facts, Run
from engine.bench.engines.rotation import Measured, measure, start_all
from engine.bench.engines.workloads import Job, Workload

A, B = Workload("A", [Job([1], 2)]), Workload("B", [Job([1], 1)])


@dataclass
class Counting:
    """Implements Engine. ``faults``: what is raised in its n-th run."""

    name: str
    log: list[tuple[str, str]]
    faults: dict[int, BaseException] = field(default_factory=dict)
    cpu_a_look_s: float = 0.0
    kind: str = "counting"
    runs: int = 0
    stopped: int = 0
    cpu: float = 0.0

    def start(self, limit_s: float) -> Facts:
        if 0 in self.faults:
            raise self.faults[0]
        return Facts(self.name)

    def run(self, workload: Workload, limit_s: float) -> Run:
        self.runs += 1
        if self.runs in self.faults:
            raise self.faults[self.runs]
        self.log.append((workload.name, self.name))
        return Run([[0.1 * self.runs]], 1, None, 0.1 * self.runs, None)

    def cpu_s(self) -> float | None:
        self.cpu += self.cpu_a_look_s
        return self.cpu

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "SETTLE_S", 0.0)


def run(
    engines: list[Counting], rounds: int = 2, warm_up: int = 1, skipped: tuple[tuple[str, str], ...] = ()
) -> Measured:
    measured = Measured()
    given: list[Engine] = [*engines]
    ready = start_all(given, measured, 1.0)
    measure(ready, [A, B], measured, rounds=rounds, warm_up=warm_up, limit_s=1.0, skipped=skipped)
    return measured


def test_the_order_turns_and_the_warm_up_does_not_count() -> None:
    log: list[tuple[str, str]] = []
    measured = run([Counting(n, log) for n in "xyz"])
    assert log == [
        *[(w, n) for w in "AB" for n in "zxy"],
        *[(w, n) for w in "AB" for n in "xyz"],
        *[(w, n) for w in "AB" for n in "yzx"],
    ]
    assert [r and r.seconds for r in measured.runs["A"]["x"]] == [pytest.approx(0.3), pytest.approx(0.5)]
    assert measured.missing() == measured.notes() == []


def test_who_fails_is_out_and_the_rest_goes_on() -> None:
    log: list[tuple[str, str]] = []
    bad = Counting("bad", log, {3: EngineError("no answer")})
    never = Counting("never", log, {0: EngineError("not ready")})
    measured = run([Counting("good", log), bad, never], rounds=3, warm_up=0)
    assert measured.missing() == ["never: not ready", "bad: no answer"]
    assert (bad.runs, bad.stopped, never.runs) == (3, 1, 0)
    assert [r is not None for r in measured.runs["A"]["bad"]] == [True, False, False]
    assert all(measured.runs["B"]["good"])
    assert "never" not in measured.runs["A"]


def test_an_interrupt_keeps_what_is_complete() -> None:
    log: list[tuple[str, str]] = []
    measured = run([Counting("x", log, {4: KeyboardInterrupt()})], rounds=3, warm_up=0)
    assert measured.interrupted
    assert measured.missing() == ["interrupted: what would have come after that is missing"]
    assert [r is not None for r in measured.runs["A"]["x"]] == [True, True, False]
    assert [r is not None for r in measured.runs["B"]["x"]] == [True, False, False]


def test_what_is_skipped_is_not_run() -> None:
    log: list[tuple[str, str]] = []
    measured = run([Counting("x", log), Counting("y", log)], skipped=(("y", "B"),))
    assert ("B", "y") not in log
    assert list(measured.runs["B"]) == ["x"]


def test_who_works_while_others_are_measured_is_named() -> None:
    log: list[tuple[str, str]] = []
    measured = run([Counting("quiet", log), Counting("busy", log, cpu_a_look_s=0.7)], rounds=1, warm_up=0)
    assert measured.notes() == ["busy: was not idle: 0.7 s of CPU time during another's run"]
