"""Draws answers of two releases for people to rate, and hides which is which.

Written are ``form.html`` (offline, saves a CSV), ``form.csv`` (the same, for a spreadsheet) and ``key.json``, which
says whose answer each line is. Raters get the first two alone. Both releases' answers to an item are drawn together, so
the comparison is paired; lines are in random order; equal answers are drawn once and count for both.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.review.form import render
from pipeline.evaluation.review.rubric import RUBRIC, VERSION
from pipeline.files import atomic_dir

BUILD = ("model", "engine", "quantisation")
COLUMNS = ("line", "prompt", "answer", *(c.name for c in RUBRIC), "comment")
SCHEMA_VERSION = 1
Row = dict[str, Any]


def read_answers(folder: Path) -> dict[str, Row]:
    """Generated answers of a tier by item, those for people and the graded ones.

    Raises:
        SeatrialError: not what the stage evaluate writes, or no generated answer.
    """
    found: dict[str, Row] = {}
    for name in ("people.jsonl", "items.jsonl"):
        path = folder / name
        try:
            rows = [json.loads(x) for x in path.read_bytes().split(b"\n") if x.strip()]
            found |= {r["id"]: r for r in rows if r["answer"] is not None and r["choice_logprobs"] is None}
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise SeatrialError(f"{path}: {e!r}; expected results/TIER/eval of the stage evaluate") from e
    if not found:
        raise SeatrialError(f"{folder} has no generated answer to review")
    return found


def build_of(folder: Path) -> dict[str, Any]:
    """Whose answers these are: name and digest of model, engine and quantisation, from the header of eval.json.

    Raises:
        SeatrialError: not what the stage evaluate writes.
    """
    path = folder / "eval.json"
    try:
        header = json.loads(path.read_text(encoding="utf-8"))["header"]
        return {part: {k: str(header[part][k]) for k in ("name", "digest")} for part in BUILD}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SeatrialError(f"{path}: {e!r}; expected results/TIER/eval of the stage evaluate") from e


def draw(a: dict[str, Row], b: dict[str, Row], n: int, rng: random.Random) -> list[str]:
    """``n`` items that both answered, one from each scenario in turn; those for people come first in their scenario."""
    strata: dict[str, list[str]] = defaultdict(list)
    for name in sorted(a.keys() & b.keys()):
        strata[a[name]["scenario"]].append(name)
    for names in strata.values():
        rng.shuffle(names)
        names.sort(key=lambda i: a[i]["grader"].startswith("people."))
    taken: list[str] = []
    while len(taken) < n and any(strata.values()):
        for scenario in sorted(s for s in strata if strata[s]):
            if len(taken) < n:
                taken.append(strata[scenario].pop())
    return taken


def write_sample(folders: Sequence[tuple[str, Path]], out: Path, n: int, seed: int) -> int:
    """Writes form and key into ``out``; the number of lines to rate.

    Raises:
        SeatrialError: ``out`` exists, or the releases answered no item in common.
    """
    (name_a, folder_a), (name_b, folder_b) = folders
    if out.exists():
        raise SeatrialError(f"{out} exists; ratings may refer to it. Choose another folder")
    a, b = read_answers(folder_a), read_answers(folder_b)
    builds = {name_a: build_of(folder_a), name_b: build_of(folder_b)}
    rng = random.Random(f"review/{seed}")
    items = draw(a, b, n, rng)
    if not items:
        raise SeatrialError(f"{folder_a} and {folder_b} answered no item in common; evaluate both on one evalset")
    answers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in items:
        answers[item, a[item]["answer"]].append(name_a)
        answers[item, b[item]["answer"]].append(name_b)
    order = list(answers)
    rng.shuffle(order)
    lines, key = [], []
    for number, (item, answer) in enumerate(order, 1):
        line = f"{number:03d}"
        lines.append({"line": line, "prompt": a[item]["prompt_text"], "answer": answer})
        key.append({"line": line, "item": item, "scenario": a[item]["scenario"], "of": answers[item, answer]})
    form = io.StringIO()
    writer = csv.DictWriter(form, COLUMNS)
    writer.writeheader()
    writer.writerows(lines)
    digest = hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()[:16]
    with atomic_dir(out) as folder:
        (folder / "form.csv").write_text(form.getvalue(), encoding="utf-8-sig")
        (folder / "form.html").write_text(render(lines, digest), encoding="utf-8")
        body = {
            "schema_version": SCHEMA_VERSION,
            "rubric": VERSION,
            "sample": digest,
            "candidate": name_a,
            "baseline": name_b,
            "builds": builds,
            "lines": key,
        }
        (folder / "key.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return len(lines)
