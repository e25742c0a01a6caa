"""Rotary position embedding: the frequencies of each scaling and the table of cosines and sines.

Su et al. 2021, "RoFormer"; the `llama3` scaling as in the Llama 3.1 model card: long wavelengths are stretched by
`factor`, short ones are kept, those between are blended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.artifact import ArtifactError


def _default(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    return frequencies


def _linear(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    return frequencies / scaling["factor"]


def _llama3(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # over the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies


SCALINGS: dict[str, Callable[[Tensor, dict[str, Any]], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
}


class RotaryTable:
    """cos and sin, float32 [positions, head_dim], both halves equal."""

    def __init__(self, config: dict[str, Any], head_dim: int, positions: int) -> None:
        """From a Hugging Face ``config.json`` of either form (`rope_theta` + `rope_scaling`, or `rope_parameters`).

        Raises:
            ArtifactError: a scaling this version does not have, or one without its parameters.
        """
        scaling = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
        if kind not in SCALINGS:
            raise ArtifactError(f"config.json asks for rope scaling {kind!r}; this version has {', '.join(SCALINGS)}")
        frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
        try:
            frequencies = SCALINGS[kind](frequencies, scaling)
        except KeyError as e:
            raise ArtifactError(f"config.json: rope scaling {kind!r} has no {e.args[0]!r}") from e
        angles = torch.arange(positions).float()[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [T] -> cos, sin [T, head_dim]."""
        return self.cos[positions], self.sin[positions]
