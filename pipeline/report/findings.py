"""What the load test found over time: as a table, and as marks in the figures of the stage that it was found in."""

from __future__ import annotations

from typing import Any

from pipeline.report import numbers as say
from pipeline.report.figures import Table
from pipeline.report.inputs import RunData

_MARKS = {True: "! found", False: "✓ not found", None: "? cannot be told"}


def found_over_time(run: RunData) -> tuple[Table, Table] | None:
    """What the load test found over time and of answers cut short: (what was found, every look with what it would have
    seen); None where no tier has findings.
    """
    marked: list[list[str]] = []
    looks: list[list[str]] = []
    for name, tier in run.tiers.items():
        load = tier.load or {}
        for f in load.get("findings") or []:
            row = [name, f.get("stage") or "whole run", f.get("metric") or "", str(f.get("kind")), str(f.get("words"))]
            looks.append([_MARKS[f.get("found")], *row])
            if f.get("found"):
                marked.append(looks[-1])
        if cut := load.get("truncation"):
            looks.append([_MARKS[bool(cut.get("found"))], name, "whole run", "", "truncation", str(cut.get("words"))])
            if cut.get("found"):
                marked.append(looks[-1])
    head = ["outcome", "tier", "load stage", "figure", "look", "what it says"]
    if not looks:
        return None
    note = "Each test at 5 % over a tier's whole run, after Holm; load.json has the sizes, intervals and p-values."
    return Table(head, marked, note, words=True), Table(head, looks, note, words=True)


_DRAWN = {"trend", "step", "spikes", "stall", "burst"}


def marks_of(run: RunData, tier: str, stage: str, metric: str) -> list[dict[str, Any]]:
    """What was found in a stage of ``metric`` ("ttft", "itl"), or of both: ``t`` seconds into the stage (0 where it
    belongs to the whole of it, ``at`` false), ``what`` in a word or two.
    """
    marks = []
    for f in (run.tiers[tier].load or {}).get("findings") or []:
        about = str(f.get("metric") or "")
        if not f.get("found") or f.get("stage") != stage or f.get("kind") not in _DRAWN:
            continue
        if about and not about.lower().startswith(metric):
            continue
        size, at = f.get("size"), f.get("at_s")
        percent = f" {size:+.0f} %".replace("-", "−") if say.is_number(size) and f.get("unit") == "%" else ""
        figure = f" of {about.split()[-1]}" if " " in about else ""
        where = round(float(at), 2) if say.is_number(at) and at is not None else 0.0
        marks.append({"t": where, "at": say.is_number(at), "what": f"{f['kind']}{figure}{percent}"})
    return marks
