"""Release records: ``releases/NAME.json``, written by :func:`promote`, read as the baseline of later gates.

A record is small: the provenance of the released tier, its latency figures by stage, its score on every item, and
under which policy and waivers it went out.
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
from pipeline.provenance import Header, seam_of, utc_now

RELEASES = Path("releases")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Release(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    name: str = Field(pattern=f"^{NAME}$")
    tier: str
    owner: str = Field(min_length=1)
    promoted_at: str
    policy: str
    policy_digest: str
    waivers: list[dict[str, Any]] = Field(description="that were valid when it was promoted")
    attempts: int = Field(ge=1, description="measurements of this build that were judged until it went out")
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
    """Writes the record of the candidate that ``verdict`` says may ship. Run from the project's root.

    Raises:
        SeatrialError: the verdict is not "ship", or is stale, or rests on a waiver that has expired; the name is
            taken or unfit; the results do not hold what a record needs.
    """
    from pipeline.gate.inputs import read_tier
    from pipeline.gate.verdict import verdict_exit_code

    if not re.fullmatch(NAME, name):
        raise SeatrialError(f"{name!r} cannot name a release: letters, digits, '.', '_' and '-' are allowed")
    if not owner.strip():
        raise SeatrialError("a release needs an owner: the person or team that answers for it")
    path = folder / f"{name}.json"
    if path.exists():
        raise SeatrialError(f"{path} exists already; a release is not rewritten, choose another name")
    code, text = verdict_exit_code(verdict)
    if code:
        raise SeatrialError(
            f"only a verdict of ship can be promoted. {text.splitlines()[0]} A rule that must not stop this release "
            "needs a waiver in params.yaml (gate.waivers), with a reason, an owner and an expiry date"
        )
    said = json.loads(verdict.read_text(encoding="utf-8"))
    run = read_tier(said["candidate"], results)
    evaluated, loaded = run.header("evaluation"), run.header("load")
    if evaluated is None or loaded is None or run.items is None or run.load is None:
        raise SeatrialError(f"{run.tier} cannot be recorded: {run.missing('eval', 'load') or 'results are missing'}")
    if seam := seam_of(evaluated) or seam_of(loaded):  # whatever a waiver says
        raise SeatrialError(
            f"{run.tier} was measured on an engine with {seam} planted through its seam; measure it anew"
        )
    release = Release(
        name=name,
        tier=run.tier,
        owner=owner,
        promoted_at=utc_now(),
        policy=said["policy"],
        policy_digest=said["policy_digest"],
        waivers=[w for w in said["waivers"] if not w["expired"] and w["tier"] == run.tier],
        attempts=max(1, len(said["attempts"])),
        verdict_as_of=said["as_of"],
        evaluation=evaluated,
        load=loaded,
        latency=run.load["stages"],
        scores={i["id"]: float(i["score"]) for i in run.items},
    )
    write_json(path, release.model_dump(mode="json"))
    return path
