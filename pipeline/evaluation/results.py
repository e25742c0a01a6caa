"""What an evaluation leaves behind: ``eval.json`` with the figures, ``items.jsonl`` with one row per graded item, and
``people.jsonl`` with one per item that only people can judge, which is in no figure of accuracy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.artifact import Named
from pipeline.errors import SeatrialError
from pipeline.evaluation.client import POLICY
from pipeline.evaluation.graders import GRADERS, grader_of, versions
from pipeline.evaluation.items import Evalset, Item, content_digest
from pipeline.evaluation.resolution import sees_little
from pipeline.evaluation.run import Judged
from pipeline.files import atomic_dir
from pipeline.provenance import Header, digest_of, this_machine
from pipeline.targets.capabilities import PREFIX, Capabilities
from pipeline.targets.target import Target

RESULTS = Path("results")
PROMPT_CHARS = 2000


def workload_identity(evalset: Evalset, folder: Path, items: Sequence[Item], per_scenario: int | None) -> Named:
    """What was asked and how it was judged: content, graders' versions, request policy, and how much of it."""
    name = evalset.identity.name if per_scenario is None else f"{evalset.identity.name}-first-{per_scenario}"
    return Named(name=name, digest=digest_of([content_digest(folder), versions(items), POLICY, per_scenario]))


def header(target: Target, workload: Named, measured_at: str) -> Header:
    return Header(
        model=target.model,
        engine=target.engine,
        quantisation=target.quantisation,
        workload=workload,
        machine=this_machine(),
        measured_at=measured_at,
        engine_requested=target.engine_requested,
        engine_derived=target.engine_derived,
    )


def prompt_text(item: Item) -> str:
    """What was asked, for people: beginning and end of a long one, since the question often stands at the end."""
    if item.messages is None:
        text = item.prompt or ""
    elif len(item.messages) == 1:
        text = item.messages[0].content
    else:
        text = "\n\n".join(f"{m.role}: {m.content}" for m in item.messages)
    if len(text) <= PROMPT_CHARS:
        return text
    mark = "\n[...]\n"
    half = (PROMPT_CHARS - len(mark)) // 2
    return text[:half] + mark + text[-half:]


def row(judged: Judged) -> dict[str, Any]:
    """One line of ``items.jsonl``."""
    item, reply, g = judged.answered.item, judged.answered.reply, judged.grade
    spec = grader_of(item)
    return {
        "id": item.id,
        "scenario": item.scenario,
        "kind": item.kind,
        "origin": item.origin,
        "source": item.source,
        "prompt_text": prompt_text(item),
        "reference": item.reference,
        "answer": None if reply is None else (g.shown if spec.scores_choices else reply.text),
        "correct": g.correct,
        "score": 1.0 if g.correct else 0.0,
        "status": g.status,
        "reason": g.reason,
        "finish_reason": reply.finish_reason if reply else None,
        "prompt_tokens": reply.prompt_tokens if reply else None,
        "output_tokens": reply.output_tokens if reply else None,
        "choice_logprobs": [math.fsum(x) for x in reply.choice_logprobs] if reply and reply.choice_logprobs else None,
        "grader": f"{spec.name}@{spec.version}",
        "detail": g.detail,
        "lacks": judged.answered.lacks,
    }


def summary(
    evalset: Evalset, rows: Sequence[dict[str, Any]], head: Header, *, wall_s: float, reused: int, partial: bool,
    left_to_people: int = 0, capabilities: Capabilities | None = None,
) -> dict[str, Any]:  # fmt: skip
    """``eval.json`` of the graded rows. Every one is in the denominators, whatever became of it; those that the server
    lacks a capability for too, and ``not_measurable_by`` says how many they are, so that no rule takes them for wrong.

    Raises:
        SeatrialError: there is none.
    """
    if not rows:
        raise SeatrialError(f"no item of {evalset.manifest.name} has a grader; an accuracy needs some that do")
    generated = [r["output_tokens"] for r in rows if r["finish_reason"] is not None]
    scenarios: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(r["scenario"] for r in rows):
        mine = [r for r in rows if r["scenario"] == name]
        pinned = [r for r in mine if r["origin"] == "pinned"]
        scenarios[name] = {
            "kind": mine[0]["kind"],
            "n": len(mine),
            "correct": sum(r["score"] for r in mine),
            "accuracy": sum(r["score"] for r in mine) / len(mine),
            "pinned": len(pinned),
            "pinned_correct": sum(r["correct"] for r in pinned),
        }
    return {
        "schema_version": 1,
        "header": head.model_dump(mode="json"),
        "evalset": {"name": evalset.manifest.name, "version": evalset.manifest.version, "items": len(rows)},
        "accuracy": sum(r["score"] for r in rows) / len(rows),
        "n": len(rows),
        "correct": sum(r["score"] for r in rows),
        "scenarios": scenarios,
        "sees_little": sees_little(evalset.items, rows),
        "errors": sum(r["status"] == "error" for r in rows),
        "not_measurable": sum(str(r["reason"]).startswith(PREFIX) for r in rows),
        "not_measurable_by": _not_measurable_by(rows),
        "cut_off": sum(r["finish_reason"] == "length" for r in rows),
        "usage": {
            "prompt_tokens": sum(r["prompt_tokens"] or 0 for r in rows),
            "output_tokens": sum(r["output_tokens"] or 0 for r in rows),
            "wall_s": round(wall_s, 3),
            "answers_reused": reused,
        },
        "output_tokens_mean": sum(generated) / len(generated) if generated else None,
        "graders": dict(sorted({(x[0], x[1]) for r in rows if (x := r["grader"].split("@", 1))})),
        "left_to_people": left_to_people,
        "partial": partial,
        "capabilities": None if capabilities is None else capabilities.json(),
    }


def _not_measurable_by(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By capability that the server lacks: how many items, of which kinds, and why."""
    out: dict[str, dict[str, Any]] = {}
    for name in sorted({r["lacks"] for r in rows if r["lacks"]}):
        mine = [r for r in rows if r["lacks"] == name]
        out[name] = {"items": len(mine), "kinds": sorted({r["kind"] for r in mine}), "why": mine[0]["reason"]}
    return out


def for_people(row: dict[str, Any]) -> bool:
    return GRADERS[row["grader"].partition("@")[0]].for_people


def write(
    tier: str,
    evaluation: dict[str, Any],
    graded: Sequence[dict[str, Any]],
    unjudged: Sequence[dict[str, Any]],
    results: Path = RESULTS,
) -> Path:
    """Writes all files, or none."""
    final = results / tier / "eval"
    with atomic_dir(final) as folder:
        for name, rows in (("items", graded), ("people", unjudged)):
            text = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in rows)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        body = json.dumps(evaluation, indent=2, sort_keys=True, allow_nan=False)
        (folder / "eval.json").write_text(body + "\n", encoding="utf-8")
    return final
