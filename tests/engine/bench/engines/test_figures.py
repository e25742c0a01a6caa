"""Figures of canned rounds, by hand."""

from __future__ import annotations

import pytest

from engine.bench.engines.ceilings import Ceilings
from engine.bench.engines.engine import Facts, Run
from engine.bench.engines.figures import METRICS, agreed_tokens, results_of
from engine.bench.engines.shares import share_of
from engine.bench.engines.tables import figures_table, findings, ratios_table, shares_table
from engine.bench.engines.workloads import Job, Workload
from engine.bench.metrics import Figure

ONE = Workload("A", [Job([1] * 100, 4)])
TWO = Workload("C2", [Job([1] * 10, 2), Job([1] * 30, 3)])
FILL = Workload("B", [Job([1] * 100, 1)])


def run(*token_s: list[float], tokens: list[list[int]] | None = None, peak: int | None = 2**20) -> Run:
    return Run(list(token_s), sum(map(len, token_s)), tokens, max(t[-1] for t in token_s), peak)


def figures(workload: Workload, of: Run) -> dict[str, Figure]:
    return {m.name: m.formula(workload, of) for m in METRICS}


def test_figures_of_a_batch() -> None:
    found = figures(TWO, run([0.1, 0.3], [0.2, 0.21, 0.5], peak=None))
    assert found["ttft_ms"].value == pytest.approx(150)
    assert found["itl_ms"].value == pytest.approx(200)  # of 10, 200 and 290
    assert found["itl_p95_ms"] == Figure(None, "P95 needs 20 gaps, there are 3")
    assert found["output_tokens_per_s"].value == pytest.approx(5 / 0.5)
    assert found["prompt_tokens_per_s"].value == pytest.approx(40 / 0.2)
    assert found["peak_bytes"].reason == "its processes are not ours to see"
    assert figures(FILL, run([0.5]))["itl_ms"].reason == "one token a request has no gap"


def test_p95_is_a_rank_of_all_gaps() -> None:
    gaps = [0.001 * (k + 1) for k in range(40)]
    times = [1.0 + sum(gaps[:k]) for k in range(41)]
    assert figures(ONE, run(times))["itl_p95_ms"].value == pytest.approx(38)


def test_ratios_pair_the_rounds() -> None:
    """The machine is twice as slow in the second round, for both: the ratio is the same, exactly."""
    fast, slow = run([0.1, 0.2, 0.3, 0.4]), run([0.2, 0.4, 0.6, 0.8])
    half_fast, half_slow = run([0.2, 0.4, 0.6, 0.8]), run([0.4, 0.8, 1.2, 1.6])
    mine, base = results_of(ONE, {"mine": [fast, slow, fast], "base": [half_fast, half_slow, half_fast]}, "base", None)
    assert base.ratios == {}
    ratio = mine.ratios["itl_ms"]
    assert (ratio.mean, ratio.low, ratio.high, ratio.rounds, ratio.clear) == (
        pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 3, True,
    )  # fmt: skip
    spread = mine.spreads["itl_ms"]
    assert (spread.median, spread.low, spread.high) == (pytest.approx(100), pytest.approx(100), pytest.approx(200))
    assert findings(ONE, [mine, base], "base") == ["A: mine is 2.00 x base in ITL (100 ms)."]


def test_only_rounds_that_both_have_are_paired() -> None:
    a, b = run([0.1, 0.2, 0.3, 0.4]), run([0.2, 0.4, 0.6, 0.8])
    mine, _ = results_of(ONE, {"mine": [b, a, None], "base": [a, None, a]}, "base", None)
    assert (mine.ratios["itl_ms"].mean, mine.ratios["itl_ms"].rounds) == (pytest.approx(2.0), 1)
    mine, _ = results_of(ONE, {"mine": [a, None], "base": [None, a]}, "base", None)
    assert mine.ratios["itl_ms"].mean is None
    assert [r.engine for r in results_of(ONE, {"mine": [a, a], "base": [None, None]}, "base", None)] == ["mine"]


def test_agreement_counts_to_the_first_difference() -> None:
    right = run([1, 2, 3, 4], tokens=[[5, 6, 7, 8]])
    for tokens, agreed in (([5, 6, 7, 8], 4), ([5, 6, 0, 8], 2), ([0, 6, 7, 8], 0)):
        assert agreed_tokens(run([1, 2, 3, 4], tokens=[tokens]), right) == agreed
    assert agreed_tokens(run([1, 2, 3, 4]), right) is None
    assert agreed_tokens(None, right) is None
    results = results_of(
        ONE, {"right": [right] * 2, "other": [run([1, 2, 3, 4], tokens=[[5, 6, 0, 0]])] * 2}, "right", "right"
    )
    assert [r.agreement for r in results] == [[], [2, 2]]
    table = figures_table(ONE, results, "right")
    assert [row[-1] for row in table.rows] == ["reference", "2"]
    assert table.head[-1] == "agreement of 4"


def test_shares_are_of_the_ceilings_of_the_same_round() -> None:
    ceilings = [Ceilings(10.0, {"int8": 500.0}), Ceilings(20.0, {"int8": 1000.0})]
    facts = Facts("e", step_weight_bytes=10**8, layer_weights=10**8, arithmetic="int8")
    (decode,) = results_of(ONE, {"e": [run([1.0, 1.02, 1.04, 1.06]), run([1.0, 1.01, 1.02, 1.03])]}, None, None)
    share = share_of(ONE, decode, facts, ceilings)
    assert share is not None
    assert (share.achieved.low, share.achieved.high) == (pytest.approx(5.0), pytest.approx(10.0))  # GB/s
    assert (share.share.low, share.share.high) == (pytest.approx(0.5), pytest.approx(0.5))
    (prefill,) = results_of(FILL, {"e": [run([0.1]), run([0.05])]}, None, None)
    share = share_of(FILL, prefill, facts, ceilings)
    assert share is not None
    assert share.achieved.low == pytest.approx(200.0)  # 2 x 10^8 x 100 in 0.1 s
    assert share.share.median == pytest.approx(0.4)
    table = shares_table([("B", share)], {}, {})
    assert table is not None
    assert table.rows[0][1:] == ["300 (200–400) GOP/s", "40.0 % (40.0 %–40.0 %)", "int8 peak"]


def test_no_share_without_its_parts() -> None:
    (decode,) = results_of(ONE, {"e": [run([1.0, 1.02, 1.04, 1.06])]}, None, None)
    assert share_of(ONE, decode, Facts("e"), []) is None
    (batch,) = results_of(TWO, {"e": [run([0.1, 0.3], [0.2, 0.21, 0.5])]}, None, None)
    assert share_of(TWO, batch, Facts("e", step_weight_bytes=1), []) is None
    share = share_of(ONE, decode, Facts("e", step_weight_bytes=10**8), [])  # no compiler, no ceilings
    assert share is not None
    assert share.share.reason == "no memory read was measured"
    assert shares_table([], {}, {}) is None


def test_one_round_has_no_spread() -> None:
    results = results_of(ONE, {"a": [run([0.1, 0.2, 0.3, 0.4])], "b": [run([0.1, 0.2, 0.3, 0.4])]}, "b", None)
    assert "one round: no spread" in figures_table(ONE, results, None).title
    table = ratios_table(ONE, results, "b")
    assert table is not None
    assert table.rows[0][2] == "1.00"
    assert findings(ONE, results, "b") == ["A: a is 1.00 x b in ITL (100 ms), one round."]
    assert ratios_table(ONE, results[1:], "b") is None
