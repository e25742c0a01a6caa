"""awq-int4: as int4, with activation-aware scales and clipping (Lin et al. 2023), layer by layer.

Input channels that carry large activations are scaled up before rounding, so that they lose less; the inverse goes
into what produces them (``pipeline.quantize.folding``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.quantize.awq import Moments, Rounding, output_error, search_clip, search_scale
from pipeline.quantize.calibrate import calibration_identity
from pipeline.quantize.decoder import INPUTS, DecoderLayers
from pipeline.quantize.folding import folded_rows, realised, stored_norms
from pipeline.quantize.formats import check_groups, dequantise, quantise_w4a16
from pipeline.quantize.layerwise import CALIBRATION, CALIBRATION_TOKENS, calibrated_tensors, check_architecture
from pipeline.quantize.recipe import GroupParams, Job, Recipe
from pipeline.quantize.recipes.int4 import spec
from pipeline.quantize.threads import in_lanes

NOT_CLIPPED = ("self_attn.q_proj", "self_attn.k_proj")  # as in the paper's code: attention scores bear it badly


class Params(GroupParams):
    calibration: str = CALIBRATION
    calibration_tokens: int = CALIBRATION_TOKENS
    grid: int = Field(10, ge=1, le=100, description="exponents tried between 0 and 1")


def check(job: Job[Params]) -> None:
    """
    Raises:
        SeatrialError: a linear that the group size does not fit, or a model family without a layer to run.
    """
    for module, shape in job.linears().items():
        check_groups(module, shape, job.params.group_size, job.params.symmetric)
    check_architecture(job)


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    p = job.params
    yield from calibrated_tensors(job, p.calibration, p.calibration_tokens, Moments, partial(quantise_layer, params=p))
    job.report |= _summary(job.report["layers"])


def quantise_layer(
    weights: dict[str, Tensor], moments: dict[str, Moments], layers: DecoderLayers, params: Params
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Stored tensors of one layer (names without its prefix) and, for each linear, the relative output error on the
    calibration tokens, plainly rounded and as stored: sqrt(tr(D G D^T) / tr(W G W^T))."""
    how = Rounding(params.group_size, params.symmetric)
    columns = _column_scales(weights, moments, layers, how, params.grid)
    rows = folded_rows(columns, layers)
    the_spec = spec(params)

    def finish(linear: tuple[str, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        source, name = linear
        s, second = columns[source], moments[source].second
        weight, row = weights[f"{name}.weight"], rows.get(name)
        changed = weight * s if row is None else weight * s / row[:, None]
        clip = None if name in NOT_CLIPPED else search_clip(changed, second / s / s[:, None], how)
        tensors = quantise_w4a16(changed, how.group_size, how.symmetric, clip)
        stored = {f"{name}.{part}": value for part, value in tensors.items()}
        if (bias := weights.get(f"{name}.bias")) is not None:
            stored[f"{name}.bias"] = (bias if row is None else bias / row).to(torch.bfloat16)
        back = dequantise(tensors, the_spec) / s
        plain = dequantise(quantise_w4a16(weight, how.group_size, how.symmetric), the_spec)
        whole = output_error(weight, second) or 1.0
        return stored, {
            "rounded": _relative(output_error(weight - plain, second), whole),
            "awq": _relative(output_error(weight - (back if row is None else back * row[:, None]), second), whole),
        }

    linears = [(source, name) for source, names in INPUTS.items() for name in names]
    done = in_lanes(finish, linears)
    stored = stored_norms(weights, columns, layers) | {
        name: tensor for tensors, _ in done for name, tensor in tensors.items()
    }
    return stored, {name: error for (_, name), (_, error) in zip(linears, done, strict=True)}


def _column_scales(
    weights: dict[str, Tensor], moments: dict[str, Moments], layers: DecoderLayers, how: Rounding, grid: int
) -> dict[str, Tensor]:
    """The scale of every input of INPUTS."""

    def search(source: str) -> Tensor:
        linears = [weights[f"{n}.weight"] for n in INPUTS[source]]
        realise = partial(realised, source, weights=weights, layers=layers)
        return search_scale(linears, moments[source], how, grid, realise)

    # The dearest search first, so that the lanes end at about the same time.
    order = sorted(INPUTS, key=lambda source: moments[source].second.shape[0], reverse=True)
    return dict(zip(order, in_lanes(search, order), strict=True))


def _relative(error: float, whole: float) -> float:
    return round(math.sqrt(max(0.0, error / whole)), 6)


def _summary(layers: dict[str, Any]) -> dict[str, Any]:
    """Means over all linears."""
    rows = [e for linears in layers.values() for e in linears.values()]
    return {f"output_error_{k}_mean": round(sum(r[k] for r in rows) / len(rows), 6) for k in ("rounded", "awq")}


def _linears(params: Params) -> list[LinearSpec]:
    return [spec(params)]


RECIPE = Recipe(
    "awq-int4",
    Params,
    linears=_linears,
    tensors=_tensors,
    check=check,
    calibration=lambda params: calibration_identity(params.calibration),
)
