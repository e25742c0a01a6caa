"""Figures of hand-made runs whose truth is known."""

from __future__ import annotations

import pytest

from engine.bench.compare import check_same_outputs, compare, ratio_of
from engine.bench.drive import RunRecord, Step
from engine.bench.errors import BenchError
from engine.bench.metrics import BY_NAME, METRICS, Figure, itl_s, ttft_s
from engine.bench.policies import POLICIES
from engine.bench.show import findings

COUNTS = ("preemptions", "recomputed_tokens", "allocation_failures_exhausted", "allocation_failures_fragmented")


def record(due: list[float], tokens: list[list[float]], steps: list[Step] | None = None, **counts: int) -> RunRecord:
    """4 slots, blocks of 10 tokens and 1,000 bytes, a pool of 50."""
    stats = dict.fromkeys(COUNTS, 0) | counts
    end = max(t for times in tokens for t in times)
    ids = [[1] * len(times) for times in tokens]
    return RunRecord(4, 1000, 10, 50, due, tokens, ids, steps or [], stats, end)


def step(start: float, plan: float, model: float, draw: float, **values: int) -> Step:
    return Step(start, plan, model, draw, **(dict.fromkeys(Step._fields[4:], 0) | values))


def value(name: str, *records: RunRecord) -> float:
    figure = BY_NAME[name].formula(records)
    assert figure.value is not None, figure.reason
    return figure.value


def reason(name: str, *records: RunRecord) -> str | None:
    figure = BY_NAME[name].formula(records)
    assert figure.value is None
    return figure.reason


TWO = record([0.0, 1.0], [[2.0, 2.5, 5.0], [3.0, 4.0]])


def test_time_to_first_token_counts_from_due() -> None:
    assert ttft_s([TWO]) == [2.0, 2.0]
    assert value("ttft_p50_ms", TWO) == 2000


def test_gaps_are_pooled_over_requests_and_rounds() -> None:
    assert itl_s([TWO, TWO]) == [0.5, 2.5, 1.0] * 2
    assert value("longest_gap_ms", TWO) == 2500
    assert reason("longest_gap_ms", record([0.0], [[1.0]])) == "no request has two tokens"


def test_percentiles_are_ranks_of_raw_samples() -> None:
    r = record([0.0] * 100, [[float(i)] for i in range(100, 0, -1)])
    assert [value(f"ttft_p{q}_ms", r) for q in (50, 95, 99)] == [50_000, 95_000, 99_000]


@pytest.mark.parametrize(("q", "enough"), [(50, 2), (95, 20), (99, 100)])
def test_percentiles_of_too_few_samples_are_refused(q: int, enough: int) -> None:
    fewer = record([0.0] * (enough - 1), [[1.0]] * (enough - 1))
    assert reason(f"ttft_p{q}_ms", fewer) == f"P{q} needs {enough} samples, there are {enough - 1}"
    assert value(f"ttft_p{q}_ms", record([0.0] * enough, [[1.0]] * enough)) == 1000


def test_throughput_over_the_run_and_over_the_time_in_steps() -> None:
    r = record([0.0], [[1.0, 4.0]], [step(0.0, 0.25, 0.5, 0.25), step(3.0, 0.5, 0.25, 0.25)])
    assert value("output_tokens_per_s", r) == 2 / 4
    assert value("output_tokens_per_busy_s", r) == 2 / 2
    assert value("busy_share", r) == 2 / 4
    assert value("output_tokens_per_s", r, TWO) == 7 / 9  # rounds are pooled: tokens over time, no mean of ratios


def test_step_time_is_split_without_a_rest() -> None:
    r = record([0.0], [[4.0]], [step(0.0, 0.25, 0.5, 0.25), step(1.0, 0.5, 2.0, 0.5)])
    shares = [value(f"{part}_share", r) for part in ("scheduling", "model", "sampling")]
    assert shares == [0.75 / 4, 2.5 / 4, 0.75 / 4]


def test_occupancy_and_bytes_are_means_over_steps() -> None:
    short = step(0.0, 0.0, 1.0, 0.0, batch_requests=4, batch_tokens=40, running=4, reserved_blocks=10, used_tokens=80)
    long = step(
        1.0, 0.0, 3.0, 0.0, batch_requests=2, running=4, waiting=8, reserved_blocks=2, used_tokens=10, stranded_blocks=4
    )  # fmt: skip
    r = record([0.0], [[4.0]], [short, long])
    assert value("batch_occupancy_share", r) == (1.0 + 0.5) / 2
    assert value("held_slots_share", r) == 1
    assert value("batch_tokens_mean", r) == 20
    assert value("waiting_mean", r) == 4
    assert value("kv_reserved_bytes_mean", r) == (10_000 + 2_000) / 2
    assert value("kv_reserved_bytes_peak", r) == 10_000
    assert value("kv_used_bytes_mean", r) == (8_000 + 1_000) / 2
    assert value("kv_wasted_share", r) == 1 - 9 / 12
    assert value("kv_stranded_bytes_mean", r) == 4_000 / 2


def test_counts_are_those_of_one_run() -> None:
    a, b = record([0.0], [[1.0]], preemptions=3), record([0.0], [[1.0]], preemptions=0)
    assert value("preemptions", a, b) == 1.5
    c = record([0.0], [[1.0]], allocation_failures_fragmented=2, recomputed_tokens=9)
    assert value("allocation_failures_fragmented", c) == 2
    assert value("recomputed_tokens", c) == 9


def test_nothing_measured_is_no_figure() -> None:
    empty = record([0.0], [[1.0]])
    for name in ("batch_occupancy_share", "kv_reserved_bytes_mean", "kv_reserved_bytes_peak", "model_share"):
        assert reason(name, empty) == "no step ran the model"
    assert reason("kv_wasted_share", empty) == "nothing was reserved"


def test_every_metric_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(METRICS)


def test_ratios_are_by_round_against_the_stated_policy() -> None:
    fast, slow = record([0.0], [[1.0, 2.0]]), record([0.0], [[1.0, 5.0]])
    policies = [POLICIES["baseline"], POLICIES["static"]]
    base, static = compare(policies, {"baseline": [fast, slow], "static": [slow, slow]})
    assert base.ratios == {}
    ratio = static.ratios["longest_gap_ms"]
    assert (ratio.mean, ratio.low, ratio.high, ratio.rounds) == (
        pytest.approx(2),
        pytest.approx(1),
        pytest.approx(4),
        2,
    )
    assert not ratio.clear
    assert static.pooled["longest_gap_ms"] == Figure(4000)
    assert static.ratios["ttft_p50_ms"].reason == "by round: P50 needs 2 samples, there are 1"


@pytest.mark.parametrize(
    ("mine", "clear"),
    [
        ([2.0], False),
        ([2.0, 2.0], True),
        ([1.0, 1.0], False),
        ([2.0, 3.0], False),  # half-width 12.7 standard errors of two rounds: on one side, yet not told from 1
        ([2.0, 2.1], True),
        ([2.0, 2.4, 2.8], True),
        ([0.5, 0.6, 0.4], True),
        ([0.9, 1.2, 1.3], False),
    ],
)
def test_a_clear_ratio_is_one_that_the_rounds_tell_from_1(mine: list[float], clear: bool) -> None:
    figures = [Figure(v) for v in mine]
    assert ratio_of(METRICS[0], figures, [Figure(1.0)] * len(mine)).clear is clear


def test_no_ratio_without_a_figure_in_every_round() -> None:
    good, zero, absent = Figure(1.0), Figure(0.0), Figure(None, "why not")
    assert ratio_of(METRICS[0], [good, absent], [good, good]).reason == "by round: why not"
    found = ratio_of(METRICS[0], [good, good], [good, zero])
    assert (found.mean, found.reason) == (None, f"by round: {METRICS[0].title} is 0 in a round")


def test_outputs_must_not_depend_on_the_policy() -> None:
    one, other = record([0.0, 0.0], [[1.0], [1.0, 2.0]]), record([0.0, 0.0], [[1.0], [1.0, 2.0]])
    check_same_outputs([("baseline", [one, other]), ("static", [other])])
    other.tokens[1][1] = 5
    with pytest.raises(BenchError, match="request 1 under static differs from baseline from token 1 on"):
        check_same_outputs([("baseline", [one]), ("static", [one, other])])


def test_findings_tell_what_is_clear_from_what_is_not() -> None:
    fast, slow = (record([0.0], [[1.0, 2.0 + gap]]) for gap in (0, 3))
    policies = [POLICIES["baseline"], POLICIES["static"]]
    (told,) = findings(compare(policies, {"baseline": [fast, fast], "static": [slow, slow]}))
    assert told == "static against baseline: output, over the run × 0.40, longest gap × 4.00."
    (told,) = findings(compare(policies, {"baseline": [fast, slow], "static": [slow, fast]}))
    assert told == (
        "static against baseline: not told from 1 in 2 rounds: output, over the run × 1.00, longest gap × 1.00."
    )
    (told,) = findings(compare(policies, {"baseline": [fast], "static": [slow]}))
    assert told == "static against baseline: in one round output, over the run × 0.40, longest gap × 4.00."
