"""int8: W8A8, weights with one symmetric scale a row, activations to 8 bits per token when the engine runs."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.quantize.formats import quantise_w8a8
from pipeline.quantize.recipe import LAYERS, Job, Recipe, RecipeParams
from pipeline.quantize.recipes.rounding import rounded


class Params(RecipeParams):
    pass


SPEC = LinearSpec(pattern=f"{LAYERS}*", scheme="w8a8", group_size=None, symmetric=True)


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    return rounded(job, SPEC, quantise_w8a8)


RECIPE = Recipe("int8", Params, linears=lambda params: [SPEC], tensors=_tensors)
