"""Llama shapes, and weights for them that are drawn where they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.artifact import LinearSpec, Manifest, Named, write_manifest

GROUP = 64
SPECS: dict[str, LinearSpec | None] = {  # of the linears of the layers, by the scheme's name
    "bf16": None,
    "w8a8": LinearSpec(pattern="model.layers.*", scheme="w8a8"),
    "w4a16": LinearSpec(pattern="model.layers.*", scheme="w4a16", group_size=GROUP, symmetric=False),
    "w4a8": LinearSpec(pattern="model.layers.*", scheme="w4a8", group_size=GROUP, symmetric=False),
    "fp8": LinearSpec(pattern="model.layers.*", scheme="fp8"),
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _llama(sizes: tuple[int, int, int, int, int], head_dim: int, vocab: int, tied: bool, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **dict(zip(_SIZES, sizes, strict=True)),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        **more,
    }


# SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B by their config.json; `toy` is for trying the benchmark itself.
SHAPES: dict[str, dict[str, Any]] = {
    "135M": _llama((576, 30, 9, 3, 1536), 64, 49152, True, rope_theta=100000.0),
    "1B": _llama((2048, 16, 32, 8, 8192), 64, 128256, True, rope_scaling=_LLAMA3_ROPE | {"factor": 32.0}),
    "8B": _llama((4096, 32, 32, 8, 14336), 128, 128256, False, rope_scaling=_LLAMA3_ROPE),
    "toy": _llama((64, 2, 4, 2, 128), 16, 256, True),
}


def linears_of(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's products, as the engine fuses them."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return {
        "qkv": ((heads + 2 * kv_heads) * dim, hidden),
        "out": (hidden, heads * dim),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def layer_weights(config: dict[str, Any]) -> int:
    """Of all layers; norms are not counted."""
    return int(config["num_hidden_layers"]) * sum(n * k for n, k in linears_of(config).values())


def weight_bytes(config: dict[str, Any], scheme: str) -> int:
    """About: of everything a model of this scheme holds on the device, embedding and head in bf16."""
    bits = {"bf16": 16.0, "w8a8": 8.0, "fp8": 8.0}.get(scheme, 4.0 + 24.0 / GROUP)
    heads = 1 if config["tie_word_embeddings"] else 2
    return int(layer_weights(config) * bits / 8) + heads * int(config["vocab_size"]) * int(config["hidden_size"]) * 2


def random_tensors(outputs: int, inputs: int, scheme: str, device: torch.device, seed: int) -> dict[str, Tensor]:
    """One linear as it is stored in this scheme (engine.artifact), with weights of about 1 / sqrt(inputs)."""
    g = torch.Generator(device).manual_seed(seed)
    size = inputs**-0.5

    def integers(low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, shape, generator=g, device=device, dtype=dtype)

    if scheme == "bf16":
        weight = torch.randn(outputs, inputs, generator=g, device=device, dtype=torch.bfloat16)
        return {"weight": weight.mul_(size)}
    if scheme == "w8a8":
        scale = torch.full((outputs, 1), size / 73, device=device)  # 73: the root mean square of -127 ... 127
        return {"weight": integers(-127, 128, (outputs, inputs), torch.int8), "weight_scale": scale}
    if scheme == "fp8":
        codes = torch.randn(outputs, inputs, generator=g, device=device, dtype=torch.bfloat16).mul_(100)
        scale = torch.full((outputs, 1), size / 100, device=device)
        return {"weight": codes.clamp_(-448, 448).to(torch.float8_e4m3fn), "weight_scale": scale}
    words, groups = (-(2**31), 2**31 - 1), inputs // GROUP
    return {
        "weight_packed": integers(*words, (outputs, inputs // 8), torch.int32),
        "weight_scale": torch.full((outputs, groups), size / 6.5, device=device, dtype=torch.bfloat16),
        "weight_zero_point": integers(*words, (outputs // 8, groups), torch.int32),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


class RandomWeights:
    """Implements engine.models.weights.Weights for a shape of SHAPES: each tensor is drawn when it is asked for, by its
    name, on the device."""

    def __init__(self, config: dict[str, Any], scheme: str, device: torch.device) -> None:
        self.directory = Path(f"random-{scheme}")
        self._scheme, self._device, self._drawn = scheme, device, dict[str, dict[str, Tensor]]()
        hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
        self._shapes = {
            "q_proj": (q, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, q),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }
        self._has_head = not config["tie_word_embeddings"]

    def __contains__(self, name: str) -> bool:
        return not name.endswith(".bias") and (name != "lm_head.weight" or self._has_head)

    def get(self, name: str, *shape: int) -> Tensor:
        module, _, suffix = name.rpartition(".")
        if module.endswith("norm"):
            return torch.ones(shape, device=self._device)
        seed = sum((i + 1) * b for i, b in enumerate(module.encode()))
        own = self._shapes.get(module.rpartition(".")[2])
        if own is None:  # embedding and head
            return random_tensors(shape[0], shape[1], "bf16", self._device, seed)["weight"]
        if module not in self._drawn:
            self._drawn = {module: random_tensors(*own, self._scheme, self._device, seed)}  # its last suffix was read
        return self._drawn[module][suffix]

    def refuse_unread(self) -> None:
        """There is nothing that was not asked for."""


def write_config(directory: Path, name: str, scheme: str) -> Path:
    """An artifact without weights: what a runner reads beside them."""
    directory.mkdir(parents=True, exist_ok=True)
    config, spec = SHAPES[name], SPECS[scheme]
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    manifest = Manifest(
        name=f"{name}-{scheme}",
        source=Named(name=f"random weights of the shape {name}", digest="0" * 64),
        recipe=scheme,
        linears=[] if spec is None else [spec],
        weight_bytes=weight_bytes(config, scheme),
        files={},
    )
    write_manifest(directory, manifest)
    return directory
