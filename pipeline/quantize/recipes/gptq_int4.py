"""gptq-int4: as int4, with each column's rounding error made up for by the columns after it, layer by layer.

What it lowers is the output error of each linear on the calibration tokens (``pipeline.quantize.gptq``); the layers
see what the unquantised ones before them give.

That error alone is a bad guide. As in the paper, with grids to the whole range and columns in their order, it falls by
two fifths on the default model, and other text comes out worse than rounded (``README.md``): how inputs depend on each
other in some thousand tokens, and without the errors of the layers before, is not how they will. So a part of that is
not believed (``shrinkage``), the inputs that carry most are rounded while the others can still make up for them
(``act_order``), and the grids are those found by AWQ's search for clipping.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pydantic import Field
from torch import Tensor

from engine.artifact import GROUPED, LinearSpec
from pipeline.quantize.awq import Moments, Rounding, output_error, search_clip
from pipeline.quantize.calibrate import calibration_identity
from pipeline.quantize.decoder import DecoderLayers
from pipeline.quantize.formats import dequantise, packed_groups, quantised
from pipeline.quantize.gptq import round_columns, shrunk
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
    unchanged,
)
from pipeline.quantize.recipe import GroupParams, Job, Recipe
from pipeline.quantize.recipes.int4 import spec


class Params(GroupParams):
    calibration: str = CALIBRATION
    calibration_tokens: int = CALIBRATION_TOKENS
    damping: float = Field(0.01, gt=0, le=10, description="of the mean second moment, added to each")
    act_order: bool = Field(True, description="round the inputs of the largest moment first")
    shrinkage: float = Field(
        0.5, ge=0, le=1, description="share of how inputs depended on each other that is not taken to hold elsewhere"
    )


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

    def finish(source: str, name: str) -> Stored:
        weight, second, own = weights[f"{name}.weight"], moments[source].second, spec_of(name)
        plain = quantised(weight, own)
        stored = plain
        if own is not None and own.scheme in GROUPED:
            clip = search_clip(weight, second, how)
            believed = shrunk(second, params.shrinkage)
            stored = packed_groups(*round_columns(weight, believed, how, params.damping, params.act_order, clip))
        whole = output_error(weight, second) or 1.0
        return stored, {
            kind: relative(output_error(weight - dequantise(tensors, own), second), whole)
            for kind, tensors in (("rounded", plain), ("gptq", stored))
        }

    stored, errors = each_linear(finish)
    return unchanged(weights) | stored, errors


def _linears(params: Params) -> list[LinearSpec]:
    return [spec(params)]


RECIPE = Recipe(
    "gptq-int4",
    Params,
    linears=_linears,
    tensors=_tensors,
    check=check_architecture,
    calibration=lambda params: calibration_identity(params.calibration),
)
