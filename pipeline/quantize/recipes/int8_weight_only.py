"""int8-weight-only: W8A16, weights with one symmetric scale a row, activations as they are."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.quantize.recipe import LAYERS, Job, QuantisedParams, Recipe
from pipeline.quantize.recipes.rounding import rounded


class Params(QuantisedParams):
    pass


SPEC = LinearSpec(pattern=f"{LAYERS}*", scheme="w8a16")


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    return rounded(job)


RECIPE = Recipe("int8-weight-only", Params, linears=lambda params: [SPEC], tensors=_tensors)
