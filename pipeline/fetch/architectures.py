"""Which model families are known, and which tensors each has.

The table is what makes an incomplete, renamed or foreign checkpoint an error here and not a wrong answer later.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Family:
    """Which tensors the models of an architecture have. A bias is there always, never, or where the field of
    ``config.json`` that is named says so."""

    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")  # of a layer, each [hidden]
    qk_norm: bool = False  # norms of q and k, [head_dim]
    own_head_dim: bool = False  # the config must say head_dim: it is not hidden / heads
    tied: bool = False  # where config.json does not say


GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
ATTENTION_BIAS = "attention_bias"
FAMILIES = {
    "LlamaForCausalLM": Family(ATTENTION_BIAS, ATTENTION_BIAS, "mlp_bias"),
    "MistralForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(ATTENTION_BIAS, ATTENTION_BIAS, qk_norm=True, own_head_dim=True),
    "Gemma3ForCausalLM": Family(
        ATTENTION_BIAS, ATTENTION_BIAS, norms=GEMMA_NORMS, qk_norm=True, own_head_dim=True, tied=True
    ),
}


def shapes_of(family: Family, config: dict[str, Any]) -> Shapes:
    """Tensor name -> shape, in the order in which they are written.

    Raises:
        SeatrialError: a number is missing.
    """
    hidden, inter, vocab, heads, layers = (
        _whole(config, key)
        for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_hidden_layers")
    )
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = _whole(config, "head_dim") if family.own_head_dim else config.get("head_dim") or hidden // heads
    linears = {
        "self_attn.q_proj": ((heads * head_dim, hidden), family.qkv_bias),
        "self_attn.k_proj": ((kv_heads * head_dim, hidden), family.qkv_bias),
        "self_attn.v_proj": ((kv_heads * head_dim, hidden), family.qkv_bias),
        "self_attn.o_proj": ((hidden, heads * head_dim), family.o_bias),
        "mlp.gate_proj": ((inter, hidden), family.mlp_bias),
        "mlp.up_proj": ((inter, hidden), family.mlp_bias),
        "mlp.down_proj": ((hidden, inter), family.mlp_bias),
    }
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name in family.norms:
            shapes[f"{layer}.{name}.weight"] = (hidden,)
        for name, (shape, bias) in linears.items():
            shapes[f"{layer}.{name}.weight"] = shape
            if config.get(bias) if isinstance(bias, str) else bias:
                shapes[f"{layer}.{name}.bias"] = shape[:1]
        if family.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = shapes[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
    shapes["model.norm.weight"] = (hidden,)
    tied = config.get("tie_word_embeddings")
    if not (family.tied if tied is None else tied):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def family_of(config: dict[str, Any], where: str) -> Family:
    """
    Raises:
        SeatrialError: an architecture that is not in the table.
    """
    name = (config.get("architectures") or ["(none named)"])[0]
    if name not in FAMILIES:
        multimodal = str(name).endswith("ForConditionalGeneration")
        hint = "; it reads more than text: save its language model by itself first" if multimodal else ""
        raise SeatrialError(f"{where}: unknown architecture {name}; known: {', '.join(FAMILIES)}{hint}")
    return FAMILIES[name]


def expected_shapes(config: dict[str, Any], where: str) -> Shapes:
    """Tensors that a checkpoint with this ``config.json`` must have.

    Raises:
        SeatrialError: an architecture that is not in the table, a config without a needed number, or a model that
            is quantised already.
    """
    family = family_of(config, where)
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "unnamed")
        raise SeatrialError(
            f"{where}: the model is quantised already ({method}); fetch needs the unquantised weights, "
            "tiers are made from them"
        )
    try:
        return shapes_of(family, config)
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
