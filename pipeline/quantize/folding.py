"""Scales on the input channels of linears, with the inverse folded into what produces them.

    norm -> q, k, v      the norm's weight          v  -> o      rows of v (shared by the query heads of a KV head)
    norm -> gate, up     the norm's weight          up -> down   rows of up
    norm -> head         the norm's weight, where the head is not tied to the embedding

So the function of the layer stays the same and nothing is left to do when it runs. Biases of v and up are divided with
their rows, all others stay; norms of q and k see what they saw. A norm multiplies by its offset (Gemma: 1) plus its
weight, which is stored in bf16, so the scale used is the one that the stored weight carries exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.quantize.decoder import DecoderLayers


def smoothing_scale(peak: Tensor, weights: list[Tensor], strength: float) -> Tensor:
    """float32 [in], geometric mean 1. A channel that is silent in the data or in the weights keeps the scale 1."""
    heaviest = torch.stack([w.abs().amax(0) for w in weights]).amax(0)  # [in]
    usable = (peak > 0) & (heaviest > 0)
    s = torch.where(usable, peak**strength / heaviest.clamp(min=1e-12) ** (1 - strength), torch.ones_like(peak))
    return s / s.log().mean().exp()


def realised(source: str, s: Tensor, weights: dict[str, Tensor], layers: DecoderLayers) -> Tensor:
    """The scale [in] nearest to ``s`` that the layer before can carry exactly. ``source`` is one of INPUTS."""
    if source in layers.norm_of:
        norm = weights[layers.norm_of[source]]
        return carried(norm + layers.norm_offset, divided(norm, s, layers).float() + layers.norm_offset)
    return _to_query_heads(_to_kv_heads(s, layers), layers) if source == "o" else s


def stored_norms(weights: dict[str, Tensor], columns: dict[str, Tensor], layers: DecoderLayers) -> dict[str, Tensor]:
    """All norms of the layer, in bf16; those that feed linears carry the scales ``columns`` of their readers."""
    kept = {name: weight.to(torch.bfloat16) for name, weight in weights.items() if name.endswith("norm.weight")}
    return kept | {norm: divided(weights[norm], columns[source], layers) for source, norm in layers.norm_of.items()}


def folded_rows(columns: dict[str, Tensor], layers: DecoderLayers) -> dict[str, Tensor]:
    """Linear -> what its output rows are divided by."""
    return {"self_attn.v_proj": _to_kv_heads(columns["o"], layers), "mlp.up_proj": columns["down"]}


def divided(norm: Tensor, s: Tensor, layers: DecoderLayers) -> Tensor:
    """The weight to store so that the norm multiplies by 1 / s of what it did."""
    return ((norm + layers.norm_offset) / s - layers.norm_offset).to(torch.bfloat16)


def carried(before: Tensor, after: Tensor) -> Tensor:
    """The scale between two multipliers of a norm; 1 where it silences a channel."""
    return torch.where((before != 0) & (after != 0), before / after, torch.ones_like(before))


def _to_kv_heads(s: Tensor, layers: DecoderLayers) -> Tensor:
    """[heads * D] -> [kv_heads * D]: geometric mean over the query heads that read one KV head."""
    by_head = s.view(layers.kv_heads, layers.heads // layers.kv_heads, layers.head_dim)
    return by_head.log().mean(1).exp().reshape(-1)


def _to_query_heads(s: Tensor, layers: DecoderLayers) -> Tensor:
    """[kv_heads * D] -> [heads * D], each repeated for the query heads that read it."""
    by_head = s.view(layers.kv_heads, 1, layers.head_dim)
    return by_head.expand(-1, layers.heads // layers.kv_heads, -1).reshape(-1)
