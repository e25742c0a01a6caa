"""The Llama family against transformers in float32, on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import ArtifactError
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.kernels.errors import UnavailableError
from engine.runner import ModelRunner
from tests.engine.compute import compute
from tests.tiny import make_tiny_artifact

VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "no grouping": {"num_key_value_heads": 4},
    "one KV head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 40},
    "llama3 rope": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "odd sizes": {"hidden_size": 72, "intermediate_size": 100, "vocab_size": 263},
}  # fmt: skip
CONFIG = EngineConfig(compute_dtype="float32", max_model_len=256, max_num_seqs=2, threads=2)


@pytest.mark.parametrize("without_compiler", [False, True], ids=["cpu", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, without_compiler: bool
) -> None:
    from transformers import LlamaForCausalLM

    make_tiny_artifact(tmp_path, **VARIANTS[variant])
    oracle = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = [(37 * i + 11) % 256 for i in range(90)]
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
    if without_compiler:
        monkeypatch.setenv("PATH", "")
    runner = ModelRunner(tmp_path, CONFIG)
    assert runner.derived["kernels"] == ("reference" if without_compiler else "cpu")
    (found,) = compute(runner, [BatchEntry("a", tokens, 0, list(range(6)), "all")])
    assert found is not None
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-4


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_unknown_architectures_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(ArtifactError, match="architecture MambaForCausalLM; this version runs LlamaForCausalLM"):
        ModelRunner(tmp_path, CONFIG)


def test_unknown_activation(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, hidden_act="gelu")
    with pytest.raises(ArtifactError, match="hidden_act 'gelu'; the Llama family here has 'silu'"):
        ModelRunner(tmp_path, CONFIG)


def test_a_vocabulary_that_does_not_fit_the_weights(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, vocab_size=300)
    with pytest.raises(ArtifactError, match=r"embed_tokens.weight has shape \[272, 64\]; config.json says \[300, 64\]"):
        ModelRunner(tmp_path, CONFIG)


@pytest.mark.parametrize(("content", "message"), [(None, "config.json not found"), ("{", "config.json is not JSON")])
def test_no_readable_config(tmp_path: Path, content: str | None, message: str) -> None:
    path = make_tiny_artifact(tmp_path) / "config.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(ArtifactError, match=message):
        ModelRunner(tmp_path, CONFIG)


def test_a_backend_without_kernels_is_refused(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    with pytest.raises(UnavailableError, match="backend 'cuda' has no kernels in this version; expected one of cpu"):
        ModelRunner(tmp_path, CONFIG.model_copy(update={"backend": "cuda"}))
