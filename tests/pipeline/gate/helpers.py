"""Judging a made-up run, changing it, and spoiling it in the ways that a fault would."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pipeline.gate.__main__ import judge, write_verdict
from pipeline.gate.verdict import VERDICT
from pipeline.params import load_params
from tests.pipeline.gate.factory import Row, items, records, write_items, write_load

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
Plant = Callable[[Path], None]


def judged(now: datetime = NOW) -> dict[str, Any]:
    """The verdict on the run in the working directory, as it was written."""
    write_verdict(judge(load_params(), now))
    value: dict[str, Any] = json.loads(VERDICT.read_text())
    return value


def rule_of(value: dict[str, Any], rule: str, tier: str = "int8") -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in value["tiers"][tier]["rules"] if r["id"] == rule)
    return found


def change_params(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    raw = yaml.safe_load((root / "params.yaml").read_text())
    change(raw)
    (root / "params.yaml").write_text(yaml.safe_dump(raw))


def slow(factor: float, part: str) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        first, due = row["token_times_s"][0], row["due_s"]
        if part == "ttft":
            shift = (first - due) * (factor - 1)
            row["token_times_s"] = [t + shift for t in row["token_times_s"]]
        else:
            row["token_times_s"] = [first + (t - first) * factor for t in row["token_times_s"]]
        row["end_s"] = row["token_times_s"][-1]

    return change


def fails_one_in_ten(row: Row) -> None:
    if row["seed"] % 10 == 0:
        row |= {"status": "timeout", "reason": "no answer", "first_token_s": None, "token_times_s": [], "end_s": None}


def loses_a_pinned_case(row: Row) -> None:
    if row["id"] == "sums-00":
        row["correct"], row["score"] = False, 0.0


def load_of_int8(header: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **kwargs: Any) -> Plant:
    changes = (run or {}) | ({} if header is None else {"header": header})
    return lambda root: write_load(root, "int8", records(1, **kwargs), **changes)


def items_of_int8(**kwargs: Any) -> Plant:
    changes = {k: kwargs.pop(k) for k in ("header", "partial") if k in kwargs}
    return lambda root: write_items(root, "int8", items("int8", **kwargs), **changes)


def damage(name: str, content: bytes | None = None) -> Plant:
    def change(root: Path) -> None:
        path = root / name
        path.unlink() if content is None else path.write_bytes(content)

    return change


def edit_json(name: str, change: Callable[[Any], Any]) -> Plant:
    def edit(root: Path) -> None:
        value = json.loads((root / name).read_text())
        change(value)
        (root / name).write_text(json.dumps(value))

    return edit
