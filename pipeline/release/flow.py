"""Propose, promote, roll back. Each is: files by rename, then one commit of these files, then the tags, the last of
which makes it complete. Killed in between, the same command run again finishes what is committed and starts anew what
is not (:mod:`pipeline.release.interrupted` says what there is of that kind).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.gate.inputs import RESULTS
from pipeline.gate.verdict import VERDICT
from pipeline.release import repository as repo
from pipeline.release.card import card
from pipeline.release.interrupted import in_service, refuse_beside, restore
from pipeline.release.record import (
    PROPOSED,
    RELEASES,
    ROLLBACK,
    Proposal,
    Release,
    Rollback,
    compose,
    next_sequence,
    read_record,
    releases,
    rollbacks,
)

ARTIFACTS = Path("artifacts")
SAME = ("tier", "policy_digest", "waivers", "artifact", "evaluation", "load")
Step = Callable[[str], None]


def _go_on(_step: str) -> None:
    """Called before each step; tests end the process there."""


@dataclass(frozen=True)
class Done:
    """``finished``: an interrupted run was completed; nothing else was left to do."""

    path: Path
    tags: tuple[str, ...]
    finished: bool = False


def path_of(name: str) -> Path:
    return RELEASES / f"{name}.json"


def card_of(name: str) -> Path:
    return RELEASES / f"{name}.md"


def propose(name: str, owner: str | None = None, *, artifact: str, ratings: Path | None = None) -> Path:
    """Writes ``releases/proposed/NAME.json`` for review; it is no baseline and nothing is tagged.

    Raises:
        SeatrialError: see :func:`compose`; the name is taken or no version; git does not know who asks.
    """
    repo.require_repository()
    tag, me = repo.version_tag(artifact, name), repo.who()
    refuse_beside("proposal", name)
    if path_of(name).exists() or repo.committed(path_of(name)) is not None or repo.tag_exists(tag):
        raise SeatrialError(f"{path_of(name)} exists already; a release is not rewritten, choose another name")
    proposal = _composed(name, owner or me, me, ratings)
    path = PROPOSED / f"{name}.json"
    write_json(path, proposal.model_dump(mode="json"))
    return path


def promote(name: str, *, artifact: str, sign: bool = False, step: Step = _go_on) -> Done:
    """Turns a committed proposal into a release: record and model card, one commit, two tags.

    Raises:
        SeatrialError: nothing was proposed and committed under that name, it is released already, what it rests on is
            no longer what was proposed, or git refuses; then the files are as before.
    """
    repo.require_repository()
    tag, path = repo.version_tag(artifact, name), path_of(name)
    if (text := repo.committed(path)) is not None:
        release = read_record(path, Release, text)
        return _tagged(release, tag, artifact, sign=sign, step=step, only_finish=True)
    refuse_beside("promotion", name)
    path.unlink(missing_ok=True)  # what an interrupted run left: it was never committed
    card_of(name).unlink(missing_ok=True)
    source = PROPOSED / f"{name}.json"
    proposal = _reviewed(source)
    ratings = None if proposal.ratings is None else Path(proposal.ratings["file"])
    now = _composed(name, proposal.owner, proposal.proposed_by, ratings)
    _hold_against(proposal, now)
    release = Release(
        **now.model_dump(),
        promoted_at=repo.moment_of(),
        promoted_by=repo.who(),
        sequence=next_sequence(),
    )
    touched = [path, card_of(name), source]
    try:
        step("card")
        atomic_write(card_of(name), card(release))
        step("record")
        write_json(path, release.model_dump(mode="json"))
        step("proposal")
        source.unlink(missing_ok=True)
        step("commit")
        repo.commit_only(touched, f"Release {name}: {release.tier}\n\n{release.reason}\n")
    except Exception:  # a hook that refuses, a full disk
        restore(touched)
        raise
    return _tagged(release, tag, artifact, sign=sign, step=step, only_finish=False)


def rollback(name: str, reason: str, *, artifact: str, sign: bool = False, step: Step = _go_on) -> Done:
    """Puts an earlier release into service again.

    Raises:
        SeatrialError: there is no such release, its tag is not here, or it is the one in service.
    """
    repo.require_repository()
    tag = repo.version_tag(artifact, name)
    if not reason.strip():
        raise SeatrialError("a rollback needs a reason: what users met with the release that is left")
    refuse_beside("rollback", name)
    if repo.committed(path_of(name)) is None or not repo.tag_exists(tag):
        known = ", ".join(r.name for r in releases()) or "none"
        raise SeatrialError(
            f"{name} is no promoted release with a tag {tag} here; released: {known} (git fetch --tags)"
        )
    back = rollbacks()
    if back and back[-1].to == name:
        last = RELEASES / f"{ROLLBACK}{back[-1].sequence}.json"
        number = repo.stage_tag(artifact, back[-1].sequence)
        if repo.committed(last) is None:
            last.unlink()  # what an interrupted run left
        elif not repo.tag_exists(number) and back[-1].sequence + 1 == next_sequence():
            repo.make_tag(number, f"{tag}^{{commit}}", _back_message(back[-1]), sign=sign)
            return Done(last, (number,), finished=True)
    current = in_service()
    if current is None or current.name == name:
        raise SeatrialError(f"{name} is in service already; there is nothing to roll back")
    record = Rollback(
        sequence=next_sequence(),
        to=name,
        left=current.name,
        reason=reason,
        rolled_back_by=repo.who(),
        rolled_back_at=repo.moment_of(),
    )
    path, number = RELEASES / f"{ROLLBACK}{record.sequence}.json", repo.stage_tag(artifact, record.sequence)
    try:
        step("record")
        write_json(path, record.model_dump(mode="json"))
        step("commit")
        repo.commit_only([path], f"Roll back from {current.name} to {name}\n\n{reason}\n")
    except Exception:
        restore([path])
        raise
    step("tag")
    repo.make_tag(number, f"{tag}^{{commit}}", _back_message(record), sign=sign)
    return Done(path, (number,))


def _composed(name: str, owner: str, proposed_by: str, ratings: Path | None) -> Proposal:
    return compose(name, owner, proposed_by, verdict=VERDICT, results=RESULTS, artifacts=ARTIFACTS, ratings=ratings)


def _reviewed(path: Path) -> Proposal:
    """The proposal as it is committed, which is how it was reviewed."""
    text = repo.committed(path)
    if text is None:
        how = f"commit {path} first, after its review" if path.exists() else f"`seatrial release propose {path.stem}`"
        raise SeatrialError(f"{path} is not committed, and only what was reviewed is promoted: {how}")
    if path.exists() and path.read_bytes() != text:
        raise SeatrialError(f"{path} differs from what is committed; commit it, or take the change back")
    return read_record(path, Proposal, text)


def _hold_against(proposal: Proposal, now: Proposal) -> None:
    """
    Raises:
        SeatrialError: what the proposal rests on has changed since.
    """
    names = sorted(proposal.digests.keys() | now.digests.keys())
    changed = [n for n in names if proposal.digests.get(n) != now.digests.get(n)]
    changed += [name for name in SAME if getattr(proposal, name) != getattr(now, name)]
    if changed:
        raise SeatrialError(
            f"{changed[0]} is no longer what was proposed as {proposal.name}; propose it again "
            f"(`seatrial release propose {proposal.name}`), have it reviewed and commit it"
        )


def _tagged(release: Release, tag: str, artifact: str, *, sign: bool, step: Step, only_finish: bool) -> Done:
    """The version's tag, then that of the stage, on the commit that added the record; those that are there stay."""
    path, number = path_of(release.name), repo.stage_tag(artifact, release.sequence)
    missing = [t for t in (tag, number) if not repo.tag_exists(t)]
    if only_finish and not missing:
        raise SeatrialError(f"{path} exists already; a release is not rewritten, choose another name")
    commit = repo.added_in(path)
    for name in missing:
        step(f"tag {name}")
        repo.make_tag(name, commit, _message(release), sign=sign)
    return Done(path, (tag, number), finished=only_finish)


def _message(release: Release) -> str:
    return (
        f"{release.name}: {release.tier}\n\n{release.reason}\n\nartifact {release.artifact or 'served elsewhere'}\n"
        f"owner {release.owner}\npolicy {release.policy} {release.policy_digest}\n"
    )


def _back_message(record: Rollback) -> str:
    return f"{record.left} -> {record.to}\n\n{record.reason}\n"
