"""A made-up run in the layout of a real one: the drill's records, under a small set of items that can be spoiled."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from pipeline.drill.trial import (
    MACHINE,
    Row,
    answers,
    header,
    write_answers,
    write_evalset_report,
    write_load,
    write_serving,
)
from pipeline.drill.trial import requests as records

__all__ = ["MACHINE", "Row", "header", "items", "make_run", "records", "write_items", "write_load"]

ROOT = Path(__file__).resolve().parents[3]
TIERS = ("bf16", "int8", "int4")
# The made-up set has 320 items and is called core-v1; these are margins that suit so many, whatever params.yaml has.
MARGINS = {
    "quality_delta": {"evalset": "core-v1", "margin_points": 6, "min_items": 300},
    "quality_baseline": {"evalset": "core-v1", "margin_points": 6, "min_items": 300},
    "cut_off": {"evalset": "core-v1", "margin_points": 10, "min_items": 150},
    "answer_length": {"min_items": 150},
    "divergence": {"min_items": 60},
}


def _of_tier(row: Row, tier: str) -> Row:
    """Log-likelihoods of two choices; those of a quantised tier lie a little beside the reference's."""
    beside = 0.0 if tier == "bf16" else 0.1 * (int(row["id"][-2:]) % 3)
    return row | {"answer": tier, "choice_logprobs": [-0.5, -1.5 - beside] if row["kind"] == "choice" else None}


def items(tier: str, flips: tuple[int, int] = (0, 0), spoil: Callable[[Row], None] | None = None) -> list[Row]:
    """80 items a scenario, half of them right; ``flips`` turns so many right ones wrong and wrong ones right."""
    rows = [_of_tier(row, tier) for row in answers(80)]
    rng = random.Random(7)
    movable = [r for r in rows if r["origin"] == "written"]
    for was, count in zip((True, False), flips, strict=True):
        for row in rng.sample([r for r in movable if r["correct"] is was], count):
            row["correct"], row["score"] = not was, float(not was)
    if spoil:
        for row in rows:
            spoil(row)
    return rows


def write_items(root: Path, tier: str, rows: list[Row], **changes: Any) -> None:
    """``changes``: of eval.json."""
    write_answers(root, tier, rows, "core-v1", "1", **changes)


def make_run(root: Path) -> None:
    """A clean run: nothing wrong with any tier."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["tiers"], raw["quantization"] = list(TIERS), {t: {"recipe": t} for t in TIERS}
    for rule in (r for policy in raw["gate"]["policies"].values() for r in policy["rules"]):
        rule |= MARGINS.get(rule["kind"], {})
    (root / "params.yaml").write_text(yaml.safe_dump(raw))
    for number, tier in enumerate(TIERS):
        write_items(root, tier, items(tier))
        write_serving(root, tier, number)
    write_evalset_report(root, len(items(TIERS[0])), "1")
