"""Figures by somebody else's definitions, computed by hand, and the reports that they are read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loadtests.records import SCHEMA
from loadtests.traffic import prompt_of
from loadtests.workload import load_profile
from tests.crosscheck.load_figures import (
    LATENCIES,
    MEANS,
    RATES,
    by_their_definitions,
    compare,
    definitions,
    our_figures,
    their_figures,
    weighted_quantile,
)
from tests.crosscheck.load_tools import SEED, STAGE, Workload, write_prompts


def record(i: int, sent_s: float, times_s: list[float], **other: Any) -> dict[str, Any]:
    """Due 10 ms before it was sent, over 50 ms after its last token."""
    return {
        "request_id": str(i), "stage": STAGE, "phase": "measured", "due_s": sent_s - 0.01, "sent_s": sent_s,
        "end_s": times_s[-1] + 0.05, "token_times_s": times_s, "status": "ok", "prompt_tokens": 7,
        "output_tokens": len(times_s), "max_tokens": len(times_s),
    } | other  # fmt: skip


def records(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([dict.fromkeys(SCHEMA) | row for row in rows], schema=SCHEMA)


def test_latencies_by_their_definitions() -> None:
    """One answer of three tokens with a stall before the last: 100 ms to the first, then 10 and 190."""
    found = by_their_definitions(records(record(0, 1.0, [1.1, 1.11, 1.3])), (STAGE, 0, 2))
    assert found["ttft_ms.p50"] == pytest.approx(100)  # from sending; ours counts the 10 ms before it
    assert found["itl_ms.p99"] == pytest.approx(100)  # 200 ms over two gaps: the stall is averaged away
    assert found["tpot_ms.p50"] == pytest.approx(100)  # 300 ms from sending, over three tokens
    assert found["e2e_ms.p50"] == pytest.approx(350)


def test_rates_by_their_definitions() -> None:
    """Of the answer that began before the measured second two tokens are taken to have come in it, at 1.0 and 1.2."""
    rows = records(record(0, 0.5, [0.8, 0.85, 1.2]), record(1, 1.3, [1.4, 1.5]), record(2, 1.6, [1.7, 1.8, 2.1]))
    found = by_their_definitions(rows, (STAGE, 1.0, 2.0))
    assert (found["requests_per_s"], found["output_tokens_per_s"], found["prompt_tokens_per_s"]) == (2, 4, 7)


def test_our_own_figures_differ_as_their_definitions_do() -> None:
    rows = records(*(record(i, 1.0 + i, [1.1 + i, 1.11 + i, 1.3 + i]) for i in range(60)))
    found = our_figures(rows, (STAGE, 0.9, 61.9))
    assert found["ttft_ms.p50"] == pytest.approx(110)
    assert found["itl_ms.p95"] == pytest.approx(190)
    assert found["tpot_ms.p50"] == pytest.approx(100)
    assert found["e2e_ms.p50"] == pytest.approx(360)
    assert found["output_tokens_mean"] == 3


def test_only_answers_that_ended_well_in_the_measured_time_count() -> None:
    rows = records(
        record(0, 1.0, [1.1, 1.2], phase="warmup"),
        record(1, 0.0, [0.5, 0.9], phase="warmup"),
        record(2, 1.0, [1.5, 1.6], status="timeout"),
        record(3, 1.0, [1.5, 2.1]),
    )
    assert by_their_definitions(rows, (STAGE, 1.0, 2.0))["ttft_ms.p99"] == pytest.approx(100)


def test_longer_answers_weigh_more() -> None:
    assert weighted_quantile([(1.0, 1), (2.0, 3)], 0.25) == 1
    assert weighted_quantile([(1.0, 1), (2.0, 3)], 0.5) == 2
    assert weighted_quantile([(2.0, 1), (1.0, 1)], 1.0) == 2
    assert weighted_quantile([], 0.5) is None


def report(**totals: int) -> dict[str, Any]:
    """Metric number i is 100 i + 50, 95 and 99 at its quantiles, and i on average."""
    metrics: dict[str, Any] = {"request_totals": {"successful": 5, "errored": 0, "incomplete": 1} | totals}
    for i, x in enumerate([*LATENCIES.values(), *RATES.values()]):
        percentiles = {f"p{q}": 100 * i + q for q in (50, 95, 99)}
        metrics[x.metric] = {"successful": {"mean": i, "percentiles": percentiles}}
    metrics |= {name: {"successful": {"mean": 9}} for name in MEANS.values()}
    return {"benchmarks": [{"metrics": metrics}]}


def test_a_report_is_read_in_our_units() -> None:
    found = their_figures(report())
    assert [found[f"{m}.p95"] for m in LATENCIES] == [95, 195, 295, 395 * 1000]  # request_latency is in seconds
    assert [found[m] for m in RATES] == [4, 5, 6]
    assert found["prompt_tokens_mean"] == 9


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "not in the form that is known here"),
        ({"benchmarks": []}, "not enough values"),
        (report(errored=2), "5 requests ended well and 2 failed"),
        (report(successful=0), "0 requests ended well"),
    ],
)
def test_a_report_that_says_nothing_is_an_error(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        their_figures(value)


def test_ratios_are_made_within_rounds() -> None:
    ours, theirs, as_theirs = {"itl_ms.p50": 10.0}, {"itl_ms.p50": 30.0}, {"itl_ms.p50": 30.0}
    (found,) = compare([(ours, theirs, as_theirs), ({"itl_ms.p50": 20.0}, theirs, {"itl_ms.p50": 60.0})])
    assert found.ratios == [3.0, 1.5]
    assert found.instrument_ratios == [1.0, 0.5]


def test_a_figure_that_a_round_lacks_is_left_out() -> None:
    known: dict[str, float | None] = {"ttft_ms.p99": 1.0}
    unknown: dict[str, float | None] = {"ttft_ms.p99": None}
    assert compare([(known, known, known), (unknown, known, known)]) == []


def test_every_figure_has_both_definitions() -> None:
    assert len(definitions()) == len(LATENCIES) + len(RATES)
    assert all(ours and theirs and ours != theirs for _, ours, theirs in definitions())


def test_guidellm_is_given_the_prompts_of_our_client(tmp_path: Path) -> None:
    work = Workload(concurrency=2, prompt_tokens=20, output_tokens=5, warmup_s=1, duration_s=2)
    profile = load_profile(str(work.profile(tmp_path)))
    assert profile.users == 2
    write_prompts(profile, 3, tmp_path / "prompts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    own = [prompt_of(profile.stages[0], SEED, i) for i in range(3)]
    assert [[(m["role"], m["content"]) for m in row["messages"]] for row in rows] == [[*p.messages] for p in own]
    assert [row["output_tokens_count"] for row in rows] == [5, 5, 5]
