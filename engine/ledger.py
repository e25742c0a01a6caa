"""Bytes: weights, activations and KV cache, for a model shape and an engine config.

    memory limit
    +-----------+---------------------------+--------------------------------------------+
    | weights   | activations: tables, and  | KV pool = num_blocks x block               |
    |           | the largest step's peak   |                                            |
    +-----------+---------------------------+--------------------------------------------+
    block = block_size tokens x 2 (K and V) x layers x kv_heads x (head_dim x dtype bytes + a scale's, for int8; of int4
            half a byte each, and scale and base of every group)

The arithmetic is Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(SOSP 2023), section 3: 7B in fp16 without grouped queries takes 0.5 MiB a token.
"""

from __future__ import annotations

import json
import math
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.artifact import WORD_VALUES, ArtifactError, Scheme, read_manifest
from engine.config import EngineConfig
from engine.cpus import available_cpus

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
SLICE_ROWS = 32  # rows of logits that are computed for a scored prompt, normalised, stacked for an argmax at once
PANEL, PANEL_SLICE = 32, 128  # output columns and inner values that csrc/products_float.c has at hand at once
# csrc/attention.c: positions of a range; queries and rows of a tile; items a thread from which on ranges are not shared
RANGE, TILE_QUERIES, TILE_ROWS, ITEMS_A_THREAD = 128, 96, 32, 6
DEVICE_CHUNK, SPLIT_PROGRAMS = 256, 512  # of kernels/triton/launch.py: positions of a chunk; when they are split
SLICE_COPIES = 3  # of a slice of prompt logits: themselves, their log-probabilities, the stored ones they are held to
ROW_BYTES = 32  # for each token of the vocabulary while a row is drawn from or compared: four float64
KV_SCALE_BYTES = {"int8": 4, "fp8": 4}  # of a token and KV head, for keys and for values; other dtypes have none
KV_DTYPES = (*DTYPE_BYTES, "int4")
# Of int4: numbers that share a scale and a base, of a key and of a value; bytes of those two. Errors of keys cost more.
KV_GROUPS, KV_GROUP_BYTES = (16, 64), 4


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
    rotary_tables: int = Field(1, ge=1, description="of cosines and sines: one for each way of rotating")

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
        by_kind = any(isinstance(v, dict) for v in (config.get("rope_parameters") or {}).values())
        two_kinds = by_kind or config.get("rope_local_base_freq")  # Gemma 3: windowed and full layers
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
                rotary_tables=2 if two_kinds else 1,
            )
        except KeyError as e:
            raise ArtifactError(f"config.json has no {e.args[0]!r}; expected a Llama-style decoder config") from e

    @classmethod
    def of_directory(cls, directory: Path) -> ModelShape:
        return cls.of_config(_hf_config(directory))


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
    """Keys and values of one token in all layers.

    Raises:
        ArtifactError: heads of an odd size, of which int4 has none.
    """
    if kv_dtype == "int4":
        check_four_bits(shape.head_dim)
        groups = sum(-(-shape.head_dim // size) for size in KV_GROUPS)  # the last one may be smaller
        return shape.layers * shape.kv_heads * (shape.head_dim + groups * KV_GROUP_BYTES)
    head = shape.head_dim * DTYPE_BYTES[kv_dtype] + KV_SCALE_BYTES.get(kv_dtype, 0)
    return 2 * shape.layers * shape.kv_heads * head


def check_four_bits(head_dim: int) -> None:
    """
    Raises:
        ArtifactError: ``head_dim`` is odd.
    """
    if head_dim % 2:
        raise ArtifactError(
            f"head_dim is {head_dim}, which is odd; two numbers of an int4 KV cache share a byte: it takes even sizes "
            f"(such as {head_dim - 1 or 2} or {head_dim + 1}): set kv_dtype to int8"
        )


def activation_bytes(shape: ModelShape, config: EngineConfig, compute_dtype: str) -> int:
    """What is alive beside weights and pool at the worst moment of the largest step, as kernels/cpu computes it, or
    kernels/cuda.

    The largest step has ``max_num_batched_tokens`` rows, the hidden states of all of them are wanted, and logits for
    ``max_num_seqs`` of them.
    """
    if config.backend == "cuda":
        return device_activation_bytes(shape, config, compute_dtype)
    rows, size = config.max_num_batched_tokens, DTYPE_BYTES[compute_dtype]
    hidden, inner, q = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
    all_along = (
        config.max_model_len * shape.rotary_tables * shape.head_dim * 4  # half a head's cosines and sines in float32
        + rows * 3 * 8  # token ids, positions, slots
        + rows * step_row_bytes(shape, compute_dtype)
        + rows * max(hidden, inner, q) * size  # a product's input in row tiles (csrc/products_float.c); w8a8 needs half
        + compute_threads(config) * (2 * rows + PANEL_SLICE) * PANEL * 4  # sums of two panels, a slice of one (ibid.)
        + shared_range_bytes(shape, config)
    )
    at_the_head = (
        rows * hidden * size
        + 2
        * config.max_num_seqs
        * shape.vocab
        * 4  # those that are drawn from: kept between steps, and when others score
        + SLICE_COPIES * SLICE_ROWS * shape.vocab * 4
        + ROW_BYTES * shape.vocab
    )
    return all_along + at_the_head


def device_activation_bytes(shape: ModelShape, config: EngineConfig, compute_dtype: str) -> int:
    """On a device every operation gives a new tensor, and one is freed when nothing needs it any more: the inputs and
    the result of the widest operation are alive at once. Beside them stay the graphs of the decode steps: the same
    for as many rows as there may be requests, and their inputs and outputs.
    """
    size, hidden, inner = DTYPE_BYTES[compute_dtype], shape.hidden, shape.intermediate
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widest = size * max(
        2 * hidden + 3 * (q + 2 * kv) + q,  # residual, normed; q k v, their rotated and contiguous copies; the output
        3 * hidden + 3 * inner,  # residual, normed and the layer's output; gate and up, their product
    )
    steps = (config.max_num_batched_tokens + config.max_num_seqs) * (widest + 3 * 8)
    logits = 2 * 2 * config.max_num_seqs * shape.vocab * 4  # eager and recorded; each kept when the next step begins
    slices = SLICE_ROWS * shape.vocab * 4 + config.max_num_batched_tokens * hidden * size  # of a scored prompt
    tables = config.max_model_len * shape.rotary_tables * shape.head_dim * 4
    chunks = -(-config.max_model_len // DEVICE_CHUNK)
    split_rows = min(config.max_num_batched_tokens, SPLIT_PROGRAMS // shape.kv_heads)
    splits = chunks * split_rows * shape.heads * (shape.head_dim + 2) * 4  # sums of the chunks of few queries
    return steps + logits + slices + tables + splits


def step_row_bytes(shape: ModelShape, compute_dtype: str) -> int:
    """Working memory of a step for each of its rows, as kernels/cpu/program.py lays it out; kept between steps."""
    hidden, inner = shape.hidden, shape.intermediate
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widest = max(
        2 * hidden + (q + 2 * kv) + q,  # residual, normed; q k v; rotated q
        3 * hidden + inner,  # residual, normed and the layer's output; the gated product
    )
    return widest * DTYPE_BYTES[compute_dtype]  # rows in 8 bits are less than the row tiles that they spare


def shared_range_bytes(shape: ModelShape, config: EngineConfig) -> int:
    """Results of the ranges of few long tiles, which threads share (csrc/attention.c); kept between steps."""
    tiles, rows = shared_tiles(shape, config)
    items, queries = tiles * shape.kv_heads, rows * shape.heads // shape.kv_heads
    floats = -(-queries * (-(-shape.head_dim // 16) * 16 + 2) // 16) * 16  # sums, maximum and weight of each
    return items * (-(-config.max_model_len // RANGE) * floats * 4 + 8)


def shared_tiles(shape: ModelShape, config: EngineConfig) -> tuple[int, int]:
    """The most tiles of a step whose ranges are shared, and the rows of one (csrc/attention.c)."""
    threads = compute_threads(config)
    tiles = (ITEMS_A_THREAD * threads - 1) // shape.kv_heads if threads > 1 else 0
    return tiles, max(1, min(TILE_ROWS, TILE_QUERIES * shape.kv_heads // shape.heads))


def compute_threads(config: EngineConfig) -> int:
    """As many as are asked for; one for each CPU that this process was given where that is left open."""
    return config.threads or available_cpus()


def plan(shape: ModelShape, weights_bytes: int, config: EngineConfig, compute_dtype: str, kv_dtype: str) -> Ledger:
    """Sizes the KV pool: what the memory limit leaves, or ``kv_pool_bytes`` where it is set.

    The pool is never larger than ``max_num_seqs`` requests of ``max_model_len`` tokens could use.

    Raises:
        ArtifactError: not even one request of ``max_model_len`` tokens fits, or the whole does not fit the limit.
    """
    per_token = kv_bytes_per_token(shape, kv_dtype)
    per_block = per_token * config.block_size
    live = activation_bytes(shape, config, compute_dtype)
    if config.backend == "cuda":
        live += per_block  # the scratch block, which padding of a recorded step writes to
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
    total = weights_bytes + live + num_blocks * per_block
    if total > config.memory_limit_bytes:
        raise ArtifactError(
            f"kv_pool_bytes asks for a KV pool of {num_blocks * per_block} bytes; with weights {weights_bytes} and "
            f"activations {live} that is {total}, but memory_limit_bytes is {config.memory_limit_bytes}; lower the "
            "first or raise the second"
        )
    return Ledger(
        weights_bytes=weights_bytes,
        activation_bytes=live,
        kv_bytes_per_token=per_token,
        kv_bytes_per_block=per_block,
        block_size=config.block_size,
        num_blocks=num_blocks,
        kv_pool_bytes=num_blocks * per_block,
        total_bytes=total,
        kv_pool_tokens=num_blocks * config.block_size,
        max_model_len=config.max_model_len,
        requests_that_fit=num_blocks // blocks_of_one,
    )


def plan_artifact(directory: Path, config: EngineConfig, compute_dtype: str, kv_dtype: str) -> Ledger:
    """The plan for an artifact on disk."""
    found = _hf_config(directory)
    weights = weights_in_memory(directory, config, compute_dtype)
    return plan(ModelShape.of_config(found), weights, served(config, found), compute_dtype, kv_dtype)


def weights_in_memory(directory: Path, config: EngineConfig, compute_dtype: str) -> int:
    """Bytes that the kernels hold of an artifact's weights: those on disk, but for schemes that are computed from wider
    ones (kernels/cpu/backend.py, kernels/triton/weights.py).

    Raises:
        ArtifactError: no manifest, or weights of such a scheme that cannot be read.
    """
    manifest = read_manifest(directory)
    computed = DTYPE_BYTES[compute_dtype]
    wide: dict[Scheme, int] = {"w8a16": computed, "fp8": 1 if config.backend == "cuda" else 2}
    total = manifest.weight_bytes
    if not any(spec.scheme in wide for spec in manifest.linears):
        return total
    for path in sorted(directory.glob("*.safetensors")):
        for name, shape in _stored_shapes(path).items():
            module, _, part = name.rpartition(".")
            scheme = next((s.scheme for s in manifest.linears if fnmatchcase(module, s.pattern)), "bf16")
            if scheme in wide and part in {"weight", "weight_packed"}:
                total += math.prod(shape) * WORD_VALUES.get(scheme, 1) * (wide[scheme] - 1)
    return total


def _stored_shapes(path: Path) -> dict[str, list[int]]:
    """Of the tensors of a safetensors file, from its header: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return {name: list(about["shape"]) for name, about in header.items() if name != "__metadata__"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError) as e:
        raise ArtifactError(f"{path} cannot be read as safetensors: {e}; build the artifact again") from e


def served(config: EngineConfig, hf_config: dict[str, Any]) -> EngineConfig:
    """``config`` with a ``max_model_len`` that the model of this ``config.json`` has positions for."""
    most = int(hf_config.get("max_position_embeddings", config.max_model_len))
    return config.model_copy(update={"max_model_len": min(config.max_model_len, most)})


def _hf_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not path.is_file():
        raise ArtifactError(f"{path} not found; expected a model directory")
    return dict(json.loads(path.read_text(encoding="utf-8")))
