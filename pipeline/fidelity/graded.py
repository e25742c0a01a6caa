"""What the evaluation says of the same builds: accuracy, and the items that changed sides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError


@dataclass(frozen=True)
class Graded:
    """``lost``, ``gained``: items that the reference gets right and the variant wrong, and the reverse; None where the
    reference was not asked the same."""

    accuracy: float
    items: int
    lost: int | None
    gained: int | None


def graded(record: dict[str, Any], root: Path = Path()) -> Graded | None:
    """The results below ``root/results`` of what ``record`` measured; None where there are none, or they are of another
    artifact or KV dtype. The engine may have changed in between: what it computes is held to the same bytes by tests.

    Raises:
        SeatrialError: results that cannot be read.
    """
    own = _evaluation(root, record["tier"], record["header"]["quantisation"], record["kv_dtype"])
    if own is None:
        return None
    of = record["reference"]
    reference = _evaluation(root, of["variant"], of["quantisation"], of["engine_derived"]["kv_dtype"])
    accuracy, workload, right = own
    if reference is None or reference[1] != workload or reference[2].keys() != right.keys():
        return Graded(accuracy, len(right), None, None)
    before = reference[2]
    return Graded(
        accuracy,
        len(right),
        sum(before[i] and not right[i] for i in right),
        sum(right[i] and not before[i] for i in right),
    )


def _evaluation(
    root: Path, tier: str, quantisation: dict[str, Any], kv_dtype: str
) -> tuple[float, dict[str, Any], dict[str, bool]] | None:
    """Accuracy, workload and outcome by item of this very artifact on this very KV cache."""
    folder = root / "results" / tier / "eval"
    if not (folder / "eval.json").is_file():
        return None
    try:
        found = json.loads((folder / "eval.json").read_text(encoding="utf-8"))
        head = found["header"]
        if head["quantisation"] != quantisation or head["engine_derived"].get("kv_dtype") != kv_dtype:
            return None
        rows = [json.loads(x) for x in (folder / "items.jsonl").read_text(encoding="utf-8").split("\n") if x]
        return float(found["accuracy"]), head["workload"], {row["id"]: bool(row["correct"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise SeatrialError(f"{folder} cannot be read ({type(e).__name__}: {e}); evaluate {tier} again") from e
