"""Accuracy and flips beside a record: only of the build that the record measured, and only of the same questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.fidelity.graded import Graded, graded
from pipeline.fidelity.table import HEADS, markdown


def named(name: str) -> dict[str, str]:
    return {"name": name, "digest": name * 8}


def record(tier: str = "int8", kv: str = "bfloat16") -> dict[str, Any]:
    held_out = {"perplexity": 20.0, "kl_mean": 0.02, "kl_p99": 0.2, "top1_agreement": 0.9}
    return {
        "variant": tier,
        "tier": tier,
        "kv_dtype": kv,
        "weight_bytes": 2**20,
        "kv_bytes_per_token": 10,
        "header": {"quantisation": named(tier)},
        "reference": {"variant": "bf16", "quantisation": named("bf16"), "engine_derived": {"kv_dtype": "bfloat16"}},
        "parts": {"held_out": held_out},
        "long": {"slope": None},
        "greedy": {"identical_share": None},
    }


def evaluated(root: Path, tier: str, outcomes: dict[str, bool], evalset: str = "core") -> Path:
    folder = root / "results" / tier / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    head = {"quantisation": named(tier), "workload": named(evalset), "engine_derived": {"kv_dtype": "bfloat16"}}
    accuracy = sum(outcomes.values()) / len(outcomes)
    (folder / "eval.json").write_text(json.dumps({"accuracy": accuracy, "header": head}))
    rows = [json.dumps({"id": i, "correct": c, "answer": "a\u2028b"}, ensure_ascii=False) for i, c in outcomes.items()]
    (folder / "items.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def test_items_that_changed_sides_are_counted_by_direction(tmp_path: Path) -> None:
    evaluated(tmp_path, "bf16", {"a": True, "b": True, "c": False, "d": True})
    evaluated(tmp_path, "int8", {"a": False, "b": False, "c": True, "d": True})
    assert graded(record(), tmp_path) == Graded(0.5, 4, lost=2, gained=1)
    assert graded(record("bf16"), tmp_path) == Graded(0.75, 4, 0, 0)
    line = markdown([record()], tmp_path).splitlines()[-1]
    assert line.endswith("| 50.00% | -2, +1 |")
    assert line.count("|") == len(HEADS) + 1


def test_what_was_not_asked_of_this_build_is_not_shown(tmp_path: Path) -> None:
    assert graded(record(), tmp_path) is None
    evaluated(tmp_path, "int8", {"a": True})
    assert graded(record(kv="int8"), tmp_path) is None
    other = record()
    other["header"]["quantisation"] = named("int9")
    assert graded(other, tmp_path) is None
    assert markdown([other], tmp_path).endswith("|  |  |")


def test_without_the_same_questions_to_the_reference_there_are_no_flips(tmp_path: Path) -> None:
    evaluated(tmp_path, "int8", {"a": True, "b": False})
    without = Graded(0.5, 2, None, None)
    assert graded(record(), tmp_path) == without
    evaluated(tmp_path, "bf16", {"a": True, "b": True}, evalset="other")
    assert graded(record(), tmp_path) == without
    evaluated(tmp_path, "bf16", {"a": True})
    assert graded(record(), tmp_path) == without


@pytest.mark.parametrize(("name", "content"), [("eval.json", "{"), ("eval.json", "[]"), ("items.jsonl", "{}\n")])
def test_results_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: str) -> None:
    (evaluated(tmp_path, "int8", {"a": True}) / name).write_text(content)
    with pytest.raises(SeatrialError, match=r"results/int8/eval cannot be read \(\w+: .*evaluate int8 again"):
        graded(record(), tmp_path)
