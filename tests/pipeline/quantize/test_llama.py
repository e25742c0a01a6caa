"""The layer of the recipes against the one of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.errors import SeatrialError
from pipeline.quantize.llama import INPUTS, LlamaLayers, rotary_frequencies
from tests.tiny import CONFIG, make_tiny_artifact

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ],
)
def test_layers_agree_with_transformers(tmp_path: Path, change: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny_artifact(tmp_path, **change), dtype=torch.float32)
    layers = LlamaLayers(CONFIG | change)
    ids = torch.arange(90) * 7 % 250
    seen: dict[str, torch.Tensor] = {}
    weights = model.state_dict()
    x = weights["model.embed_tokens.weight"][ids]
    with torch.no_grad():
        want = model.model(ids[None], output_hidden_states=True).hidden_states
    for i in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        x = layers.forward(own, x, seen.__setitem__)
        if i + 1 < CONFIG["num_hidden_layers"]:  # the last of transformers' states has passed the final norm
            assert torch.allclose(x, want[i + 1][0], rtol=1e-4, atol=1e-3), i
    last = layers._norm(x, weights["model.norm.weight"])
    assert torch.allclose(last, want[-1][0], rtol=1e-4, atol=1e-3)
    assert {name: h.shape[1] for name, h in seen.items()} == {"qkv": 64, "o": 64, "gate_up": 64, "down": 160}
    assert set(INPUTS) == set(seen)


def test_unknown_scaling_and_activation_are_refused() -> None:
    with pytest.raises(
        SeatrialError, match=r"rotary scaling 'yarn' is not known to calibration; known: default, linear"
    ):
        rotary_frequencies(CONFIG | {"rope_scaling": {"rope_type": "yarn"}}, 16)
    with pytest.raises(SeatrialError, match="hidden_act is 'gelu'"):
        LlamaLayers(CONFIG | {"hidden_act": "gelu"})
