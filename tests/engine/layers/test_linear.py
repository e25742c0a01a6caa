"""Fusing, mixing schemes within a group, and what a damaged artifact says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.artifact import ArtifactError, LinearSpec, Manifest, read_manifest
from engine.kernels.reference import ReferenceKernels
from engine.layers.linear import Linear, spec_of
from engine.models.weights import TensorStore
from tests.tiny import Tier, make_tiny_artifact

AT = "model.layers.0.self_attn"
QKV = [f"{AT}.{n}_proj" for n in "qkv"]


@pytest.fixture
def kernels() -> ReferenceKernels:
    return ReferenceKernels(torch.float32, threads=1)


@pytest.mark.parametrize("tier", ["bf16", "int8", "int4", "int4-a8"])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_equals_its_parts(tmp_path: Path, kernels: ReferenceKernels, tier: Tier, bias: bool) -> None:
    make_tiny_artifact(tmp_path, tier, attention_bias=bias)
    if bias and tier != "bf16":  # the quantised tiny artifacts carry their biases as stored in bf16
        assert "model.layers.0.self_attn.q_proj.bias" in TensorStore(tmp_path)
    store, manifest = TensorStore(tmp_path), read_manifest(tmp_path)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    fused = Linear.load(kernels, store, manifest, QKV, bias)
    assert len(fused.parts) == 1
    parts = torch.cat([Linear.load(kernels, store, manifest, [m], bias)(kernels, x) for m in QKV], dim=1)
    assert torch.allclose(fused(kernels, x), parts, atol=1e-5)
    apart = [part for m in QKV for part in Linear.load(kernels, store, manifest, [m], bias).parts]
    assert sum(part.nbytes for part in fused.parts) == sum(part.nbytes for part in apart)


def test_the_first_matching_pattern_counts() -> None:
    specs = [
        LinearSpec(pattern="*.v_proj", scheme="bf16"),
        LinearSpec(pattern="model.layers.*", scheme="w8a8"),
        LinearSpec(pattern="*", scheme="w4a16", group_size=32),
    ]
    manifest = Manifest.model_construct(linears=specs)
    assert spec_of(manifest, QKV[2]) is None
    assert spec_of(manifest, QKV[0]) == specs[1]
    assert spec_of(manifest, "lm_head") == specs[2]
    assert spec_of(Manifest.model_construct(linears=specs[:2]), "lm_head") is None


def test_spared_modules_keep_their_own_product(tmp_path: Path, kernels: ReferenceKernels) -> None:
    plain = load_file(make_tiny_artifact(tmp_path / "bf16") / "model.safetensors")
    mixed = load_file(make_tiny_artifact(tmp_path / "int8", "int8") / "model.safetensors")
    mixed = {k: v for k, v in mixed.items() if not k.startswith(f"{AT}.v_proj")}
    mixed[f"{AT}.v_proj.weight"] = plain[f"{AT}.v_proj.weight"]
    save_file(mixed, tmp_path / "int8" / "model.safetensors")
    manifest = read_manifest(tmp_path / "int8")
    spared = [LinearSpec(pattern="*.v_proj", scheme="bf16"), *manifest.linears]
    manifest = manifest.model_copy(update={"linears": spared})
    layer = Linear.load(kernels, TensorStore(tmp_path / "int8"), manifest, QKV)
    assert [p.scheme for p in layer.parts] == ["w8a8", "bf16"]
    assert [p.out_features for p in layer.parts] == [96, 32]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(kernels, x)[:, 96:], x @ plain[f"{AT}.v_proj.weight"].float().T, atol=1e-5)


def test_a_missing_tensor_is_named(tmp_path: Path, kernels: ReferenceKernels) -> None:
    make_tiny_artifact(tmp_path, "bf16")
    manifest = read_manifest(make_tiny_artifact(tmp_path / "int8", "int8"))
    with pytest.raises(ArtifactError, match=r"has no tensor 'model.layers.0.self_attn.q_proj.weight_scale'"):
        Linear.load(kernels, TensorStore(tmp_path), manifest, QKV)


def test_a_wrong_tensor_is_named(tmp_path: Path, kernels: ReferenceKernels) -> None:
    make_tiny_artifact(tmp_path, "int8")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{AT}.o_proj.weight"] = tensors[f"{AT}.o_proj.weight"].float()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"self_attn.o_proj: weight is torch.float32; expected torch.int8"):
        Linear.load(kernels, TensorStore(tmp_path), read_manifest(tmp_path), [f"{AT}.o_proj"])
