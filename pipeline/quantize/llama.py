"""One decoder layer of ``LlamaForCausalLM`` in float32, with what enters each of its linears.

Stands apart from the engine's models on purpose: a recipe must not depend on the code whose results it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import SeatrialError

# Input of a group of linears -> those linears. The same input means one scale must suit them all.
INPUTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class LlamaLayers:
    """Forward passes of layers of one model. Weights are given by name without the layer's prefix, as float32."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.eps = float(config.get("rms_norm_eps", 1e-6))
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.head_dim = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        if config.get("hidden_act", "silu") != "silu":
            raise SeatrialError(f"hidden_act is {config['hidden_act']!r}; calibration runs layers with silu alone")
        self.inv_freq = rotary_frequencies(config, self.head_dim)

    def forward(self, w: dict[str, Tensor], x: Tensor, see: Callable[[str, Tensor], None]) -> Tensor:
        """``x`` [tokens, hidden] of one sequence -> [tokens, hidden]. ``see(name, input)`` for each of INPUTS."""
        tokens = x.shape[0]
        h = self._norm(x, w["input_layernorm.weight"])
        see("qkv", h)
        q = _linear(h, w, "self_attn.q_proj").view(tokens, self.heads, self.head_dim)
        k = _linear(h, w, "self_attn.k_proj").view(tokens, self.kv_heads, self.head_dim)
        v = _linear(h, w, "self_attn.v_proj").view(tokens, self.kv_heads, self.head_dim)
        angles = torch.outer(torch.arange(tokens, dtype=torch.float32), self.inv_freq)  # [tokens, head_dim/2]
        q, k = _rotate(q, angles), _rotate(k, angles)
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=self.heads != self.kv_heads,
        )
        h = attended[0].transpose(0, 1).reshape(tokens, self.heads * self.head_dim)
        see("o", h)
        x = x + _linear(h, w, "self_attn.o_proj")
        h = self._norm(x, w["post_attention_layernorm.weight"])
        see("gate_up", h)
        h = F.silu(_linear(h, w, "mlp.gate_proj")) * _linear(h, w, "mlp.up_proj")
        see("down", h)
        return x + _linear(h, w, "mlp.down_proj")

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight


def _linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding on the two halves of a head; ``x`` [tokens, heads, head_dim] (Su et al. 2021)."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rotary_frequencies(config: dict[str, Any], head_dim: int) -> Tensor:
    """[head_dim/2], with the scaling that config.json asks for (``default``, ``linear``, ``llama3``).

    Raises:
        SeatrialError: another kind of scaling.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    freq = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return freq
    if kind == "linear":
        return freq / float(rope["factor"])
    if kind == "llama3":
        return _llama3(freq, rope)
    raise SeatrialError(f"rotary scaling {kind!r} is not known to calibration; known: default, linear, llama3")


def _llama3(freq: Tensor, rope: dict[str, Any]) -> Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended (Llama 3.1)."""
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = original * freq / (2 * math.pi)  # rotations within the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return freq / factor * (1 - kept) + freq * kept
