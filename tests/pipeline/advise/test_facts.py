"""What is read, from files as the stages write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.artifact import ArtifactError
from engine.config import EngineConfig
from engine.ledger import ModelShape
from pipeline.advise.facts import Facts, narrow_kv, read_facts
from pipeline.errors import SeatrialError
from tests.tiny import make_tiny_artifact


def row(name: str, **more: object) -> str:
    base = {"id": name, "scenario": "a", "source": "s", "origin": "written", "score": 1.0, "detail": {}}
    return json.dumps(base | more) + "\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for tier in ("bf16", "int8"):
        make_tiny_artifact(tmp_path / "artifacts" / tier, tier)  # type: ignore[arg-type]
        folder = tmp_path / "results" / tier / "eval"
        folder.mkdir(parents=True)
        (folder / "items.jsonl").write_text(
            row("x-1") + row("x-2", origin="pinned", score=0.0, detail={"margin": -0.25})
        )
    (tmp_path / "reports/fidelity").mkdir(parents=True)
    (tmp_path / "reports/fidelity/int8.json").write_text(json.dumps({"parts": {"held_out": {"kl_mean": 0.02}}}))
    return tmp_path


def facts_of(root: Path, tiers: list[str]) -> Facts:
    return read_facts(root, "bf16", tiers, EngineConfig(), "bfloat16", "bfloat16")


def test_facts_are_read(root: Path) -> None:
    found = facts_of(root, ["bf16", "int8"])
    assert [t.tier for t in found.tiers] == ["int8"]
    int8 = found.tiers[0]
    assert (int8.kl_mean, found.reference.kl_mean) == (0.02, None)
    assert int8.weight_bytes < found.reference.weight_bytes
    assert int8.items is not None
    assert (int8.items["x-2"].pinned, int8.items["x-2"].margin, int8.items["x-1"].margin) == (True, -0.25, None)
    assert found.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2
    assert found.kv_narrow_bytes_per_token == {"int8": 2 * 3 * 2 * (16 + 4), "int4": 2 * 3 * 2 * (8 + 4)}
    odd = ModelShape(layers=1, hidden=9, heads=3, kv_heads=3, head_dim=3, intermediate=8, vocab=9)
    assert narrow_kv(odd).keys() == {"int8"}


def test_what_cannot_be_used_is_named(root: Path) -> None:
    items = root / "results/int8/eval/items.jsonl"
    items.write_text(row("x-1"))
    with pytest.raises(SeatrialError, match=r"int8/eval/items\.jsonl and .*bf16.* hold different items"):
        facts_of(root, ["int8"])
    items.write_text("{}\n")
    with pytest.raises(SeatrialError, match=r"results of int8 cannot be read \(KeyError: 'score'"):
        facts_of(root, ["int8"])
    items.unlink()
    assert facts_of(root, ["int8"]).tiers[0].items is None
    with pytest.raises(ArtifactError, match="fp8 is not a directory"):
        facts_of(root, ["fp8"])
