"""Records of comparisons whose right answer is known: a build with itself, or with a slowdown planted into it.

One JSON line a comparison, in small committed files that only grow, each added as soon as it has ended. What may be
claimed of them (``aa``, ``power``) is computed when they are read; comparisons under an earlier policy (margins,
minutes, looks) say nothing of the last one's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import SeatrialError
from pipeline.params import AbParams

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
    schema_version: Literal[1] = 1
    as_of: str
    planted: Planted | None = Field(description="into the candidate; none: a build was held against itself")
    verdict: Literal["ship", "hold", "undecided"]
    reason: str
    engine: str = Field(description="digest of the base's engine")
    settings: AbParams
    policy: str = Field(description="digest of the settings, of the traffic and of whether the sides took turns")
    machine_class: str
    minutes: float
    rounds: int
    half_width_percent: float | None
    standard_error_percent: float | None
    resolves_percent: dict[str, float | None] = Field(
        description="by minutes: what is told from none with 80 % power, of the widest blocking figure"
    )
    base_first: list[bool] = Field(description="of each whole pair")
    worse: dict[str, list[float]] = Field(
        description="by blocking figure (stage/figure): of each whole pair the logarithm of how many times worse; "
        "empty where one has none"
    )


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
    """Those under the policy of the last one, on machines of its class."""
    last = comparisons[-1]
    return [c for c in comparisons if (c.policy, c.machine_class) == (last.policy, last.machine_class)]
