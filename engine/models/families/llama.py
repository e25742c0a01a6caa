"""Llama (Touvron et al. 2023) and what is published under its architecture: SmolLM2, TinyLlama, Yi, ..."""

from __future__ import annotations

from engine.models.description import Description, LayerKind
from engine.models.fields import Fields


def describe(fields: Fields) -> Description:
    fields.only("model_type", "llama")
    shape = fields.shape()
    attention_bias = fields.flag("attention_bias", False)
    return Description(
        shape=shape,
        layers=(LayerKind(fields.rope(shape.head_dim)),) * shape.layers,
        eps=fields.number("rms_norm_eps"),
        activation=fields.activation("hidden_act"),
        attention_scale=shape.head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )
