"""An output head of 8 bits: a tensor of its own, also where it was tied to the embedding, which stays as it is.

The head is read whole for every token, the embedding one row of it. One symmetric scale a row, activations to 8 bits
per token when the engine runs, as in the recipe int8. What the last norm gives has channels that are ten times the
others, too: where a recipe has seen them, a part of that range moves into the head, the inverse into the norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.quantize.decoder import DecoderLayers
from pipeline.quantize.folding import carried, divided, smoothing_scale
from pipeline.quantize.formats import HEAD, dequantise, quantise_w8a8
from pipeline.quantize.recipe import Job

SPEC = LinearSpec(pattern=HEAD, scheme="w8a8")
WEIGHT, EMBEDDING, NORM = f"{HEAD}.weight", "model.embed_tokens.weight", "model.norm.weight"
SMOOTHING = 0.5  # 0.4 to 0.6 lose least on the default model: a quarter of the divergence without


def with_int8_head(job: Job[Any], tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` of an artifact with the head in 8 bits. ``report.head_error``: |W - Q(W)| / |W| of the head as it is
    rounded (Frobenius)."""
    source = WEIGHT if WEIGHT in job.names() else EMBEDDING
    held = {}
    for name, tensor in tensors:
        if name in (source, NORM):
            held[name] = tensor
        if name not in (WEIGHT, NORM):
            yield name, tensor
    weight, norm = held[source].float(), held[NORM]
    if job.head_peaks is not None:  # known only now, after the last layer
        layers = DecoderLayers(job.config)
        before = norm.float()
        norm = divided(before, smoothing_scale(job.head_peaks, [weight], SMOOTHING), layers)
        weight = weight * carried(before + layers.norm_offset, norm.float() + layers.norm_offset)
    yield NORM, norm
    stored = quantise_w8a8(weight)
    job.report["head_error"] = round(float((weight - dequantise(stored, SPEC)).norm() / weight.norm()), 6)
    yield from ((f"{HEAD}.{part}", value) for part, value in stored.items())
