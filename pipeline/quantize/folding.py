"""Scales on the input channels of linears, with the inverse folded into what produces them.

    norm -> q, k, v      the norm's weight          v  -> o      rows of v (shared by the query heads of a KV head)
    norm -> gate, up     the norm's weight          up -> down   rows of up

So the function of the layer stays the same and nothing is left to do when it runs. A norm's weight is stored in bf16,
so the scale used is the one that the stored weight carries exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.quantize.llama import LlamaLayers

NORM_OF = {"qkv": "input_layernorm.weight", "gate_up": "post_attention_layernorm.weight"}


def realised(source: str, s: Tensor, weights: dict[str, Tensor], layers: LlamaLayers) -> Tensor:
    """The scale [in] nearest to ``s`` that the layer before can carry exactly. ``source`` is one of INPUTS."""
    norm = weights.get(NORM_OF.get(source, ""))
    if norm is not None:
        return _carried(norm, divided(norm, s))
    return _to_query_heads(_to_kv_heads(s, layers), layers) if source == "o" else s


def folded_norms(weights: dict[str, Tensor], columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, in bf16, of the norms that carry the scales ``columns`` of their readers."""
    return {norm: divided(weights[norm], columns[source]) for source, norm in NORM_OF.items()}


def folded_rows(columns: dict[str, Tensor], layers: LlamaLayers) -> dict[str, Tensor]:
    """Linear -> what its output rows are divided by."""
    return {"self_attn.v_proj": _to_kv_heads(columns["o"], layers), "mlp.up_proj": columns["down"]}


def divided(norm: Tensor, s: Tensor) -> Tensor:
    return (norm / s).to(torch.bfloat16)


def _carried(norm: Tensor, stored: Tensor) -> Tensor:
    """The scale that ``stored`` stands for; 1 where the norm silences a channel."""
    return torch.where((norm != 0) & (stored != 0), norm / stored.float(), torch.ones_like(norm))


def _to_kv_heads(s: Tensor, layers: LlamaLayers) -> Tensor:
    """[heads * D] -> [kv_heads * D]: geometric mean over the query heads that read one KV head."""
    by_head = s.view(layers.kv_heads, layers.heads // layers.kv_heads, layers.head_dim)
    return by_head.log().mean(1).exp().reshape(-1)


def _to_query_heads(s: Tensor, layers: LlamaLayers) -> Tensor:
    """[kv_heads * D] -> [heads * D], each repeated for the query heads that read it."""
    by_head = s.view(layers.kv_heads, 1, layers.head_dim)
    return by_head.expand(-1, layers.heads // layers.kv_heads, -1).reshape(-1)
