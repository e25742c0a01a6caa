"""What the gate judges: the records of one tier, read once, with what is missing said instead of raised."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from engine.artifact import sha256_file
from pipeline.provenance import Header

if TYPE_CHECKING:
    import polars as pl

RESULTS = Path("results")
EVALSET = Path("reports/evalset.json")
FILES = (
    "plan.json",
    "eval/eval.json",
    "eval/items.jsonl",
    "load/load.json",
    "load/records.parquet",
    "load/server.json",
)


@dataclass
class TierRun:
    """Records of one tier. A part that is absent or unreadable is None, and ``problems`` says why."""

    tier: str
    plan: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    items: list[dict[str, Any]] | None = None
    load: dict[str, Any] | None = None
    records: pl.DataFrame | None = None
    server: dict[str, Any] | None = None
    samples: pl.DataFrame | None = None
    problems: dict[str, str] = field(default_factory=dict)

    def header(self, part: str) -> Header | None:
        value = {"evaluation": self.evaluation, "load": self.load}[part]
        if value is None:
            return None
        try:
            return Header.model_validate(value.get("header"))
        except ValidationError as e:
            self.problems[f"{part} header"] = f"incomplete provenance: {e.errors()[0]['loc']}: {e.errors()[0]['msg']}"
            return None

    def missing(self, *names: str) -> str | None:
        """Why these parts cannot be judged; None where all are there."""
        found = [why for name, why in self.problems.items() if any(name.startswith(n) for n in names)]
        return "; ".join(found) or None


def read_tier(tier: str, root: Path = RESULTS) -> TierRun:
    """Reads ``results/TIER``; never raises for a missing or broken file."""
    import polars as pl

    run, folder = TierRun(tier), root / tier

    def attempt(name: str, read: Any) -> Any:
        try:
            return read(folder / name)
        except FileNotFoundError:
            run.problems[name] = f"{folder / name} is missing"
        except (OSError, ValueError, pl.exceptions.PolarsError) as e:
            run.problems[name] = f"{folder / name} cannot be read: {e}"
        return None

    run.plan = attempt("plan.json", read_json)
    run.evaluation = attempt("eval/eval.json", read_json)
    run.items = attempt("eval/items.jsonl", _read_lines)
    run.load = attempt("load/load.json", read_json)
    run.server = attempt("load/server.json", read_json)
    run.records = attempt("load/records.parquet", pl.read_parquet)
    run.samples = attempt("load/samples.parquet", pl.read_parquet)
    return run


def read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def input_digests(tiers: list[str], root: Path = RESULTS, evalset: Path = EVALSET) -> dict[str, str | None]:
    """sha256 of every file that a verdict rests on (None: absent), by which a stale verdict is recognised."""
    paths = [root / tier / name for tier in tiers for name in FILES] + [evalset]
    return {p.as_posix(): sha256_file(p) if p.is_file() else None for p in paths}
