"""Runs of the same candidate that were judged before: running again until green must be visible.

The log lies outside the graph (``.seatrial/attempts.jsonl``), since a file that a stage both reads and writes would be
a cycle in it. One line for each distinct set of measurements of one build under one set of rules: limits that were
loosened until it passed show too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.files import atomic_write
from pipeline.gate.inputs import TierRun
from pipeline.gate.policy import Policy
from pipeline.provenance import FOUR, digest_of

LOG = Path(".seatrial/attempts.jsonl")
SAME = ("build", "policy_digest", "quality_measured_at", "latency_measured_at")


def attempt_of(run: TierRun, policy: Policy, verdict: str, as_of: str) -> dict[str, Any] | None:
    """The line for this run; None where provenance is missing."""
    evaluated, loaded = run.header("evaluation"), run.header("load")
    if evaluated is None or loaded is None:
        return None
    build = digest_of([getattr(evaluated, k).digest for k in FOUR] + [loaded.workload.digest])
    return {
        "build": build,
        "tier": run.tier,
        "policy": policy.name,
        "policy_digest": policy.digest,
        "quality_measured_at": evaluated.measured_at,
        "latency_measured_at": loaded.measured_at,
        "verdict": verdict,
        "as_of": as_of,
    }


def record(attempt: dict[str, Any] | None, log: Path = LOG) -> list[dict[str, Any]]:
    """Adds an attempt and returns all of the same build, oldest first. Judging the same measurements by the same rules
    again replaces the earlier line. A line that does not parse (a torn write) is dropped.
    """
    if attempt is None:
        return []
    lines: list[dict[str, Any]] = []
    if log.is_file():
        for line in log.read_text(encoding="utf-8").split("\n"):
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(value, dict) and "build" in value:
                lines.append(value)
    lines = [x for x in lines if any(x.get(k) != attempt[k] for k in SAME)]
    lines.append(attempt)
    atomic_write(log, "".join(json.dumps(x, sort_keys=True) + "\n" for x in lines))
    return [x for x in lines if x["build"] == attempt["build"]]
