"""Cosines and sines against transformers', for each scaling, in both forms of config.json."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.artifact import ArtifactError
from engine.layers.rope import RotaryTable

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: list[dict[str, Any]] = [
    {"rope_theta": 10000.0},
    {"rope_theta": 500000.0, "rope_scaling": None},
    {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    {"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}},
    {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3}},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_equals_transformers(config: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    oracle = LlamaRotaryEmbedding(LlamaConfig(**sizes, max_position_embeddings=512, **config))
    positions = torch.tensor([0, 1, 63, 64, 200, 511])
    cos, sin = RotaryTable(config, head_dim=32, positions=512)(positions)
    want_cos, want_sin = oracle(torch.zeros(1, 6, 32), positions[None])
    assert torch.allclose(cos, want_cos[0], atol=1e-5)
    assert torch.allclose(sin, want_sin[0], atol=1e-5)


def test_unknown_scaling_is_refused_with_the_known_ones() -> None:
    config = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    with pytest.raises(ArtifactError, match="rope scaling 'yarn'; this version has default, linear, llama3"):
        RotaryTable(config, 32, 64)


def test_a_scaling_without_its_parameters() -> None:
    with pytest.raises(ArtifactError, match="rope scaling 'linear' has no 'factor'"):
        RotaryTable({"rope_scaling": {"rope_type": "linear"}}, 32, 64)
