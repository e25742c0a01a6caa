"""A tiny random model of any family as an artifact on disk: a few hundred kilobytes, built in a fraction of a second.

The tokenizer has one token a byte (ids 0 to 255) and four special tokens, so that every string round-trips and every
token count is known by looking at the text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from engine.artifact import LinearSpec, Manifest, Named, list_files, write_manifest

Tier = Literal["bf16", "int8", "int4", "int4-a8"]
Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
EOS_ID = 256 + SPECIALS.index("<|im_end|>")
GROUP_SIZE = 32
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WINDOW = 24  # of the families that have one: no multiple of a block, and within a short prompt
# Rotary scalings, as rope_scaling.
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 272,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 257,
    "eos_token_id": EOS_ID,
    "pad_token_id": 259,
    "torch_dtype": "bfloat16",
}
_WITHOUT_BIAS = {k: v for k, v in CONFIG.items() if k not in {"attention_bias", "mlp_bias"}}
_QWEN = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
CONFIGS: dict[Family, dict[str, Any]] = {
    "llama": CONFIG,
    "mistral": _WITHOUT_BIAS
    | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": WINDOW},
    "qwen2": _WITHOUT_BIAS | _QWEN | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": _WITHOUT_BIAS
    | _QWEN
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 24,  # not hidden / heads
        "attention_bias": False,
    },
    "gemma3": {k: v for k, v in _WITHOUT_BIAS.items() if k != "hidden_act"}
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 96,  # its root is not a bf16 number
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": 20,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
    },
}


def make_tiny_artifact(
    path: Path,
    tier: Tier = "bf16",
    seed: int = 0,
    family: Family = "llama",
    int8_head: bool = False,
    **config: Any,
) -> Path:
    """Writes the artifact into ``path`` (made if needed) and returns it.

    ``config`` overrides keys of ``config.json``, for instance ``tie_word_embeddings=False`` or ``attention_bias=True``.
    All tiers of one seed quantise the same weights. ``int8_head``: the head is a quantised tensor of its own.
    """
    path.mkdir(parents=True, exist_ok=True)
    settings = CONFIGS[family] | config
    weights = random_weights(settings, seed)
    tensors: dict[str, torch.Tensor] = {}
    if int8_head:
        settings["tie_word_embeddings"] = False
        tensors |= quantise_w8a8("lm_head", weights.pop("lm_head.weight", weights["model.embed_tokens.weight"]))
    for name, tensor in weights.items():
        module = name.removesuffix(".weight")
        if tier == "bf16" or not module.endswith("_proj"):
            tensors[name] = tensor
        elif tier == "int8":
            tensors |= quantise_w8a8(module, tensor)
        else:
            tensors |= quantise_w4a16(module, tensor, GROUP_SIZE)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    generation = {k: settings[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    write_byte_tokenizer(path)
    linears = {
        "bf16": [],
        "int8": [LinearSpec(pattern="model.layers.*", scheme="w8a8")],
        "int4": [LinearSpec(pattern="model.layers.*", scheme="w4a16", group_size=GROUP_SIZE, symmetric=False)],
        "int4-a8": [LinearSpec(pattern="model.layers.*", scheme="w4a8", group_size=GROUP_SIZE, symmetric=False)],
    }[tier] + ([LinearSpec(pattern="lm_head", scheme="w8a8")] if int8_head else [])
    manifest = Manifest(
        name=f"tiny-{tier}",
        source=Named(name=f"tiny random {family}, seed {seed}", digest="0" * 64),
        recipe=tier,
        linears=linears,
        weight_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
        files=list_files(path),
    )
    write_manifest(path, manifest)
    return path


def random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """bf16 weights under their Hugging Face names, large enough that the logits differ clearly."""
    g = torch.Generator().manual_seed(seed)
    hidden, inter, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
    family = config["model_type"]
    offset = 0 if family == "gemma3_text" else 1  # its norms multiply by 1 + weight
    own_bias = {"self_attn": config.get("attention_bias"), "mlp": config.get("mlp_bias")}

    def normal(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=g) * std).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, std=0.3)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes = {
            "self_attn.q_proj": (heads * head_dim, hidden),
            "self_attn.k_proj": (kv_heads * head_dim, hidden),
            "self_attn.v_proj": (kv_heads * head_dim, hidden),
            "self_attn.o_proj": (hidden, heads * head_dim),
            "mlp.gate_proj": (inter, hidden),
            "mlp.up_proj": (inter, hidden),
            "mlp.down_proj": (hidden, inter),
        }
        for name, (n_out, n_in) in shapes.items():
            tensors[f"{layer}.{name}.weight"] = normal(n_out, n_in, std=2.0 * n_in**-0.5)
            qwen2_bias = family == "qwen2" and name[-6:] in {"q_proj", "k_proj", "v_proj"}
            if own_bias[name.partition(".")[0]] or qwen2_bias:
                tensors[f"{layer}.{name}.bias"] = normal(n_out, std=0.1)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = offset + normal(hidden, std=0.1)
        if family == "gemma3_text":
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                tensors[f"{layer}.{name}.weight"] = offset + normal(hidden, std=0.1)
        if family in {"qwen3", "gemma3_text"}:
            for name in ("self_attn.q_norm", "self_attn.k_norm"):
                tensors[f"{layer}.{name}.weight"] = offset + normal(head_dim, std=0.1)
    tensors["model.norm.weight"] = offset + normal(hidden, std=0.1)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden, std=0.3)
    return tensors


def quantise_w8a8(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Rounds to the nearest, one scale a row."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return {
        f"{module}.weight": (weight.float() / scale).round().to(torch.int8),
        f"{module}.weight_scale": scale,
    }


def quantise_w4a16(module: str, weight: torch.Tensor, group_size: int) -> dict[str, torch.Tensor]:
    """Rounds to the nearest, asymmetric, one scale and zero point a group; packed as ``engine.artifact`` says."""
    n_out, n_in = weight.shape
    grouped = weight.float().view(n_out, n_in // group_size, group_size)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    scale = ((high - low) / 15).to(torch.bfloat16)
    zero = (-8 - low / scale.float()).round().clamp(-8, 7)  # [out, in/group]
    q = (grouped / scale.float()[..., None] + zero[..., None]).round().clamp(-8, 7).view(n_out, n_in)
    return {
        f"{module}.weight_packed": pack_nibbles(q.int()),
        f"{module}.weight_scale": scale,
        f"{module}.weight_zero_point": pack_nibbles(zero.int().t()).t().contiguous(),
        f"{module}.weight_shape": torch.tensor([n_out, n_in]),
    }


def pack_nibbles(values: torch.Tensor) -> torch.Tensor:
    """int32 [r, c] in -8 ... 7 -> int32 [r, c/8], lowest bits first, value + 8."""
    r, c = values.shape
    shifts = torch.arange(0, 32, 4, dtype=torch.int64)
    words = ((values.long() + 8).view(r, c // 8, 8) << shifts).sum(2)
    return words.where(words < 2**31, words - 2**32).int()


def write_byte_tokenizer(path: Path) -> None:
    """``tokenizer.json`` and ``tokenizer_config.json`` of a byte-level BPE without merges: byte b is token b."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {char: byte for byte, char in enumerate(_byte_chars())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _byte_chars() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (Radford et al. 2019, GPT-2's encoder)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]
