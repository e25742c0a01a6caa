"""Records of comparisons whose right answer is known: a build with itself, or with a slowdown planted into it.

One JSON line a comparison, in small committed files that only grow, each added as soon as it has ended. What may be
claimed of them (``aa``, ``power``) is computed when they are read; comparisons under an earlier policy (margins,
minutes, looks) say nothing of the last one's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import SeatrialError

Part = Literal["prefill", "decode"]


class Planted(BaseModel):
    """A slowdown: every step takes ``percent`` longer, by the share of its tokens that are prefill, or decodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    part: Part
    percent: float = Field(gt=0)

    def __str__(self) -> str:
        return f"{self.part} {self.percent:g} % slower"


class Comparison(BaseModel):
    """One of them. ``half_width_percent``: of the widest blocking figure's interval, ``standard_error_percent``: of its
    ratio; None where there was no interval.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[2] = 2
    as_of: str
    planted: Planted | None = Field(description="into the candidate; none: a build was held against itself")
    verdict: Literal["ship", "hold", "undecided"]
    reason: str
    engine: str = Field(description="digest of the base's engine")
    policy: str = Field(description="digest of the settings of the comparison, and of whether its sides took turns")
    profile: str
    machine_class: str
    budget_minutes: float
    minutes: float
    rounds: int
    half_width_percent: float | None
    standard_error_percent: float | None
    resolves_percent: dict[str, float | None] = Field(
        description="by minutes: what is told from none with 80 % power, of the widest blocking figure"
    )
    worse: dict[str, list[float]] = Field(
        description="by blocking figure (stage/figure): of each whole pair the logarithm of how many times worse"
    )


def of(value: dict[str, Any], planted: Planted | None = None) -> Comparison:
    """From the content of ab.json.

    Raises:
        SeatrialError: the sides differ in what they should not, or it broke off by no fault of the candidate's.
    """
    from pipeline.provenance import Machine, digest_of

    if value["broken_off"] is not None and value["verdict"] != "hold":  # counted, it would make false holds look rarer
        raise SeatrialError(f"not counted: {value['reason']}")
    if value["what_differs"] != ([] if planted is None else ["engine"]):
        differ = ", ".join(value["what_differs"]) or "nothing"
        expected = "nothing, for it is an A/A" if planted is None else "engine, by what was planted"
        raise SeatrialError(f"not counted: the sides differ in {differ}, expected: {expected}")
    blocking = [f"{e['stage']}/{e['figure']}" for e in value["estimates"] if e["blocking"]]
    known = [value["resolves"][n] for n in blocking if n in value["resolves"]]
    widest = max(known, key=lambda r: r["half_width_percent"], default=None)
    return Comparison(
        as_of=value["as_of"],
        planted=planted,
        verdict=value["verdict"],
        reason=value["reason"],
        engine=value["base"]["engine"]["digest"],
        policy=digest_of(value["policy"] | {"turn_s": value["turns"]["turn_s"]}),
        profile=value["profile"],
        machine_class=Machine.model_validate(value["machine"]).machine_class,
        budget_minutes=value["policy"]["budget_minutes"],
        minutes=value["minutes"],
        rounds=len(value["rounds"]),
        half_width_percent=None if widest is None else round(widest["half_width_percent"], 3),
        standard_error_percent=None if widest is None else round(widest["standard_error_percent"], 3),
        resolves_percent={} if widest is None else _rounded(widest["resolves_percent_after_minutes"]),
        worse={name: _worse(value["rounds"], *name.split("/")) for name in blocking},
    )


def _rounded(after: dict[str, float | None]) -> dict[str, float | None]:
    return {minutes: None if v is None else round(v, 2) for minutes, v in after.items()}


def _worse(rounds: Sequence[dict[str, Any]], stage: str, figure: str) -> list[float]:
    """Empty where a pair has no ratio: a round that failed has none."""
    pairs: dict[int, dict[str, Any]] = {}
    for r in rounds:
        if r["void"] is None:
            pairs.setdefault(r["pair"], {})[r["side"]] = r["stages"][stage][figure]
    whole = [(p["base"], p["candidate"]) for p in pairs.values() if len(p) == 2]
    if any(not isinstance(v, float) or v <= 0 for p in whole for v in p):
        return []
    sign = -1 if figure == "throughput" else 1
    return [round(sign * math.log(b / a), 6) for a, b in whole]


def add(comparison: Comparison, path: Path) -> None:
    """Appends one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as f:
        f.write(comparison.model_dump_json() + "\n")


def read(path: Path) -> list[Comparison]:
    """All comparisons, oldest first; none where there is no file.

    Raises:
        SeatrialError: a line that is none: a record with a gap proves nothing.
    """
    if not path.is_file():
        return []
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            out.append(Comparison.model_validate(json.loads(line)))
        except (ValueError, ValidationError) as e:
            raise SeatrialError(
                f"{path}:{number} is not a comparison ({e}); restore the file from version control"
            ) from e
    return out


def of_one_policy(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those under the policy of the last one."""
    return [c for c in comparisons if c.policy == comparisons[-1].policy]
