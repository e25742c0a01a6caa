"""Bytes: weights, activations and KV cache, for a model shape and an engine config.

    memory limit
    +-----------+---------------------------+--------------------------------------------+
    | weights   | activations (worst step)  | KV pool = num_blocks x block               |
    +-----------+---------------------------+--------------------------------------------+
    block = block_size tokens x 2 (K and V) x layers x kv_heads x (head_dim x dtype bytes + a scale's, for int8)

The arithmetic is Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(SOSP 2023), section 3: 7B in fp16 without grouped queries takes 0.5 MiB a token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.artifact import ArtifactError, read_manifest
from engine.config import EngineConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
KV_SCALE_BYTES = {"int8": 4}  # of a token and KV head, for keys and for values; other dtypes have none


class ModelShape(BaseModel):
    """The sizes that decide memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    vocab: int = Field(ge=1)

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide into {self.kv_heads} KV heads")
        return self

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> ModelShape:
        """From a Hugging Face ``config.json``.

        Raises:
            ArtifactError: a key is missing.
        """
        try:
            heads = config["num_attention_heads"]
            return cls(
                layers=config["num_hidden_layers"],
                hidden=config["hidden_size"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                intermediate=config["intermediate_size"],
                vocab=config["vocab_size"],
            )
        except KeyError as e:
            raise ArtifactError(f"config.json has no {e.args[0]!r}; expected a Llama-style decoder config") from e

    @classmethod
    def of_directory(cls, directory: Path) -> ModelShape:
        path = directory / "config.json"
        if not path.is_file():
            raise ArtifactError(f"{path} not found; expected a model directory")
        return cls.of_config(json.loads(path.read_text(encoding="utf-8")))


class Ledger(BaseModel):
    """The plan, all in bytes unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    weights_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_block: int
    block_size: int
    num_blocks: int
    kv_pool_bytes: int
    total_bytes: int
    kv_pool_tokens: int
    max_model_len: int
    requests_that_fit: int = Field(description="at max_model_len each, nothing shared")


def kv_bytes_per_token(shape: ModelShape, kv_dtype: str) -> int:
    """Keys and values of one token in all layers."""
    head = shape.head_dim * DTYPE_BYTES[kv_dtype] + KV_SCALE_BYTES.get(kv_dtype, 0)
    return 2 * shape.layers * shape.kv_heads * head


def activation_bytes(shape: ModelShape, config: EngineConfig, compute_dtype: str) -> int:
    """Upper estimate of the live activations of the largest step.

    Rows of a step: ``max_num_batched_tokens``. Live at once for each row: residual and normed input (2 hidden), the
    fused gate and up projections and their product (3 intermediate), q, k, v and the attention output. Logits in
    float32 for ``max_num_seqs`` rows, with one copy for log-probabilities.
    """
    row = 2 * shape.hidden + 3 * shape.intermediate + 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    logits = 2 * config.max_num_seqs * shape.vocab * 4
    return config.max_num_batched_tokens * row * DTYPE_BYTES[compute_dtype] + logits


def plan(shape: ModelShape, weights_bytes: int, config: EngineConfig, compute_dtype: str, kv_dtype: str) -> Ledger:
    """Sizes the KV pool: what the memory limit leaves, or ``kv_pool_bytes`` where it is set.

    The pool is never larger than ``max_num_seqs`` requests of ``max_model_len`` tokens could use.

    Raises:
        ArtifactError: not even one request of ``max_model_len`` tokens fits.
    """
    per_token = kv_bytes_per_token(shape, kv_dtype)
    per_block = per_token * config.block_size
    live = activation_bytes(shape, config, compute_dtype)
    room = config.memory_limit_bytes - weights_bytes - live if config.kv_pool_bytes is None else config.kv_pool_bytes
    blocks_of_one = -(-config.max_model_len // config.block_size)
    num_blocks = min(max(room, 0) // per_block, blocks_of_one * config.max_num_seqs)
    if num_blocks < blocks_of_one:
        raise ArtifactError(
            f"the KV pool has room for {num_blocks} blocks of {per_block} bytes, but one request of max_model_len "
            f"{config.max_model_len} needs {blocks_of_one} (weights {weights_bytes}, activations {live}, limit "
            f"{config.memory_limit_bytes if config.kv_pool_bytes is None else config.kv_pool_bytes} bytes); "
            "raise memory_limit_bytes or kv_pool_bytes, or lower max_model_len"
        )
    return Ledger(
        weights_bytes=weights_bytes,
        activation_bytes=live,
        kv_bytes_per_token=per_token,
        kv_bytes_per_block=per_block,
        block_size=config.block_size,
        num_blocks=num_blocks,
        kv_pool_bytes=num_blocks * per_block,
        total_bytes=weights_bytes + live + num_blocks * per_block,
        kv_pool_tokens=num_blocks * config.block_size,
        max_model_len=config.max_model_len,
        requests_that_fit=num_blocks // blocks_of_one,
    )


def plan_artifact(directory: Path, config: EngineConfig, compute_dtype: str, kv_dtype: str) -> Ledger:
    """The plan for an artifact on disk."""
    return plan(
        ModelShape.of_directory(directory), read_manifest(directory).weight_bytes, config, compute_dtype, kv_dtype
    )
