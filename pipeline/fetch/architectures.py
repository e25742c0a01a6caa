"""Which model families are known, and which tensors each has.

The table is what makes an incomplete, renamed or foreign checkpoint an error here and not a wrong answer later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import SeatrialError

Shapes = dict[str, tuple[int, ...]]


def _whole(config: dict[str, Any], key: str) -> int:
    """
    Raises:
        SeatrialError: not a positive whole number.
    """
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise SeatrialError(f"config.json has {key} = {value!r}, expected a positive whole number")
    return value


def llama_shapes(config: dict[str, Any]) -> Shapes:
    """Tensor name -> shape of ``LlamaForCausalLM``."""
    hidden, inter, vocab, heads, layers = (
        _whole(config, key)
        for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_hidden_layers")
    )
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    linears = {
        "self_attn.q_proj": (heads * head_dim, hidden),
        "self_attn.k_proj": (kv_heads * head_dim, hidden),
        "self_attn.v_proj": (kv_heads * head_dim, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        for name, shape in linears.items():
            shapes[f"{layer}.{name}.weight"] = shape
            if config.get("attention_bias" if name.startswith("self_attn") else "mlp_bias"):
                shapes[f"{layer}.{name}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Shapes]] = {"LlamaForCausalLM": llama_shapes}


def expected_shapes(config: dict[str, Any], where: str) -> Shapes:
    """Tensors that a checkpoint with this ``config.json`` must have.

    Raises:
        SeatrialError: an architecture that is not in the table, a config without a needed number, or a model that
            is quantised already.
    """
    known = ", ".join(ARCHITECTURES)
    architectures = config.get("architectures") or ["(none named)"]
    build = ARCHITECTURES.get(architectures[0])
    if build is None:
        raise SeatrialError(f"{where}: unknown architecture {architectures[0]}; known: {known}")
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "unnamed")
        raise SeatrialError(
            f"{where}: the model is quantised already ({method}); fetch needs the unquantised weights, "
            "tiers are made from them"
        )
    try:
        return build(config)
    except SeatrialError as e:
        raise SeatrialError(f"{where}: {e}") from e


def check_shapes(found: Shapes, expected: Shapes, where: str) -> None:
    """
    Raises:
        SeatrialError: a tensor is missing, unknown or of another shape; names the first few.
    """
    problems = [f"{n} is missing" for n in expected if n not in found]
    problems += [f"{n} is not part of the architecture" for n in found if n not in expected]
    problems += [
        f"{n} has shape {list(found[n])}, config.json says {list(shape)}"
        for n, shape in expected.items()
        if n in found and found[n] != shape
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise SeatrialError(
            f"{where}: {'; '.join(problems[:3])}{more}; the weights and config.json do not belong together"
        )
