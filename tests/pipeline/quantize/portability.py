"""Next-token distributions of an artifact by our engine and by transformers with compressed-tensors, on fifty prompts.

Where the layers' activations are rounded to 8 bits, one unit in the last place of a sum moves a code, that code moves
others in the next layer, and some layers on nothing is left of the agreement: transformers in float32 is as far from
itself in float64. So such an artifact is held to that distance and not to :data:`MAX_KL`.

The format does not say how long the step of an 8-bit activation is. compressed-tensors takes the greatest magnitude of
a token / 127.5, vLLM and our engine take / 127; :func:`engines_step` makes them alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from engine.artifact import Scheme
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner

MAX_KL = 1e-4  # nats a token, theirs from ours, both in float32
MAX_ERROR_RATIO = 1.5  # of our error to that of transformers in the same dtype
ROUNDED_ACTIVATIONS: set[Scheme] = {"w8a8", "w4a8", "fp8"}
BLOCK, AT_ONCE = 16, 25


def prompts() -> list[str]:
    lines = Path(__file__).with_name("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def token_ids(artifact: Path, texts: Sequence[str]) -> list[list[int]]:
    """Those of each text, the shortest first."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(artifact / "tokenizer.json"))
    return sorted((tokenizer.encode(text, add_special_tokens=False).ids for text in texts), key=len)


def by_engine(artifact: Path, dtype: Literal["float32", "bfloat16"], sequences: Sequence[list[int]]) -> list[Tensor]:
    """Log-probabilities, float32 [tokens, vocab], of each sequence."""
    blocks = -(-max(map(len, sequences)) // BLOCK)
    config = EngineConfig(
        compute_dtype=dtype, max_model_len=blocks * BLOCK, max_num_seqs=AT_ONCE, kv_pool_bytes=1 << 27,
        max_num_batched_tokens=AT_ONCE * blocks * BLOCK,
    )  # fmt: skip
    runner = ModelRunner(artifact, config)
    found: list[Tensor] = []
    for start in range(0, len(sequences), AT_ONCE):
        batch = [
            BatchEntry(str(i), ids, 0, list(range(i * blocks, (i + 1) * blocks)), "all")
            for i, ids in enumerate(sequences[start : start + AT_ONCE])
        ]
        found += [rows[:].log_softmax(-1) for rows in runner.execute(batch) if rows is not None]
    return found


def load_transformers(artifact: Path, dtype: str) -> Any:
    """The model that transformers makes of the directory: no tensor missing, left over or of another shape."""
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        artifact, dtype=getattr(torch, dtype), output_loading_info=True
    )
    if any(loading.values()):
        raise ValueError(f"{artifact}: transformers found its tensors wanting: {loading}")
    return model.eval()


@torch.no_grad()
def by_transformers(model: Any, sequences: Sequence[list[int]]) -> list[Tensor]:
    """Log-probabilities, float32 [tokens, vocab], of each sequence, padded behind its end."""
    found: list[Tensor] = []
    for start in range(0, len(sequences), AT_ONCE):
        some = sequences[start : start + AT_ONCE]
        width = max(map(len, some))
        logits = model(torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in some])).logits
        found += [rows[: len(ids)].float().log_softmax(-1) for rows, ids in zip(logits, some, strict=True)]
    return found


@contextmanager
def engines_step() -> Iterator[None]:
    """compressed-tensors takes the step of 8-bit whole-number activations that vLLM and our engine take."""
    from compressed_tensors.quantization.lifecycle import forward

    own = forward.compute_dynamic_scales_and_zp

    def step(value: Tensor, args: Any, module: Any, global_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scale, zero_point = own(value=value, args=args, module=module, global_scale=global_scale)
        if args.type == "int" and args.num_bits == 8 and args.symmetric:
            scale = scale * (127.5 / 127)
        return scale, zero_point

    forward.compute_dynamic_scales_and_zp = step
    try:
        yield
    finally:
        forward.compute_dynamic_scales_and_zp = own


def mean_kl(of: Sequence[Tensor], to: Sequence[Tensor]) -> float:
    """KL(of || to) in nats, the mean over all tokens."""
    each = [(p.exp() * (p - q)).sum(-1) for p, q in zip(of, to, strict=True)]
    return float(torch.cat(each).double().mean())


def distance(of: Sequence[Tensor], to: Sequence[Tensor]) -> float:
    """Root mean square of the differences of all log-probabilities, in nats."""
    each = [(p - q).square().mean(-1) for p, q in zip(of, to, strict=True)]
    return float(torch.cat(each).double().mean().sqrt())
