"""One decoder layer of a model in float32, with what enters each of its linears.

Stands apart from the engine's models on purpose: a recipe must not depend on the code whose results it is judged by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import SeatrialError
from pipeline.fetch.architectures import family_of
from pipeline.quantize.rotary import rotary_frequencies

# Input of a group of linears -> those linears. The same input means one scale must suit them all.
INPUTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
Config = dict[str, Any]
Windows = list[int | None]  # of each layer: how many positions one sees, itself included; None: all before it


def _no_windows(config: Config) -> Windows:
    return [None] * config["num_hidden_layers"]


def _mistral_windows(config: Config) -> Windows:
    return [config.get("sliding_window")] * config["num_hidden_layers"]


def _qwen_windows(config: Config) -> Windows:
    if not config.get("use_sliding_window"):
        return _no_windows(config)
    return _typed_windows(config, lambda i: i >= _need(config, "max_window_layers"))


def _gemma3_windows(config: Config) -> Windows:
    field = "_sliding_window_pattern" if "_sliding_window_pattern" in config else "sliding_window_pattern"
    return _typed_windows(config, lambda i: bool((i + 1) % _need(config, field)))


def _typed_windows(config: Config, otherwise: Callable[[int], bool]) -> Windows:
    """By ``layer_types``; without it, those layers have a window for which ``otherwise`` says so."""
    kinds, layers = config.get("layer_types"), range(config["num_hidden_layers"])
    has = [otherwise(i) for i in layers] if kinds is None else [kind == "sliding_attention" for kind in kinds]
    return [_need(config, "sliding_window") if h else None for h in has]


def _need(config: Config, field: str) -> Any:
    if config.get(field) is None:
        raise SeatrialError(f"config.json has no {field}")
    return config[field]


def _one_rope(config: Config, window: int | None) -> tuple[Tensor, float]:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rotary_frequencies(scaling, float(config.get("rope_theta") or 10_000.0), config["head_dim"])


def _gemma3_rope(config: Config, window: int | None) -> tuple[Tensor, float]:
    """Layers with a window turn by a base of their own; an older config's scaling is that of the others."""
    by_kind = config.get("rope_parameters") or {}
    if window is None:
        scaling = by_kind.get("full_attention") or config.get("rope_scaling") or {}
        return rotary_frequencies(scaling, float(config.get("rope_theta") or 1_000_000.0), config["head_dim"])
    scaling = by_kind.get("sliding_attention") or {}
    return rotary_frequencies(scaling, float(config.get("rope_local_base_freq") or 10_000.0), config["head_dim"])


@dataclass(frozen=True)
class Arithmetic:
    """What a family computes otherwise than Llama. Its tensors: ``pipeline.fetch.architectures``."""

    windows: Callable[[Config], Windows] = _no_windows
    rope: Callable[[Config, int | None], tuple[Tensor, float]] = _one_rope
    activation_field: str = "hidden_act"
    before_mlp: str = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None
    norm_offset: float = 0.0  # a norm multiplies by offset + weight
    scaled_embedding: bool = False  # by sqrt(hidden)
    query_scalar: str | None = None  # field: scores are divided by its root instead of that of head_dim


ARITHMETIC = {
    "LlamaForCausalLM": Arithmetic(),
    "MistralForCausalLM": Arithmetic(_mistral_windows),
    "Qwen2ForCausalLM": Arithmetic(_qwen_windows),
    "Qwen3ForCausalLM": Arithmetic(_qwen_windows),
    "Gemma3ForCausalLM": Arithmetic(
        _gemma3_windows,
        _gemma3_rope,
        activation_field="hidden_activation",
        before_mlp="pre_feedforward_layernorm",
        after_attention="post_attention_layernorm",
        after_mlp="post_feedforward_layernorm",
        norm_offset=1.0,
        scaled_embedding=True,
        query_scalar="query_pre_attn_scalar",
    ),
}


class DecoderLayers:
    """Forward passes of layers of one model. Weights are given by name without the layer's prefix, as float32."""

    def __init__(self, config: Config) -> None:
        """
        Raises:
            SeatrialError: an unknown architecture, activation or rotary scaling.
        """
        family_of(config, "config.json")
        self.how = ARITHMETIC[config["architectures"][0]]
        self.norm_offset = self.how.norm_offset
        self.norm_of = {"qkv": "input_layernorm.weight", "gate_up": f"{self.how.before_mlp}.weight"}
        self.eps = float(_need(config, "rms_norm_eps"))
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.head_dim = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        activation = _need(config, self.how.activation_field)
        if activation not in ACTIVATIONS:
            raise SeatrialError(
                f"{self.how.activation_field} is {activation!r}; calibration runs layers with {', '.join(ACTIVATIONS)}"
            )
        self.activation = ACTIVATIONS[activation]
        self.embedding_scale = config["hidden_size"] ** 0.5 if self.how.scaled_embedding else 1.0
        scalar = _need(config, self.how.query_scalar) if self.how.query_scalar else self.head_dim
        self.scale = None if scalar == self.head_dim else float(scalar) ** -0.5  # None: torch's own, 1/sqrt(head_dim)
        self.windows = self.how.windows(config)
        sizes = config | {"head_dim": self.head_dim}
        self.ropes = {window: self.how.rope(sizes, window) for window in set(self.windows)}

    def embed(self, embedding: Tensor, ids: Tensor) -> Tensor:
        """float32 [tokens, hidden], what enters the first layer."""
        return embedding[ids].float() * self.embedding_scale

    def forward(self, i: int, w: dict[str, Tensor], x: Tensor, see: Callable[[str, Tensor], None]) -> Tensor:
        """``x`` [tokens, hidden] of one sequence through layer ``i`` -> [tokens, hidden]. ``see(name, input)`` for
        each of INPUTS."""
        h = self.norm(x, w["input_layernorm.weight"])
        see("qkv", h)
        h = self._attend(i, w, h)
        see("o", h)
        x = x + self._normed_if(self.how.after_attention, w, _linear(h, w, "self_attn.o_proj"))
        h = self.norm(x, w[self.norm_of["gate_up"]])
        see("gate_up", h)
        h = self.activation(_linear(h, w, "mlp.gate_proj")) * _linear(h, w, "mlp.up_proj")
        see("down", h)
        return x + self._normed_if(self.how.after_mlp, w, _linear(h, w, "mlp.down_proj"))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (weight + self.norm_offset)

    def _attend(self, i: int, w: dict[str, Tensor], h: Tensor) -> Tensor:
        """[tokens, hidden], normed -> [tokens, heads * head_dim]."""
        tokens, window = h.shape[0], self.windows[i]
        q = _linear(h, w, "self_attn.q_proj").view(tokens, self.heads, self.head_dim)
        k = _linear(h, w, "self_attn.k_proj").view(tokens, self.kv_heads, self.head_dim)
        v = _linear(h, w, "self_attn.v_proj").view(tokens, self.kv_heads, self.head_dim)
        q, k = self._normed_if("self_attn.q_norm", w, q), self._normed_if("self_attn.k_norm", w, k)
        frequencies, factor = self.ropes[window]
        angles = torch.outer(torch.arange(tokens, dtype=torch.float32), frequencies)  # [tokens, head_dim/2]
        q, k = _rotate(q, angles, factor), _rotate(k, angles, factor)
        mask = None
        if window is not None:
            mask = torch.ones(tokens, tokens, dtype=torch.bool).tril().triu(1 - window)
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=self.heads != self.kv_heads,
        )
        return attended[0].transpose(0, 1).reshape(tokens, self.heads * self.head_dim)

    def _normed_if(self, norm: str | None, w: dict[str, Tensor], x: Tensor) -> Tensor:
        """Normed, if the layer has such a norm."""
        weight = w.get(f"{norm}.weight")
        return x if weight is None else self.norm(x, weight)


def _linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _rotate(x: Tensor, angles: Tensor, factor: float) -> Tensor:
    """Rotary embedding on the two halves of a head; ``x`` [tokens, heads, head_dim] (Su et al. 2021)."""
    cos, sin = angles.cos()[:, None] * factor, angles.sin()[:, None] * factor
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
