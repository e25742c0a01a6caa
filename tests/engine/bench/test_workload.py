"""The same requests for every policy, made to fit without changing the trace's shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.errors import BenchError
from engine.bench.traces import Lengths, Trace
from engine.bench.workload import FITTING_SHARE, fitting_factor, make_workload, scaled
from engine.request import SamplingParams

ROWS = [Lengths(10 * i, i) for i in range(1, 101)]  # totals 11 to 1,100
TRACE = Trace("t", "0" * 64, ROWS)


def test_one_seed_one_workload() -> None:
    one = make_workload(TRACE, 20, 7, 2048, 50)
    assert one == make_workload(TRACE, 20, 7, 2048, 50)
    assert one.due_s(2.0) == make_workload(TRACE, 20, 7, 2048, 50).due_s(2.0)
    other = make_workload(TRACE, 20, 8, 2048, 50)
    assert one.prompts != other.prompts
    assert one.due_s(2.0) != other.due_s(2.0)


def test_requests_are_consecutive_rows_with_their_lengths_and_no_early_end() -> None:
    w = make_workload(TRACE, 20, 7, 2048, 50)
    assert w.lengths == ROWS[w.first_row : w.first_row + 20]
    for i, row in enumerate(w.lengths):
        request = w.request(i)
        params = SamplingParams.from_wire(request.params)
        assert (request.ids, len(request.prompt)) == ([str(i)], row.prompt)
        assert (params.max_tokens, params.ignore_eos, params.temperature) == (row.output, True, 0)
        assert set(request.prompt) <= set(range(50))
    assert w.about()["scaling"] == {
        "factor": 1.0, "chosen": True, "max_model_len": 2048, "cut_requests": 0, "cut_tokens": 0,
    }  # fmt: skip


def test_arrivals_begin_at_once_and_keep_the_rate() -> None:
    due = make_workload(TRACE, 100, 1, 2048, 50).due_s(4.0)
    assert due[0] == 0
    assert due == sorted(due)
    assert 15 < due[-1] < 40  # 99 gaps of 0.25 s, give or take three deviations


def test_the_factor_lets_most_rows_fit() -> None:
    factor = fitting_factor(ROWS, 500)
    assert factor == 500 / 1045  # the 95th of 100 totals
    fitting = sum(1 for r in ROWS if round(r.prompt * factor) + round(r.output * factor) <= 501)
    assert fitting >= FITTING_SHARE * len(ROWS)
    assert fitting_factor(ROWS, 10_000) == 1


def test_what_was_cut_is_said() -> None:
    w = make_workload(TRACE, 100, 0, 550, 50, factor=1.0)
    assert w.scaling.chosen is False
    assert w.scaling.cut_requests == 50
    assert w.scaling.cut_tokens == sum(r.total - 550 for r in ROWS[50:])
    assert max(r.total for r in w.lengths) == 550


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.01, 2), st.integers(2, 600))
def test_a_scaled_row_always_fits(prompt: int, output: int, factor: float, limit: int) -> None:
    row = scaled(Lengths(prompt, output), factor, limit)
    assert min(row) >= 1
    assert row.total <= limit
    whole = Lengths(max(1, round(prompt * factor)), max(1, round(output * factor)))
    assert row == whole or row.total == limit


def test_too_few_rows() -> None:
    with pytest.raises(BenchError, match="101 requests are asked for, the trace t has 100 usable rows"):
        make_workload(TRACE, 101, 0, 2048, 50)
