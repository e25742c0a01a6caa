"""int4: 4-bit weights, rounded to the nearest within groups of inputs; W4A16, or W4A8 with ``activations: int8``."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from engine.artifact import LinearSpec, Scheme
from pipeline.quantize.recipe import LAYERS, GroupParams, Job, Recipe
from pipeline.quantize.recipes.rounding import rounded


class Params(GroupParams):
    pass


def spec(params: GroupParams) -> LinearSpec:
    scheme: Scheme = "w4a8" if params.activations == "int8" else "w4a16"
    return LinearSpec(pattern=f"{LAYERS}*", scheme=scheme, group_size=params.group_size, symmetric=params.symmetric)


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    return rounded(job)


RECIPE = Recipe("int4", Params, linears=lambda params: [spec(params)], tensors=_tensors)
