"""fp8: weights in e4m3 with one scale a row, activations to e4m3 per token when the engine runs.

Four bits of exponent bear the few large channels of language models without smoothing (Micikevicius et al. 2022, "FP8
formats for deep learning"). GPUs from compute capability 8.9 on multiply such codes directly; on a CPU the engine
does it through bfloat16, with the same arithmetic and no gain in memory or speed.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.quantize.recipe import LAYERS, Job, QuantisedParams, Recipe
from pipeline.quantize.recipes.rounding import rounded


class Params(QuantisedParams):
    pass


SPEC = LinearSpec(pattern=f"{LAYERS}*", scheme="fp8")


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    return rounded(job)


RECIPE = Recipe("fp8", Params, linears=lambda params: [SPEC], tensors=_tensors)
