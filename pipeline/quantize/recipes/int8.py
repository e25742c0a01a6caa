"""int8: W8A8, weights with one symmetric scale a row, activations to 8 bits per token when the engine runs.

Activations of language models have a few channels far larger than the rest, and one scale a token leaves the others
few steps. ``smoothing`` moves a part of that range into the weights, which bear it: each input channel is divided by
``max|x|^a / max|w|^(1-a)`` (SmoothQuant, Xiao et al. 2023, equation 4), the inverse is folded into what produces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from engine.artifact import LinearSpec, Named
from pipeline.quantize.calibrate import calibration_identity
from pipeline.quantize.decoder import INPUTS, DecoderLayers
from pipeline.quantize.folding import folded_rows, realised, smoothing_scale, stored_norms
from pipeline.quantize.formats import dequantise, quantised
from pipeline.quantize.layerwise import CALIBRATION, CALIBRATION_TOKENS, SpecOf, calibrated_tensors, check_architecture
from pipeline.quantize.recipe import LAYERS, Job, QuantisedParams, Recipe
from pipeline.quantize.recipes.rounding import rounded


class Params(QuantisedParams):
    smoothing: float | None = Field(
        None, ge=0, le=1, description="share of the range that moves; null: none, no calibration"
    )
    calibration: str = CALIBRATION
    calibration_tokens: int = CALIBRATION_TOKENS


SPEC = LinearSpec(pattern=f"{LAYERS}*", scheme="w8a8", group_size=None, symmetric=True)


class Peaks:
    """``peak`` [in]: the largest magnitude of each channel."""

    def __init__(self, size: int) -> None:
        self.peak = torch.zeros(size)

    def add(self, x: Tensor) -> None:
        """``x`` [tokens, in], float32."""
        self.peak = torch.maximum(self.peak, x.abs().amax(0))

    def __add__(self, other: Peaks) -> Peaks:
        total = Peaks(self.peak.shape[0])
        total.peak = torch.maximum(self.peak, other.peak)
        return total


def quantise_layer(
    weights: dict[str, Tensor],
    peaks: dict[str, Peaks],
    layers: DecoderLayers,
    spec_of: SpecOf,
    strength: float,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Stored tensors of one layer and, for each linear, |W - Q(W)| / |W| of the smoothed weight (Frobenius)."""
    columns = {}
    for source, names in INPUTS.items():
        wished = smoothing_scale(peaks[source].peak, [weights[f"{n}.weight"] for n in names], strength)
        columns[source] = realised(source, wished, weights, layers)
    rows = folded_rows(columns, layers)
    stored, errors = stored_norms(weights, columns, layers), {}
    for source, names in INPUTS.items():
        for name in names:
            row = rows.get(name)
            changed = weights[f"{name}.weight"] * columns[source]
            changed = changed if row is None else changed / row[:, None]
            spec = spec_of(name)
            tensors = quantised(changed, spec)
            stored |= {f"{name}.{part}": value for part, value in tensors.items()}
            if (bias := weights.get(f"{name}.bias")) is not None:
                stored[f"{name}.bias"] = (bias if row is None else bias / row).to(torch.bfloat16)
            errors[name] = round(float((changed - dequantise(tensors, spec)).norm() / changed.norm()), 6)
    return stored, errors


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    p = job.params
    if p.smoothing is None:
        return rounded(job)
    return calibrated_tensors(
        job, p.calibration, p.calibration_tokens, Peaks, partial(quantise_layer, strength=p.smoothing)
    )


def _check(job: Job[Params]) -> None:
    if job.params.smoothing is not None:
        check_architecture(job)


def _calibration(params: Params) -> Named | None:
    return None if params.smoothing is None else calibration_identity(params.calibration)


RECIPE = Recipe("int8", Params, linears=lambda params: [SPEC], tensors=_tensors, check=_check, calibration=_calibration)
