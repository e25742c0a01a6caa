"""A tiny random model in every scheme, and the default model for the tests marked ``slow``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch

from engine.artifact import LinearSpec, list_files, read_manifest, write_manifest
from tests.tiny import Tier, make_tiny_artifact, quantise_w4a16, quantise_w8a8


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of one seed, by tier. Do not write into them."""
    root = tmp_path_factory.mktemp("tiny")
    return {tier: make_tiny_artifact(root / tier, tier) for tier in get_args(Tier)}


@pytest.fixture(scope="session", params=["bf16", "int8", "int4", "int4-a8"])
def real_tier(request: pytest.FixtureRequest, real_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as it is, and rounded to the nearest in each quantised scheme."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    if request.param == "bf16":
        return real_model_dir
    directory = tmp_path_factory.mktemp(request.param)
    shutil.copy(real_model_dir / "config.json", directory)
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(real_model_dir / "model.safetensors", framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 (not a dict)
            module, tensor = name.removesuffix(".weight"), stored.get_tensor(name)
            if not module.endswith("_proj"):
                tensors[name] = tensor
            elif request.param == "int8":
                tensors |= quantise_w8a8(module, tensor)
            else:
                tensors |= quantise_w4a16(module, tensor, 64)
    save_file(tensors, directory / "model.safetensors")
    spec = (
        LinearSpec(pattern="model.layers.*", scheme="w8a8")
        if request.param == "int8"
        else LinearSpec(
            pattern="model.layers.*",
            scheme="w4a8" if request.param == "int4-a8" else "w4a16",
            group_size=64,
            symmetric=False,
        )
    )
    changes = {"name": request.param, "linears": [spec], "files": list_files(directory)}
    write_manifest(directory, read_manifest(real_model_dir).model_copy(update=changes))
    return directory
