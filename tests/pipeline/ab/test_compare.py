"""The comparison on a machine with known truth: what it decides, when it stops, what it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.ab.compare import compare_builds, without_answers
from pipeline.ab.report import EXIT_CODES, markdown
from pipeline.ab.rounds import NeverUp, Which
from pipeline.errors import SeatrialError
from pipeline.params import AbParams
from pipeline.serving import ServerEnded
from pipeline.stage import Stage
from tests.pipeline.ab.made_up import Machine, figure_of, side

PREFILL = {("prefill", "ttft"): 1.10}
DECODE = {("decode", "itl"): 1.10}


def compared(machine: Machine, tmp_path: Path, minutes: float = 10, **changes: Any) -> dict[str, Any]:
    params = AbParams(budget_minutes=minutes, **changes)
    value = compare_builds(
        side("a"), side("b"), params, 7, tmp_path, Stage("ab", None), round_=machine.round, clock=machine.clock
    )
    json.dumps(value, allow_nan=False)
    return value


@pytest.mark.parametrize(
    ("slower", "verdict", "words"),
    [
        ({}, "ship", "5 blocking figures are inside the margin"),
        (PREFILL, "hold", "TTFT of prefill is worse by more than 5.0%"),
        (DECODE, "hold", "ITL of decode is worse by more than 5.0%"),
        ({("decode", "throughput"): 1.10}, "hold", "throughput of decode is worse by more than 5.0%"),
        ({("decode", "ttft"): 2.0}, "ship", "inside the margin"),  # reported, not blocking
    ],
)
def test_ten_percent_is_held_and_nothing_else(
    slower: dict[tuple[str, str], float], verdict: str, words: str, tmp_path: Path
) -> None:
    value = compared(Machine(slower), tmp_path)
    assert value["verdict"] == verdict, value["reason"]
    assert words in value["reason"]
    for (stage, metric), factor in slower.items():
        e = figure_of(value, stage, metric if metric == "throughput" else f"{metric}-p50")
        low, high = e["interval"]
        assert low < factor < high
        assert e["ratio"] == pytest.approx(factor, rel=0.02)
    assert f"**{verdict.upper()}**" in markdown(value)
    assert set(EXIT_CODES) >= {verdict}


def test_rounds_alternate_and_both_of_a_pair_get_the_same_prompts(tmp_path: Path) -> None:
    machine = Machine({}, noise=0.2)
    compared(machine, tmp_path, minutes=4)
    assert [w[0] for _, w, _ in machine.order[:8]] == list("bccbbccb")
    assert [s for _, _, s in machine.order[:6]] == [7, 7, 8, 8, 9, 9]


def test_it_asks_for_more_until_the_budget_is_used_up(tmp_path: Path) -> None:
    value = compared(Machine({}, noise=0.15), tmp_path, minutes=10)
    assert value["verdict"] == "undecided"
    assert "pairs of rounds would settle it" in value["reason"]
    assert [x["pairs"] for x in value["looks"]["taken"]] == value["looks"]["planned_pairs"] == [5, 10, 15]
    assert value["minutes"] <= 10
    after = value["resolves"]["prefill/ttft-p50"]["resolves_percent_after_minutes"]
    assert after["5"] > after["10"] > after["20"] > 5


def test_a_clear_answer_needs_no_further_look(tmp_path: Path) -> None:
    value = compared(Machine({}, noise=0.002), tmp_path)
    assert len(value["looks"]["taken"]) == 1
    assert len(value["rounds"]) == 10


def test_a_void_round_takes_its_pair_with_it(tmp_path: Path) -> None:
    machine = Machine({})
    machine.void = {1, 3}
    value = compared(machine, tmp_path)
    assert value["void_pairs"] == 2
    assert value["verdict"] == "ship"
    assert len(value["rounds"]) == 14  # two pairs more for the first look
    machine = Machine({})
    machine.void = set(range(99))
    value = compared(machine, tmp_path)
    assert value["verdict"] == "undecided"
    assert "0 whole pairs of rounds" in value["reason"]
    text = markdown(value)
    assert "Counted" not in text  # nothing was
    assert "| stage |" not in text


def test_a_void_last_pair_is_no_further_look(tmp_path: Path) -> None:
    machine = Machine({}, noise=0.15)
    machine.void = {14}
    value = compared(machine, tmp_path, minutes=10)
    assert [x["pairs"] for x in value["looks"]["taken"]] == [5, 10, 14]
    machine = Machine({}, noise=0.15)
    machine.void = set(range(10, 99))
    value = compared(machine, tmp_path, minutes=10)
    assert value["verdict"] == "undecided"
    assert [x["pairs"] for x in value["looks"]["taken"]] == [5, 10]


def test_failures_of_the_candidate_alone_hold_and_of_the_base_decide_nothing(tmp_path: Path) -> None:
    machine = Machine({})
    machine.failing = "candidate"
    value = compared(machine, tmp_path)
    assert value["verdict"] == "hold"
    assert "the candidate has no figure" in value["reason"]
    machine = Machine({})
    machine.failing = "base"
    assert compared(machine, tmp_path)["verdict"] == "undecided"


def test_a_figure_without_samples_is_named_and_never_passes(tmp_path: Path) -> None:
    value = compared(Machine({}), tmp_path, blocking={"prefill": ["ttft-p99"]})
    assert value["verdict"] == "undecided"
    assert "P99 TTFT of prefill: too few samples" in value["reason"]
    assert figure_of(value, "prefill", "ttft-p99")["ratio"] is None
    assert "Not compared: prefill ttft-p99" in markdown(value)


def test_a_blocking_figure_that_there_is_none_of_never_passes(tmp_path: Path) -> None:
    value = compared(Machine({}), tmp_path, blocking={"prefill": ["ttft-p50", "ttft-p59"]})
    assert value["verdict"] == "undecided"
    assert "P59 TTFT of prefill: no such figure; known: ttft-p50" in value["reason"]


def test_tokens_that_came_together_have_no_ratio(tmp_path: Path) -> None:
    machine = Machine({})
    machine.zero = ("prefill", "itl-p50")
    value = compared(machine, tmp_path)
    assert value["verdict"] == "ship"
    assert "tokens reached the client together" in figure_of(value, "prefill", "itl-p50")["why"]
    assert all((e["stage"], e["figure"]) != ("pooled", "itl-p50") for e in value["estimates"])


def test_throughput_is_worse_when_it_falls_and_pooled_lies_between_the_stages(tmp_path: Path) -> None:
    slower = {("prefill", "throughput"): 1.2, ("decode", "itl"): 1.04}
    value = compared(Machine(slower, noise=0.002), tmp_path)
    assert figure_of(value, "prefill", "throughput")["ratio"] == pytest.approx(1.2, rel=0.02)
    assert figure_of(value, "pooled", "throughput")["ratio"] == pytest.approx(1.2 ** (1 / 3), rel=0.02)
    assert figure_of(value, "pooled", "itl-p50")["ratio"] == pytest.approx(1.04 ** (1 / 3), rel=0.01)


def test_more_than_one_identity_is_confounded(tmp_path: Path) -> None:
    machine, params = Machine({}), AbParams(budget_minutes=10)
    one, two = side("a"), side("b", engine="e!2", quantisation="int8!2")
    value = compare_builds(
        one, two, params, 7, tmp_path, Stage("ab", None), round_=machine.round, clock=machine.clock
    )  # fmt: skip
    assert value["what_differs"] == ["engine", "quantisation"]
    assert "confounded: engine, quantisation differ at once" in markdown(value)


def test_a_candidate_that_dies_under_what_its_base_bore_is_held(tmp_path: Path) -> None:
    machine = Machine({})
    machine.breaks = (3, "candidate", ServerEnded("the server of b ended with exit code -9\nlast words"))
    value = compared(machine, tmp_path)
    assert (value["verdict"], EXIT_CODES[value["verdict"]]) == ("hold", 1)
    assert value["reason"].startswith("the candidate broke off after 6 rounds: the server of b ended with exit code -9")
    assert "last words" not in value["reason"]
    assert value["broken_off"] == {"side": "candidate", "why": "the server of b ended with exit code -9\nlast words"}
    assert len(value["rounds"]) == 6
    assert "**HOLD**" in markdown(value)


@pytest.mark.parametrize(
    ("pair", "side", "error"),
    [
        (3, "base", ServerEnded("the server of a ended")),
        (3, "candidate", SeatrialError("Locust ended with exit code 2")),
        (0, "base", ServerEnded("the server of a ended before it was ready")),
    ],
)
def test_what_says_nothing_of_the_candidate_is_undecided(
    pair: int, side: Which, error: SeatrialError, tmp_path: Path
) -> None:
    machine = Machine({}, noise=0.002)  # the first look would have shipped
    machine.breaks = (pair, side, error)
    value = compared(machine, tmp_path)
    assert (value["verdict"], EXIT_CODES[value["verdict"]]) == ("undecided", 2)
    assert value["reason"].startswith(f"the {side} broke off after ")
    assert str(error) in markdown(value)


def test_a_candidate_that_never_ran_is_held_only_beside_a_base_that_did(tmp_path: Path) -> None:
    machine = Machine({})
    machine.breaks = (0, "candidate", ServerEnded("the server of b ended before it was ready"))
    assert compared(machine, tmp_path)["verdict"] == "hold"


@pytest.mark.parametrize("pair", [0, 3])
def test_a_candidate_that_hangs_at_its_start_is_held_with_the_reason(pair: int, tmp_path: Path) -> None:
    machine = Machine({}, noise=0.002)  # the first look would have shipped
    machine.breaks = (pair, "candidate", NeverUp("the server of b was not ready after 180 s; the end of its log:\nhm"))
    value = compared(machine, tmp_path)
    assert (value["verdict"], EXIT_CODES[value["verdict"]]) == ("hold", 1)
    said = "the candidate did not come up, the base did: the server of b was not ready after 180 s"
    assert value["reason"].startswith(said)
    assert "**HOLD**" in markdown(value)


def test_a_base_that_hangs_at_its_start_says_nothing_of_the_candidate(tmp_path: Path) -> None:
    machine = Machine({})
    machine.breaks = (0, "base", NeverUp("the server of a was not ready after 180 s"))
    value = compared(machine, tmp_path)
    assert value["verdict"] == "undecided"
    assert value["reason"].startswith("the base broke off after 0 rounds")


def test_answers_that_could_not_be_compared_are_no_ship() -> None:
    error = SeatrialError("the server of b ended\nmore")
    found = without_answers("ship", "all is well", error)
    assert found["verdict"] == "undecided"
    assert found["reason"].startswith("the answers could not be compared: the server of b ended (latency alone: ship")
    assert "verdict" not in without_answers("hold", "slower", error)


@pytest.mark.parametrize(
    ("slower", "stages"),
    [
        (PREFILL, {"ttft": "prefill"}),
        (DECODE | {("decode", "throughput"): 1.10}, {"itl": "decode"}),
        ({("decode", "throughput"): 1.10}, {"ttft": "decode", "itl": "decode"}),  # what throughput is made of
    ],
)
def test_the_latencies_that_hold_are_the_ones_taken_apart(
    slower: dict[tuple[str, str], float], stages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("pipeline.ab.compare.cause_of", lambda *args: asked.append(args))
    value = compared(Machine(slower), tmp_path)
    ((_, pairs, _, given),) = asked
    assert given == stages
    assert len(pairs) == value["looks"]["taken"][-1]["pairs"]
