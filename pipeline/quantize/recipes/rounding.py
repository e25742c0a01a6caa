"""What the data-free recipes share: each linear by itself, rounded to the nearest; the error of every layer noted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pipeline.quantize.formats import dequantise, quantised
from pipeline.quantize.recipe import LAYERS, Job


def rounded(job: Job[Any]) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the artifact. ``report.weight_error``: |W - Q(W)| / |W| (Frobenius) of each layer's linears."""
    linears = job.linears()
    lost: dict[str, float] = defaultdict(float)
    there: dict[str, float] = defaultdict(float)
    for name in job.stage.track(job.names(), "tensors"):
        tensor = job.read(name)
        module = name.removesuffix(".weight")
        if module not in linears:
            yield name, tensor
            continue
        spec = job.spec_of(module)
        stored = quantised(tensor, spec)
        layer = module.removeprefix(LAYERS).partition(".")[0]
        lost[layer] += float((tensor.float() - dequantise(stored, spec)).square().sum())
        there[layer] += float(tensor.float().square().sum())
        for part, value in stored.items():
            yield f"{module}.{part}", value
    job.report["weight_error"] = {layer: round((lost[layer] / (there[layer] or 1)) ** 0.5, 6) for layer in lost}
