"""Gemma 3, the text model (Gemma Team 2025).

Norms before and after attention and MLP, each multiplying by 1 + weight; q and k normed by head; embeddings scaled by
sqrt(hidden); five layers with a window and rotary base 10,000 for each one that sees everything with base 1,000,000.
"""

from __future__ import annotations

from typing import Any

from engine.artifact import ArtifactError
from engine.layers.rope import Rope
from engine.models.description import Description, LayerKind, Norms
from engine.models.fields import FULL, SLIDING, Fields

NORMS = Norms("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
PATTERN_FIELDS = (
    "sliding_window_pattern",
    "_sliding_window_pattern",
)  # without layer_types; the second in files of 2025
LOCAL_THETA, GLOBAL_THETA = 10_000.0, 1_000_000.0


def describe(fields: Fields) -> Description:
    fields.only("model_type", "gemma3_text")
    fields.only("use_bidirectional_attention", False)
    fields.only("attn_logit_softcapping")
    fields.only("final_logit_softcapping")
    fields.whole("head_dim")  # must be there: it is not hidden / heads
    shape = fields.shape()
    window = fields.whole_or_none("sliding_window")
    pattern_fields = [field for field in PATTERN_FIELDS if fields.get(field) is not None]
    default = [FULL] * shape.layers
    if fields.get("layer_types") is None:
        pattern = fields.whole(next(iter(pattern_fields), PATTERN_FIELDS[0]))
        default = [SLIDING if (i + 1) % pattern else FULL for i in range(shape.layers)]
    everywhere, nearby = _rotations(fields, shape.head_dim)
    windows = fields.windows(window, shape.layers, default)
    attention_bias = fields.flag("attention_bias", False)
    return Description(
        shape=shape,
        layers=tuple(LayerKind(everywhere if w is None else nearby, w) for w in windows),
        eps=fields.number("rms_norm_eps"),
        activation=fields.activation("hidden_activation"),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        tied=fields.flag("tie_word_embeddings", True),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        qk_norm=True,
        norms=NORMS,
        norm_offset=1.0,
        embedding_scale=shape.hidden**0.5,
    )


def _rotations(fields: Fields, head_dim: int) -> tuple[Rope, Rope]:
    """Of full and of windowed layers. ``rope_scaling`` (older configs) is that of full layers alone;
    ``rope_parameters`` has an object for each kind of layer."""
    by_kind = fields.scaling("rope_parameters")
    unknown = by_kind.keys() - {FULL, SLIDING}
    if unknown:
        raise ArtifactError(
            f"config.json: rope_parameters has {', '.join(sorted(unknown))}; expected an object each for {FULL} and "
            f"{SLIDING}"
        )
    scaling = fields.scaling("rope_scaling")
    if scaling and by_kind:
        raise ArtifactError("config.json has rope_scaling and rope_parameters; expected one")

    def of(kind: str) -> dict[str, Any]:
        value = by_kind.get(kind) or {}
        if not isinstance(value, dict):
            raise fields.wrong("rope_parameters", f"an object for {kind}")
        return value

    return (
        fields.rotation(head_dim, of(FULL) or scaling, "rope_theta", GLOBAL_THETA),
        fields.rotation(head_dim, of(SLIDING), "rope_local_base_freq", LOCAL_THETA),
    )
