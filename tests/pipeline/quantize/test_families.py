"""Every recipe on every family: quantised, served, and held against transformers with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner
from pipeline.quantize.calibrate import calibration_sequences
from tests.engine.runners import compute
from tests.pipeline.quantize.making import (
    AWQ,
    INT4,
    SMOOTH,
    bits,
    check_awq_loses_less_than_rounding,
    eight_bit_activations,
    loaded,
    make,
)
from tests.tiny import CONFIGS, Family, make_tiny_artifact

FAMILIES: tuple[Family, ...] = get_args(Family)
ENGINE = EngineConfig(compute_dtype="float32", max_model_len=256, max_num_seqs=1, threads=2)
# Recipe, and the largest relative error of the logits that it may make. Random weights pass an error on from layer to
# layer undamped; the test at the end looks at each layer by itself.
RECIPES: list[tuple[dict[str, Any], float]] = [
    ({"recipe": "bf16"}, 1e-5),
    ({"recipe": "int8"}, 0.12),
    (SMOOTH | {"calibration_tokens": 256}, 0.12),
    (INT4, 0.75),
    (AWQ | {"calibration_tokens": 256, "grid": 2}, 0.75),
]


def served(artifact: Path, ids: torch.Tensor) -> torch.Tensor:
    runner = ModelRunner(artifact, ENGINE)
    (logits,) = compute(runner, [BatchEntry("a", ids.tolist(), 0, list(range(-(-len(ids) // 16))), "all")])
    assert logits is not None
    return logits


@pytest.mark.parametrize(
    ("entry", "limit"), RECIPES, ids=lambda e: f"{e['recipe']}-{'smoothing' in e}" if isinstance(e, dict) else ""
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_model_serves_what_its_weights_say(
    tmp_path: Path, family: Family, entry: dict[str, Any], limit: float
) -> None:
    change = {"attention_bias": True} if "attention_bias" in CONFIGS[family] else {}
    base = make_tiny_artifact(tmp_path / "base", family=family, **change)
    made = make(entry, base, tmp_path)
    assert json.loads((made / "config.json").read_text())["architectures"] == CONFIGS[family]["architectures"]
    ids = calibration_sequences("v1", base, 256, 512)[0][:100]
    found, before = served(made, ids), served(base, ids)
    twin = loaded(made)
    if entry["recipe"] == "int8":
        eight_bit_activations(twin)
    with torch.no_grad():
        expected = twin(ids[None]).logits[0]
    difference = float((found - expected).norm() / expected.norm())
    error = float((found - before).norm() / before.norm())
    assert difference < (0.03 if entry["recipe"] == "int8" else 1e-5)  # a step of 8 bits may fall to the other side
    assert error < limit


@pytest.mark.parametrize("family", FAMILIES)
def test_what_no_recipe_may_touch_stays(tmp_path: Path, family: Family) -> None:
    base = make_tiny_artifact(tmp_path / "base", family=family)
    want = bits(base)
    for entry, _ in RECIPES[1:]:
        found = bits(make(entry, base, tmp_path))
        kept = ["model.embed_tokens.weight", "model.norm.weight"]
        kept += [n for n in want if n.endswith(("q_norm.weight", "k_norm.weight", "post_feedforward_layernorm.weight"))]
        kept += [n for n in want if family == "gemma3" and n.endswith("post_attention_layernorm.weight")]
        kept += [n for n in want if n.endswith(("q_proj.bias", "k_proj.bias"))]
        assert all(torch.equal(found[n], want[n]) for n in kept)
        changed = [n for n in want if n.endswith("norm.weight") and not torch.equal(found[n], want[n])]
        if "smoothing" in entry:  # two a layer: before attention and before the MLP
            assert len(changed) == 6
        else:
            assert bool(changed) is (entry["recipe"] == "awq-int4")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "llama"])  # Llama: test_recipes.py
def test_awq_keeps_the_function_of_every_layer_and_loses_less_than_rounding(tmp_path: Path, family: Family) -> None:
    base = make_tiny_artifact(tmp_path / "base", family=family)
    check_awq_loses_less_than_rounding(base, tmp_path)
