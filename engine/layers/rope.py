"""Rotary position embedding: the frequencies of each scaling and the table of cosines and sines.

Su et al. 2021, "RoFormer". ``llama3`` as in the Llama 3.1 model card: long wavelengths are stretched by ``factor``,
short ones are kept, those between are blended. ``yarn``: Peng et al. 2023, "YaRN", section 3.

A scaling whose frequencies follow the current length of the sequence cannot be had here: keys already in the cache
were turned by other frequencies than a recomputation would use, so a preempted or cached request would change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.artifact import ArtifactError

Parameters = dict[str, float]
LENGTH_DEPENDENT = ("dynamic", "longrope")


@dataclass(frozen=True)
class Rope:
    """The rotation of a layer: all that its table depends on. Equal ones share a table."""

    head_dim: int
    theta: float
    kind: str = "default"
    parameters: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, head_dim: int, theta: float, scaling: Mapping[str, Any]) -> Rope:
        """From ``rope_scaling`` or ``rope_parameters`` of a Hugging Face ``config.json``, without its ``rope_theta``.

        Raises:
            ArtifactError: a scaling this version does not have, or one with parameters missing, unknown or not numbers.
        """
        given = {key: value for key, value in scaling.items() if key not in {"rope_type", "type"}}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if head_dim % 2:
            raise ArtifactError(f"config.json: head_dim is {head_dim}; rotary positions turn pairs, expected it even")
        if kind in LENGTH_DEPENDENT:
            raise ArtifactError(
                f"config.json asks for rope scaling {kind!r}: its frequencies depend on the current length, so that a "
                f"request would not always get the same bytes; this version has {', '.join(SCALINGS)}"
            )
        if kind not in SCALINGS:
            raise ArtifactError(f"config.json asks for rope scaling {kind!r}; this version has {', '.join(SCALINGS)}")
        known = SCALINGS[kind]
        if given.get("partial_rotary_factor") == 1:  # the whole head, as everywhere here
            del given["partial_rotary_factor"]
        for key in known.required:
            if given.get(key) is None:
                raise ArtifactError(f"config.json: rope scaling {kind!r} has no {key!r}")
        for key, value in given.items():
            if key not in known.required + known.optional:
                raise ArtifactError(
                    f"config.json: rope scaling {kind!r} has {key} = {value!r}, which this version does not know; it "
                    f"knows {', '.join(known.required + known.optional) or 'no parameters'}"
                )
            if value is not None and not isinstance(value, int | float):
                raise ArtifactError(f"config.json: rope scaling {kind!r} has {key} = {value!r}, expected a number")
        return cls(head_dim, theta, kind, tuple(sorted((k, float(v)) for k, v in given.items() if v is not None)))

    def frequencies(self) -> tuple[Tensor, float]:
        """Radians a position, float32 [head_dim / 2], and the factor on cosines and sines."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        return SCALINGS[self.kind].apply(1.0 / self.theta**exponents, self, dict(self.parameters))


def _default(frequencies: Tensor, rope: Rope, p: Parameters) -> tuple[Tensor, float]:
    return frequencies, 1.0


def _linear(frequencies: Tensor, rope: Rope, p: Parameters) -> tuple[Tensor, float]:
    return frequencies / p["factor"], 1.0


def _llama3(frequencies: Tensor, rope: Rope, p: Parameters) -> tuple[Tensor, float]:
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    turns = p["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # over the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / p["factor"] + blend * frequencies, 1.0


def _yarn(frequencies: Tensor, rope: Rope, p: Parameters) -> tuple[Tensor, float]:
    """Dimensions that turn often within the original context are kept, those that turn rarely are stretched by
    ``factor``, with a ramp between; attention is sharpened through the factor on cosines and sines."""

    def dimension(turns: float) -> float:
        """The pair, as a real number, that turns so often over the original context."""
        ratio = p["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return rope.head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = dimension(p.get("beta_fast", 32.0)), dimension(p.get("beta_slow", 1.0))
    if p.get("truncate", 1.0):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, rope.head_dim - 1.0)
    pairs = torch.arange(rope.head_dim // 2).float()
    kept = 1 - ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    blended = frequencies / p["factor"] * (1 - kept) + frequencies * kept
    return blended, p.get("attention_factor", _yarn_sharpening(p))


def _yarn_sharpening(p: Parameters) -> float:
    """Equation 22 of the paper; with both ``mscale`` values, as DeepSeek uses it, their ratio."""

    def scaled(weight: float) -> float:
        return 0.1 * weight * math.log(p["factor"]) + 1.0 if p["factor"] > 1 else 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return scaled(p["mscale"]) / scaled(p["mscale_all_dim"])
    return scaled(1.0)


@dataclass(frozen=True)
class Scaling:
    required: tuple[str, ...]
    optional: tuple[str, ...]
    apply: Callable[[Tensor, Rope, Parameters], tuple[Tensor, float]]


ORIGINAL = "original_max_position_embeddings"
SCALINGS = {
    "default": Scaling((), (), _default),
    "linear": Scaling(("factor",), (), _linear),
    "llama3": Scaling(("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), (), _llama3),
    "yarn": Scaling(
        ("factor", ORIGINAL),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        _yarn,
    ),
}


class RotaryTable:
    """cos and sin of each position, float32 [positions, head_dim / 2]; both halves of a head turn alike.

    A table and not a computation by step: a library's cosine may round otherwise in another place of a vector.
    """

    def __init__(self, rope: Rope, positions: int, place: Callable[[Tensor], Tensor] = lambda table: table) -> None:
        """``place``: brings a table to where it is read. It is computed on the host: the same bits everywhere."""
        frequencies, factor = rope.frequencies()
        angles = torch.arange(positions).float()[:, None] * frequencies
        self.cos, self.sin = place(angles.cos() * factor), place(angles.sin() * factor)
