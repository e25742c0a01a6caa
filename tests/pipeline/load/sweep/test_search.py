"""The search against servers whose knee is known, on a clock that only probes move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from pipeline.gate.statistics.shares import share_interval
from pipeline.load.sweep.search import MOST_LOOKS, Bounds, Found, Probe, rate_of, search


class Server:
    """The share of requests within the SLO falls from 99.9 % to nothing around ``knee``; a probe takes 10 s."""

    def __init__(self, knee: float, requests: int = 100, seed: int = 1) -> None:
        self.knee, self.requests, self.now = knee, requests, 0.0
        self._rng = random.Random(seed)
        self.asked: list[float] = []

    def share(self, rate: float) -> float:
        """0.95 exactly at the knee."""
        return 0.999 / (1 + math.exp(12 * math.log(rate / self.knee)) * (0.999 / 0.95 - 1))

    def probe(self, rate: float) -> Probe:
        self.now += 10
        self.asked.append(rate)
        good = sum(self._rng.random() < self.share(rate) for _ in range(self.requests))
        return Probe(rate, self.requests, good, float(self.requests))

    def find(self, bounds: Bounds, probe: Callable[[float], Probe] | None = None) -> Found:
        return search(probe or self.probe, lambda rate: 10.0, bounds, clock=lambda: self.now)


def test_the_knee_is_found_and_its_interval_holds_it() -> None:
    held = 0
    for seed in range(40):
        server = Server(9.0, seed=seed)
        found = server.find(Bounds(1, 64, tolerance=0.1, budget_s=600))
        assert found.knee_per_s == pytest.approx(9, rel=0.25)
        low, high = found.interval
        assert low is not None
        assert high is not None
        held += low <= 9 <= high
        assert max(server.asked) <= 32
    assert held >= 38  # 95 % claimed for each rate, several rates a search


def test_the_budget_is_never_passed() -> None:
    for budget in (10.0, 35.0, 100.0):
        server = Server(9.0)
        found = server.find(Bounds(1, 64, tolerance=0.001, budget_s=budget))
        assert server.now <= budget
        assert found.spent_s == server.now
        assert found.stopped == f"the next probe could pass the budget of {budget:g} s"


def test_more_time_gives_a_narrower_interval() -> None:
    width = []
    for budget in (50.0, 2000.0):
        found = Server(9.0, requests=400).find(Bounds(1, 64, tolerance=0.02, budget_s=budget))
        low, high = found.interval
        assert low is not None
        assert high is not None
        width.append(high / low)
    assert width[1] < width[0]


def test_a_server_that_never_keeps_the_target_has_no_knee() -> None:
    found = Server(0.1).find(Bounds(1, 64))
    assert found.knee_per_s is None
    assert found.interval == (None, 1)
    assert "not kept even at the lowest rate" in found.stopped


def test_a_server_that_always_keeps_it_ends_at_the_highest_rate() -> None:
    server = Server(1000.0)
    found = server.find(Bounds(1, 20))
    assert found.knee_per_s == 20
    assert found.interval == (20, None)
    assert max(server.asked) == 20


def test_a_probe_of_a_late_client_counts_for_nothing() -> None:
    server = Server(9.0)

    def probe(rate: float) -> Probe:
        found = server.probe(rate)
        return Probe(rate, 100, 100, 100.0, void="lag") if len(server.asked) == 2 else found

    found = server.find(Bounds(1, 64), probe)
    assert found.knee_per_s == pytest.approx(9, rel=0.25)
    assert sum(bool(p.void) for p in found.probes) == 1

    always = Server(9.0).find(Bounds(1, 64), lambda rate: Probe(rate, 100, 100, 100.0, void="lag 40 ms"))
    assert always.knee_per_s is None
    assert "the load client cannot be believed: lag 40 ms" in always.stopped


def test_correlated_requests_decide_less() -> None:
    bounds = Bounds(1, 64)
    assert rate_of([Probe(1, 200, 198, 200.0)], bounds).state == "holds"
    assert rate_of([Probe(1, 200, 198, 40.0)], bounds).state == "open"
    assert rate_of([Probe(1, 100, 70, 100.0), Probe(1, 100, 72, 100.0)], bounds).state == "breaks"


@pytest.mark.parametrize("changes", [{"lowest_per_s": 5.0}, {"target": 1.0}])
def test_bounds_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    values = {"lowest_per_s": 1.0, "highest_per_s": 4.0} | changes
    with pytest.raises(ValueError, match="expected"):
        Bounds(**values)


def test_looks_at_a_rate_at_the_target_err_no_more_than_they_say() -> None:
    """Up to three looks, stopping at the first that decides: exactly at the target either answer is wrong."""
    rng, bounds, runs, wrong, each = random.Random(11), Bounds(1, 64), 1500, 0, 0
    for _ in range(runs):
        probes: list[Probe] = []
        states: list[str] = []
        plain: list[bool] = []
        for _look in range(MOST_LOOKS):
            probes.append(Probe(5.0, 200, sum(rng.random() < bounds.target for _ in range(200)), 200.0))
            states.append(rate_of(probes, bounds).state)
            good, n = sum(p.good for p in probes), sum(p.requests for p in probes)
            low, high = share_interval(good, n, 1 - (1 - bounds.confidence) / 2)
            plain.append(not low < bounds.target <= high)
        wrong += any(s != "open" for s in states)
        each += any(plain)
    assert wrong / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)
    assert each > 1.3 * wrong  # what it would be without the correction
