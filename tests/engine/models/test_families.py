"""Every family against transformers in float32, on tiny random models; and the same bits in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner
from tests.engine.runners import compute, runner_on
from tests.engine.same_bits import check_any_batch_and_any_split, sequences
from tests.tiny import CONFIGS, WINDOW, Family, Tier, make_tiny_artifact

CONFIG = EngineConfig(compute_dtype="float32", max_model_len=128, max_num_seqs=8, threads=2)
FAMILIES: tuple[Family, ...] = get_args(Family)
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FULL, SLIDING = "full_attention", "sliding_attention"
NESTED = {FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}
VARIANTS: list[tuple[str, Family, dict[str, Any]]] = [
    ("tied", "llama", {}),
    ("untied", "llama", {"tie_word_embeddings": False}),
    ("biases", "llama", {"attention_bias": True, "mlp_bias": True}),
    ("no grouping", "llama", {"num_key_value_heads": 4}),
    ("one KV head", "llama", {"num_key_value_heads": 1}),
    ("wide heads", "llama", {"head_dim": 40}),
    ("llama3 rope", "llama", {"rope_scaling": LLAMA3}),
    ("odd sizes", "llama", {"hidden_size": 72, "intermediate_size": 100, "vocab_size": 263}),
    ("window", "mistral", {}),
    ("no window", "mistral", {"sliding_window": None, "tie_word_embeddings": False}),
    ("yarn rope", "mistral", {"rope_scaling": YARN}),
    ("windows above", "qwen2", {}),
    ("windows off", "qwen2", {"use_sliding_window": False}),
    ("layer types", "qwen2", {"layer_types": [SLIDING, FULL, SLIDING]}),
    ("yarn rope", "qwen2", {"rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}}),
    ("windows above", "qwen3", {}),
    ("biases", "qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    ("rope parameters", "qwen3", {"rope_theta": None, "rope_parameters": YARN | {"rope_theta": 5e5}}),
    ("by pattern", "gemma3", {}),
    ("scaled rope", "gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("untied, biases", "gemma3", {"attention_bias": True, "tie_word_embeddings": False}),
    ("by layer", "gemma3", {"rope_theta": None, "rope_local_base_freq": None, "sliding_window_pattern": None,
                            "layer_types": [FULL, SLIDING, FULL], "rope_parameters": NESTED}),
]  # fmt: skip
# What the reference can tell apart: shapes, and what each family adds. The rest is the model's, whatever computes it.
SHAPES = ("no grouping", "one KV head", "wide heads", "odd sizes")
ON_REFERENCE = [v for i, v in enumerate(VARIANTS) if v[0] in SHAPES or v[1] != VARIANTS[i - 1][1]]


def tokens_of(runner: ModelRunner, count: int) -> list[int]:
    return [(37 * i + 11) % min(256, runner.vocab_size) for i in range(count)]


@pytest.mark.parametrize(
    ("name", "family", "change", "kernels"),
    [(*v, "cpu") for v in VARIANTS] + [(*v, "reference") for v in VARIANTS if v in ON_REFERENCE],
    ids=lambda v: str(v) if not isinstance(v, dict) else "",
)
def test_logits_equal_transformers(
    tmp_path: Path,
    name: str,
    family: Family,
    change: dict[str, Any],
    kernels: str,
) -> None:
    """A prompt longer than the window in one step."""
    from transformers import AutoModelForCausalLM

    make_tiny_artifact(tmp_path, family=family, **change)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    runner = runner_on(kernels, tmp_path, CONFIG)
    tokens = tokens_of(runner, 90)
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
    (found,) = compute(runner, [BatchEntry("a", tokens, 0, list(range(6)), "all")])
    assert found is not None
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(tmp_path: Path, family: Family) -> None:
    """A prompt longer than the window in chunks, then 40 tokens one by one."""
    from transformers import AutoModelForCausalLM

    make_tiny_artifact(tmp_path, family=family, tie_word_embeddings=False)  # tied, Gemma's repeats its last token
    runner = ModelRunner(tmp_path, CONFIG)
    history, logits = tokens_of(runner, 60), []
    for start, stop in ((0, 16), (16, 23), (23, 25), (25, 60)):  # chunk ends before, at and after the window's edge
        (found,) = compute(runner, [BatchEntry("a", history[start:stop], start, [5, 1, 4, 0], "all")])
        logits.append(found)
    for _ in range(40):
        assert logits[-1] is not None
        history.append(int(logits[-1][-1].argmax()))
        table = [5, 1, 4, 0, 3, 2, 6]
        (found,) = compute(runner, [BatchEntry("a", history[-1:], len(history) - 1, table, "last")])
        logits.append(found)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    oracle.generation_config.eos_token_id = None
    with torch.inference_mode():
        expected = oracle(torch.tensor([history])).logits[0]
        generated = oracle.generate(torch.tensor([history[:60]]), do_sample=False, max_new_tokens=40)[0]
    assert history == generated.tolist()
    assert len(set(history[60:])) > 5  # no fixed point that any model would fall into
    all_logits = torch.cat([found for found in logits if found is not None])
    assert all_logits.shape == expected.shape
    assert (all_logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", [f for f in FAMILIES if "sliding_window" in CONFIGS[f]])
def test_the_window_is_seen_in_the_logits(tmp_path: Path, family: Family) -> None:
    """Up to the window's length nothing changes, beyond it everything does: so the tests above look at a window."""
    found = []
    for window in (WINDOW, WINDOW + 1, 500):
        runner = ModelRunner(make_tiny_artifact(tmp_path / str(window), family=family, sliding_window=window), CONFIG)
        (logits,) = compute(runner, [BatchEntry("a", tokens_of(runner, 40), 0, [0, 1, 2], "all")])
        assert logits is not None
        found.append(logits)
    for other, first in ((found[1], WINDOW), (found[2], WINDOW)):
        assert torch.equal(found[0][:first], other[:first])
        assert (found[0][first:] - other[first:]).abs().amax(1).min() > 1e-4


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "llama"])  # Llama: tests/engine/test_runner.py
@pytest.mark.parametrize(
    ("tier", "dtype", "kv_dtype", "kernels"),
    [
        ("bf16", "float32", "auto", "cpu"),
        ("int8", "bfloat16", "auto", "cpu"),
        ("int4", "bfloat16", "int8", "cpu"),
        ("bf16", "float32", "int4", "cpu"),
        ("bf16", "bfloat16", "auto", "reference"),
    ],
)
def test_any_batch_and_any_split_give_the_same_bits(
    tmp_path: Path, family: Family, tier: Tier, dtype: str, kv_dtype: str, kernels: str
) -> None:
    artifact = make_tiny_artifact(tmp_path, tier, family=family)
    config = CONFIG.model_copy(update={"compute_dtype": dtype, "kv_dtype": kv_dtype})
    runner = runner_on(kernels, artifact, config)
    check_any_batch_and_any_split(runner, sequences(8 if kernels == "cpu" else 4), rounds=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_near_float32(tmp_path: Path, family: Family) -> None:
    """In the dtype that is served; a scale or norm that rounds in the wrong place shows here."""
    from transformers import AutoModelForCausalLM

    make_tiny_artifact(tmp_path, family=family)
    runners = [ModelRunner(tmp_path, CONFIG.model_copy(update={"compute_dtype": d})) for d in ("float32", "bfloat16")]
    tokens = tokens_of(runners[0], 60)
    wide, narrow = (compute(r, [BatchEntry("a", tokens, 0, [0, 1, 2, 3], "all")])[0] for r in runners)
    assert wide is not None
    assert narrow is not None
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([tokens])).logits[0].float()
    assert (narrow - wide).norm() < 1.5 * (theirs - wide).norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_equal_those_of_transformers(tmp_path: Path, family: Family, dtype: str) -> None:
    """Bit for bit: Gemma's scale is rounded to the compute dtype before it is applied."""
    from transformers import AutoModelForCausalLM

    make_tiny_artifact(tmp_path, family=family)
    model = ModelRunner(tmp_path, CONFIG.model_copy(update={"compute_dtype": dtype})).model
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    tokens = torch.arange(256)
    with torch.inference_mode():
        assert torch.equal(model.embed(tokens), oracle.get_input_embeddings()(tokens))
