"""The default model in every scheme, as transformers with compressed-tensors loads and computes it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import read_manifest
from pipeline.quantize.formats import dequantise
from pipeline.quantize.keep import spec_of
from tests.pipeline.quantize.making import bits, make
from tests.pipeline.quantize.portability import (
    MAX_ERROR_RATIO,
    MAX_KL,
    ROUNDED_ACTIVATIONS,
    by_engine,
    by_transformers,
    distance,
    engines_step,
    load_transformers,
    mean_kl,
    prompts,
    token_ids,
)

pytestmark = pytest.mark.slow

TOKENS = 8  # of each prompt, at most
INT8: dict[str, Any] = {"recipe": "int8", "smoothing": None}
INT4: dict[str, Any] = {"recipe": "int4", "group_size": 64, "symmetric": True}
TIERS: dict[str, dict[str, Any]] = {
    "bf16": {"recipe": "bf16"},
    "int8": INT8,
    "int8-h8": INT8 | {"head": "int8"},
    "fp8": {"recipe": "fp8"},
    "int4-g64": INT4,
    "int4-g64-h8": INT4 | {"head": "int8"},
    "int4-g64-a8": INT4 | {"activations": "int8"},
    "int4-g64-mixed": INT4 | {"keep": {"model.layers.first.*": "bf16", "*.mlp.down_proj": "int8"}},
}


@pytest.mark.parametrize("tier", TIERS)
def test_transformers_loads_it_and_computes_what_the_engine_computes(
    real_model_dir: Path, tmp_path: Path, tier: str
) -> None:
    artifact = make(TIERS[tier], real_model_dir, tmp_path, tier)
    sequences = [ids[:TOKENS] for ids in token_ids(artifact, prompts())]
    assert len(sequences) == 50
    ours, ours16 = (by_engine(artifact, dtype, sequences) for dtype in ("float32", "bfloat16"))
    model, model16 = load_transformers(artifact, "float32"), load_transformers(artifact, "bfloat16")
    with engines_step():
        theirs, theirs16 = by_transformers(model, sequences), by_transformers(model16, sequences)
        check_weights(artifact, model)
        exact = theirs
        if any(s.scheme in ROUNDED_ACTIVATIONS and s.pattern != "lm_head" for s in read_manifest(artifact).linears):
            exact = by_transformers(load_transformers(artifact, "float64"), sequences)
            assert mean_kl(exact, ours) <= MAX_ERROR_RATIO * mean_kl(exact, theirs)
        else:
            assert mean_kl(theirs, ours) < MAX_KL
    assert distance(ours16, exact) <= MAX_ERROR_RATIO * distance(theirs16, exact)


def test_transformers_loads_zero_points(real_model_dir: Path, tmp_path: Path) -> None:
    """It rounds the dequantised weights to the bf16 of their scales, which the engine does not; so must the check."""
    artifact = make(INT4 | {"symmetric": False}, real_model_dir, tmp_path, "int4")
    model, manifest, tensors = load_transformers(artifact, "float32"), read_manifest(artifact), bits(artifact)
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    assert len(linears) == 210
    for name, module in linears.items():
        own = {t.rpartition(".")[2]: v for t, v in tensors.items() if t.rpartition(".")[0] == name}
        expected = dequantise(own, spec_of(manifest.linears, name)).to(torch.bfloat16).float()
        assert torch.equal(module.weight, expected), name
    sequences = [ids[:TOKENS] for ids in token_ids(artifact, prompts())]
    assert mean_kl(by_transformers(model, sequences), by_engine(artifact, "float32", sequences)) < 1e-3


def check_weights(artifact: Path, model: torch.nn.Module) -> None:
    """Every linear's weights after decompression are, to the bit, what our own reading of its tensors gives."""
    manifest, tensors = read_manifest(artifact), bits(artifact)
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    stored = {n: m for n, m in linears.items() if any(fnmatchcase(n, s.pattern) for s in manifest.linears)}
    assert len(stored) >= (210 if manifest.linears else 0)
    for name, module in stored.items():
        own = {t.rpartition(".")[2]: v for t, v in tensors.items() if t.rpartition(".")[0] == name}
        assert torch.equal(module.weight.data, dequantise(own, spec_of(manifest.linears, name))), name
