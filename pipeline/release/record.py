"""Release records: ``releases/NAME.json``, written by :func:`promote`, read as the baseline of later gates.

A record is small: the provenance of the released tier, its latency figures by stage, and its score on every item.
The current release is the one that was promoted last; a baseline does not move with a merge.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.provenance import Header, utc_now

RELEASES = Path("releases")


class Release(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    tier: str
    owner: str = Field(min_length=1)
    promoted_at: str
    policy: str
    verdict_as_of: str
    evaluation: Header
    load: Header
    latency: dict[str, Any] = Field(description="load.json's figures by stage")
    scores: dict[str, float] = Field(description="score of every item of the regression set")


def current_release(folder: Path = RELEASES) -> Release | None:
    """The release that was promoted last; None if there is none.

    Raises:
        SeatrialError: a record that does not parse: a baseline must not drop out silently.
    """
    found: list[Release] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Release.model_validate_json(path.read_bytes()))
        except ValidationError as e:
            raise SeatrialError(f"{path} is not a release record: {e}; mend it or take it out of {folder}") from e
    return max(found, key=lambda r: (r.promoted_at, r.name), default=None)


def promote(name: str, owner: str, *, verdict: Path, results: Path, folder: Path = RELEASES) -> Path:
    """Writes the record of the candidate that ``verdict`` says may ship.

    Raises:
        SeatrialError: the verdict is not "ship" (waived rules count as passed there), the name is taken or unfit.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise SeatrialError(f"{name!r} cannot name a release: letters, digits, '.', '_' and '-' are allowed")
    if not verdict.is_file():
        raise SeatrialError(f"{verdict} not found; run `make trial` first")
    said = json.loads(verdict.read_text(encoding="utf-8"))
    if said["verdict"] != "ship":
        raise SeatrialError(
            f"the verdict on {said['candidate']} is {said['verdict']}, not ship: {said['reason']} "
            "A release needs a verdict of ship, or waivers in params.yaml with a reason, an owner and an expiry date"
        )
    path, tier = folder / f"{name}.json", said["candidate"]
    if path.exists():
        raise SeatrialError(f"{path} exists already; a release is not rewritten, choose another name")
    load = json.loads((results / tier / "load" / "load.json").read_text(encoding="utf-8"))
    evaluation = json.loads((results / tier / "eval" / "eval.json").read_text(encoding="utf-8"))
    lines = (results / tier / "eval" / "items.jsonl").read_text(encoding="utf-8").split("\n")
    items = [json.loads(line) for line in lines if line.strip()]
    release = Release(
        name=name,
        tier=tier,
        owner=owner,
        promoted_at=utc_now(),
        policy=said["policy"],
        verdict_as_of=said["as_of"],
        evaluation=Header.model_validate(evaluation["header"]),
        load=Header.model_validate(load["header"]),
        latency=load["stages"],
        scores={i["id"]: float(i["score"]) for i in items},
    )
    write_json(path, release.model_dump())
    return path
