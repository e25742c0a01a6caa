"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v, and a window in the upper layers if asked."""

from __future__ import annotations

from engine.models.description import Description, LayerKind
from engine.models.fields import FULL, SLIDING, Fields


def describe(fields: Fields) -> Description:
    fields.only("model_type", "qwen2")
    fields.only("use_mrope", False)
    shape = fields.shape()
    return Description(
        shape=shape,
        layers=layer_kinds(fields, shape.layers, shape.head_dim),
        eps=fields.number("rms_norm_eps"),
        activation=fields.activation("hidden_act"),
        attention_scale=shape.head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=True,
    )


def layer_kinds(fields: Fields, layers: int, head_dim: int) -> tuple[LayerKind, ...]:
    """``sliding_window`` counts only with ``use_sliding_window``, and then from layer ``max_window_layers`` on, unless
    ``layer_types`` says which."""
    used, full = fields.flag("use_sliding_window", False), fields.get("max_window_layers")
    stated = fields.whole_or_none("sliding_window")
    window = stated if used else None
    default = [FULL] * layers
    if window is not None and fields.get("layer_types") is None:
        if isinstance(full, bool) or not isinstance(full, int) or full < 0:
            raise fields.wrong("max_window_layers", "a whole number, since use_sliding_window is true")
        default = [SLIDING if i >= full else FULL for i in range(layers)]
    rope = fields.rope(head_dim)
    return tuple(LayerKind(rope, w) for w in fields.windows(window, layers, default))
