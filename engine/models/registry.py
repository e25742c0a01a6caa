"""Which decoder family runs an architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.artifact import ArtifactError, Manifest
from engine.kernels.interface import Kernels
from engine.models.decoder import Decoder
from engine.models.description import Description
from engine.models.families import gemma3, llama, mistral, qwen2, qwen3
from engine.models.fields import Fields
from engine.models.weights import Weights

FAMILIES: dict[str, Callable[[Fields], Description]] = {
    "LlamaForCausalLM": llama.describe,
    "MistralForCausalLM": mistral.describe,
    "Qwen2ForCausalLM": qwen2.describe,
    "Qwen3ForCausalLM": qwen3.describe,
    "Gemma3ForCausalLM": gemma3.describe,
}


def read_config(directory: Path) -> dict[str, Any]:
    """``config.json`` of a directory.

    Raises:
        ArtifactError: no such file, no JSON, an architecture no family runs, or a field its family does not know.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise ArtifactError(f"{path} not found; expected a model directory") from e
    except OSError as e:
        raise ArtifactError(f"{path} cannot be read: {e.strerror}; expected a file") from e
    except ValueError as e:
        raise ArtifactError(f"{path} is not JSON: {e}") from e
    if not isinstance(config, dict):
        raise ArtifactError(f"{path} holds a {type(config).__name__}; expected an object")
    names = config.get("architectures") or [None]
    if names[0] not in FAMILIES:
        hint = ", which reads more than text" if str(names[0]).endswith("ForConditionalGeneration") else ""
        raise ArtifactError(f"{path} names the architecture {names[0]}{hint}; this version runs {', '.join(FAMILIES)}")
    try:
        describe(config)
    except ArtifactError as e:
        raise ArtifactError(f"{directory}: {e}") from e
    return config


def describe(config: dict[str, Any]) -> Description:
    """What a ``config.json`` of a known architecture asks for.

    Raises:
        ArtifactError: a field is unknown, missing, or has a value that the family does not have; names it.
    """
    architecture = config["architectures"][0]
    fields = Fields(config, architecture)
    description = FAMILIES[architecture](fields)
    fields.refuse_others()
    return description


def load_model(
    directory: Path,
    config: dict[str, Any],
    manifest: Manifest,
    kernels: Kernels,
    positions: int,
    store: Weights | None = None,
) -> Decoder:
    """The model of an artifact, or of these weights in its place, with tables for ``positions`` positions."""
    return Decoder(directory, describe(config), manifest, kernels, positions, store)
