"""The memory ledger of a tier, of any directory, or of plain numbers.

The arithmetic is ``engine.ledger``; this module feeds it and prints it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.artifact import read_manifest
from engine.config import EngineConfig, resolve_dtypes
from engine.ledger import KV_DTYPES, Ledger, ModelShape, kv_bytes_per_token, plan, plan_artifact
from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.provenance import this_machine

LENGTHS = (1, 2048, 4096, 8192)


def plan_of_directory(directory: Path, config: EngineConfig) -> tuple[ModelShape, Ledger, str, str]:
    """Shape, ledger, compute dtype and KV dtype of an artifact on this machine."""
    compute, kv, _reason = resolve_dtypes(config, this_machine().isa)
    return ModelShape.of_directory(directory), plan_artifact(directory, config, compute, kv), compute, kv


def shape_of_numbers(
    layers: int, hidden: int, heads: int | None, kv_heads: int | None, intermediate: int | None, vocab: int
) -> ModelShape:
    """A shape from what is known of a model; heads default to 128 wide each, the MLP to 8/3 of ``hidden``.

    Raises:
        SeatrialError: the numbers do not go together.
    """
    heads = heads or max(1, hidden // 128)
    if hidden % heads:
        raise SeatrialError(f"hidden {hidden} is not a multiple of heads {heads}; give --heads that divides it")
    try:
        return ModelShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads or heads,
            head_dim=hidden // heads,
            intermediate=intermediate or -(-hidden * 8 // (3 * 256)) * 256,
            vocab=vocab,
        )
    except ValueError as e:
        raise SeatrialError(f"these numbers are not a model: {e}") from e


def rows_of(shape: ModelShape, weights_bytes: int, kv_dtype: str, ledger: Ledger | None) -> list[tuple[str, str]]:
    """The lines of the printed ledger: what, and how much."""
    per_token = kv_bytes_per_token(shape, kv_dtype)
    rows = [("weights", size(weights_bytes))]
    rows += [(f"KV of {n:,} token{'s' if n > 1 else ''} ({kv_dtype})", size(n * per_token)) for n in LENGTHS]
    if ledger:
        rows += [
            ("activations of the largest step", size(ledger.activation_bytes)),
            ("KV pool", f"{size(ledger.kv_pool_bytes)} = {ledger.num_blocks:,} blocks of {ledger.block_size} tokens"),
            ("total", size(ledger.total_bytes)),
            (f"requests of {ledger.max_model_len:,} tokens that fit", f"{ledger.requests_that_fit:,}"),
        ]
    return rows


def size(n: int) -> str:
    """Bytes for people: binary units, and decimal gigabytes beside them from 1 GiB on."""
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if n >= scale:
            text = f"{n / scale:.3g} {unit}" if n < 1000 * scale else f"{n / scale:.0f} {unit}"
            return f"{text} ({n / 1e9:.3g} GB)" if unit == "GiB" else text
    return f"{n} bytes"


def show(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def tell(tables: Sequence[tuple[str, Sequence[tuple[str, ...]]]], ledger: Ledger | None, *, as_json: bool) -> None:
    """Prints the tables, or them and the whole ledger in bytes as JSON."""
    if as_json:
        shown = [{"title": title, "rows": [list(r) for r in rows]} for title, rows in tables]
        value = {"schema_version": 1, "ledger": None if ledger is None else ledger.model_dump(), "tables": shown}
        print(json.dumps(value, indent=2))
        return
    for title, rows in tables:
        show(title, rows)


def plan_numbers(
    *,
    layers: int,
    hidden: int,
    params: float,
    heads: int | None,
    kv_heads: int | None,
    intermediate: int | None,
    vocab: int,
    weight_bits: float,
    kv_dtype: str,
    max_model_len: int,
    memory_bytes: int | None,
    max_num_seqs: int,
) -> tuple[ModelShape, int, Ledger | None]:
    """A plan from numbers alone; the ledger of a pool only where a memory size is given.

    Raises:
        SeatrialError: an unknown dtype, or numbers that do not go together.
    """
    if kv_dtype not in KV_DTYPES:
        raise SeatrialError(f"unknown KV dtype {kv_dtype!r}; known: {', '.join(KV_DTYPES)}")
    shape = shape_of_numbers(layers, hidden, heads, kv_heads, intermediate, vocab)
    weights = round(params * weight_bits / 8)
    if memory_bytes is None:
        return shape, weights, None
    config = EngineConfig(max_model_len=max_model_len, memory_limit_bytes=memory_bytes, max_num_seqs=max_num_seqs)
    return shape, weights, plan(shape, weights, config, "bfloat16", kv_dtype)


def write_plan(tier: str, config: EngineConfig) -> dict[str, Any]:
    """``results/TIER/plan.json``."""
    directory = Path("artifacts") / tier
    read_manifest(directory)
    shape, ledger, compute, kv = plan_of_directory(directory, config)
    value = {
        "schema_version": 1,
        "tier": tier,
        "config": config.model_dump(),
        "compute_dtype": compute,
        "kv_dtype": kv,
        "ledger": ledger.model_dump(),
        "shape": shape.model_dump(),
    }
    write_json(Path("results") / tier / "plan.json", value)
    return value
