"""What distinguishes one decoder family from another, as data. ``engine.models.decoder`` runs any of it.

    config.json --(engine.models.families)--> Description --(engine.models.decoder)--> weights and forward pass

Left out on purpose, since no family here has it: parallel attention and MLP, layer norm with a mean, partial rotation,
learned positions, experts, soft caps on scores or logits. A config that asks for one of them is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.interface import Activation
from engine.layers.rope import Rope
from engine.ledger import ModelShape


@dataclass(frozen=True)
class LayerKind:
    """What may differ from layer to layer."""

    rope: Rope
    window: int | None = None  # a position sees the last so many, itself included; None: all before it


@dataclass(frozen=True)
class Norms:
    """Names of the norms of a layer: before the MLP, and on what attention and MLP give (None: there is none)."""

    before_mlp: str = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None


@dataclass(frozen=True)
class Description:
    shape: ModelShape
    layers: tuple[LayerKind, ...]
    eps: float
    activation: Activation
    attention_scale: float  # on the products of queries and keys
    tied: bool  # the head is the embedding
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each head of q and k, before the rotation
    norms: Norms = Norms()
    norm_offset: float = 0.0  # a norm multiplies by offset + stored weight
    embedding_scale: float = 1.0  # rounded to the compute dtype before it is applied

    def __post_init__(self) -> None:
        if len(self.layers) != self.shape.layers:
            raise ValueError(f"{len(self.layers)} layer kinds for {self.shape.layers} layers")
