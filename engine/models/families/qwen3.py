"""Qwen3 (Yang et al. 2025), the dense ones: q and k of each head are normed, heads have a size of their own."""

from __future__ import annotations

from engine.models.description import Description
from engine.models.families.qwen2 import layer_kinds
from engine.models.fields import Fields


def describe(fields: Fields) -> Description:
    fields.only("model_type", "qwen3")
    fields.whole("head_dim")  # must be there: it is not hidden / heads
    shape = fields.shape()
    attention_bias = fields.flag("attention_bias", False)
    return Description(
        shape=shape,
        layers=layer_kinds(fields, shape.layers, shape.head_dim),
        eps=fields.number("rms_norm_eps"),
        activation=fields.activation("hidden_act"),
        attention_scale=shape.head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        qk_norm=True,
    )
