"""Mistral (Jiang et al. 2023): Llama without biases and, in its first version, with a window in every layer."""

from __future__ import annotations

from engine.models.description import Description, LayerKind
from engine.models.fields import Fields


def describe(fields: Fields) -> Description:
    fields.only("model_type", "mistral")
    shape = fields.shape()
    window = fields.whole_or_none("sliding_window")
    return Description(
        shape=shape,
        layers=(LayerKind(fields.rope(shape.head_dim), window),) * shape.layers,
        eps=fields.number("rms_norm_eps"),
        activation=fields.activation("hidden_act"),
        attention_scale=shape.head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", False),
    )
