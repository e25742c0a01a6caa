"""What is counted of the same requests holds without an interval, names its cause, and is never taken for a pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loadtests.records import SCHEMA
from loadtests.traffic import prompt_of
from loadtests.words import about_tokens
from pipeline.ab.compare import FEWEST, compare_builds
from pipeline.ab.counts import Work, counted, work_of
from pipeline.ab.report import markdown
from pipeline.load.measure import read_profile
from pipeline.params import AbParams
from pipeline.stage import Stage
from tests.pipeline.ab.made_up import STAGES, WORK, Machine, side

PARAMS = AbParams(budget_minutes=10)
COLD = WORK._replace(cached_tokens=0)
Stages = dict[str, dict[tuple[int, int], Work]]


def one(name: str, base: Work, candidate: Work, requests: int = 8) -> Any:
    """The count of one stage of which all requests are alike."""
    rounds: list[Stages] = [{"s": {(i, 0): w for i in range(requests)}} for w in (base, candidate)]
    (found,) = counted([(rounds[0], rounds[1])], ["s"], PARAMS.model_copy(update={"counts": [name]}))
    return found


def compared(machine: Machine, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return compare_builds(
        side("a"), side("b"), PARAMS.model_copy(update=changes), 7, tmp_path, Stage("ab", None),
        round_=machine.round, clock=machine.clock,
    )  # fmt: skip


def test_a_cache_that_does_not_hit_is_held_after_two_pairs_and_named(tmp_path: Path) -> None:
    machine = Machine({}, noise=0.3)  # so noisy that no latency would ever decide
    machine.counted = {("candidate", "warm"): COLD}
    value = compared(machine, tmp_path)
    assert value["verdict"] == "hold"
    assert value["reason"].startswith("prompt tokens computed a request of warm is worse by more than 5.0%: 50.0 -> ")
    assert len(value["rounds"]) == 2 * FEWEST
    cause = value["cause"]["causes"][0]
    assert (cause["cause"], cause["figure"]) == ("cold_cache", "80 % -> 0 % of prompt tokens came from the cache")
    text = markdown(value)
    assert "**Cause**: the prefix cache does not hit (prompt tokens computed a request of warm: 80 % -> 0 %" in text
    assert "- warm computed_tokens: fail: worse by more than 5.0%: 50.0 -> 250.0 (+400.0%" in text
    assert "- the same on both sides: prefill computed_tokens, prefill output_tokens" in text


def test_the_same_work_ships_and_says_so(tmp_path: Path) -> None:
    value = compared(Machine({}), tmp_path)
    assert value["verdict"] == "ship"
    assert value["reason"].endswith("; 6 counts of the same requests are too")
    assert {(r["stage"], r["outcome"], r["ratio"]) for r in value["work"]} == {(s, "pass", 1.0) for s in STAGES}
    assert [r["requests"] for r in value["work"]] == [100] * 6  # five pairs of twenty requests that both sides answered


def test_answers_that_end_early_are_held_though_all_is_faster(tmp_path: Path) -> None:
    machine = Machine({("decode", "itl"): 0.5, ("decode", "throughput"): 0.5})
    machine.counted = {("candidate", "decode"): WORK._replace(output_tokens=1)}
    value = compared(machine, tmp_path)
    assert value["verdict"] == "hold"
    assert value["reason"].startswith("tokens answered a request of decode is worse by more than 5.0%: 2.0 -> 1.0")
    assert value["cause"]["causes"][0]["cause"] == "cut_short"


def test_a_count_that_is_not_reported_is_no_pass(tmp_path: Path) -> None:
    machine = Machine({})
    machine.counted = {("candidate", "warm"): WORK._replace(cached_tokens=None)}
    value = compared(machine, tmp_path)
    assert value["verdict"] == "undecided"
    assert "the candidate does not report it for 300 of 300 requests (latency alone: ship" in value["reason"]
    assert compared(machine, tmp_path, counts=[])["verdict"] == "ship"


def test_another_projects_server_is_told_of_and_not_held(tmp_path: Path) -> None:
    machine = Machine({})
    machine.counted = {("candidate", "warm"): COLD}
    theirs = replace(side("b"), opened=lambda log: None)  # type: ignore[arg-type, return-value]
    value = compare_builds(
        side("a"), theirs, PARAMS, 7, tmp_path, Stage("ab", None), round_=machine.round, clock=machine.clock
    )
    assert value["verdict"] == "ship"
    assert "counts of the same requests" not in value["reason"]
    assert "- warm computed_tokens: fail (reported): worse by more than" in markdown(value)


@pytest.mark.parametrize(
    ("name", "candidate", "outcome", "cause"),
    [
        ("computed_tokens", WORK, "pass", None),
        ("computed_tokens", WORK._replace(cached_tokens=198), "pass", None),  # 52 of 50: inside 5 %
        ("computed_tokens", WORK._replace(cached_tokens=184), "fail", "cold_cache"),  # one block of sixteen less
        ("computed_tokens", WORK._replace(prompt_tokens=260), "fail", "template"),
        ("computed_tokens", WORK._replace(cached_tokens=240), "pass", None),  # better
        ("output_tokens", WORK._replace(output_tokens=3), "pass", None),
        ("output_tokens", WORK._replace(output_tokens=1), "fail", "cut_short"),
    ],
)
def test_each_count_has_its_worse_side_and_its_cause(
    name: str, candidate: Work, outcome: str, cause: str | None
) -> None:
    found = one(name, WORK, candidate)
    assert found.outcome == outcome, found
    assert (found.cause.code if found.cause else None) == cause


def test_nothing_in_common_is_undecided() -> None:
    found = one("output_tokens", WORK, WORK, requests=0)
    assert (found.outcome, found.why) == ("undecided", "no request was answered to its end on both sides")


def test_answers_count_that_another_went_before() -> None:
    row: dict[str, Any] = dict.fromkeys(SCHEMA)
    row |= {"stage": "s", "phase": "measured", "status": "ok", "sent_s": 2.0, "end_s": 3.0, "arrival": 4, "turn": None}
    row |= {"prompt_tokens": 9, "cached_tokens": 0, "output_tokens": 2}
    first = [{"arrival": 0, "sent_s": 0.1, "end_s": 1.5}, {"arrival": 1, "sent_s": 1.4, "end_s": 1.6}]
    others = [{"arrival": 2, "status": "timeout"}, {"arrival": None}, {"stage": "t", "end_s": 0.1}]
    more = [{"arrival": 5, "turn": 3}, {"arrival": 6, "phase": "warmup"}]
    frame = pl.DataFrame([row, *(row | o for o in (*first, *others, *more))], schema=SCHEMA)
    assert work_of(frame, "s") == dict.fromkeys([(4, 0), (5, 3), (6, 0)], Work(9, 0, 2))


def test_a_side_that_is_much_slower_has_requests_in_common_with_the_other() -> None:
    """Five seconds of answers one after the other, the first of them warm-up: by number one side is far ahead."""

    def records(each_s: float) -> pl.DataFrame:
        rows = []
        for i in range(int(5 / each_s)):
            row: dict[str, Any] = dict.fromkeys(SCHEMA)
            row |= {"stage": "s", "phase": "warmup" if i * each_s < 1 else "measured", "status": "ok", "arrival": i}
            row |= {"sent_s": i * each_s, "end_s": (i + 1) * each_s, "prompt_tokens": 9, "cached_tokens": 0}
            rows.append(row | {"output_tokens": 2})
        return pl.DataFrame(rows, schema=SCHEMA)

    quick, slow = (work_of(records(s), "s") for s in (0.05, 0.5))
    assert sorted(quick.keys() & slow.keys()) == [(i, 0) for i in range(1, 10)]


def test_the_traffic_of_the_policy_shares_what_the_count_is_there_for() -> None:
    """Most of each prompt of `warm` is the beginning of the one before it; no other stage shares its own."""
    profile = read_profile("ab")
    assert [s.name for s in profile.stages] == list(STAGES)
    texts = {s.name: [" ".join(t for _, t in prompt_of(s, 7, i).messages) for i in (3, 4)] for s in profile.stages}

    def shared(a: str, b: str) -> float:
        words = [(x, y) for x, y in zip(a.split(), b.split(), strict=False)]
        same = next((i for i, (x, y) in enumerate(words) if x != y), len(words))
        return about_tokens(" ".join(a.split()[:same])) / about_tokens(a)

    assert shared(*texts["warm"]) > 0.8
    assert shared(*texts["prefill"]) < 0.1
