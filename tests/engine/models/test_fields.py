"""Fields of config.json: those of the files in circulation are understood, all others are refused by name."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from engine.artifact import ArtifactError
from engine.layers.rope import Rope
from engine.models.description import Description, LayerKind
from engine.models.registry import describe
from tests.tiny import CONFIGS, WINDOW, Family

FAMILIES: tuple[Family, ...] = get_args(Family)
FULL, SLIDING = "full_attention", "sliding_attention"


def described(family: Family, **change: Any) -> Description:
    """``...`` leaves a field out."""
    return describe({k: v for k, v in (CONFIGS[family] | change).items() if v is not ...})


@pytest.mark.parametrize("full", [True, False], ids=["all fields", "what save_pretrained writes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_means_the_same(family: Family, full: bool) -> None:
    """The new spelling (rope_parameters, layer_types, dtype) of the config that the tiny artifact has in the old."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(**{k: v for k, v in CONFIGS[family].items() if k != "torch_dtype"})
    config.dtype = "bfloat16"
    written = json.loads(config.to_json_string(use_diff=not full))
    assert "rope_parameters" in written
    assert "rope_theta" not in written
    assert describe(written) == described(family)


# As published, without what only bookkeeping needs.
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
        "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "vocab_size": 49152,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
    },
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "Qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "gemma-3-1b-it": {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None,
        "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_understood(name: str) -> None:
    found = describe(PUBLISHED[name])
    near, far = LayerKind(Rope(256, 1e4), 512), LayerKind(Rope(256, 1e6))
    plain = {
        "SmolLM2-135M-Instruct": LayerKind(Rope(64, 1e5)),
        "Mistral-7B-v0.1": LayerKind(Rope(128, 1e4), 4096),
        "Qwen2.5-0.5B": LayerKind(Rope(64, 1e6)),
        "Qwen3-0.6B": LayerKind(Rope(128, 1e6)),
    }
    if name in plain:
        assert set(found.layers) == {plain[name]}
    if name == "gemma-3-1b-it":
        assert found.layers == ((near,) * 5 + (far,)) * 4 + (near,) * 2
    assert found.tied is (name != "Mistral-7B-v0.1")
    assert found.qkv_bias is name.startswith("Qwen2")
    assert not found.o_bias
    assert found.qk_norm is name.startswith(("Qwen3", "gemma"))
    assert found.embedding_scale == (1152**0.5 if name.startswith("gemma") else 1.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("field", "value"), [("num_local_experts", 8), ("residual_multiplier", 0.22), ("novel", None)])
def test_unknown_fields_are_refused_by_name(family: Family, field: str, value: Any) -> None:
    architecture = CONFIGS[family]["architectures"][0]
    message = rf"config.json has {field} = {value}, which this version does not know for {architecture}; it knows .*eps"
    with pytest.raises(ArtifactError, match=message):
        described(family, **{field: value})


WRONG: list[tuple[Family, dict[str, Any], str]] = [
    ("llama", {"pretraining_tp": 2}, "asks for pretraining_tp 2; expected 1 for LlamaForCausalLM"),
    ("llama", {"rope_interleaved": True}, "asks for rope_interleaved True; expected False"),
    ("llama", {"partial_rotary_factor": 0.5}, "asks for partial_rotary_factor 0.5; expected 1"),
    ("llama", {"model_type": "mamba"}, "asks for model_type 'mamba'; expected 'llama'"),
    ("llama", {"hidden_act": "relu"}, "asks for hidden_act 'relu'; expected one of silu, swish, gelu"),
    ("llama", {"hidden_act": ...}, "has no 'hidden_act'; expected one of silu"),
    ("llama", {"hidden_size": ...}, "has no 'hidden_size'; expected a positive whole number"),
    ("llama", {"num_hidden_layers": 2.5}, "asks for num_hidden_layers 2.5; expected a positive whole number"),
    ("llama", {"num_key_value_heads": 3}, "4 heads do not divide into 3 KV heads"),
    ("llama", {"rms_norm_eps": 0}, "asks for rms_norm_eps 0; expected a positive number"),
    ("llama", {"attention_bias": 1}, "asks for attention_bias 1; expected true or false"),
    ("llama", {"max_position_embeddings": ...}, "has no 'max_position_embeddings'"),
    ("llama", {"sliding_window": 24}, "has sliding_window = 24, which this version does not know for LlamaFor"),
    ("llama", {"rope_theta": "1e4"}, r"asks for rope_theta '1e4'; expected a number above 1"),
    ("llama", {"rope_scaling": 4}, "asks for rope_scaling 4; expected an object"),
    ("llama", {"rope_parameters": {"rope_theta": 5.0}}, "rope_theta 5.0 within rope_parameters and rope_theta 10000.0"),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"type": "linear", "factor": 4}},
        "has rope_scaling and rope_parameters, and they differ",
    ),
    ("mistral", {"attention_bias": True}, "has attention_bias = True, which this version does not know for MistralFor"),
    ("mistral", {"layer_types": [FULL] * 3}, "has layer_types = "),
    ("mistral", {"sliding_window": 0}, "asks for sliding_window 0; expected a positive whole number"),
    ("qwen2", {"use_mrope": True}, "asks for use_mrope True; expected False"),
    ("qwen2", {"layer_types": [FULL] * 2}, r"asks for layer_types .*; expected a list of 3"),
    ("qwen2", {"layer_types": [FULL, FULL, "chunked"]}, r"asks for layer_types .*each 'full_attention' or 'slid"),
    ("qwen2", {"layer_types": [SLIDING] * 3, "use_sliding_window": False}, "no window .*use_sliding_window False"),
    ("qwen2", {"max_window_layers": ...}, "has no 'max_window_layers'; expected a whole number, since use_slid"),
    ("qwen3", {"head_dim": ...}, "has no 'head_dim'; expected a positive whole number for Qwen3ForCausalLM"),
    ("gemma3", {"head_dim": None}, "asks for head_dim None; expected a positive whole number"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0; expected null, since this version"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0; expected null"),
    ("gemma3", {"use_bidirectional_attention": True}, "asks for use_bidirectional_attention True; expected False"),
    ("gemma3", {"sliding_window_pattern": ...}, "has no 'sliding_window_pattern'; expected a positive whole number"),
    ("gemma3", {"sliding_window": ...}, "layer_types has 'sliding_attention' layers but there is no window"),
    ("gemma3", {"query_pre_attn_scalar": ...}, "has no 'query_pre_attn_scalar'; expected a positive number"),
    ("gemma3", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has rope_theta; expected an object each"),
    ("gemma3", {"rope_parameters": {FULL: 4}}, "asks for rope_parameters .*; expected an object for full_attention"),
    ("gemma3", {"rope_parameters": {FULL: {"rope_theta": 7.0}}}, "rope_theta 7.0 within rope_parameters and rope_"),
    (
        "gemma3",
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {FULL: {"rope_type": "default"}}},
        "has rope_scaling and rope_parameters; expected one",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("family", "change", "message"), WRONG)
def test_values_that_this_version_does_not_have(family: Family, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        described(family, **change)


def test_which_layers_have_a_window() -> None:
    def windows(family: Family, **change: Any) -> list[int | None]:
        return [kind.window for kind in described(family, **change).layers]

    assert windows("llama") == [None] * 3
    assert windows("mistral") == [WINDOW] * 3
    assert windows("mistral", sliding_window=None) == [None] * 3
    assert windows("qwen2") == [None, WINDOW, WINDOW]
    assert windows("qwen2", max_window_layers=3) == [None] * 3
    assert windows("qwen2", use_sliding_window=False) == [None] * 3
    assert windows("qwen3", layer_types=[SLIDING, FULL, SLIDING]) == [WINDOW, None, WINDOW]
    assert windows("gemma3") == [WINDOW, WINDOW, None]
    assert windows("gemma3", sliding_window_pattern=2) == [WINDOW, None, WINDOW]
    assert windows("gemma3", sliding_window_pattern=..., _sliding_window_pattern=2) == [WINDOW, None, WINDOW]


def test_gemma_turns_its_layers_by_two_bases() -> None:
    ropes = [kind.rope for kind in described("gemma3", rope_scaling={"rope_type": "linear", "factor": 8.0}).layers]
    assert ropes == [Rope(16, 1e4)] * 2 + [Rope(16, 1e6, "linear", (("factor", 8.0),))]
