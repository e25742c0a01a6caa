"""Linears that stay wider than the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import verify
from engine.config import EngineConfig
from engine.runner import ModelRunner
from pipeline.errors import SeatrialError
from pipeline.quantize.formats import dequantise
from pipeline.quantize.keep import spec_of
from tests.pipeline.quantize.making import AWQ, GPTQ, INT4, SMOOTH, bits, make
from tests.tiny import make_tiny_artifact

KEEP = {"model.layers.first.*": "bf16", "model.layers.last.self_attn.*": "int8", "*.mlp.down_proj": "int8"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("tiny") / "base")


@pytest.mark.parametrize("entry", [INT4, AWQ, GPTQ, SMOOTH, {"recipe": "fp8"}], ids=lambda e: e["recipe"])
def test_kept_linears_are_stored_as_the_manifest_says(base: Path, tmp_path: Path, entry: dict[str, Any]) -> None:
    made = make(entry | {"keep": KEEP}, base, tmp_path)
    tensors, before, specs = bits(made), bits(base), verify(made).linears
    schemes = {}
    for name in (n.removesuffix(".weight") for n in before if n.endswith("_proj.weight")):
        spec = spec_of(specs, name)
        schemes[name] = "bf16" if spec is None else spec.scheme
        own = {n.removeprefix(f"{name}."): t for n, t in tensors.items() if n.startswith(f"{name}.")}
        back, weight = dequantise(own, spec), before[f"{name}.weight"].float()
        error = float((back - weight).norm() / weight.norm())
        if entry in (INT4, GPTQ):  # the others move scales between the linears
            assert error == 0 if spec is None else error < (0.02 if spec.scheme == "w8a16" else 0.2), name
    assert {schemes[n] for n in schemes if ".layers.0." in n} == {"bf16"}
    assert schemes["model.layers.2.self_attn.k_proj"] == schemes["model.layers.1.mlp.down_proj"] == "w8a16"
    assert schemes["model.layers.1.mlp.up_proj"] not in {"bf16", "w8a16"}
    with torch.inference_mode():  # the engine takes it
        ModelRunner(made, EngineConfig(max_model_len=64, memory_limit_bytes=2**28, threads=1))


def test_what_is_kept_loses_nothing(base: Path, tmp_path: Path) -> None:
    whole = make(INT4 | {"keep": {"*": "bf16"}}, base, tmp_path)
    assert all(torch.equal(t, bits(base)[n]) for n, t in bits(whole).items())


@pytest.mark.parametrize("head", ["bf16", "int8"])
@pytest.mark.parametrize("width", ["bf16", "int8"])
def test_a_pattern_for_everything_leaves_the_head_to_its_own_setting(tmp_path: Path, width: str, head: str) -> None:
    untouched = make_tiny_artifact(tmp_path / "base", tie_word_embeddings=False, num_hidden_layers=1)
    made = make(INT4 | {"head": head, "keep": {"*": width}}, untouched, tmp_path)
    spec = spec_of(verify(made).linears, "lm_head")
    assert (None if spec is None else spec.scheme) == (None if head == "bf16" else "w8a8")
    foreign = json.loads((made / "config.json").read_text()).get("quantization_config")
    assert foreign is None or ("lm_head" in foreign["ignore"]) == (head == "bf16")
    ModelRunner(made, EngineConfig(max_model_len=64, memory_limit_bytes=2**28, threads=1))


def test_sizes_that_do_not_fit_may_be_kept(base: Path, tmp_path: Path) -> None:
    entry = INT4 | {"group_size": 64}
    with pytest.raises(SeatrialError, match="down_proj: group_size 64 does not divide"):
        make(entry, base, tmp_path)
    verify(make(entry | {"keep": {"*.down_proj": "int8"}}, base, tmp_path))


def test_a_pattern_that_matches_nothing_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match=r"keep names 'model\.layers\.9\.\*', which matches none of 21 linears"):
        make(INT4 | {"keep": {"model.layers.9.*": "bf16"}}, base, tmp_path)
