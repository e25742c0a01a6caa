"""The default model against transformers: what the engine computes is the model, not something close to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner
from tests.engine.runners import compute

pytestmark = pytest.mark.slow

NEW_TOKENS = 16
TOPICS = [
    "The harbour master counted the ships and", "A recipe for bread begins with", "def add(a, b):",
    "In 1969 the first people walked on", "The capital of France is", "To sort a list in Python, call",
    "Water boils at", "My sister's cat is afraid of", "Dear Sir or Madam,", "Once upon a time there was a",
]  # fmt: skip
PREFACES = [
    "",
    "Explain in one sentence, as to a child of ten. ",
    "It was late in the year and the road was long. " * 4 + "Nobody spoke. ",
]
BLOCKS_EACH = 12


@pytest.fixture(scope="module")
def prompts(real_model_dir: Path) -> list[list[int]]:
    """Thirty prompts of 3 to about 70 tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(real_model_dir / "tokenizer.json"))
    found = [tokenizer.encode(p + t, add_special_tokens=False).ids for p in PREFACES for t in TOPICS]
    assert len(found) == 30
    return found


def runner_of(directory: Path, dtype: str) -> ModelRunner:
    config = EngineConfig(
        compute_dtype=dtype, max_model_len=BLOCKS_EACH * 16, max_num_seqs=16, kv_pool_bytes=1 << 28  # type: ignore[arg-type]
    )  # fmt: skip
    return ModelRunner(directory, config)


def greedy(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """New tokens of each prompt, all prompts in one batch. Greedy is argmax, lowest id on ties."""
    sequences = [list(p) for p in prompts]
    done = [0] * len(prompts)
    for _ in range(NEW_TOKENS):
        batch = [
            BatchEntry(str(i), s[done[i] :], done[i], list(range(i * BLOCKS_EACH, (i + 1) * BLOCKS_EACH)), "last")
            for i, s in enumerate(sequences)
        ]
        for i, logits in enumerate(compute(runner, batch)):
            assert logits is not None
            done[i] = len(sequences[i])
            sequences[i].append(int(logits[-1].argmax()))
    return [s[len(p) :] for s, p in zip(sequences, prompts, strict=True)]


def score(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    (logits,) = compute(runner, [BatchEntry("a", tokens, 0, list(range(BLOCKS_EACH)), "all")])
    assert logits is not None
    return logits


@pytest.fixture(scope="module")
def transformers_float32(real_model_dir: Path) -> Iterator[Any]:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        yield AutoModelForCausalLM.from_pretrained(real_model_dir, dtype=torch.float32).eval()


def test_float32_equals_transformers_token_by_token(
    real_model_dir: Path, prompts: list[list[int]], transformers_float32: Any
) -> None:
    """Transformers sees the engine's own text; where its argmax is the engine's token at every place, its greedy
    text is the same, by induction over the tokens."""
    runner = runner_of(real_model_dir, "float32")
    outputs = [tokens for start in range(0, 30, 10) for tokens in greedy(runner, prompts[start : start + 10])]
    assert len({tuple(o) for o in outputs}) > 20  # the prompts lead to different texts
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = prompt + output
        expected = transformers_float32(torch.tensor([tokens])).logits[0]
        assert expected[len(prompt) - 1 : -1].argmax(-1).tolist() == output
        assert (score(runner, tokens) - expected).abs().max() < 1e-3


def test_bfloat16_error_is_at_most_that_of_transformers(
    real_model_dir: Path, prompts: list[list[int]], transformers_float32: Any
) -> None:
    from transformers import AutoModelForCausalLM

    runner = runner_of(real_model_dir, "bfloat16")
    other = AutoModelForCausalLM.from_pretrained(real_model_dir, dtype=torch.bfloat16).eval()
    ours, theirs = [], []
    for prompt in prompts[::3]:
        exact = transformers_float32(torch.tensor([prompt])).logits[0].log_softmax(-1)
        ours.append((score(runner, prompt).log_softmax(-1) - exact).square().mean(1))
        theirs.append((other(torch.tensor([prompt])).logits[0].float().log_softmax(-1) - exact).square().mean(1))
    assert torch.cat(ours).mean().sqrt() <= 1.5 * torch.cat(theirs).mean().sqrt()


def test_sixteen_at_once_are_sixteen_alone(real_model_dir: Path, prompts: list[list[int]]) -> None:
    """In every quantised scheme as well: tests/engine/test_same_bytes_real.py, among more neighbours."""
    runner = runner_of(real_model_dir, "auto")
    chosen = prompts[:6] + prompts[10:15] + prompts[20:25]
    together = greedy(runner, chosen)
    assert [greedy(runner, [prompt])[0] for prompt in chosen] == together
    first = chosen[-1] + together[-1]
    assert torch.equal(score(runner, first)[: len(chosen[-1])], score(runner, chosen[-1]))


def test_eight_bit_keys_and_values_over_a_long_text(real_model_dir: Path) -> None:
    """The divergence from float32 keys and values stays small, and does not grow over 1,200 positions."""
    from tokenizers import Tokenizer

    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(real_model_dir / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:1200]
    assert len(ids) == 1200
    settings: dict[str, Any] = {"compute_dtype": "float32", "max_model_len": 1200, "max_num_seqs": 1}
    exact, eight = (
        ModelRunner(real_model_dir, EngineConfig(**settings, kv_dtype=kv_dtype)) for kv_dtype in ("float32", "int8")
    )
    parts = []
    for start in range(0, len(ids), 240):
        batch = [BatchEntry("a", ids[start : start + 240], start, list(range(75)), "all")]
        (p,), (q,) = (compute(runner, batch) for runner in (exact, eight))
        assert p is not None
        assert q is not None
        log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
        parts.append((log_p.exp() * (log_p - log_q)).sum(-1))  # KL(float32 || int8) of each position
    divergence = torch.cat(parts)
    assert 1e-6 < divergence.mean() < 3e-3
    assert divergence.max() < 0.2
    assert divergence[600:].mean() < 1.5 * divergence[:600].mean()
