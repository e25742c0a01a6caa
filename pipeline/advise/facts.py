"""What is known of the tiers, read from disk. What has not been measured is None."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.ledger import ModelShape, kv_bytes_per_token, weights_in_memory
from pipeline.errors import SeatrialError

EVERYWHERE = ("int8", "int4")  # KV dtypes that every machine has


@dataclass(frozen=True)
class Outcome:
    """One graded item. ``margin``: by how much a choice is right (negative: wrong), where that is known."""

    score: float
    scenario: str
    source: str
    pinned: bool
    margin: float | None


@dataclass(frozen=True)
class TierFacts:
    """``weight_bytes``: in the engine's memory, which for some schemes is more than on disk, by ``weights_file``."""

    tier: str
    weight_bytes: int
    weights_file: Path
    items: dict[str, Outcome] | None
    items_file: Path
    kl_mean: float | None
    fidelity_file: Path


@dataclass(frozen=True)
class Facts:
    """``kv_bytes_per_token``: of the KV cache as it is configured (``kv_dtype``), and of the narrow ones that the model
    can have."""

    reference: TierFacts
    tiers: list[TierFacts]
    kv_dtype: str
    kv_bytes_per_token: int
    kv_narrow_bytes_per_token: dict[str, int]


def narrow_kv(shape: ModelShape) -> dict[str, int]:
    """Bytes of a token; int4 has no heads of an odd size."""
    dtypes = [dtype for dtype in EVERYWHERE if dtype != "int4" or shape.head_dim % 2 == 0]
    return {dtype: kv_bytes_per_token(shape, dtype) for dtype in dtypes}


def read_facts(
    root: Path, reference: str, tiers: Sequence[str], engine: EngineConfig, compute_dtype: str, kv_dtype: str
) -> Facts:
    """The dtypes are those that ``engine`` comes to on this machine.

    Raises:
        ArtifactError: an artifact that is not there.
        SeatrialError: results that cannot be read, or of tiers that were asked different items.
    """
    shape = ModelShape.of_directory(root / "artifacts" / reference)

    def weight_bytes(tier: str) -> int:
        return weights_in_memory(root / "artifacts" / tier, engine, compute_dtype)

    found = Facts(
        reference=_tier(root, reference, weight_bytes(reference)),
        tiers=[_tier(root, tier, weight_bytes(tier)) for tier in tiers if tier != reference],
        kv_dtype=kv_dtype,
        kv_bytes_per_token=kv_bytes_per_token(shape, kv_dtype),
        kv_narrow_bytes_per_token=narrow_kv(shape),
    )
    refuse_different_items(found)
    return found


def refuse_different_items(facts: Facts) -> None:
    """
    Raises:
        SeatrialError: a tier was asked other items than the reference; names both files.
    """
    asked = facts.reference.items
    for tier in facts.tiers:
        if tier.items is not None and asked is not None and tier.items.keys() != asked.keys():
            raise SeatrialError(
                f"{tier.items_file} and {facts.reference.items_file} hold different items; evaluate both again"
            )


def _tier(root: Path, tier: str, weight_bytes: int) -> TierFacts:
    directory = root / "artifacts" / tier
    items_file = root / "results" / tier / "eval" / "items.jsonl"
    fidelity_file = root / "reports" / "fidelity" / f"{tier}.json"
    try:
        items = None
        if items_file.is_file():
            lines = items_file.read_text(encoding="utf-8").split("\n")  # an answer may hold other ends of line
            items = outcomes_of(json.loads(line) for line in lines if line)
        kl = None
        if fidelity_file.is_file():
            kl = float(json.loads(fidelity_file.read_text(encoding="utf-8"))["parts"]["held_out"]["kl_mean"])
    except (ValueError, KeyError, TypeError) as e:
        raise SeatrialError(f"results of {tier} cannot be read ({type(e).__name__}: {e}); measure it again") from e
    return TierFacts(tier, weight_bytes, directory / "seatrial.json", items, items_file, kl, fidelity_file)


def outcomes_of(rows: Iterable[dict[str, Any]]) -> dict[str, Outcome]:
    """Rows of ``items.jsonl`` by the id of the item.

    Raises:
        KeyError, TypeError, ValueError: a row that is none.
    """
    found = {}
    for row in rows:
        margin = (row.get("detail") or {}).get("margin")
        found[row["id"]] = Outcome(
            float(row["score"]), row["scenario"], row["source"], row["origin"] == "pinned",
            None if margin is None else float(margin),
        )  # fmt: skip
    return found
