"""The table of comparisons that were drawn again (``resample``) from the A/A record, and whether it is still of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.drill.comparisons import Planted
from pipeline.errors import SeatrialError
from pipeline.params import AbParams

RECORD = Path("pipeline/drill/resampled.json")


class Share(BaseModel):
    """Of drawn comparisons. ``held_interval``: of the share held, 95 %; None where the record shows no spread of it,
    which is no proof that there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    planted: Planted | None
    held: float
    shipped: float
    held_interval: tuple[float, float] | None
    mean_minutes: float


class Resampled(BaseModel):
    """``aa_sha256``: of the record that the pairs were drawn from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    aa_sha256: str
    settings: AbParams = Field(description="of the comparisons, by which they were judged")
    comparisons: int = Field(description="that were measured")
    pairs: int = Field(description="of rounds, in them")
    pair_s: float
    draws: int
    shares: list[Share]


def digest_of_record(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def text(found: Resampled) -> str:
    """A table in Markdown."""
    lines = [
        f"Drawn from {found.pairs} pairs of {found.comparisons} comparisons of identical builds, {found.draws} times:",
        "",
        "| figures of its part | held | over other comparisons | shipped | minutes |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for s in found.shares:
        between = "–" if s.held_interval is None else "{:.0%} to {:.0%}".format(*s.held_interval)
        what = "as they were" if s.planted is None else str(s.planted)
        lines.append(f"| {what} | {s.held:.1%} | {between} | {s.shipped:.1%} | {s.mean_minutes:.1f} |")
    return "\n".join(lines) + "\n"


def read(path: Path, aa: Path, params: AbParams) -> Resampled | None:
    """None where it was never made.

    Raises:
        SeatrialError: it is something else, or was drawn from another A/A record than the one at ``aa``, or under
            another policy than ``params``.
    """
    if not path.is_file():
        return None
    try:
        found = Resampled.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise SeatrialError(f"{path} is no such table ({e}); make it again: `seatrial drill --resample`") from e
    if not aa.is_file() or digest_of_record(aa) != found.aa_sha256:
        raise SeatrialError(
            f"{path} was drawn from another record than {aa}; make it again: `seatrial drill --resample`"
        )
    if found.settings != params:
        raise SeatrialError(
            f"{path} is of comparisons under another policy than `ab` in params.yaml; measure under this one"
        )
    return found
