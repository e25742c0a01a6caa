"""Rotary frequencies of a ``config.json``, for the layers that calibration runs.

A twin of the engine's, written apart from it: a recipe must not depend on the code whose results it is judged by.
``llama3``: the Llama 3.1 model card. ``yarn``: Peng et al. 2023, arXiv 2309.00071, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import SeatrialError

ORIGINAL = "original_max_position_embeddings"


def rotary_frequencies(scaling: dict[str, Any], theta: float, head_dim: int) -> tuple[Tensor, float]:
    """[head_dim/2] and the factor on cosines and sines. ``theta`` counts where ``scaling`` has no ``rope_theta``.

    Raises:
        SeatrialError: another kind of scaling, or one without its parameters.
    """
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in SCALINGS:
        raise SeatrialError(f"rotary scaling {kind!r} is not known to calibration; known: {', '.join(SCALINGS)}")
    theta = float(scaling.get("rope_theta") or theta)
    freq = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    try:
        return SCALINGS[kind](freq, scaling, theta)
    except KeyError as e:
        raise SeatrialError(f"rotary scaling {kind!r} has no {e.args[0]!r} in config.json") from e


def _default(freq: Tensor, scaling: dict[str, Any], theta: float) -> tuple[Tensor, float]:
    return freq, 1.0


def _linear(freq: Tensor, scaling: dict[str, Any], theta: float) -> tuple[Tensor, float]:
    return freq / float(scaling["factor"]), 1.0


def _llama3(freq: Tensor, scaling: dict[str, Any], theta: float) -> tuple[Tensor, float]:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    factor, original = float(scaling["factor"]), float(scaling[ORIGINAL])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = original * freq / (2 * math.pi)  # rotations within the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return freq / factor * (1 - kept) + freq * kept, 1.0


def _yarn(freq: Tensor, scaling: dict[str, Any], theta: float) -> tuple[Tensor, float]:
    """As llama3, with a ramp over the dimensions instead of over the wavelengths, and sharper attention."""
    factor, original, pairs = float(scaling["factor"]), float(scaling[ORIGINAL]), len(freq)
    fast, slow = scaling.get("beta_fast") or 32.0, scaling.get("beta_slow") or 1.0
    # the pair of dimensions that turns `turns` times over the original context
    start, end = (pairs * math.log(original / (2 * math.pi * turns)) / math.log(theta) for turns in (fast, slow))
    if scaling.get("truncate") is not False:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, 2 * pairs - 1)
    ramp = (torch.arange(pairs, dtype=torch.float32) - start) / ((end - start) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    sharper = scaling.get("attention_factor")
    if sharper is None:
        m, over = scaling.get("mscale"), scaling.get("mscale_all_dim")
        rise = 0.1 * math.log(max(factor, 1.0))
        sharper = (rise * m + 1) / (rise * over + 1) if m and over else rise + 1
    return freq / factor * (1 - kept) + freq * kept, float(sharper)


SCALINGS: dict[str, Callable[[Tensor, dict[str, Any], float], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
