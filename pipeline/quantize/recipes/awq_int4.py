"""awq-int4: as int4, with activation-aware scales and clipping (Lin et al. 2023), layer by layer.

Input channels that carry large activations are scaled up before rounding, so that they lose less; the inverse goes
into what produces them (``pipeline.quantize.folding``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from engine.artifact import GROUPED, LinearSpec
from pipeline.quantize.awq import Moments, Rounding, output_error, search_clip, search_scale
from pipeline.quantize.calibrate import calibration_identity
from pipeline.quantize.decoder import INPUTS, DecoderLayers
from pipeline.quantize.folding import folded_rows, realised, stored_norms
from pipeline.quantize.formats import dequantise, quantise_w4a16, quantised
from pipeline.quantize.layerwise import (
    CALIBRATION,
    CALIBRATION_TOKENS,
    SpecOf,
    Stored,
    calibrated_tensors,
    check_architecture,
    each_linear,
    mean_errors,
    relative,
)
from pipeline.quantize.recipe import GroupParams, Job, Recipe
from pipeline.quantize.recipes.int4 import spec
from pipeline.quantize.threads import in_lanes

NOT_CLIPPED = ("self_attn.q_proj", "self_attn.k_proj")  # as in the paper's code: attention scores bear it badly


class Params(GroupParams):
    calibration: str = CALIBRATION
    calibration_tokens: int = CALIBRATION_TOKENS
    grid: int = Field(10, ge=1, le=100, description="exponents tried between 0 and 1")


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    p = job.params
    yield from calibrated_tensors(job, p.calibration, p.calibration_tokens, Moments, partial(quantise_layer, params=p))
    job.report |= mean_errors(job.report["layers"])


def quantise_layer(
    weights: dict[str, Tensor],
    moments: dict[str, Moments],
    layers: DecoderLayers,
    spec_of: SpecOf,
    params: Params,
) -> Stored:
    """Stored tensors of one layer (names without its prefix) and, for each linear, the relative output error on the
    calibration tokens, plainly rounded and as stored: sqrt(tr(D G D^T) / tr(W G W^T))."""
    how = Rounding(params.group_size, params.symmetric)
    specs = {name: spec_of(name) for names in INPUTS.values() for name in names}
    grouped = {name for name, own in specs.items() if own is not None and own.scheme in GROUPED}
    columns = _column_scales(weights, moments, layers, how, params.grid, grouped)
    rows = folded_rows(columns, layers)

    def finish(source: str, name: str) -> Stored:
        s, second = columns[source], moments[source].second
        weight, row = weights[f"{name}.weight"], rows.get(name)
        changed = weight * s if row is None else weight * s / row[:, None]
        own = specs[name]
        if name in grouped:
            clip = None if name in NOT_CLIPPED else search_clip(changed, second / s / s[:, None], how)
            tensors = quantise_w4a16(changed, how.group_size, how.symmetric, clip)
        else:
            tensors = quantised(changed, own)
        stored = dict(tensors)
        if (bias := weights.get(f"{name}.bias")) is not None:
            stored["bias"] = (bias if row is None else bias / row).to(torch.bfloat16)
        back = dequantise(tensors, own) / s
        plain = dequantise(quantised(weight, own), own)
        whole = output_error(weight, second) or 1.0
        return stored, {
            "rounded": relative(output_error(weight - plain, second), whole),
            "awq": relative(output_error(weight - (back if row is None else back * row[:, None]), second), whole),
        }

    stored, errors = each_linear(finish)
    return stored_norms(weights, columns, layers) | stored, errors


def _column_scales(
    weights: dict[str, Tensor],
    moments: dict[str, Moments],
    layers: DecoderLayers,
    how: Rounding,
    grid: int,
    grouped: set[str],
) -> dict[str, Tensor]:
    """The scale of every input of INPUTS; only the linears ``grouped`` are rounded, and so have a say."""

    def search(source: str) -> Tensor:
        linears = [weights[f"{n}.weight"] for n in INPUTS[source] if n in grouped]
        realise = partial(realised, source, weights=weights, layers=layers)
        return search_scale(linears, moments[source], how, grid, realise)

    # The dearest search first, so that the lanes end at about the same time.
    order = sorted(INPUTS, key=lambda source: moments[source].second.shape[0], reverse=True)
    return dict(zip(order, in_lanes(search, order), strict=True))


def _linears(params: Params) -> list[LinearSpec]:
    return [spec(params)]


RECIPE = Recipe(
    "awq-int4",
    Params,
    linears=_linears,
    tensors=_tensors,
    check=check_architecture,
    calibration=lambda params: calibration_identity(params.calibration),
)
