"""The layer of the recipes against the one of transformers, and the folding of scales, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.errors import SeatrialError
from pipeline.quantize.decoder import INPUTS, DecoderLayers
from pipeline.quantize.folding import folded_rows, realised, stored_norms
from pipeline.weights import TensorFiles
from tests.tiny import CONFIG, CONFIGS, LLAMA3, Family, make_tiny_artifact

FAMILIES: tuple[Family, ...] = get_args(Family)
FULL, SLIDING = "full_attention", "sliding_attention"
NESTED = {FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}
CHANGES: list[tuple[Family, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"rope_scaling": LLAMA3}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("mistral", {}),
    ("mistral", {"sliding_window": None, "head_dim": None}),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": False}),
    ("qwen2", {"layer_types": [SLIDING, FULL, SLIDING]}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True}),
    ("gemma3", {}),
    ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("gemma3", {"layer_types": [FULL, SLIDING, FULL], "rope_parameters": NESTED}),
]


def weights_of(model: torch.nn.Module, i: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{i}."
    return {n.removeprefix(prefix): w for n, w in model.state_dict().items() if n.startswith(prefix)}


@pytest.mark.parametrize(("family", "change"), CHANGES)
def test_layers_agree_with_transformers(tmp_path: Path, family: Family, change: dict[str, Any]) -> None:
    """On a sequence longer than the window."""
    sized = CONFIGS[family] | {k: v for k, v in change.items() if v is not None}
    artifact = make_tiny_artifact(tmp_path, family=family, **{k: v for k, v in change.items() if k != "head_dim"})
    model = AutoModelForCausalLM.from_pretrained(artifact, dtype=torch.float32)
    layers = DecoderLayers(CONFIGS[family] | change)
    ids = torch.arange(90) * 7 % 250
    seen: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        want = model.model(ids[None], output_hidden_states=True).hidden_states
    x = layers.embed(model.state_dict()["model.embed_tokens.weight"], ids)
    assert torch.allclose(x, want[0][0])
    for i in range(3):
        x = layers.forward(i, weights_of(model, i), x, seen.__setitem__)
        if i < 2:  # the last of transformers' states has passed the final norm
            assert torch.allclose(x, want[i + 1][0], rtol=1e-4, atol=1e-3), i
    last = layers.norm(x, model.state_dict()["model.norm.weight"])
    assert torch.allclose(last, want[-1][0], rtol=1e-4, atol=1e-3)
    attended = sized["num_attention_heads"] * sized["head_dim"]
    hidden = sized["hidden_size"]
    assert {n: h.shape[1] for n, h in seen.items()} == {"qkv": hidden, "o": attended, "gate_up": hidden, "down": 160}
    assert set(INPUTS) == set(seen)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_folded_scales_leave_the_function_as_it_was(tmp_path: Path, family: Family, biases: bool) -> None:
    """Without any rounding of linears: only what the recipes do to inputs, norms, rows and biases."""
    change = {k: True for k in ("attention_bias", "mlp_bias") if biases and k in CONFIGS[family]}
    files = TensorFiles(make_tiny_artifact(tmp_path, family=family, **change))
    layers = DecoderLayers(CONFIGS[family] | change)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(60, CONFIGS[family]["hidden_size"], generator=g)
    for i in range(3):
        prefix = f"model.layers.{i}."
        weights = {n.removeprefix(prefix): files.read(n).float() for n in files.names() if n.startswith(prefix)}
        columns = {}
        for source, names in INPUTS.items():
            wished = torch.exp(torch.randn(weights[f"{names[0]}.weight"].shape[1], generator=g))  # 1/8 to 8 or so
            columns[source] = realised(source, wished, weights, layers)
            assert columns[source].log().std() > 0.4, source
        rows = folded_rows(columns, layers)
        changed = dict(weights)
        changed |= {n: w.float() for n, w in stored_norms(weights, columns, layers).items()}
        for source, names in INPUTS.items():
            for name in names:
                changed[f"{name}.weight"] = weights[f"{name}.weight"] * columns[source]
                if name in rows:
                    changed[f"{name}.weight"] /= rows[name][:, None]
                    if f"{name}.bias" in weights:
                        changed[f"{name}.bias"] = weights[f"{name}.bias"] / rows[name]
        want = layers.forward(i, weights, x, lambda name, h: None)
        got = layers.forward(i, changed, x, lambda name, h: None)
        assert set(changed) == set(weights)
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-3)


def test_what_calibration_cannot_run_is_refused_by_name() -> None:
    with pytest.raises(SeatrialError, match=r"hidden_act is 'gelu'; calibration runs layers with silu, gelu_pytorch"):
        DecoderLayers(CONFIG | {"hidden_act": "gelu"})
    with pytest.raises(SeatrialError, match="unknown architecture MambaForCausalLM; known: LlamaForCausalLM, "):
        DecoderLayers(CONFIG | {"architectures": ["MambaForCausalLM"]})
    with pytest.raises(SeatrialError, match=r"config\.json has no sliding_window_pattern"):
        DecoderLayers({k: v for k, v in CONFIGS["gemma3"].items() if k != "sliding_window_pattern"})
