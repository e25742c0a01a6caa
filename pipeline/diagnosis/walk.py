"""The walk in its fixed order, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.diagnosis.causes import CAUSES, Cause, Finding
from pipeline.diagnosis.inputs import Run
from pipeline.diagnosis.latency import itl, ttft
from pipeline.diagnosis.quality import quality
from pipeline.diagnosis.throughput import throughput

WALK = (ttft, itl, throughput, quality)


def walk(run: Run, against: Run | None) -> list[Finding]:
    """P99 TTFT, inter-token latency, throughput, quality; before them what was asked otherwise of the engine."""
    findings = [step(run, against) for step in WALK]
    return findings if against is None else [_settings(run, against), *findings]


def walk_held(run: Run, against: Run, stages: Mapping[str, str]) -> list[Finding]:
    """Of latencies that a gate has found worse, and of no other symptom: what else differs between two short rounds may
    be noise. Where that explains nothing, the whole walk.

    Args:
        stages: whose ``ttft`` and ``itl`` are worse.
    """
    findings = [step(run, against, stages[m]) for m, step in (("ttft", ttft), ("itl", itl)) if m in stages]
    return [_settings(run, against), *findings] if named(findings) else walk(run, against)


def _settings(run: Run, against: Run) -> Finding:
    """A setting that differs is not yet a cause, and is the first to look at when something is worse."""
    mine, theirs = run.settings, against.settings
    if not mine or not theirs:
        return Finding("settings", "not measured", "a run does not say what its engine was asked for")
    changed = [f"{k}: {theirs.get(k)} -> {mine.get(k)}" for k in sorted(mine | theirs) if mine.get(k) != theirs.get(k)]
    if not changed:
        return Finding("settings", "as before", "the same in both runs")
    return Finding("settings", "worse", ", ".join(changed), (Cause("settings", 1.0, ", ".join(changed)),))


def named(findings: list[Finding]) -> list[Cause]:
    """The causes of what is worse, in the order of the walk: what is named first is the diagnosis."""
    return [c for f in findings if f.state == "worse" for c in f.causes[:1]]


def as_json(run: Run, against: Run | None, findings: list[Finding]) -> dict[str, Any]:
    first = next(iter(named(findings)), None)
    return {
        "schema_version": 1,
        "run": run.name,
        "against": against.name if against else None,
        "named": first.code if first else None,
        "findings": [f.as_json() for f in findings],
    }


def text(findings: list[Finding]) -> str:
    """One paragraph a step: the figure, the cause with its own, then the next two."""
    lines = []
    for number, f in enumerate(findings, 1):
        lines += [f"{number}. {f.symptom}: {f.state}", f"   {f.figure}"]
        if not f.causes:
            if f.state == "worse":
                lines.append("   not explained: no single part accounts for it")
            continue
        for rank, c in enumerate(f.causes):
            said = f"{CAUSES[c.code][0]} ({c.figure})"
            lines.append(f"   cause: {said}; try: {c.knob}" if rank == 0 else f"   then:  {said}")
    return "\n".join(lines)
