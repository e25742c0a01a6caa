"""bf16: the reference. The weights as they are."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pipeline.quantize.recipe import Job, Recipe, RecipeParams


class Params(RecipeParams):
    pass


def _tensors(job: Job[Params]) -> Iterator[tuple[str, Tensor]]:
    for name in job.stage.track(job.names(), "tensors"):
        yield name, job.read(name)


RECIPE = Recipe("bf16", Params, linears=lambda params: [], tensors=_tensors)
