"""The Llama family (Touvron et al. 2023): pre-norm decoder, rotary positions, grouped queries, gated MLP.

ids -> embedding -> [ norm -> attention -> + -> norm -> mlp -> + ] x layers -> norm -> head -> logits
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.artifact import ArtifactError, Manifest
from engine.kernels.interface import Kernels, KvCache
from engine.layers.attention import Attention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMlp
from engine.layers.rope import RotaryTable
from engine.layers.step import StepInput
from engine.ledger import ModelShape
from engine.models.weights import TensorStore

LOGIT_ROWS = 64  # rows of the head's output held in the compute dtype at once


@dataclass(frozen=True)
class Layer:
    input_norm: Tensor  # float32 [hidden]
    attention: Attention
    post_norm: Tensor  # float32 [hidden]
    mlp: GatedMlp


class Llama:
    """Weights and the forward pass. Holds no state of requests: the KV caches are the caller's."""

    def __init__(
        self, directory: Path, config: dict[str, Any], manifest: Manifest, kernels: Kernels, positions: int
    ) -> None:
        """
        Raises:
            ArtifactError: weights missing or of the wrong form, or a config this family does not have.
        """
        self.kernels, self.shape = kernels, ModelShape.of_config(config)
        self.eps = float(config.get("rms_norm_eps", 1e-6))
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ArtifactError(f"config.json asks for hidden_act {activation!r}; the Llama family here has 'silu'")
        self.rotary = RotaryTable(config, self.shape.head_dim, positions)
        store = TensorStore(directory)

        def linear(*modules: str) -> Linear:
            return Linear.load(kernels, store, manifest, list(modules))

        def norm(name: str) -> Tensor:
            return store.get(f"{name}.weight").float()

        def layer(i: int) -> Layer:
            at = f"model.layers.{i}"
            qkv = linear(*(f"{at}.self_attn.{n}_proj" for n in "qkv"))
            attention = Attention(kernels, self.shape, qkv, linear(f"{at}.self_attn.o_proj"))
            mlp = GatedMlp(kernels, linear(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"), linear(f"{at}.mlp.down_proj"))
            return Layer(norm(f"{at}.input_layernorm"), attention, norm(f"{at}.post_attention_layernorm"), mlp)

        self.layers = [layer(i) for i in range(self.shape.layers)]
        self.norm = norm("model.norm")
        embedding = store.get("model.embed_tokens.weight")
        if tuple(embedding.shape) != (self.shape.vocab, self.shape.hidden):
            raise ArtifactError(
                f"{directory}: model.embed_tokens.weight has shape {list(embedding.shape)}; config.json says "
                f"[{self.shape.vocab}, {self.shape.hidden}]"
            )
        self.embedding = kernels.pack_linear({"weight": embedding}, None, None)
        tied = bool(config.get("tie_word_embeddings", False)) or "lm_head.weight" not in store
        self.head = self.embedding if tied else linear("lm_head").parts[0]

    def forward(self, step: StepInput, caches: list[KvCache]) -> Tensor:
        """Normed hidden states [T, hidden] of the step's tokens. Mutates the caches."""
        residual = self.kernels.embed(step.tokens, self.embedding)
        x = self.kernels.rms_norm(residual, self.layers[0].input_norm, self.eps)
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer.attention(x, step, cache)
            x, residual = self.kernels.add_rms_norm(x, residual, layer.post_norm, self.eps)
            x = layer.mlp(x)
            following = self.layers[i + 1].input_norm if i + 1 < len(self.layers) else self.norm
            x, residual = self.kernels.add_rms_norm(x, residual, following, self.eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states [T, hidden] -> float32 [T, vocab]."""
        if hidden.shape[0] <= LOGIT_ROWS:
            return self.kernels.logits(hidden, self.head)
        out = torch.empty(hidden.shape[0], self.shape.vocab)
        for start in range(0, hidden.shape[0], LOGIT_ROWS):
            out[start : start + LOGIT_ROWS] = self.kernels.logits(hidden[start : start + LOGIT_ROWS], self.head)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all weights held, each storage once (the head may be the embedding)."""
        packed = [self.embedding, self.head]
        tensors = [self.norm]
        for layer in self.layers:
            tensors += [layer.input_norm, layer.post_norm]
            for part in (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down):
                packed += part.parts
        for p in packed:
            tensors += [*p.tensors.values(), *([] if p.bias is None else [p.bias])]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
