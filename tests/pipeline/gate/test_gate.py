"""A clean run ships; each planted fault is held or left undecided, and the rule that saw it is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.gate.verdict import VERDICT, verdict_exit_code
from tests.pipeline.gate.factory import Row, header, items, records, write_items, write_load
from tests.pipeline.gate.helpers import (
    Plant,
    change_params,
    damage,
    edit_json,
    fails_one_in_ten,
    items_of_int8,
    judged,
    load_of_int8,
    loses_a_pinned_case,
    rule_of,
    slow,
)


def test_a_clean_run_ships_twice(run: Path) -> None:
    for _ in range(2):
        value = judged()
        assert value["verdict"] == "ship", value["reason"]
        assert {t: v["verdict"] for t, v in value["tiers"].items()} == {"bf16": "ship", "int8": "ship", "int4": "ship"}
        assert len(value["attempts"]) == 1  # the same measurements judged again are one attempt
    baseline = rule_of(value, "accuracy-baseline")
    assert (baseline["outcome"], baseline["detail"]) == (
        "not_applicable", "no baseline yet: nothing has been released",
    )  # fmt: skip
    assert [r["suspect"] for r in value["diagnosis"]] == ["none"] * 4
    assert verdict_exit_code(VERDICT)[0] == 0


@pytest.mark.parametrize("seed", range(5))
def test_two_runs_of_the_same_build_both_pass(run: Path, seed: int) -> None:
    for tier in ("bf16", "int8"):
        write_load(run, tier, records(100 + 2 * seed + (tier == "int8")))
    value = judged()
    assert {value["tiers"][t]["verdict"] for t in ("bf16", "int8")} == {"ship"}, value["reason"]


def test_the_reference_has_no_quality_to_lose(run: Path) -> None:
    rules = judged()["tiers"]["bf16"]["rules"]
    quality = [r for r in rules if r["group"] == "quality"]
    assert quality
    assert {r["outcome"] for r in quality} == {"not_applicable"}
    assert {r["outcome"] for r in rules if r["group"] == "latency" and r["severity"] == "blocking"} == {"pass"}


def _shorter(row: Row) -> None:
    row["output_tokens"] //= 2


def _drifts(row: Row) -> None:
    """The likelihoods of a fifth of the choices move while no answer flips yet."""
    if row["kind"] == "choice" and int(row["id"].rpartition("-")[2]) % 5 == 0:
        row["choice_logprobs"] = [-0.5, -9.0]


def _does_not_stop(row: Row) -> None:
    if row["kind"] != "choice" and int(row["id"].rpartition("-")[2]) % 3 == 0:
        row["finish_reason"] = "length"


def _cut_short(row: Row) -> None:
    if row["seed"] % 8 == 0:
        row["output_tokens"], row["token_times_s"] = 4, row["token_times_s"][:4]


def _wave(row: Row) -> None:
    """Ten requests in a row are late, once in a stage: one event, not ten."""
    if 100 <= row["seed"] < 110:
        slow(30, "ttft")(row)


def _two_things_changed(root: Path) -> None:
    write_items(root, "int8", items("int8"), header=header("int8", "core-v1", engine="e!2"))
    write_load(root, "int8", records(1), header=header("int8", "ci-load", engine="e!2"))


def _one_item_fewer(root: Path) -> None:
    write_items(root, "int8", items("int8")[1:])


def _one_pinned_case_fewer(root: Path) -> None:
    write_items(root, "int8", [i for i in items("int8") if i["id"] != "facts-02"])


def _results_of_another_tier(root: Path) -> None:
    write_items(root, "int8", items("int8"), header=header("int4", "core-v1"))
    write_load(root, "int8", records(1), header=header("int4", "ci-load"))


def _leak(report: Row) -> None:
    report["checks"][0] |= {"success": False, "examples": ["facts-03"]}


def _smaller_set_everywhere(root: Path) -> None:
    for tier in ("bf16", "int8", "int4"):
        write_items(root, tier, [i for i in items(tier) if i["scenario"] != "sums"])


def _short_choice_set(root: Path) -> None:
    for tier in ("bf16", "int8", "int4"):
        write_items(root, tier, [i for i in items(tier) if i["kind"] == "choice"])


def _planted(root: Path) -> None:
    write_load(root, "int8", records(1), header=header("int8", "ci-load") | {"engine_derived": {"seam": "drill:Slow"}})


def _newer_set_everywhere(root: Path) -> None:
    for tier in ("bf16", "int8", "int4"):
        write_items(root, tier, items(tier), header=header(tier, "core-v2"))


def _other_bytes(load: dict[str, Any]) -> None:
    load["truncation"]["paired"].update(same=7, different=1)
    load["truncation"]["words"] = "7 of 8 prompts gave the same bytes idle as under load"


def _no_pairs(load: dict[str, Any]) -> None:
    load["truncation"]["paired"].update(n=0, same=0)


def _shorter_elsewhere(load: dict[str, Any]) -> None:
    load["truncation"] |= {"deterministic": False, "words": "8 pairs: 0.9 times as long under load as idle"}
    load["truncation"]["paired"].update(same=0, different=8, shorter=8, interval=[0.85, 0.95], p_value=1e-4)


_VOID = {"client": {"void": True, "void_reason": "lag 40 ms"}}
_EVAL, _RECORDS = "results/int8/eval/eval.json", "results/int8/load/records.parquet"
_LOAD = "results/int8/load/load.json"
_EVALSET, _SERVER = "reports/evalset.json", "results/int8/load/server.json"

# fault: (how it is planted, the rule that must see it, the outcome, words in what it says)
PLANTED: dict[str, tuple[Plant, str, str, str]] = {
    "slow prefill": (load_of_int8(change=slow(30, "ttft")), "ttft-p95/short_burst", "fail", "limit 3000"),
    "slow decode": (load_of_int8(change=slow(40, "itl")), "itl-p95/short_burst", "fail", "limit 600"),
    "failing requests": (load_of_int8(change=fails_one_in_ten), "errors", "fail", "45 of 450 requests failed (45 tim"),
    "truncation": (load_of_int8(change=_cut_short), "truncation", "fail", "57 of 450 answers have fewer tokens"),
    "other bytes under load": (edit_json(_LOAD, _other_bytes), "truncation", "fail", "7 of 8 prompts gave the same"),
    "no prompt sent again": (edit_json(_LOAD, _no_pairs), "truncation", "undecided", "equal answers are not proven"),
    "shorter under load": (edit_json(_LOAD, _shorter_elsewhere), "truncation", "fail", "0.9 times as long"),
    "a wave of late ones": (load_of_int8(change=_wave), "ttft-p95/short_burst", "undecided", "10 of 150 requests over"),
    "too few requests": (load_of_int8(count=10), "ttft-p95/short_burst", "undecided", "more requests of this kind"),
    "no measured request": (load_of_int8(count=0), "ttft-p95/short_burst", "undecided", "no measured requests"),
    "a worse model": (items_of_int8(flips=(40, 2)), "accuracy", "fail", "40 items lost and 2 gained"),
    "a slightly worse model": (items_of_int8(flips=(26, 10)), "accuracy", "undecided", "more items like these"),
    "a pinned case lost": (items_of_int8(spoil=loses_a_pinned_case), "pinned", "fail", "lost: sums-00 (passes in bf16"),
    "a pinned case left out": (_one_pinned_case_fewer, "pinned", "undecided", "for instance facts-02"),
    "shorter answers": (items_of_int8(spoil=_shorter), "answer-length", "fail", "tokens against"),
    "answers without end": (items_of_int8(spoil=_does_not_stop), "cut-off", "fail", "whole answers lost"),
    "a leaked item": (edit_json(_EVALSET, _leak), "evalset", "fail", "facts-03"),
    "a set of no health": (edit_json(_EVALSET, lambda r: r.update(success=False)), "evalset", "fail", "not healthy"),
    "a set without checks": (edit_json(_EVALSET, lambda r: r.update(checks=[])), "evalset", "undecided", "no check"),
    "another set checked": (edit_json(_EVALSET, lambda r: r["evalset"].update(version="0")), "evalset", "fail", "v0"),
    "another evalset": (items_of_int8(header=header("int8", "core-v2")), "accuracy", "undecided", "not the same items"),
    "a margin of an old set": (_newer_set_everywhere, "accuracy", "undecided", "chosen for core-v1, and core-v2 was"),
    "a margin of a large set": (_smaller_set_everywhere, "accuracy", "undecided", "240 items; the margin is for 300"),
    "few answers": (_short_choice_set, "answer-length", "undecided", "the band is for 150 or more"),
    "an item left out": (_one_item_fewer, "accuracy", "undecided", "asked of one tier only"),
    "two builds": (load_of_int8(header("int8", "ci-load", engine="e!2")), "provenance", "fail", "not one build"),
    "two changes at once": (_two_things_changed, "provenance", "undecided", "confounded: engine, quantisation"),
    "another workload": (
        load_of_int8(header("int8", "ci!2")),
        "provenance",
        "undecided",
        "quantisation, load workload",
    ),
    "results of another tier": (_results_of_another_tier, "provenance", "fail", "holds results of int4"),
    "a planted engine": (_planted, "provenance", "fail", "drill:Slow planted through its seam: never to be released"),
    "no header": (items_of_int8(header={}), "provenance", "fail", "incomplete"),
    "a part of the set": (items_of_int8(partial=True), "provenance", "undecided", "only a part"),
    "a void run": (load_of_int8(run=_VOID), "load-client", "undecided", "lag 40 ms"),
    "a silent client": (load_of_int8(run={"client": {}}), "load-client", "undecided", "nothing of its own health"),
    "a smoke profile": (load_of_int8(run={"profile": "smoke"}), "load-client", "undecided", "decides nothing"),
    "no evaluation": (damage("results/int8/eval/items.jsonl"), "accuracy", "undecided", "is missing"),
    "no load test": (damage(_RECORDS), "errors", "undecided", "is missing"),
    "a torn file": (damage(_RECORDS, b"PAR1"), "errors", "undecided", "cannot be read"),
    "no check of the set": (damage(_EVALSET), "evalset", "undecided", "is missing"),
    "a figure that is none": (damage(_EVAL, b'{"accuracy": no}'), "provenance", "undecided", "cannot be read"),
}
OF_ALL_TIERS = {"a leaked item", "no check of the set", "a set of no health", "a set without checks"}
OF_ALL_TIERS |= {"another set checked"}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught_and_named(run: Path, fault: str) -> None:
    plant, rule, outcome, words = PLANTED[fault]
    plant(run)
    value = judged()
    seen = rule_of(value, rule)
    assert seen["outcome"] == outcome, seen
    assert words in f"{seen['detail']}; {seen['would_decide']}; limit {seen['limit'] or 0:g}"
    verdict = {"fail": "hold", "undecided": "undecided"}[outcome]
    assert value["verdict"] == verdict, value["reason"]
    assert value["tiers"]["bf16"]["verdict"] == (verdict if fault in OF_ALL_TIERS else "ship")
    code, text = verdict_exit_code(VERDICT)
    assert code == {"hold": 1, "undecided": 2}[verdict]
    assert text.startswith(verdict.upper())


def test_likelihoods_that_drift_are_noted_before_an_answer_flips(run: Path) -> None:
    write_items(run, "int8", items("int8", spoil=_drifts))
    value = judged()
    found = rule_of(value, "divergence")
    assert (found["outcome"], found["severity"], value["verdict"]) == ("fail", "advisory", "ship"), found
    assert "16 of 80 items diverge by more than 0.1 nats" in found["detail"]
    assert rule_of(value, "accuracy")["outcome"] == "pass"
    write_items(run, "int8", items("int8", spoil=lambda row: row.update(choice_logprobs=None)))
    found = rule_of(judged(), "divergence")
    assert (found["outcome"], found["detail"][:13]) == ("undecided", "0 items whose")


def test_memory_that_is_not_as_planned_is_noted(run: Path) -> None:
    edit_json(_SERVER, lambda s: s["info"]["memory"].update(kv_pool_bytes=8000))(run)
    value = judged()
    ledger = rule_of(value, "ledger")
    assert (ledger["outcome"], ledger["severity"], round(ledger["value"])) == ("fail", "advisory", 60)
    assert value["verdict"] == "ship"
    assert "of the advisory rules 1 fail" in value["reason"]


def test_a_failed_request_is_in_the_tail_even_when_the_others_are_fast(run: Path) -> None:
    write_load(run, "int8", records(1, change=fails_one_in_ten))
    ttft = rule_of(judged(), "ttft-p95/short_burst")
    assert ttft["value"] is None  # the P95 is infinite: not a number, and not 0
    assert ttft["outcome"] in {"fail", "undecided"}


def test_a_slower_machine_with_a_short_but_calm_run_is_decided(run: Path) -> None:
    """55 requests a stage, twice as slow: too few for a P95 at the limit, far enough below it to say so."""

    def twice(row: Row) -> None:
        slow(2, "ttft")(row)
        slow(2, "itl")(row)

    for tier in ("bf16", "int8"):
        write_load(run, tier, records(1, count=55, change=twice))
    value = judged()
    ttft = rule_of(value, "ttft-p95/short_burst")
    assert (ttft["outcome"], value["verdict"]) == ("pass", "ship"), ttft
    assert "cannot be judged at 3000 ms itself" in ttft["detail"]


def test_a_stage_without_a_limit_is_said(run: Path) -> None:
    def forget(raw: Row) -> None:
        del raw["gate"]["policies"]["pull_request"]["rules"][0]["limits_ms"]["mixed_random"]

    change_params(run, forget)
    found = rule_of(judged(), "ttft-p95/mixed_random")
    assert found["outcome"] == "not_applicable"
    assert "sets no limit for stage mixed_random" in found["detail"]


def test_a_fail_that_chance_explains_among_so_many_tests_does_not_hold(run: Path) -> None:
    """12 of 150 in one stage over the limit: p = 0.03 by itself, and 13 tests were looked at."""

    def late(row: Row) -> None:
        if row["stage"] == "short_burst" and row["seed"] % 11 == 5:
            slow(60, "ttft")(row)

    write_load(run, "int8", records(1, change=late))
    value = judged()
    ttft = rule_of(value, "ttft-p95/short_burst")
    assert ttft["p_value"] < 0.05, ttft
    assert ttft["outcome"] == "undecided"
    assert "may by chance" in ttft["detail"]
    assert value["verdict"] == "undecided"


@pytest.mark.parametrize("spoil", [None, loses_a_pinned_case])
def test_pinned_cases_that_never_passed_are_nothing_to_lose(run: Path, spoil: Callable[[Row], None] | None) -> None:
    def none_passes(row: Row) -> None:
        if row["origin"] == "pinned":
            row["correct"], row["score"] = False, 0.0

    for tier in ("bf16", "int8"):
        write_items(run, tier, items(tier, spoil=none_passes))
    found = rule_of(judged(), "pinned")
    assert (found["outcome"], found["detail"][:15]) == ("not_applicable", "nothing to lose")
