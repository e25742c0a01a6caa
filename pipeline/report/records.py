"""Which file each figure comes from, as a link that works where the page lies beside its run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pipeline.report.inputs import RunData

# part of a run: its file below the folder of the tier
FILES = {
    "plan": "plan.json",
    "eval": "eval/eval.json",
    "items": "eval/items.jsonl",
    "load": "load/load.json",
    "records": "load/records.parquet",
    "samples": "load/samples.parquet",
    "server": "load/server.json",
    "steps": "load/steps.parquet",
}
OF_THE_RUN = {
    "verdict": "reports/verdict.json",
    "evalset": "reports/evalset.json",
    "review": "reports/review.json",
    "drill": "reports/drill/drill.json",
    "aa": "pipeline/drill/aa.jsonl",
    "power": "pipeline/drill/power.jsonl",
    "resampled": "pipeline/drill/resampled.json",
    "policy": "params.yaml",
    "stages": "reports/stages",
}


@dataclass(frozen=True)
class Record:
    """``name`` as seen from the project's root, ``href`` as seen from the page."""

    name: str
    href: str


def record_at(run: RunData, name: str) -> Record | None:
    """A file by its path from the project's root; None where it is not there."""
    if not (run.root / name).exists():
        return None
    return Record(name, quote(os.path.relpath(name, "reports")))


def record_of(run: RunData, tier: str, part: str) -> Record | None:
    """The file of a part of a tier or of the whole run; None where it is not there."""
    if part in OF_THE_RUN:
        return record_at(run, OF_THE_RUN[part])
    base = run.folders.get(tier, Path("results") / tier)
    return record_at(run, str(base / FILES[part]))


@dataclass(frozen=True)
class Source:
    """One kind of file, of the whole run (``records`` has one) or of several tiers (one each, by the tier's name)."""

    name: str
    records: dict[str, Record]


def records_of(run: RunData, *parts: str) -> list[Source]:
    """The files of these parts that are there; what is not there is told elsewhere, with its reason."""
    found = []
    for part in parts:
        if part == "release":
            single = record_at(run, f"releases/{run.release.name}.json") if run.release else None
        elif part in OF_THE_RUN:
            single = record_of(run, "", part)
        else:
            mine = {tier: r for tier in run.tiers if (r := record_of(run, tier, part))}
            if mine:
                found.append(Source(FILES[part], mine))
            continue
        if single:
            found.append(Source(single.name, {"": single}))
    return found
