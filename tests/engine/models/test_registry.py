"""What the runner refuses before it loads: unknown architectures, configs that cannot be read or do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import ArtifactError
from engine.config import EngineConfig
from engine.kernels.errors import UnavailableError
from engine.models.registry import FAMILIES
from engine.runner import ModelRunner
from tests.tiny import make_tiny_artifact

CONFIG = EngineConfig(compute_dtype="float32", max_model_len=256, max_num_seqs=2, threads=2)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_unknown_architectures_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, architectures=["MambaForCausalLM"])
    known = ", ".join(FAMILIES)
    with pytest.raises(ArtifactError, match=f"architecture MambaForCausalLM; this version runs {known}"):
        ModelRunner(tmp_path, CONFIG)


def test_unknown_activation(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, hidden_act="gelu")
    with pytest.raises(ArtifactError, match=r"hidden_act 'gelu'; expected one of silu, .* for LlamaForCausalLM"):
        ModelRunner(tmp_path, CONFIG)


def test_a_multimodal_model_is_refused_with_its_text_part_named(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path, family="gemma3")
    edit_config(tmp_path, architectures=["Gemma3ForConditionalGeneration"])
    with pytest.raises(ArtifactError, match="Gemma3ForConditionalGeneration, which reads more than text; this version"):
        ModelRunner(tmp_path, CONFIG)


def test_a_model_without_its_untied_head(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ArtifactError, match=r"has no tensor 'lm_head\.weight'"):
        ModelRunner(tmp_path, CONFIG)


def test_a_bias_that_the_config_does_not_have(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path, attention_bias=True)
    edit_config(tmp_path, attention_bias=False)
    with pytest.raises(ArtifactError, match=r"q_proj.bias, but config.json describes .*q_proj without a bias"):
        ModelRunner(tmp_path, CONFIG)


def test_a_vocabulary_that_does_not_fit_the_weights(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    edit_config(tmp_path, vocab_size=300)
    with pytest.raises(ArtifactError, match=r"embed_tokens.weight has shape \[272, 64\]; config.json says \[300, 64\]"):
        ModelRunner(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "config.json not found"), ("{", "config.json is not JSON"), ("[]", "config.json holds a list")],
)
def test_no_readable_config(tmp_path: Path, content: str | None, message: str) -> None:
    path = make_tiny_artifact(tmp_path) / "config.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(ArtifactError, match=message):
        ModelRunner(tmp_path, CONFIG)


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_artifact(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match=r"built without CUDA; install .* or set backend to cpu|no CUDA device"):
        ModelRunner(tmp_path, CONFIG.model_copy(update={"backend": "cuda"}))
