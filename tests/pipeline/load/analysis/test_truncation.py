from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pipeline.load.analysis.truncation import Pair, ceiling, compare, onset, truncation
from pipeline.load.idle import chosen
from tests.pipeline.load.analysis.planted import frame, request


def answers(cut_above: int | None = None, to_tokens: int = 64, finish: str = "stop") -> list[dict[str, Any]]:
    """400 answers that the model ends somewhere below 200; above so many in flight they are cut."""
    rng = random.Random(3)
    rows = []
    for i in range(400):
        concurrency, length = rng.randint(1, 12), rng.randint(20, 190)
        cut = cut_above is not None and concurrency > cut_above and length > to_tokens
        tokens = to_tokens if cut else length
        rows.append(
            request(
                i, float(i), 0.1, [0.01] * (tokens - 1), max_tokens=200, concurrency=concurrency,
                finish_reason=finish if cut else "stop",
            )
        )  # fmt: skip
    return rows


def pair(i: int, loaded: int, idle: int, same: bool | None = True) -> Pair:
    return Pair(f"s-{i}", "s", 8, loaded, idle, "stop", "stop", same)


def test_truncation_above_a_concurrency_is_found_with_its_length_and_onset() -> None:
    found = truncation(frame(answers(cut_above=6)), [], fixed_output=False, deterministic=True)
    assert found["found"]
    assert found["ceiling"]["tokens"] == 64
    assert found["onset"]["concurrency"] == 7
    assert found["onset"]["share_below"] == pytest.approx(0, abs=0.03)  # some end there by themselves
    assert found["onset"]["share_from"] > 0.5
    assert found["length_and_load"]["rho"] < -0.3
    assert "end at exactly 64 tokens" in found["words"]
    assert "from 7 requests in flight on" in found["words"]
    json.dumps(found, allow_nan=False)


def test_answers_that_end_where_the_model_ends_them_are_not_short() -> None:
    found = truncation(frame(answers()), [pair(i, 50, 50) for i in range(8)], fixed_output=False, deterministic=True)
    assert not found["found"]
    assert (found["short"], found["ceiling"], found["onset"]) == (0, None, None)
    assert "8 of 8 prompts gave the same bytes" in found["words"]


def test_with_a_fixed_length_each_shorter_answer_is_short_whatever_it_claims() -> None:
    rows = [
        request(i, float(i), 0.1, [0.01] * 9, max_tokens=10 + (i % 4 == 0), finish_reason="stop") for i in range(40)
    ]
    assert truncation(frame(rows), [], fixed_output=True, deterministic=True)["short"] == 10
    assert truncation(frame(rows), [], fixed_output=False, deterministic=True)["ceiling"]["tokens"] == 10


def test_the_same_bytes_or_a_fault_on_a_deterministic_engine() -> None:
    rows = frame(answers())
    one = [pair(0, 40, 50, same=False), *(pair(i, 50, 50) for i in range(1, 8))]
    assert truncation(rows, one, fixed_output=False, deterministic=True)["found"]
    assert not truncation(rows, one, fixed_output=False, deterministic=False)["found"]


def test_elsewhere_the_ratio_of_lengths_has_an_interval() -> None:
    rng = random.Random(5)
    shorter = [pair(i, 70 + rng.randint(0, 9), 100 + rng.randint(0, 9), same=False) for i in range(8)]
    found = truncation(frame(answers()), shorter, fixed_output=False, deterministic=False)
    assert found["found"]
    low, high = found["paired"]["interval"]
    assert low < 0.72 < high < 1
    assert found["paired"]["p_value"] < 1e-6
    assert compare([pair(0, 5, 5)]).interval is None


def test_a_pile_by_chance_is_no_ceiling() -> None:
    assert ceiling(frame(answers())) is None
    assert onset([1, 2, 3, 4] * 10, [k // 4 % 2 == 1 for k in range(40)]) is None


def test_prompts_are_chosen_from_every_stage_among_the_busiest() -> None:
    rows = [
        request(i, float(i), 0.1, [0.01], concurrency=i % 10, stage="ab"[i % 2], request_id=f"r{i}", arrival=i)
        for i in range(200)
    ]
    rows[11]["turn"] = 2
    found = chosen(frame(rows), 8)
    assert [r["stage"] for r in found].count("a") == 4
    assert len({r["request_id"] for r in found}) == 8
    assert min(r["concurrency"] for r in found) >= 4
    assert all(not r["turn"] for r in found)
    assert chosen(frame([]), 8) == []
