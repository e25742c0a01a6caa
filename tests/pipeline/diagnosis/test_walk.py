"""Each fault of a simulated engine is named, with the figure that shows it; a run like the other is not accused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from pipeline.diagnosis.causes import CAUSES
from pipeline.diagnosis.inputs import Run
from pipeline.diagnosis.latency import itl_parts, ttft_parts
from pipeline.diagnosis.steps import fit, stalled_s
from pipeline.diagnosis.walk import as_json, named, text, walk, walk_held
from tests.pipeline.diagnosis.simulated import Engine, run
from tests.pipeline.gate.factory import items

CLEAN = Engine()


def test_the_price_of_a_step_is_found_and_a_stall_is_not_in_it() -> None:
    log = run(Engine(stall_every=25)).steps
    assert log is not None
    cost = fit(log)
    assert cost is not None
    assert (cost.fixed_s, cost.token_s, cost.decode_s) == pytest.approx((0.008, 0.0004, 0.001), rel=0.03)
    stalls = stalled_s(log, cost)
    assert (stalls > 0).sum() == log.height // 25
    assert stalls.max() == pytest.approx(0.3, rel=0.05)
    assert fit(log.head(5)) is None


def test_the_parts_add_up_to_the_time_to_first_token() -> None:
    simulated = run(CLEAN, burst=6)
    parts = ttft_parts(simulated, "s")
    assert parts is not None
    assert sum(parts.ms.values()) == pytest.approx(parts.total_ms, rel=0.05)
    assert parts.ms["outside_engine"] == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize("output", [2, None])
def test_the_parts_add_up_to_the_gap_between_tokens_of_the_shortest_answers_too(output: int | None) -> None:
    simulated = run(Engine(output=output))
    parts = itl_parts(simulated, "s")
    assert parts is not None
    assert simulated.records is not None
    gaps = [b - a for t in simulated.records["token_times_s"] for a, b in pairwise(t)]
    assert parts.total_ms == pytest.approx(1000 * sum(gaps) / len(gaps), rel=0.03)
    assert sum(parts.ms.values()) == pytest.approx(parts.total_ms, rel=0.01)


@pytest.mark.parametrize(
    ("fault", "symptom", "cause", "figure"),
    [
        (Engine(token_s=0.00048), "P99 time to first token", "prefill_compute", "a prompt token costs 1."),
        (Engine(decode_s=0.0016, fixed_s=0.0088), "inter-token latency", "decode_compute", "GB/s"),
        (Engine(stall_every=40), "inter-token latency", "stall", "of a mean gap"),
        (Engine(stall_every=40), "P99 time to first token", "stall", "in the tail"),
        (Engine(chunk=1000), "inter-token latency", "prefill_interference", "in the tail"),
        (Engine(http_s=0.05), "P99 time to first token", "outside_engine", "in the tail"),
        (Engine(slots=2, admits=2), "P99 time to first token", "queue", "in the tail"),
    ],
)
def test_what_grew_is_named(fault: Engine, symptom: str, cause: str, figure: str) -> None:
    findings = walk(run(fault, burst=4), run(CLEAN, "clean", burst=4))
    found = next(f for f in findings if f.symptom == symptom)
    assert found.state == "worse", found.figure
    assert found.causes[0].code == cause, text(findings)
    assert figure in found.causes[0].figure
    assert len(found.causes) <= 3


def test_what_a_stall_keeps_waiting_is_counted_with_it_though_the_engine_has_not_seen_it_yet() -> None:
    stalling, clean = run(Engine(stall_every=6, http_s=0.0)), run(Engine(http_s=0.0), "clean")
    parts, before = ttft_parts(stalling, "s"), ttft_parts(clean, "s")
    assert parts is not None
    assert before is not None
    assert stalling.requests is not None
    unseen = stalling.requests["first_token_s"] - stalling.requests.select(
        pl.col("received_s") + pl.col("queued_s") + pl.col("prefill_s")).to_series()  # fmt: skip
    assert unseen.max() > 0.2  # most of a stall
    assert parts.ms["stall"] > 200
    assert parts.ms["outside_engine"] == pytest.approx(before.ms["outside_engine"], abs=2)
    assert sum(parts.ms.values()) == pytest.approx(parts.total_ms, rel=0.05)


def test_a_slower_decode_is_named_where_no_answer_goes_on_after_its_second_token() -> None:
    found = walk(run(Engine(decode_s=0.0016, fixed_s=0.0088, output=2)), run(Engine(output=2), "clean"))[2]
    assert (found.state, found.causes[0].code) == ("worse", "decode_compute"), text([found])


def test_only_latencies_that_a_gate_holds_are_named_unless_they_explain_nothing() -> None:
    slower, clean = run(Engine(token_s=0.00048, decode_s=0.0016), burst=4), run(CLEAN, "clean", burst=4)
    assert [f.symptom for f in walk_held(slower, clean, {"itl": "s"})] == ["settings", "inter-token latency"]
    assert [c.code for c in named(walk_held(slower, clean, {"ttft": "s"}))] == ["prefill_compute"]
    assert walk_held(slower, clean, {}) == walk(slower, clean)
    assert walk_held(slower, clean, {"itl": "of another profile"}) == walk(slower, clean)


@pytest.mark.parametrize("burst", [1, 4])
def test_a_colder_cache_is_told_from_a_slower_prefill_and_from_those_that_wait_for_it(burst: int) -> None:
    warm, cold = run(Engine(cached_share=0.8), "warm", burst=burst), run(Engine(cached_share=0.0), burst=burst)
    found = walk(cold, warm)[1]
    assert found.causes[0].code == "cold_cache", text([found])
    assert "hits 80% -> 0% of prompt tokens" in found.causes[0].figure


def test_two_equal_runs_accuse_nobody() -> None:
    findings = walk(run(CLEAN), run(CLEAN, "clean"))
    assert named(findings) == []
    assert {f.state for f in findings[:4]} == {"as before"}
    assert as_json(run(CLEAN), None, findings)["named"] is None


@pytest.mark.parametrize(
    ("fault", "burst", "cause", "figure"),
    [
        (Engine(leaks=1), 1, "leak", "160 of 1000 blocks stayed in use"),
        (Engine(slots=2, admits=2), 8, "batch_full", "with all 2 places taken"),
        (Engine(admits=2), 8, "admission", "of 8 places were taken"),
        (Engine(admits=3, blocks=8), 8, "kv_limit", "with the KV pool"),
        (Engine(), 1, "offered_load", "waited in 7% of the steps"),
        (Engine(fails=True), 1, "failing", "10.0% of 160 requests failed: queue full"),
    ],
)
def test_what_keeps_throughput_down_is_named(fault: Engine, burst: int, cause: str, figure: str) -> None:
    found = walk(run(fault, burst=burst), None)[2]
    assert found.causes[0].code == cause, text([found])
    assert figure in found.causes[0].figure


def test_a_setting_that_differs_comes_first() -> None:
    findings = walk(run(Engine(settings={"batching": "static"})), run(Engine(settings={"batching": "continuous"})))
    assert named(findings)[0].code == "settings"
    assert "batching: continuous -> static" in text(findings)


def test_without_the_engines_log_nothing_is_guessed() -> None:
    bare = replace(run(Engine(token_s=0.001)), steps=None, requests=None)
    found = walk(bare, run(CLEAN, "clean"))[1]
    assert (found.state, found.causes) == ("worse", ())
    assert "step log and request log were not kept" in found.figure
    assert "not explained" in text([found])


def _answers(spoil: Any = None, flips: tuple[int, int] = (0, 0)) -> Run:
    rows = items("int8", flips, spoil)
    return Run("x", None, None, None, None, None, rows)


def _one_token_more(row: dict[str, Any]) -> None:
    row["prompt_tokens"] += 1


def _endless(row: dict[str, Any]) -> None:
    if row["kind"] != "choice" and int(row["id"][-2:]) % 3 == 0:
        row["finish_reason"] = "length"


def _forgets_long_documents(row: dict[str, Any]) -> None:
    if row["kind"] == "long_context":
        row["score"], row["correct"] = 0.0, False


def _forgets_most(row: dict[str, Any]) -> None:
    """Half of long documents, a tenth of all else."""
    _forgets_long_documents(row)
    if int(row["id"][-2:]) % 10 == 0:
        row["score"], row["correct"] = 0.0, False


@pytest.mark.parametrize(
    ("broken", "state", "cause", "figure"),
    [
        (_answers(_forgets_most), "worse", "tier", "long_context -50.0"),
        (_answers(_one_token_more), "as before", "template", "320 of 320 prompts differ in length, by +1 token each"),
        (_answers(_endless), "as before", "stop_handling", "0 -> 81 of 240 answers"),
        (_answers(_forgets_long_documents), "worse", "context", "long_context -50.0"),
        (_answers(flips=(30, 2)), "worse", "tier", "points by kind"),
    ],
)
def test_what_makes_answers_worse_is_named(broken: Run, state: str, cause: str, figure: str) -> None:
    found = walk(broken, _answers())[-1]
    assert found.state == state
    assert found.causes[0].code == cause
    assert figure in found.causes[0].figure
    assert json.dumps(found.as_json())


def _served(answered: Run, artifact: str = "a") -> Run:
    return replace(answered, load={"header": {"quantisation": {"name": "int8", "digest": artifact}}})


@pytest.mark.parametrize(("artifact", "cause"), [("a", "engine"), ("b", "tier")])
def test_where_the_artifact_is_the_same_the_engine_is_at_fault(artifact: str, cause: str) -> None:
    mine, theirs = _served(_answers(flips=(30, 2)), artifact), _served(_answers())
    assert walk(mine, theirs)[-1].causes[0].code == cause


@pytest.mark.parametrize(
    ("says", "cause"),
    [("The ship sails at noon. The ship sails", "stop_handling"), ("ship ship ship ship ship", "engine")],
)
def test_answers_without_end_are_stop_handling_where_they_go_on_from_the_old_end(says: str, cause: str) -> None:
    def spoil(row: dict[str, Any]) -> None:
        _endless(row)
        row["answer"] = says

    def as_it_was(row: dict[str, Any]) -> None:
        row["answer"] = "The ship sails at noon."

    mine, theirs = _served(_answers(spoil, flips=(30, 2))), _served(_answers(as_it_was))
    assert walk(mine, theirs)[-1].causes[0].code == cause


@pytest.mark.parametrize(("flips", "causes"), [((0, 0), ["context"]), ((20, 0), ["engine", "context"])])
def test_an_engine_that_errs_on_short_prompts_too_does_not_only_cut_the_context(
    flips: tuple[int, int], causes: list[str]
) -> None:
    mine, theirs = _served(_answers(_forgets_long_documents, flips)), _served(_answers())
    assert [c.code for c in walk(mine, theirs)[-1].causes] == causes


def test_every_cause_has_words_and_a_knob() -> None:
    assert all(words and knob for words, knob in CAUSES.values())
