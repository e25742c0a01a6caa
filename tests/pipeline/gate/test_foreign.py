"""A foreign server's records before the gate: what it does not tell is named, what it tells is judged, and a lie or a
restart is an explanation and never a pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.gate.inputs import read_tier
from tests.pipeline.gate.factory import Row, items, write_items
from tests.pipeline.gate.helpers import change_params, damage, edit_json, judged, load_of_int8, rule_of, slow

LOAD, EVAL, SAMPLES = (f"results/int8/{x}" for x in ("load/load.json", "eval/eval.json", "load/samples.parquet"))
WORDS = "the server began anew in the middle of short_burst, 12.0 s into the run (process_start_time_seconds 7 -> 19)"


def _restarted(value: dict[str, Any], key: str) -> None:
    value[key] = {"restarts": [{"at_s": 12.0, "stage": "short_burst", "figure": "x", "back": True, "words": WORDS}]}


@pytest.mark.parametrize(
    ("path", "key", "said"),
    [(LOAD, "server_metrics", "under load"), (EVAL, "server", "while it was asked the regression set")],
)
def test_a_restart_is_said_with_its_figure_and_is_no_pass(run: Path, path: str, key: str, said: str) -> None:
    edit_json(path, lambda v: _restarted(v, key))(run)
    value = judged()
    found = rule_of(value, "provenance")
    assert (value["verdict"], found["outcome"]) == ("undecided", "undecided")
    assert found["detail"].startswith(f"not one server throughout: {said} {WORDS}")
    assert found["would_decide"] == "a run in which the server stays up"
    assert value["reason"].startswith("int8 is undecided: provenance: not one server throughout")


def test_requests_that_failed_for_a_restart_say_so(run: Path) -> None:
    def breaks(row: Row) -> None:
        if row["seed"] % 5 == 0:
            row |= {"status": "error", "reason": "reset", "first_token_s": None, "token_times_s": [], "end_s": None}

    load_of_int8(change=breaks)(run)
    edit_json(LOAD, lambda v: _restarted(v, "server_metrics"))(run)
    value = judged()
    found = rule_of(value, "errors")
    assert (value["verdict"], found["outcome"]) == ("hold", "fail")
    assert found["detail"].endswith(f"; {WORDS}")
    row = value["diagnosis"][2]
    assert row["suspect"].startswith("failing")


def test_what_is_no_restart_is_not_read_as_one(run: Path) -> None:
    edit_json(LOAD, lambda v: v.update(server_metrics={"restarts": "none"}))(run)
    assert "restarts" in read_tier("int8").problems["load/load.json"]
    assert judged()["verdict"] == "undecided"


def test_finish_reasons_that_cannot_be_believed_are_no_pass(run: Path) -> None:
    words = "90 of 90 answers that end at exactly their limit say 'stop'"
    edit_json(LOAD, lambda v: v["truncation"].update(stop_at_limit={"answers": 90, "words": words}))(run)
    value = judged()
    found = rule_of(value, "truncation")
    assert (value["verdict"], found["outcome"]) == ("undecided", "undecided")
    assert words in found["detail"]
    assert found["would_decide"].startswith("a server that says 'length'")


def _foreign(root: Path) -> None:
    """All tiers by another engine, so that nothing differs but the tier."""
    engine = {"name": "foreign at http://h (unverified)", "digest": "f" * 64}
    for tier in ("bf16", "int8", "int4"):
        for path in ("load/load.json", "eval/eval.json"):
            edit_json(f"results/{tier}/{path}", lambda v: v["header"].update(engine=engine))(root)


def test_a_foreign_server_without_memory_or_books_may_ship(run: Path) -> None:
    """It names its quantisation, but knows nothing of tiers; nor of the ledger, nor of the pool's books."""
    _foreign(run)
    damage("results/int8/plan.json")(run)
    edit_json("results/int8/load/server.json", lambda s: s.update(info=None, metrics_after=None))(run)
    for path in (LOAD, EVAL):
        edit_json(path, lambda v: v["header"]["quantisation"].update(name="unknown (foreign server)"))(run)
    value = judged()
    assert value["verdict"] == "ship", value["reason"]
    for rule in ("ledger", "kv-integrity"):
        found = rule_of(value, rule)
        assert (found["outcome"], found["detail"][:20]) == ("not_applicable", "not measurable here:")
    assert "foreign at http://h (unverified)" in rule_of(value, "provenance")["detail"]


def test_the_samples_of_a_server_that_tells_a_share_and_no_blocks(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    none = pl.lit(None, pl.Int64)
    frame = pl.read_parquet(SAMPLES).with_columns(
        kv_blocks_used=none, kv_blocks_total=none, preemptions_total=none, kv_usage_share=pl.lit(0.97)
    )
    frame.write_parquet(SAMPLES)
    row = judged()["diagnosis"][0]
    assert row["suspect"].startswith("memory")
    assert "KV blocks in use peaked at 97%, preemptions not told" in row["evidence"]
    frame.with_columns(kv_usage_share=pl.lit(None, pl.Float64)).write_parquet(SAMPLES)
    row = judged()["diagnosis"][0]
    assert row["suspect"].startswith("prefill itself")
    assert "use of the KV pool not told, preemptions not told" in row["evidence"]


def _lacks(row: Row) -> None:
    row["lacks"] = None
    if row["kind"] == "choice":
        row |= {"lacks": "prompt_logprobs", "correct": False, "score": 0.0, "status": "error", "choice_logprobs": None}


def test_tasks_that_a_server_cannot_be_asked_are_neither_right_nor_wrong(run: Path) -> None:
    write_items(run, "int8", items("int8", spoil=_lacks))
    value = judged()
    accuracy = rule_of(value, "accuracy")
    assert accuracy["outcome"] == "undecided"  # the margin is for more items than are left
    assert accuracy["detail"].endswith("80 items are not measurable here: prompt_logprobs")
    assert rule_of(value, "divergence")["detail"].endswith("80 items are not measurable here: prompt_logprobs")
    change_params(run, _fewer)
    accuracy = rule_of(judged(), "accuracy")
    assert accuracy["outcome"] in ("pass", "undecided")
    assert accuracy["n"] == 240
    assert accuracy["value"] == 0
    assert accuracy["detail"].endswith("power; 80 items are not measurable here: prompt_logprobs")


def _fewer(raw: dict[str, Any]) -> None:
    for rule in raw["gate"]["policies"][raw["gate"]["policy"]]["rules"]:
        if rule["kind"] == "quality_delta":
            rule["min_items"] = 200


def test_a_pinned_case_that_could_not_be_asked_is_not_lost_and_not_passed(run: Path) -> None:
    def unasked(row: Row) -> None:
        if row["origin"] == "pinned" and row["correct"]:
            row |= {"lacks": "prompt_logprobs", "correct": False, "score": 0.0}

    write_items(run, "int8", items("int8", spoil=unasked))
    found = rule_of(judged(), "pinned")
    assert found["outcome"] == "undecided"
    assert "items are not measurable here: prompt_logprobs" in found["detail"]


def test_a_stage_that_ended_with_an_error_says_why_its_file_is_missing(run: Path) -> None:
    damage(LOAD)(run)
    said = Path(".seatrial/failed/loadtest@int8.txt")
    said.parent.mkdir(parents=True)
    said.write_text("the stream ended without usage;\ntoken counts come from the server alone\n")
    found = rule_of(judged(), "load-client")
    assert found["outcome"] == "undecided"
    assert found["detail"] == (
        "not measured: results/int8/load/load.json is missing; its stage ended with: the stream ended without usage; "
        "token counts come from the server alone"
    )
