"""One run to be looked at: the records of a load test with the engine's logs, and the answers to the regression set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.records import complete
from pipeline.errors import SeatrialError
from pipeline.load.queueing import log_ids

RESULTS = Path("results")


@dataclass(frozen=True)
class Run:
    """What is there; what is not is None. ``steps`` and ``requests`` are the engine's own, on the run's clock."""

    name: str
    load: dict[str, Any] | None
    records: pl.DataFrame | None
    steps: pl.DataFrame | None
    requests: pl.DataFrame | None
    server: dict[str, Any] | None
    items: list[dict[str, Any]] | None

    @property
    def settings(self) -> dict[str, Any]:
        return dict(((self.server or {}).get("info") or {}).get("config") or {})

    @property
    def weights_bytes(self) -> int | None:
        found = ((self.server or {}).get("info") or {}).get("memory") or {}
        return found.get("weights_bytes")

    @property
    def quantisation(self) -> str | None:
        """The digest of the artifact that was served."""
        found = ((self.load or {}).get("header") or {}).get("quantisation") or {}
        return found.get("digest")

    @property
    def stages(self) -> dict[str, Any]:
        return dict((self.load or {}).get("stages") or {})

    def window(self, stage: str) -> tuple[float, float]:
        """From the first measured request due to the last one ended, on the run's clock."""
        assert self.records is not None
        mine = self.records.filter((pl.col("stage") == stage) & (pl.col("phase") == "measured"))
        due, end = mine["due_s"].min(), mine["end_s"].max()
        return float(due or 0.0), float(end or due or 0.0)  # type: ignore[arg-type]

    def steps_in(self, stage: str) -> pl.DataFrame | None:
        if self.steps is None or self.records is None:
            return None
        low, high = self.window(stage)
        return self.steps.filter(pl.col("start_s").is_between(low, high)).sort("start_s")


def read_run_folder(given: str) -> Run:
    """A tier below results/, a folder like it, or the folder of one load test.

    Raises:
        SeatrialError: there is nothing to look at.
    """
    root = Path(given) if Path(given).is_dir() else RESULTS / given
    load = root / "load" if (root / "load").is_dir() else root
    run = Run(
        given,
        _json(load / "load.json"),
        _parquet(load / "records.parquet"),
        _parquet(load / "steps.parquet"),
        _parquet(load / "requests.parquet"),
        _json(load / "server.json"),
        _rows(root / "eval" / "items.jsonl"),
    )
    if run.load is None and run.items is None:
        raise SeatrialError(
            f"{given!r} holds neither load.json nor eval/items.jsonl; expected a tier of results/ (as int8) or a "
            "folder that a load test or an evaluation wrote"
        )
    return run


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise SeatrialError(f"{path} is not JSON: {e}") from e
    return value if isinstance(value, dict) else None


def _rows(path: Path) -> list[dict[str, Any]] | None:
    if not path.is_file():
        return None
    try:  # a line ends at the newline character alone: answers may hold U+2028
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except ValueError as e:
        raise SeatrialError(f"{path} has a line that is not JSON: {e}; evaluate the tier again") from e


def _parquet(path: Path) -> pl.DataFrame | None:
    if not path.is_file():
        return None
    try:
        rows = pl.read_parquet(path)
    except pl.exceptions.PolarsError as e:
        raise SeatrialError(f"{path} cannot be read: {e}") from e
    if path.name != "records.parquet":
        return rows
    return log_ids(complete(rows))
