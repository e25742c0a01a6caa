from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.plan import StagePlan, plan_of
from loadtests.schedule import due_times
from loadtests.traffic import prompt_of
from loadtests.workload import Profile, load_profile
from tests.loadtests.replay.traces import azure


def profile(arrivals: dict[str, Any], folder: Path | None = None, **stage: Any) -> Profile:
    lengths = {"prompt_tokens": {"kind": "fixed", "tokens": 20}, "output_tokens": {"kind": "fixed", "tokens": 5}}
    base = {"name": "s", "warmup_s": 10, "duration_s": 90, "arrivals": arrivals}
    value = {"name": "p", "kind": "custom", "output": {"fixed_by": "ignore_eos"}, "stages": [base | lengths | stage]}
    return Profile.model_validate(value, context={"folder": folder} if folder else None)


def planned(arrivals: dict[str, Any], latency_s: float | None = None, **stage: Any) -> StagePlan:
    return plan_of(profile(arrivals, **stage), 1, latency_s).stages[0]


def test_a_constant_rate() -> None:
    s = planned({"kind": "constant", "rate_per_s": 2})
    assert (s.arrivals_warmup, s.arrivals_measured, s.requests_measured) == (20, 180, 180)
    assert s.rate is not None
    assert (s.rate.mean_per_s, s.rate.busiest_s) == (2, 2)
    assert s.rate.gap_cv == pytest.approx(0, abs=1e-9)
    assert s.concurrency is None
    assert s.concurrency_reason
    assert s.prompt_tokens == dict.fromkeys(("p50", "p95", "p99", "max"), 20)


def test_what_is_in_flight_follows_from_an_assumed_answer_time() -> None:
    s = planned({"kind": "constant", "rate_per_s": 2}, latency_s=3)
    assert s.concurrency is not None
    assert dict(s.concurrency.levels)[50] == s.concurrency.max == 6  # Little's law
    assert s.concurrency.mean == pytest.approx(6, rel=0.05)


def test_arrivals_are_those_that_the_driver_gets() -> None:
    arrivals = {"kind": "gamma", "rate_per_s": 3, "burstiness": 0.5}
    due = [at_s for _, at_s in due_times(profile(arrivals).stages[0], 1)]
    s = planned(arrivals)
    assert (s.arrivals_warmup, s.arrivals_measured) == (sum(t < 10 for t in due), sum(t >= 10 for t in due))
    assert s.rate is not None
    assert s.rate.gap_cv is not None
    assert 1.2 < s.rate.gap_cv < 1.7


def test_a_closed_loop_needs_an_answer_time() -> None:
    arrivals = {"kind": "steps", "levels": [[0, 2], [40, 6]]}
    s = planned(arrivals)
    assert s.requests_measured is None
    assert s.requests_reason
    assert s.concurrency is not None
    assert (s.concurrency.min, s.concurrency.mean, s.concurrency.max) == (2, pytest.approx(4.4), 6)
    s = planned(arrivals, 2, think={"kind": "fixed", "s": 1})
    assert s.requests_measured == pytest.approx((30 * 2 + 60 * 6) / 3)
    assert s.think_mean_s == 1


def test_shared_prefixes() -> None:
    def share(**stage: Any) -> float:
        return planned({"kind": "closed", "concurrency": 1}, **stage).shared_share

    one = {"kind": "fixed", "tokens": 60}
    assert share(system="unique", prompt_tokens=one) < 0.05
    half = share(system={"prompts": [{"tokens": 60}]}, prompt_tokens=one)
    assert half == pytest.approx(0.5, abs=0.05)
    assert share(system={"share": 0.5, "prompts": [{"tokens": 60}]}, prompt_tokens=one) < half - 0.1


def test_turns_carry_what_was_said_before() -> None:
    s = planned(
        {"kind": "constant", "rate_per_s": 1},
        sessions={"turns": 3, "context_tokens": 900},
        abandon={"share": 0.5, "patience": {"kind": "fixed", "s": 1}},
    )
    assert s.turns_mean == 3
    assert s.requests_measured == 3 * 90
    assert (s.prompt_tokens["p50"], s.prompt_tokens["max"]) == pytest.approx((45, 70), abs=1)  # 20, 20 + 5 + 20, ...
    assert s.shared_share == pytest.approx((25 + 50) / (20 + 45 + 70), abs=0.05)
    assert 0.4 < s.leaving_share < 0.6


def test_a_replay_says_how_it_was_scaled(tmp_path: Path) -> None:
    azure(tmp_path / "a.csv", [(float(i), 100, 10) for i in range(120)])
    arrivals = {
        "kind": "replay", "file": "a.csv", "rate_factor": 1, "length_factor": 0.5, "context_tokens": 300,
    }  # fmt: skip
    value = profile(arrivals, tmp_path, prompt_tokens=None, output_tokens=None)
    s = plan_of(value, 1).stages[0]
    assert s.arrivals_measured == 90
    assert s.prompt_tokens["p50"] == 50
    assert s.replay is not None
    assert s.replay.prompt_tokens.recorded["p50"] == 100
    assert len(prompt_of(value.stages[0], 1, 0).messages) == 1


@pytest.mark.parametrize("name", ["ci", "soak"])
def test_shipped_profiles_fit_the_context_they_are_served_with(name: str) -> None:
    for s in plan_of(load_profile(name), 1).stages:
        assert s.prompt_tokens["max"] + s.output_tokens["max"] < 2048
