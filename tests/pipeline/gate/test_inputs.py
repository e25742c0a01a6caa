"""Records that are missing, torn or not what a stage writes: said, never passed, never a crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.gate.inputs import FILES, IN_SERVICE, RESULTS, REVIEW, input_digests, read_tier
from tests.pipeline.gate.helpers import Plant, change_params, damage, edit_json, judged, rule_of

INT8 = "results/int8"


def test_a_clean_run_has_no_problem(run: Path) -> None:
    tier = read_tier("int8")
    assert tier.problems == {}
    assert tier.header("evaluation") is not None
    absent = {name for name, digest in input_digests(["int8"]).items() if digest is None}
    again = {f"results/{IN_SERVICE}/eval/{name}" for name in ("eval.json", "items.jsonl")}
    assert absent == {REVIEW.as_posix(), *again}  # nobody was asked, and the set is that of the release in service


def _records(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Plant:
    def edit(root: Path) -> None:
        path = root / INT8 / "load/records.parquet"
        change(pl.read_parquet(path)).write_parquet(path)

    return edit


def _first(column: str, value: Any) -> Plant:
    """One measured request gets another value."""
    first = pl.int_range(pl.len()) == 0
    return _records(lambda d: d.with_columns(pl.when(first).then(value).otherwise(pl.col(column)).alias(column)))


def _times(*times: float | None) -> Plant:
    return _first("token_times_s", pl.lit(pl.Series([list(times)], dtype=pl.List(pl.Float64))).first())


def _items(change: Callable[[list[dict[str, Any]]], Any]) -> Plant:
    def edit(root: Path) -> None:
        path = root / INT8 / "eval/items.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        change(rows)
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))

    return edit


NAN = float("nan")
RECORDS, LOAD, EVAL, ITEMS = "load/records.parquet", "load/load.json", "eval/eval.json", "eval/items.jsonl"
BROKEN: dict[str, tuple[Plant, str, str]] = {
    # what: (how, file, words)
    "no rows, no columns": (_records(lambda d: pl.DataFrame()), RECORDS, "no column 'request_id'"),
    "no rows": (_records(lambda d: d.clear()), RECORDS, "0 measured requests in long_context, but"),
    "a column of text": (_records(lambda d: d.cast({"due_s": pl.String})), RECORDS, "'due_s' is String"),
    "slow ones dropped": (_records(lambda d: d.slice(5)), RECORDS, "145 measured requests in short_bur"),
    "one twice": (_records(lambda d: pl.concat([d, d.head(1)])), RECORDS, "stands in it twice"),
    "a due time of NaN": (_first("due_s", NAN), RECORDS, "'due_s' holds what is not"),
    "no due time": (_first("due_s", None), RECORDS, "no due time"),
    "an end of infinity": (_first("end_s", float("inf")), RECORDS, "'end_s' holds what is not"),
    "a token at NaN": (_times(0.1, NAN), RECORDS, "the token times of request short_burst-0"),
    "a token at no time": (_times(0.1, None), RECORDS, "the token times of request short_burst-0"),
    "time backwards": (_times(0.5, 0.2), RECORDS, "the token times of request short_burst-0"),
    "a token before its time": (_times(-1.0, 0.2), RECORDS, "the token times of request short_burst-0"),
    "an unknown status": (_first("status", pl.lit("fine")), RECORDS, "status 'fine' is none of ok, error"),
    "no status": (_first("status", None), RECORDS, "status 'null' is none of"),
    "NaN in load.json": (
        edit_json(f"{INT8}/{LOAD}", lambda v: v["overall"].update(output_tokens_per_s=NAN)),
        LOAD, "NaN is not a figure",
    ),
    "no client": (edit_json(f"{INT8}/{LOAD}", lambda v: v.pop("client")), LOAD, "client: Field req"),
    "no stages": (edit_json(f"{INT8}/{LOAD}", lambda v: v.pop("stages")), LOAD, "stages: Field req"),
    "a list": (damage(f"{INT8}/{LOAD}", b"[]"), LOAD, "expected an object, found list"),
    "no text": (damage(f"{INT8}/{EVAL}", b"\xff\xfe\x00"), EVAL, "cannot be read"),
    "an accuracy of 45": (
        edit_json(f"{INT8}/{EVAL}", lambda v: v.update(accuracy=45)), EVAL, "accuracy: Input should"
    ),
    "not whether partial": (
        edit_json(f"{INT8}/{EVAL}", lambda v: v.pop("partial")), EVAL, "partial: Field required"
    ),
    "a score of NaN": (_items(lambda rows: rows[0].update(score=NAN)), ITEMS, "line 1: NaN is not a figure"),
    "a score of 2": (_items(lambda rows: rows[3].update(score=2.0)), ITEMS, "3.score: Input should be less"),
    "an item twice": (_items(lambda rows: rows.append(rows[0])), ITEMS, "item facts-00 stands in it twice"),
    "items dropped": (_items(lambda rows: rows.pop()), ITEMS, "it has 319 items, but eval.json counts 320"),
    "scores changed": (_items(lambda rows: rows[1].update(score=1.0)), ITEMS, "but eval.json says 0.5000"),
    "no source": (_items(lambda rows: rows[1].pop("source")), ITEMS, "1.source: Field required"),
    "a plan of nothing": (
        edit_json(f"{INT8}/plan.json", lambda v: v["ledger"].update(weights_bytes=0)), "plan.json", "weights_bytes"
    ),
    "no ledger": (edit_json(f"{INT8}/plan.json", lambda v: v.pop("ledger")), "plan.json", "ledger: Field required"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_as_good_as_absent_and_is_never_passed(run: Path, what: str) -> None:
    plant, name, words = BROKEN[what]
    plant(run)
    found = read_tier("int8").problems
    assert list(found) == [name] or (name == "load/load.json" and name in found)
    assert words in found[name]
    value = judged()
    assert value["verdict"] == ("ship" if name == "plan.json" else "undecided"), value["reason"]  # memory only advises
    if name == "plan.json":
        assert rule_of(value, "ledger")["outcome"] == "undecided"
    assert value["tiers"]["bf16"]["verdict"] == "ship"


@pytest.mark.parametrize(
    "name", [f for f in FILES if f not in {"plan.json", "load/samples.parquet", "load/server.json"}]
)
@pytest.mark.parametrize("tier", ["int8", "bf16"])
def test_each_file_is_needed(run: Path, tier: str, name: str) -> None:
    damage(f"results/{tier}/{name}")(run)
    value = judged()
    of_reference_only = tier == "bf16" and name.startswith("load/rec")
    assert value["verdict"] == ("ship" if of_reference_only else "undecided"), value["reason"]
    assert value["tiers"][tier]["verdict"] == "undecided"


def test_no_results_at_all_is_undecided(run: Path) -> None:
    import shutil

    shutil.rmtree(run / RESULTS)
    value = judged()
    assert {t["verdict"] for t in value["tiers"].values()} == {"undecided"}
    judged_rules = [r for r in value["tiers"]["int8"]["rules"] if r["group"] != "evalset"]  # its report is still there
    assert {r["outcome"] for r in judged_rules} == {"undecided", "not_applicable"}
    assert {d["finding"] for d in value["diagnosis"]} == {"not measured"}
    assert value["attempts"] == []


def test_only_what_blocks_decides_and_nothing_judged_is_no_ship(run: Path) -> None:
    def advise(raw: dict[str, Any]) -> None:
        for rule in raw["gate"]["policies"]["pull_request"]["rules"]:
            rule["severity"] = "advisory"

    change_params(run, advise)
    value = judged()
    assert value["verdict"] == "undecided"
    assert value["reason"] == "int8 is undecided: no blocking rule could be judged."


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_is_never_a_crash(run: Path, seed: int) -> None:
    rng = random.Random(seed)
    for name in FILES:
        path = run / INT8 / name
        raw = bytearray(path.read_bytes())
        for _ in range(rng.randint(1, 30)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        if rng.random() < 0.3:
            raw = raw[: rng.randrange(len(raw))]
        path.write_bytes(bytes(raw))
    value = judged()
    assert value["verdict"] in {"hold", "undecided"}
