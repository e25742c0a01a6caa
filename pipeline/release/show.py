"""Whether a release still is what went out: its record, its tag and signature, its files on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.artifact import MANIFEST, ArtifactError, sha256_file, verify
from pipeline.errors import SeatrialError
from pipeline.release import repository as repo
from pipeline.release.flow import path_of
from pipeline.release.interrupted import command_of, done, in_service, interrupted
from pipeline.release.record import RELEASES, Release, Rollback, read_record, releases


@dataclass(frozen=True)
class State:
    """``problem``: why it cannot be relied on; None if nothing speaks against it."""

    release: Release
    tag: str
    current: bool
    complete: bool
    signature: repo.Signature
    signature_said: str
    artifact_here: str
    records_here: str
    problem: str | None

    def as_json(self) -> dict[str, Any]:
        states = {k: v for k, v in vars(self).items() if k != "release"}
        return {"schema_version": 1, **states, "release": self.release.model_dump(mode="json")}


def read_release(name: str) -> Release:
    """
    Raises:
        SeatrialError: there is none of that name.
    """
    path = path_of(name)
    if not path.is_file():
        known = ", ".join(r.name for r in releases()) or "none"
        raise SeatrialError(f"no release {name!r}: {path} not found; released: {known}")
    return read_record(path, Release)


def state_of(name: str, *, artifact: str) -> State:
    """
    Raises:
        SeatrialError: no such release, or no git.
    """
    repo.require_repository()
    release, tag, path = read_release(name), repo.version_tag(artifact, name), path_of(name)
    tags = [tag, repo.stage_tag(artifact, release.sequence)]
    missing = [t for t in tags if not repo.tag_exists(t)]
    signature: repo.Signature = "none"
    said, problem = "no tag here", None
    if tag not in missing:
        signature, said = repo.signature_of(tag)
        if repo.committed(path, tag) != path.read_bytes():
            problem = f"{path} differs from the one that {tag} names: it was changed after it went out"
        elif signature == "bad":
            problem = f"the signature of {tag} does not hold: {said}"
    begun = next((x for x in interrupted() if x.record == path), None)
    if begun is not None:
        problem = f"{', '.join(missing) or 'a commit of it'} not found: it is no release yet: {begun.words}"
    elif missing and problem is None:
        how = f"its promotion was interrupted (`seatrial release promote {name}` finishes it)"
        problem = f"{', '.join(missing)} not found: {how}, or tags were not fetched (git fetch --tags)"
    current = in_service()
    return State(
        release, tag, current is not None and current.name == name, not missing and begun is None, signature, said,
        _artifact_here(release), _records_here(release), problem,
    )  # fmt: skip


def _artifact_here(release: Release) -> str:
    folder = Path("artifacts") / release.tier
    if release.artifact is None:
        return "served elsewhere"
    if not (folder / MANIFEST).is_file():
        return f"not in {folder} (dvc pull gets it)"
    try:
        return "the released one" if verify(folder).digest == release.artifact else f"{folder} holds another one"
    except ArtifactError as e:
        return f"{folder} is damaged: {e}"


def _records_here(release: Release) -> str:
    """How many of the records that it rests on are here unchanged: later trials overwrite them, so it is no problem."""
    same = sum(Path(n).is_file() and sha256_file(Path(n)) == digest for n, digest in release.digests.items())
    return f"{same} of {len(release.digests)} unchanged"


def history(*, artifact: str) -> list[dict[str, Any]]:
    """One row an event that was committed, the newest first. ``tagged``: whether its last step, the tag, is here too;
    ``finish``: the command that makes it where it is not.
    """
    current = in_service()
    rows: list[dict[str, Any]] = []
    known, back = done()
    events: list[Release | Rollback] = [*known, *back]
    row: dict[str, Any]
    for event in events:
        tagged = repo.tag_exists(repo.stage_tag(artifact, event.sequence))
        if isinstance(event, Rollback):
            again = command_of("rollback", event.to)
            row = {"event": "rollback", "name": event.to, "tier": None, "at": event.rolled_back_at,
                   "by": event.rolled_back_by, "current": False, "waivers": None}  # fmt: skip
        else:
            again = command_of("promotion", event.name)
            row = {"event": "release", "name": event.name, "tier": event.tier, "at": event.promoted_at,
                   "by": event.promoted_by or event.owner, "current": event == current,
                   "waivers": len(event.waivers)}  # fmt: skip
        row |= {"tagged": tagged, "finish": None if tagged else again, "why": event.reason}
        rows.append({"sequence": event.sequence, **row})
    return sorted(rows, key=lambda r: -r["sequence"])


def proposals() -> list[str]:
    return sorted(p.stem for p in (RELEASES / "proposed").glob("*.json"))


def check(state: State, *, require_signature: bool) -> None:
    """
    Raises:
        SeatrialError: the release cannot be relied on.
    """
    if state.problem:
        raise SeatrialError(state.problem)
    if require_signature and state.signature != "good":
        raise SeatrialError(f"{state.tag} has no signature that holds: {state.signature_said}")
