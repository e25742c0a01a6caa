"""Digests of the installed code, one a stage of the graph: in a project that `seatrial init` made, stages depend on
these, where the graph of this repository names source folders. What a stage runs has changed when its digest has.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from engine.artifact import sha256_file
from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.params import PARAMS, load_params
from pipeline.provenance import digest_of

ROOT = Path(__file__).resolve().parents[2]
CODE = Path(".seatrial/code.json")
NOT_CODE = {"__pycache__", ".pytest_cache"}
_EVALUATION = (
    "pipeline/evaluation",
    "pipeline/load/metrics.py",
    "pipeline/load/restarts.py",
    "pipeline/load/server_metrics.py",
    "pipeline/load/stolen.py",
    "pipeline/provenance.py",
    "pipeline/serving.py",
    "pipeline/targets",
)
_LOADTEST = (
    "loadtests",
    "pipeline/gate/statistics/effective.py",
    "pipeline/gate/statistics/several.py",
    "pipeline/gate/statistics/shares.py",
    "pipeline/load",
    "pipeline/provenance.py",
    "pipeline/serving.py",
    "pipeline/targets",
)
# What is imported of the engine where another server answers.
_STARTING = ("engine/artifact.py", "engine/config.py", "engine/isa.py", "engine/ports.py")
STAGES: dict[str, tuple[str, ...]] = {
    "fetch": (
        "engine/artifact.py",
        "pipeline/fetch",
        "pipeline/provenance.py",
        "pipeline/weights.py",
    ),
    "quantize": (
        "engine/artifact.py",
        "pipeline/fetch/architectures.py",
        "pipeline/provenance.py",
        "pipeline/quantize",
        "pipeline/weights.py",
    ),
    "plan": (
        "engine/artifact.py",
        "engine/config.py",
        "engine/cpus.py",
        "engine/isa.py",
        "engine/ledger.py",
        "pipeline/plan/__main__.py",
        "pipeline/plan/memory.py",
        "pipeline/provenance.py",
    ),
    "check_evalsets": (
        "engine/artifact.py",
        "pipeline/evaluation",
        "pipeline/provenance.py",
        "pipeline/quantize/calibration",
    ),
    "evaluate": ("engine", *_EVALUATION),
    "loadtest": ("engine", *_LOADTEST),
    "evaluate_foreign": (*_STARTING, *_EVALUATION),
    "loadtest_foreign": (*_STARTING, *_LOADTEST),
    "gate": (
        "engine/artifact.py",
        "loadtests/output.py",
        "loadtests/quantiles.py",
        "loadtests/records.py",
        "pipeline/diagnosis",
        "pipeline/evaluation/attribution.py",
        "pipeline/gate",
        "pipeline/load/intervals.py",
        "pipeline/load/queueing.py",
        "pipeline/load/samples.py",
        "pipeline/load/server_metrics.py",
        "pipeline/load/summary.py",
        "pipeline/provenance.py",
        "pipeline/release",
    ),
    "scorecard": (
        "engine/artifact.py",
        "engine/config.py",
        "engine/cpus.py",
        "engine/isa.py",
        "engine/ledger.py",
        "loadtests/output.py",
        "loadtests/quantiles.py",
        "loadtests/records.py",
        "pipeline/advise/facts.py",
        "pipeline/advise/judge.py",
        "pipeline/diagnosis",
        "pipeline/drill",
        "pipeline/evaluation/items.py",
        "pipeline/fidelity/figures.py",
        "pipeline/fidelity/graded.py",
        "pipeline/fidelity/records.py",
        "pipeline/gate",
        "pipeline/load/figures.py",
        "pipeline/load/intervals.py",
        "pipeline/load/queueing.py",
        "pipeline/load/samples.py",
        "pipeline/load/server_metrics.py",
        "pipeline/load/summary.py",
        "pipeline/provenance.py",
        "pipeline/release",
        "pipeline/report",
    ),
}


def code_digests(root: Path = ROOT) -> dict[str, str]:
    """By the bytes of every file, as DVC counts a folder: reading syntax trees would take a trial seconds each time."""
    of = cache(sha256_file)
    return {
        stage: digest_of([[p.relative_to(root).as_posix(), of(p)] for name in names for p in _files(root / name)])
        for stage, names in STAGES.items()
    }


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (p for p in sorted(path.rglob("*")) if p.is_file() and p.suffix not in {".pyc", ".md"})
    return [p for p in found if not NOT_CODE & set(p.parts)]


def write_code(path: Path = CODE) -> None:
    """Rewritten only when it differs, so that unchanged code changes nothing.

    Raises:
        SeatrialError: params.yaml names a load profile of the project's own that cannot be used.
    """
    now: dict[str, Any] = code_digests()
    if (own := _own_profile()) is not None:
        now |= {stage: digest_of([now[stage], own]) for stage in ("loadtest", "loadtest_foreign")}
    try:
        if json.loads(path.read_text(encoding="utf-8")) == now:
            return
    except (OSError, ValueError):
        pass
    write_json(path, now)


def _own_profile() -> str | None:
    """A digest of the traffic where params.yaml names a profile that lies in the project: the graph depends on none."""
    load = load_params().load if PARAMS.is_file() else None
    if load is None or not load.profile.endswith((".yaml", ".yml")):
        return None
    from loadtests.workload import ProfileError, load_profile, workload_digest

    try:
        return workload_digest(load_profile(load.profile), load.seed)
    except ProfileError as e:
        raise SeatrialError(str(e)) from e
