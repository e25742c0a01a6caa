"""What one token costs: bytes that are read, multiplications, keys and values.

Sizes of memory are the ledger's (``engine.ledger``); this module adds what a step reads and computes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.artifact import read_manifest
from engine.config import EngineConfig
from engine.ledger import DTYPE_BYTES, ModelShape, kv_bytes_per_token, weights_in_memory
from pipeline.errors import SeatrialError
from pipeline.plan.memory import plan_numbers

EIGHT_BIT_SCHEMES = {"w8a8", "w4a8", "fp8"}  # whose products are of 8-bit activations


@dataclass(frozen=True)
class ScaleModel:
    """A Llama-style decoder as the planner sees it.

    ``embedding_bytes`` is the table that a step gathers rows from; with ``tied`` it is the head too. The head has as
    many bytes and is read whole for every step. ``activation_bytes`` are those of one value on the wire.
    """

    name: str
    shape: ModelShape
    weights_bytes: int
    embedding_bytes: int
    tied: bool
    kv_dtype: str
    compute_dtype: str = "bfloat16"
    activation_bytes: float = 2.0
    eight_bit: bool = False

    @property
    def head_bytes(self) -> int:
        return self.embedding_bytes

    @property
    def body_bytes(self) -> int:
        """Weights of all layers."""
        return max(0, self.weights_bytes - self.embedding_bytes * (1 if self.tied else 2))

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.shape, self.kv_dtype)

    @property
    def body_weights(self) -> int:
        """Numbers that a token is multiplied with in all layers: attention's four matrices, the MLP's three."""
        s = self.shape
        attention = s.hidden * s.head_dim * (2 * s.heads + 2 * s.kv_heads)
        return s.layers * (attention + 3 * s.hidden * s.intermediate)

    def body_flops(self, tokens: float, context: float) -> float:
        """Floating-point operations of ``tokens`` tokens in all layers, each attending to ``context`` positions.

        Two a weight and token (Kaplan et al. 2020, section 2.1; Pope et al. 2023, section 2), and attention's two
        products, each two operations a position and value.
        """
        attention = 4.0 * context * self.shape.heads * self.shape.head_dim * self.shape.layers
        return tokens * (2.0 * self.body_weights + attention)

    def head_flops(self, tokens: float) -> float:
        """Of the logits of ``tokens`` tokens."""
        return 2.0 * tokens * self.shape.vocab * self.shape.hidden


@dataclass(frozen=True)
class Published:
    """A model's sizes as its ``config.json`` on the hub has them, and its number of weights."""

    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    tied: bool = False


PRESETS = {
    "llama-3.2-1b": Published(1.2358e9, 16, 2048, 32, 8, 8192, 128256, tied=True),
    "llama-3.2-3b": Published(3.2127e9, 28, 3072, 24, 8, 8192, 128256, tied=True),
    "llama-3.1-8b": Published(8.0303e9, 32, 4096, 32, 8, 14336, 128256),
    "llama-3.1-70b": Published(70.5537e9, 80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": Published(405.8535e9, 126, 16384, 128, 8, 53248, 128256),
    "llama-2-7b": Published(6.7384e9, 32, 4096, 32, 32, 11008, 32000),
    "llama-2-13b": Published(13.0159e9, 40, 5120, 40, 40, 13824, 32000),
    "llama-2-70b": Published(68.9767e9, 80, 8192, 64, 8, 28672, 32000),
}


def preset(name: str, weight_bits: float, kv_dtype: str, activation_bits: float, eight_bit: bool) -> ScaleModel:
    """
    Raises:
        SeatrialError: no such preset, or a dtype that is not known.
    """
    if name not in PRESETS:
        raise SeatrialError(
            f"--model {name!r} is neither a directory with config.json nor a preset; presets: {', '.join(PRESETS)}"
        )
    return of_published(name, PRESETS[name], weight_bits, kv_dtype, activation_bits, eight_bit)


def of_published(
    name: str, sizes: Published, weight_bits: float, kv_dtype: str, activation_bits: float, eight_bit: bool
) -> ScaleModel:
    """
    Raises:
        SeatrialError: a dtype that is not known.
    """
    return of_numbers(
        name=name, **asdict(sizes), weight_bits=weight_bits, kv_dtype=kv_dtype, activation_bits=activation_bits,
        eight_bit=eight_bit,
    )  # fmt: skip


def of_numbers(
    *,
    name: str,
    params: float,
    layers: int,
    hidden: int,
    heads: int | None,
    kv_heads: int | None,
    intermediate: int | None,
    vocab: int,
    tied: bool,
    weight_bits: float,
    kv_dtype: str,
    activation_bits: float,
    eight_bit: bool,
) -> ScaleModel:
    """From what is known of a model, by the same arithmetic as ``seatrial plan --layers ...``.

    Raises:
        SeatrialError: an unknown dtype, or numbers that do not go together.
    """
    shape, weights, _ = plan_numbers(
        layers=layers, hidden=hidden, params=params, heads=heads, kv_heads=kv_heads, intermediate=intermediate,
        vocab=vocab, weight_bits=weight_bits, kv_dtype=kv_dtype, max_model_len=2, memory_bytes=None, max_num_seqs=1,
    )  # fmt: skip
    return ScaleModel(
        name=name,
        shape=shape,
        weights_bytes=weights,
        embedding_bytes=round(vocab * hidden * weight_bits / 8),
        tied=tied,
        kv_dtype=kv_dtype,
        activation_bytes=activation_bits / 8,
        eight_bit=eight_bit,
    )


def of_artifact(
    directory: Path, config: EngineConfig, compute: str, kv: str, activation_bits: float, length: int
) -> ScaleModel:
    """An artifact on disk, with the bytes that the kernels hold of its weights, for requests of ``length`` tokens. Its
    embedding is of 16 bits.

    Raises:
        ArtifactError: no manifest, no ``config.json``, or one of another kind of model.
        SeatrialError: the model has no positions for such requests.
    """
    manifest = read_manifest(directory)
    shape = ModelShape.of_directory(directory)
    found = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    positions = int(found.get("max_position_embeddings", length))
    if length > positions:
        raise SeatrialError(
            f"--context and --output are {length:,} tokens together, but {directory} has {positions:,} positions; ask "
            "for fewer"
        )
    return ScaleModel(
        name=f"{directory} ({manifest.name})",
        shape=shape,
        weights_bytes=weights_in_memory(directory, config, compute),
        embedding_bytes=shape.vocab * shape.hidden * DTYPE_BYTES["bfloat16"],
        tied=bool(found.get("tie_word_embeddings", False)),
        kv_dtype=kv,
        compute_dtype=compute,
        activation_bytes=activation_bits / 8,
        eight_bit=any(s.scheme in EIGHT_BIT_SCHEMES for s in manifest.linears),
    )
