"""Which decoder family runs an architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.artifact import ArtifactError, Manifest
from engine.kernels.interface import Kernels
from engine.models.llama import Llama

FAMILIES: dict[str, type[Llama]] = {
    "LlamaForCausalLM": Llama,
}


def read_config(directory: Path) -> dict[str, Any]:
    """``config.json`` of a directory.

    Raises:
        ArtifactError: no such file, no JSON, or an architecture no family runs.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise ArtifactError(f"{path} not found; expected a model directory") from e
    except ValueError as e:
        raise ArtifactError(f"{path} is not JSON: {e}") from e
    names = config.get("architectures") or [None]
    if names[0] not in FAMILIES:
        raise ArtifactError(f"{path} names the architecture {names[0]}; this version runs {', '.join(FAMILIES)}")
    return dict(config)


def load_model(directory: Path, config: dict[str, Any], manifest: Manifest, kernels: Kernels, positions: int) -> Llama:
    """The model of an artifact with tables for ``positions`` positions."""
    return FAMILIES[config["architectures"][0]](directory, config, manifest, kernels, positions)
