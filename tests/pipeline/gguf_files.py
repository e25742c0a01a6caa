"""Small GGUF files as llama.cpp would write them, from the tiny random Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests.tiny import CHAT_TEMPLATE, CONFIG, random_weights

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["Ġt", "he", "Ġthe", "20"]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def byte_chars() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tokens() -> list[str]:
    return [*SPECIALS, *byte_chars(), *WORDS]


def settings(**config: Any) -> dict[str, Any]:
    return CONFIG | {"vocab_size": len(tokens()), "hidden_size": 64, "intermediate_size": 96} | config


def interleave(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Row 2i of a head is the old row i, row 2i + 1 the old row D/2 + i."""
    by_head = tensor.reshape(heads, -1, *tensor.shape[1:])
    half = by_head.shape[1] // 2
    order = [i // 2 + (i % 2) * half for i in range(2 * half)]
    return by_head[:, order].reshape(tensor.shape)


def write_gguf(
    path: Path,
    *,
    pre: str = "smollm",
    architecture: str = "llama",
    kind: str = "F32",
    drop: str | None = None,
    extra: str | None = None,
    window: int | None = None,
    **config: Any,
) -> dict[str, torch.Tensor]:
    """Writes the file and returns the weights under their Hugging Face names."""
    s = settings(**config)
    weights = random_weights(s, seed=3)
    w = GGUFWriter(path, architecture)
    w.add_block_count(s["num_hidden_layers"])
    w.add_context_length(s["max_position_embeddings"])
    w.add_embedding_length(s["hidden_size"])
    w.add_feed_forward_length(s["intermediate_size"])
    w.add_head_count(s["num_attention_heads"])
    w.add_head_count_kv(s["num_key_value_heads"])
    w.add_layer_norm_rms_eps(s["rms_norm_eps"])
    w.add_rope_freq_base(s["rope_theta"])
    if window is not None:
        w.add_sliding_window(window)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens())
    w.add_token_types([3] * len(SPECIALS) + [1] * (256 + len(WORDS)))
    w.add_token_merges(["Ġ t", "h e", "Ġt he", "2 0"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_pad_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in weights.items():
        if name == drop:
            continue
        module, _, part = name.rpartition(".")
        if module.startswith("model.layers."):
            _, _, layer, short = module.split(".", 3)
            target = f"blk.{layer}.{NAMES[short]}.{part}"
        else:
            target = f"{NAMES[module]}.{part}"
        heads = {"q_proj": s["num_attention_heads"], "k_proj": s["num_key_value_heads"]}.get(module.rsplit(".", 1)[-1])
        stored = interleave(tensor, heads) if heads else tensor
        as_type = GGMLQuantizationType[kind if stored.dim() == 2 else "F32"]
        data = quantize(np.ascontiguousarray(stored.float().numpy()), as_type)
        w.add_tensor(target, data, raw_dtype=as_type)
    if extra:
        w.add_tensor(extra, np.zeros(4, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return weights
