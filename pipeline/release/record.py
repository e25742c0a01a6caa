"""Release records: small JSON files that people review, and the baseline of the gate.

releases/proposed/NAME.json   a proposal: what would go out, by the digests of all that it rests on
releases/NAME.json, NAME.md   a release and its model card
releases/rollback-N.json      from event N on an earlier release is in service again

Which one is in service is derived, never stored: every release and every rollback has a ``sequence`` of its own, and
the highest one decides. A baseline does not move with a merge.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.artifact import sha256_file, verify
from pipeline.errors import SeatrialError
from pipeline.provenance import Header, quantisation_identity, seam_of

RELEASES = Path("releases")
PROPOSED = RELEASES / "proposed"
ROLLBACK = "rollback-"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TierFigures(_Strict):
    """One tier of the trial, for the model card."""

    verdict: str
    accuracy: float | None = None
    items: int | None = None
    weights_bytes: int | None = None


class Proposal(_Strict):
    """What would be released. Everything in it is read from the verdict and the records that the verdict rests on."""

    schema_version: Literal[1] = 1
    name: str = Field(pattern=f"^{NAME}$")
    tier: str
    owner: str = Field(min_length=1, description="the person or team that answers for it")
    proposed_by: str = ""
    policy: str
    policy_digest: str
    waivers: list[dict[str, Any]] = Field(description="that were valid when it was promoted")
    attempts: int = Field(ge=1, description="measurements of this build that were judged until it went out")
    verdict_as_of: str
    reason: str = Field("", description="of the verdict, in its words")
    limits: list[str] = Field([], description="what failed or stayed undecided all the same: advisory or waived")
    artifact: str | None = Field(None, description="digest of the artifact's files; null: served by others")
    digests: dict[str, str] = Field({}, description="sha256 of every record that the verdict rests on")
    evaluation: Header
    load: Header
    latency: dict[str, Any] = Field(description="load.json's figures by stage")
    scores: dict[str, float] = Field(description="score of every item of the regression set")
    scenarios: dict[str, dict[str, Any]] = {}
    tiers: dict[str, TierFigures] = {}
    ratings: dict[str, Any] | None = Field(None, description="people's, from `seatrial review import`")


class Release(Proposal):
    """``promoted_at``: the moment of the commit on which it was promoted, so that a promotion that was interrupted and
    run again writes the same bytes.
    """

    promoted_at: str
    promoted_by: str = ""
    sequence: int = Field(0, ge=0, description="number of the event; 0: written before events were counted")


class Rollback(_Strict):
    schema_version: Literal[1] = 1
    kind: Literal["rollback"] = "rollback"
    sequence: int = Field(ge=1)
    to: str
    left: str = Field(description="the release that was in service before")
    reason: str = Field(min_length=1)
    rolled_back_by: str
    rolled_back_at: str


def read_record(path: Path, model: type[M], text: bytes | None = None) -> M:
    """
    Raises:
        SeatrialError: it does not parse: a baseline must not drop out silently.
    """
    try:
        return model.model_validate_json(path.read_bytes() if text is None else text)
    except ValidationError as e:
        what = "rollback" if model is Rollback else "release"
        raise SeatrialError(f"{path} is not a {what} record: {e}; mend it or take it out of {path.parent}") from e


def releases(folder: Path = RELEASES) -> list[Release]:
    """All releases, oldest first.

    Raises:
        SeatrialError: a record that does not parse.
    """
    paths = [p for p in sorted(folder.glob("*.json")) if not p.name.startswith(ROLLBACK)]
    return sorted((read_record(p, Release) for p in paths), key=lambda r: (r.sequence, r.promoted_at, r.name))


def rollbacks(folder: Path = RELEASES) -> list[Rollback]:
    """All rollbacks, oldest first.

    Raises:
        SeatrialError: a record that does not parse.
    """
    found = [read_record(p, Rollback) for p in sorted(folder.glob(f"{ROLLBACK}*.json"))]
    return sorted(found, key=lambda r: r.sequence)


def current_release(folder: Path = RELEASES) -> Release | None:
    """The release in service: the one promoted last, or an earlier one if it was rolled back to since; None without.

    Raises:
        SeatrialError: a record that does not parse, or a rollback to what is no release.
    """
    return current_of(releases(folder), rollbacks(folder), folder)


def current_of(known: list[Release], back: list[Rollback], folder: Path = RELEASES) -> Release | None:
    """The same of these events, each oldest first.

    Raises:
        SeatrialError: a rollback to what is no release.
    """
    if not back or (known and known[-1].sequence > back[-1].sequence):
        return known[-1] if known else None
    found = next((r for r in known if r.name == back[-1].to), None)
    if found is None:
        raise SeatrialError(f"{folder} has a rollback to {back[-1].to}, of which there is no record; bring it back")
    return found


def next_sequence(folder: Path = RELEASES) -> int:
    return max([0, *(r.sequence for r in releases(folder)), *(r.sequence for r in rollbacks(folder))]) + 1


def compose(
    name: str,
    owner: str,
    proposed_by: str,
    *,
    verdict: Path,
    results: Path,
    artifacts: Path,
    ratings: Path | None = None,
) -> Proposal:
    """The proposal of the candidate that ``verdict`` says may ship. Run from the project's root.

    Args:
        ratings: people's, to be recorded; whether they rated this build is for the gate's rule `review` to say.

    Raises:
        SeatrialError: the verdict is not "ship", or is stale, or rests on a waiver that has expired; the name is
            unfit; the results do not hold what a record needs; the artifact is another one than was measured.
        ArtifactError: the artifact is not what its manifest says.
    """
    from pipeline.gate.inputs import input_digests, read_tier
    from pipeline.gate.model import Verdict
    from pipeline.gate.verdict import verdict_exit_code

    if not re.fullmatch(NAME, name) or name.startswith(ROLLBACK):
        raise SeatrialError(f"{name!r} cannot name a release: letters, digits, '.', '_' and '-' are allowed")
    if not owner.strip():
        raise SeatrialError("a release needs an owner: the person or team that answers for it")
    code, text = verdict_exit_code(verdict)
    if code:
        raise SeatrialError(
            f"only a verdict of ship can be promoted. {text.splitlines()[0]} A rule that must not stop this release "
            "needs a waiver in params.yaml (gate.waivers), with a reason, an owner and an expiry date"
        )
    said = Verdict.model_validate_json(verdict.read_bytes())
    run = read_tier(said.candidate, results)
    evaluated, loaded = run.header("evaluation"), run.header("load")
    if evaluated is None or loaded is None or run.items is None or run.load is None or run.evaluation is None:
        raise SeatrialError(f"{run.tier} cannot be recorded: {run.missing('eval', 'load') or 'results are missing'}")
    if seam := seam_of(evaluated) or seam_of(loaded):  # whatever a waiver says
        raise SeatrialError(
            f"{run.tier} was measured on an engine with {seam} planted through its seam; measure it anew"
        )
    digests = {k: v for k, v in input_digests([run.tier], results).items() if v is not None}
    rated = None if ratings is None else read_ratings(ratings)
    if ratings is not None:
        digests[ratings.as_posix()] = sha256_file(ratings)
    figures = {t: _figures(t, judged.verdict, results) for t, judged in said.tiers.items()}
    open_rules = [r for r in said.judged.rules if r.outcome in {"fail", "undecided"}]
    return Proposal(
        name=name,
        tier=run.tier,
        owner=owner,
        proposed_by=proposed_by,
        policy=said.policy,
        policy_digest=said.policy_digest,
        waivers=[w.model_dump() for w in said.waivers if not w.expired and w.tier == run.tier],
        attempts=max(1, len(said.attempts)),
        verdict_as_of=said.as_of,
        reason=said.reason,
        limits=[f"{r.title} ({r.outcome}, {'waived' if r.waiver else r.severity}): {r.detail}" for r in open_rules],
        artifact=_artifact(artifacts / run.tier, evaluated),
        digests=digests,
        evaluation=evaluated,
        load=loaded,
        latency=run.load["stages"],
        scores={i["id"]: float(i["score"]) for i in run.items},
        scenarios=run.evaluation["scenarios"],
        tiers=figures,
        ratings=rated,
    )


def _artifact(folder: Path, measured: Header) -> str | None:
    """Digest of the artifact that was measured; None where there is none here, since another's server was measured."""
    from engine.artifact import MANIFEST

    if not (folder / MANIFEST).is_file():
        if folder.exists():
            raise SeatrialError(f"{folder} is no artifact: it has no {MANIFEST}; build it again")
        return None
    manifest = verify(folder)
    found = quantisation_identity(manifest)
    if found.digest != measured.quantisation.digest:
        raise SeatrialError(
            f"{folder} is {found.name} with digest {found.digest[:12]}, but {measured.quantisation.name} with digest "
            f"{measured.quantisation.digest[:12]} was measured; bring that one back (dvc checkout) or measure anew"
        )
    return manifest.digest


def _figures(tier: str, verdict: str, results: Path) -> TierFigures:
    from pipeline.gate.inputs import read_tier

    run = read_tier(tier, results)
    evaluation, ledger = run.evaluation or {}, (run.plan or {}).get("ledger", {})
    return TierFigures(
        verdict=verdict,
        accuracy=evaluation.get("accuracy"),
        items=evaluation.get("n"),
        weights_bytes=ledger.get("weights_bytes"),
    )


def read_ratings(path: Path) -> dict[str, Any]:
    """People's ratings as `seatrial review import` wrote them, and the file that they are from.

    Raises:
        SeatrialError: it is no such file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return {"file": path.as_posix(), **{k: value[k] for k in ("rubric", "raters", "baseline", "criteria")}}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SeatrialError(
            f"{path}: {e!r}; expected what `seatrial review import` writes (reports/review.json)"
        ) from e
