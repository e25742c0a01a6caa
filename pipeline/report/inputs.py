"""Everything the report is made from, read once. What cannot be read becomes a reason, never an exception.

A trial that stopped half way still deserves a page: each absent file is noted under its name with why it is absent,
and whatever depended on it says "not measured" with that reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from pipeline.params import Params
from pipeline.release.record import RELEASES, Release

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class TierData:
    """What the stages left for one tier. ``missing`` maps a part's name to why it is None."""

    name: str
    plan: Json | None
    eval: Json | None
    items: list[Json] | None
    load: Json | None
    run: Json | None
    server: Json | None
    records: pl.DataFrame | None
    samples: pl.DataFrame | None
    missing: dict[str, str]

    def why(self, *parts: str) -> str:
        """The reason why the first absent one of ``parts`` is absent."""
        return next((self.missing[p] for p in parts if p in self.missing), "the file does not hold this figure")


@dataclass(frozen=True)
class RunData:
    """One run of the graph, as far as it came. ``tiers`` is in the order of params.yaml. ``release``: the baseline that
    the verdict names; ``review``: people's ratings, where some were read back.
    """

    params: Params
    verdict: Json | None
    evalset: Json | None
    tiers: dict[str, TierData]
    stages: list[Json]
    missing: dict[str, str] = field(default_factory=dict)
    root: Path = Path()
    release: Release | None = None
    review: Json | None = None
    folders: dict[str, Path] = field(default_factory=dict)  # of tiers that do not lie in results/TIER

    @property
    def candidate(self) -> str:
        return str((self.verdict or {}).get("candidate") or self.params.release.candidate)

    @property
    def reference(self) -> str:
        return str((self.verdict or {}).get("reference") or self.params.release.reference)

    def verdict_of(self, tier: str) -> Json:
        """The gate's entry for a tier; empty where there is none."""
        entry = ((self.verdict or {}).get("tiers") or {}).get(tier)
        return entry if isinstance(entry, dict) else {}

    def stage_names(self) -> list[str]:
        """Load stages in the order in which they ran, over all tiers."""
        names: dict[str, None] = {}
        for tier in self.tiers.values():
            for stage in (tier.run or {}).get("stages") or []:
                names.setdefault(str(stage.get("name")))
            for name in (tier.load or {}).get("stages") or {}:
                names.setdefault(str(name))
        return list(names)


def _json(path: Path, made_by: str) -> tuple[Json | None, str | None]:
    if not path.is_file():
        return None, f"{path} does not exist; {made_by} writes it"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as e:
        return None, f"{path} cannot be read ({e}); run {made_by} again"
    if not isinstance(value, dict):
        return None, f"{path} holds {type(value).__name__}, expected an object; run {made_by} again"
    return value, None


def _jsonl(path: Path, made_by: str) -> tuple[list[Json] | None, str | None]:
    if not path.is_file():
        return None, f"{path} does not exist; {made_by} writes it"
    rows: list[Json] = []
    try:
        # Not splitlines(): an answer may hold U+2028, which JSON leaves unescaped.
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict) or "id" not in row:
                    return None, f"{path}:{number} is not an item with an id; run {made_by} again"
                rows.append(row)
    except (ValueError, OSError) as e:
        return None, f"{path} cannot be read ({e}); run {made_by} again"
    return rows, None


def _parquet(path: Path, made_by: str, columns: tuple[str, ...]) -> tuple[pl.DataFrame | None, str | None]:
    if not path.is_file():
        return None, f"{path} does not exist; {made_by} writes it"
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as e:
        return None, f"{path} cannot be read ({e}); run {made_by} again"
    absent = [c for c in columns if c not in frame.columns]
    if absent:
        return None, f"{path} has no column {', '.join(absent)}; run {made_by} again"
    return frame, None


RECORD_COLUMNS = ("stage", "phase", "due_s", "first_token_s", "end_s", "token_times_s", "status")
SAMPLE_COLUMNS = ("t_s", "requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_total")


def read_tier(base: Path, tier: str, root: Path) -> TierData:
    """Reads what the stages left of one tier in ``base``; reasons name paths as seen from ``root``."""
    missing = dict[str, str]()

    def keep(part: str, found: tuple[T | None, str | None]) -> T | None:
        value, reason = found
        if reason is not None:
            missing[part] = reason.replace(f"{root}/", "")
        return value

    return TierData(
        name=tier,
        plan=keep("plan", _json(base / "plan.json", f"the stage plan@{tier}")),
        eval=keep("eval", _json(base / "eval/eval.json", f"the stage evaluate@{tier}")),
        items=keep("items", _jsonl(base / "eval/items.jsonl", f"the stage evaluate@{tier}")),
        load=keep("load", _json(base / "load/load.json", f"the stage loadtest@{tier}")),
        run=keep("run", _json(base / "load/run.json", f"the stage loadtest@{tier}")),
        server=keep("server", _json(base / "load/server.json", f"the stage loadtest@{tier}")),
        records=keep("records", _parquet(base / "load/records.parquet", f"the stage loadtest@{tier}", RECORD_COLUMNS)),
        samples=keep("samples", _parquet(base / "load/samples.parquet", f"the stage loadtest@{tier}", SAMPLE_COLUMNS)),
        missing=missing,
    )


def read_run(root: Path, params: Params) -> RunData:
    """Reads what the stages wrote below ``root``."""
    missing: dict[str, str] = {}
    verdict, why = _json(root / "reports/verdict.json", "the stage gate")
    if why:
        missing["verdict"] = why.replace(f"{root}/", "")
    evalset, why = _json(root / "reports/evalset.json", "the stage check_evalsets")
    if why:
        missing["evalset"] = why.replace(f"{root}/", "")
    stages: list[Json] = []
    for path in sorted((root / "reports/stages").glob("*.json")):
        note, why = _json(path, "its stage")
        if note is not None:
            stages.append(note)
        elif why:
            missing[path.name] = why.replace(f"{root}/", "")
    stages.sort(key=lambda n: str(n.get("began_at", "")))
    release, why = _baseline(root, verdict)
    if why:
        missing["baseline"] = why
    review, why = _json(root / "reports/review.json", "`seatrial review import`")
    if why:
        missing["review"] = why.replace(f"{root}/", "")
    tiers = {t: read_tier(root / "results" / t, t, root) for t in params.measured}
    return RunData(params, verdict, evalset, tiers, stages, missing, root, release, review)


def _baseline(root: Path, verdict: Json | None) -> tuple[Release | None, str | None]:
    """The record of the release that the gate held this run against, which is not always the newest by now."""
    name = ((verdict or {}).get("baseline") or {}).get("name")
    if not name:
        return None, None
    path = RELEASES / f"{name}.json"
    try:
        return Release.model_validate_json((root / path).read_bytes()), None
    except FileNotFoundError:
        return None, f"{path}, the baseline that the verdict names, does not exist; restore it from version control"
    except (ValueError, OSError) as e:
        return None, f"{path} is not a release record ({e}); restore it from version control"
