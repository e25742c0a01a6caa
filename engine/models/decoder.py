"""A pre-norm decoder with rotary positions, grouped queries and a gated MLP, as a Description says in detail.

ids -> embedding -> [ norm -> attention (-> norm) -> + -> norm -> mlp (-> norm) -> + ] x layers -> norm -> head
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.artifact import ArtifactError, Manifest
from engine.kernels.interface import Heads, Kernels, KvCache, Operations, StepInput
from engine.layers.attention import Attention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMlp
from engine.layers.rope import RotaryTable
from engine.models.description import Description
from engine.models.weights import TensorStore, Weights

LOGIT_ROWS = 64  # rows of the head's output held in the compute dtype at once


@dataclass(frozen=True)
class Layer:
    before_attention: Tensor  # norms, float32 [hidden]
    attention: Attention
    after_attention: Tensor | None
    before_mlp: Tensor
    mlp: GatedMlp
    after_mlp: Tensor | None

    @property
    def norms(self) -> list[Tensor]:
        norms = [self.before_attention, self.after_attention, self.before_mlp, self.after_mlp]
        return [n for n in norms if n is not None]


class Decoder:
    """Weights and the forward pass. Holds no state of requests: the KV caches are the caller's.

    Layers with a window keep the keys and values of all positions all the same: blocks are shared between requests
    and layers by position, so none can be given back for some layers alone. The ledger's KV bytes are what is held;
    a cache that forgot would need less.
    """

    def __init__(
        self,
        directory: Path,
        description: Description,
        manifest: Manifest,
        kernels: Kernels,
        positions: int,
        store: Weights | None = None,
    ) -> None:
        """``store``: of the weights; None: those in ``directory``.

        Raises:
            ArtifactError: weights missing, of the wrong form, or not of this description.
        """
        self.kernels, self.description, self.shape = kernels, description, description.shape
        self.eps = description.eps
        store = store or TensorStore(directory)
        tables = {
            rope: RotaryTable(rope, positions, kernels.place) for rope in {kind.rope for kind in description.layers}
        }

        heads, kv_heads = self.shape.heads * self.shape.head_dim, self.shape.kv_heads * self.shape.head_dim
        hidden, wide = self.shape.hidden, self.shape.intermediate

        def linear(at: str, outputs: dict[str, int], inputs: int, bias: bool = False) -> Linear:
            sizes = [(n, inputs) for n in outputs.values()]
            return Linear.load(kernels, store, manifest, [f"{at}{name}" for name in outputs], bias, sizes)

        def norm(name: str, size: int = hidden) -> Tensor:
            weight = store.get(f"{name}.weight", size)
            if not weight.is_floating_point():
                raise ArtifactError(f"{directory}: {name}.weight is {weight.dtype}; expected floating point")
            return kernels.place(weight.float() + description.norm_offset)

        def norm_if_named(at: str, name: str | None) -> Tensor | None:
            return None if name is None else norm(f"{at}.{name}")

        def layer(i: int) -> Layer:
            at, kind, names = f"model.layers.{i}", description.layers[i], description.norms
            own = Heads(self.shape.heads, self.shape.kv_heads, self.shape.head_dim)
            if description.qk_norm:
                q_norm, k_norm = (norm(f"{at}.self_attn.{name}_norm", own.dim) for name in "qk")
                own = replace(own, q_norm=q_norm, k_norm=k_norm, eps=self.eps)
            return Layer(
                before_attention=norm(f"{at}.input_layernorm"),
                attention=Attention(
                    own,
                    qkv=linear(
                        f"{at}.self_attn.",
                        {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads},
                        hidden,
                        bias=description.qkv_bias,
                    ),
                    out=linear(f"{at}.self_attn.", {"o_proj": hidden}, heads, bias=description.o_bias),
                    scale=description.attention_scale,
                    rotary=tables[kind.rope],
                    window=kind.window,
                ),
                after_attention=norm_if_named(at, names.after_attention),
                before_mlp=norm(f"{at}.{names.before_mlp}"),
                mlp=GatedMlp(
                    gate_up=linear(
                        f"{at}.mlp.", {"gate_proj": wide, "up_proj": wide}, hidden, bias=description.mlp_bias
                    ),
                    down=linear(f"{at}.mlp.", {"down_proj": hidden}, wide, bias=description.mlp_bias),
                    activation=description.activation,
                ),
                after_mlp=norm_if_named(at, names.after_mlp),
            )

        self.layers = [layer(i) for i in range(self.shape.layers)]
        self.norm = norm("model.norm")
        embedding = store.get("model.embed_tokens.weight", self.shape.vocab, hidden)
        if description.tied and "lm_head.weight" in store and not torch.equal(store.get("lm_head.weight"), embedding):
            raise ArtifactError(
                f"{directory}: config.json ties the head to the embedding, but lm_head.weight differs from "
                "model.embed_tokens.weight; set tie_word_embeddings to false or remove it"
            )
        self.embedding = kernels.pack_linear({"weight": embedding}, None, None)
        self.head = self.embedding if description.tied else linear("", {"lm_head": self.shape.vocab}, hidden).parts[0]
        store.refuse_unread()

    def run(self, ops: Operations, step: StepInput, caches: Sequence[KvCache]) -> Tensor:
        """Normed hidden states [W, hidden] of the step's wanted rows, by these operations. Mutates the caches."""
        residual = self.embed(step.tokens, ops)
        x = ops.rms_norm(residual, self.layers[0].before_attention, self.eps)
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer.attention(ops, x, step, cache)
            last = i + 1 == len(self.layers)
            if last:  # of the others nothing more is needed than their keys and values
                x, residual = ops.pick(x, step.wanted), ops.pick(residual, step.wanted)
            x = self._normed(ops, layer.attention.out(ops, x), layer.after_attention)
            x, residual = ops.add_rms_norm(x, residual, layer.before_mlp, self.eps)
            x = self._normed(ops, layer.mlp(ops, x), layer.after_mlp)
            following = self.norm if last else self.layers[i + 1].before_attention
            x, residual = ops.add_rms_norm(x, residual, following, self.eps)
        return x

    def embed(self, tokens: Tensor, ops: Operations | None = None) -> Tensor:
        """int64 [T] -> [T, hidden]."""
        return (ops or self.kernels).embed(tokens, self.embedding, self.description.embedding_scale)

    def _normed(self, ops: Operations, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else ops.rms_norm(x, weight, self.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states [T, hidden] -> float32 [T, vocab]."""
        if hidden.shape[0] <= LOGIT_ROWS:
            return self.kernels.logits(hidden, self.head)
        out = torch.empty(hidden.shape[0], self.shape.vocab, device=hidden.device)
        for start in range(0, hidden.shape[0], LOGIT_ROWS):
            out[start : start + LOGIT_ROWS] = self.kernels.logits(hidden[start : start + LOGIT_ROWS], self.head)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all weights held, each once (the head may be the embedding)."""
        packed = [self.embedding, self.head]
        tensors = [self.norm]
        for layer in self.layers:
            tensors += [*layer.norms, *layer.attention.norms]
            for part in (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down):
                packed += part.parts
        for p in packed:
            tensors += [*p.tensors.values(), *([] if p.bias is None else [p.bias])]
        return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())
