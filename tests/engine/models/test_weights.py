"""Reading safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.artifact import ArtifactError
from engine.models.weights import TensorStore


def test_reads_over_several_files(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "model-00002-of-00002.safetensors")
    store = TensorStore(tmp_path)
    assert "a" in store
    assert "c" not in store
    assert torch.equal(store.get("b"), torch.zeros(3))
    with pytest.raises(ArtifactError, match=r"has no tensor 'c' \(it has 2, for instance a, b\)"):
        store.get("c")


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"has no \*.safetensors file"):
        TensorStore(tmp_path)


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(200)}, path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ArtifactError, match=r"model\.safetensors cannot be read as safetensors"):
        TensorStore(tmp_path)
