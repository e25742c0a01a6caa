"""A row that fails says what the engine's own logs name, on a simulated engine whose fault is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.diagnosis.inputs import Run
from pipeline.gate.explained import NO_LOGS, OVER, explained
from pipeline.gate.inputs import TierRun
from tests.pipeline.diagnosis.simulated import Engine
from tests.pipeline.diagnosis.simulated import run as simulated
from tests.pipeline.gate.factory import items
from tests.pipeline.gate.helpers import judged, load_of_int8, slow

ROWS: list[dict[str, Any]] = [
    {"step": n, "symptom": s, "finding": f"{OVER}it", "evidence": "", "suspect": "", **dict.fromkeys(("cause", "knob"))}
    for n, s in enumerate(("P99 time to first token", "inter-token latency", "throughput", "quality"), 1)
]


def _kept(found: Run, root: Path, tier: str, scored: list[dict[str, Any]] | None = None) -> TierRun:
    folder = root / tier / "load"
    folder.mkdir(parents=True)
    for kind, log in (("steps", found.steps), ("requests", found.requests)):
        assert log is not None
        log.write_parquet(folder / f"{kind}.parquet")
    return TierRun(tier, load=found.load, records=found.records, server=found.server, items=scored)


@pytest.mark.parametrize(
    ("engine", "step", "cause", "knob"),
    [
        (Engine(slots=2, admits=2), 1, "requests wait for a place in the batch", "max_num_seqs"),
        (Engine(stall_every=8), 2, "steps that take far longer than their batch explains", "what else runs"),
    ],
)
def test_the_cause_its_figure_and_the_knob(engine: Engine, step: int, cause: str, knob: str, tmp_path: Path) -> None:
    tier = _kept(simulated(engine, burst=6), tmp_path, "int8")
    row = explained(ROWS, tier, TierRun("bf16"), tmp_path)[step - 1]
    assert row["cause"] == cause
    assert row["knob"].startswith(knob)
    assert " ms " in row["figure"]


def test_quality_is_explained_against_the_reference(tmp_path: Path) -> None:
    def loses_documents(row: dict[str, Any]) -> None:
        if row["kind"] == "long_context":
            row["score"], row["correct"] = 0.0, False

    log = simulated(Engine())
    mine = _kept(log, tmp_path, "int8", items("int8", spoil=loses_documents))
    theirs = _kept(log, tmp_path, "bf16", items("bf16"))
    row = explained(ROWS, mine, theirs, tmp_path)[3]
    assert row["cause"] == "the loss is in long documents"
    assert row["figure"].startswith("points by kind: long_context")


def test_what_does_not_fail_is_left_alone(tmp_path: Path) -> None:
    rows = [r | {"finding": "within limits"} for r in ROWS]
    assert explained(rows, TierRun("int8"), TierRun("bf16"), tmp_path) == rows


def test_a_log_that_is_absent_or_broken_is_said_and_never_raised(tmp_path: Path) -> None:
    tier = _kept(simulated(Engine()), tmp_path, "int8")
    for kind in ("steps", "requests"):
        (tmp_path / "int8/load" / f"{kind}.parquet").write_bytes(b"none")
    assert [r["figure"] for r in explained(ROWS, tier, TierRun("bf16"), tmp_path)[:2]] == [NO_LOGS] * 2
    import polars as pl

    for kind in ("steps", "requests"):
        pl.DataFrame({"id": ["x"]}).write_parquet(tmp_path / "int8/load" / f"{kind}.parquet")
    for row in explained(ROWS, tier, TierRun("bf16"), tmp_path)[:2]:
        assert row.get("cause") is None
        assert "cannot be taken apart" in row["figure"]


def test_it_stands_in_the_verdict_and_in_its_text(run: Path) -> None:
    load_of_int8(change=slow(30, "ttft"))(run)
    first = judged()["diagnosis"][0]
    assert (first["cause"], first["knob"], first["figure"]) == (None, None, NO_LOGS)
