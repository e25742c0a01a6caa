"""An output head of 8 bits: a tensor of its own, also where it was tied to the embedding, which stays as it is.

The head is read whole for every token, the embedding one row of it. One symmetric scale a row, activations to 8 bits
per token when the engine runs, as in the recipe int8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.quantize.formats import HEAD, dequantise, quantise_w8a8
from pipeline.quantize.recipe import Job

SPEC = LinearSpec(pattern=HEAD, scheme="w8a8")
WEIGHT, EMBEDDING = f"{HEAD}.weight", "model.embed_tokens.weight"


def with_int8_head(job: Job[Any], tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` of an artifact with the head in 8 bits. ``report.head_error``: |W - Q(W)| / |W| (Frobenius)."""
    source = WEIGHT if WEIGHT in job.names() else EMBEDDING
    for name, tensor in tensors:
        if name != WEIGHT:
            yield name, tensor
        if name == source:
            stored = quantise_w8a8(tensor)
            weight = tensor.float()
            job.report["head_error"] = round(float((weight - dequantise(stored, SPEC)).norm() / weight.norm()), 6)
            yield from ((f"{HEAD}.{part}", value) for part, value in stored.items())
