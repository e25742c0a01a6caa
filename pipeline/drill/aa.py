"""The record of A/A comparisons: identical builds under the policy of a pull request, and how often they were held.

One JSON line a comparison, in a small committed file that only grows, each added as soon as it has ended. What may be
claimed of the gate's false alarms is the interval of Clopper and Pearson (1934), computed when the file is read, and
nothing beyond it: comparisons under an earlier policy (margins, minutes, looks) say nothing of the last one's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import SeatrialError
from pipeline.gate.statistics.shares import share_interval

RECORD = Path("pipeline/drill/aa.jsonl")
CONFIDENCE = 0.975  # of each end: a two-sided 95 % interval


class Comparison(BaseModel):
    """One A/A. ``half_width_percent``: of the widest blocking figure's interval, ``standard_error_percent``: of its
    ratio; None where there was no interval.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    as_of: str
    verdict: Literal["ship", "hold", "undecided"]
    reason: str
    engine: str = Field(description="digest of the engine that was held against itself")
    policy: str = Field(description="digest of the settings of the comparison, and of whether its sides took turns")
    profile: str
    machine_class: str
    budget_minutes: float
    minutes: float
    rounds: int
    half_width_percent: float | None
    standard_error_percent: float | None


@dataclass(frozen=True)
class Summary:
    """Of the comparisons under the policy of the last one; ``others`` were made under another. ``false_holds``: (low,
    high) of their share at 95 %, two-sided.
    """

    comparisons: int
    others: int
    held: int
    undecided: int
    false_holds: tuple[float, float]
    median_minutes: float
    median_rounds: float
    median_half_width_percent: float | None
    median_standard_error_percent: float | None

    def text(self) -> str:
        low, high = self.false_holds
        half, error = self.median_half_width_percent, self.median_standard_error_percent
        width = "" if half is None else f", half-width {half:.1f} %"
        width += "" if error is None else f", standard error {error:.2f} %"
        others = f". {self.others} under another policy are left out" if self.others else ""
        return (
            f"{self.comparisons} comparisons of identical builds: {self.held} held, {self.undecided} undecided; the "
            f"share of false holds lies between {low:.1%} and {high:.1%} (95 %, Clopper-Pearson). Median "
            f"{self.median_minutes:.1f} minutes, {self.median_rounds:.0f} rounds{width}{others}"
        )


def of(value: dict[str, Any]) -> Comparison:
    """From the content of ab.json.

    Raises:
        SeatrialError: the two sides are not the same build, or it broke off by no fault of the candidate's.
    """
    from pipeline.provenance import Machine, digest_of

    if value["broken_off"] is not None and value["verdict"] != "hold":  # counted, it would make false holds look rarer
        raise SeatrialError(f"not an A/A: {value['reason']}")
    if value["what_differs"]:
        raise SeatrialError(f"not an A/A: the sides differ in {', '.join(value['what_differs'])}")
    blocking = [f"{e['stage']}/{e['figure']}" for e in value["estimates"] if e["blocking"]]
    known = [value["resolves"][n] for n in blocking if n in value["resolves"]]
    widest = max(known, key=lambda r: r["half_width_percent"], default=None)
    return Comparison(
        as_of=value["as_of"],
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
    )


def add(comparison: Comparison, path: Path = RECORD) -> None:
    """Appends one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as f:
        f.write(comparison.model_dump_json() + "\n")


def read(path: Path = RECORD) -> list[Comparison]:
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


def summary(comparisons: list[Comparison]) -> Summary | None:
    """Of those under the policy of the last one. None: nothing was compared yet, so nothing may be claimed."""
    if not comparisons:
        return None
    every, comparisons = len(comparisons), [c for c in comparisons if c.policy == comparisons[-1].policy]
    n, held = len(comparisons), sum(c.verdict == "hold" for c in comparisons)
    widths = [c.half_width_percent for c in comparisons if c.half_width_percent is not None]
    errors = [c.standard_error_percent for c in comparisons if c.standard_error_percent is not None]
    return Summary(
        comparisons=n,
        others=every - n,
        held=held,
        undecided=sum(c.verdict == "undecided" for c in comparisons),
        false_holds=share_interval(held, n, CONFIDENCE),
        median_minutes=median(c.minutes for c in comparisons),
        median_rounds=median(c.rounds for c in comparisons),
        median_half_width_percent=median(widths) if widths else None,
        median_standard_error_percent=median(errors) if errors else None,
    )
