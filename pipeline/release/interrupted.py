"""What a promotion or a rollback left that was killed before its commit: seen, named, finished or taken back.

The commit is what makes a release or a rollback. A record that lies in the work tree alone is neither yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write
from pipeline.release import repository as repo
from pipeline.release.record import (
    PROPOSED,
    RELEASES,
    ROLLBACK,
    Release,
    Rollback,
    current_of,
    current_release,
    read_record,
    releases,
    rollbacks,
)

UNDO = "`seatrial release undo`"
Event = Literal["promotion", "rollback"]


def command_of(event: Event, name: str) -> str:
    """The command that makes it anew, or finishes it where its commit is there."""
    if event == "promotion":
        return f"`seatrial release promote {name}`"
    return f'`seatrial release rollback {name} --reason "..."`'


@dataclass(frozen=True)
class Interrupted:
    """``name``: of the release that was to be in service. ``touched``: the files that it was to write or remove."""

    event: Event
    name: str
    touched: tuple[Path, ...]

    @property
    def record(self) -> Path:
        return self.touched[0]

    @property
    def words(self) -> str:
        of = "promotion of" if self.event == "promotion" else "rollback to"
        return (
            f"the {of} {self.name} was interrupted before its commit ({self.record} is not committed): "
            f"{command_of(self.event, self.name)} makes it anew, {UNDO} takes back what it left"
        )


def interrupted() -> list[Interrupted]:
    """What was begun and never committed; nothing where there is no repository, whose commits are what counts.

    Raises:
        SeatrialError: an uncommitted rollback that does not parse.
    """
    if not repo.is_repository():
        return []
    there = repo.committed_names(RELEASES)
    left = [p for p in sorted(RELEASES.glob("*")) if p.is_file() and p.name not in there]
    back = [p for p in left if p.suffix == ".json" and p.name.startswith(ROLLBACK)]
    begun = sorted(
        {p.stem for p in left if p.suffix in {".json", ".md"} and p not in back and re.fullmatch(repo.SEMVER, p.stem)}
    )
    return [_promotion(name) for name in begun] + [
        Interrupted("rollback", read_record(p, Rollback).to, (p,)) for p in back
    ]


def _promotion(name: str) -> Interrupted:
    files = (RELEASES / f"{name}.json", RELEASES / f"{name}.md", PROPOSED / f"{name}.json")
    return Interrupted("promotion", name, files)


def done() -> tuple[list[Release], list[Rollback]]:
    """Releases and rollbacks that were committed, oldest first: all that may be called done.

    Raises:
        SeatrialError: a record that does not parse.
    """
    begun = {x.record for x in interrupted()}
    return (
        [r for r in releases() if RELEASES / f"{r.name}.json" not in begun],
        [r for r in rollbacks() if RELEASES / f"{ROLLBACK}{r.sequence}.json" not in begun],
    )


def in_service() -> Release | None:
    """The release in service by what is committed.

    Raises:
        SeatrialError: a record that does not parse, or a rollback to what is no release.
    """
    return current_of(*done())


def baseline() -> Release | None:
    """What the gate holds a candidate against: the release in service. Where there is no repository, whose commits are
    what counts, the records count as they lie there.

    Raises:
        SeatrialError: a record that was never committed, or is not as it was committed: it was not reviewed, and must
            be no baseline silently; one that does not parse.
    """
    if not repo.is_repository():
        return current_release()
    if begun := interrupted():
        raise SeatrialError(f"{begun[0].words}; until then nothing is held against the release in service")
    there = repo.committed_names(RELEASES)
    for name in sorted({p.name for p in RELEASES.glob("*.json")} | {n for n in there if n.endswith(".json")}):
        path = RELEASES / name
        if name not in there:
            raise SeatrialError(
                f"{path} is not committed, so it is no baseline: commit it after its review, or move it away"
            )
        if not path.is_file() or path.read_bytes() != repo.committed(path):
            raise SeatrialError(
                f"{path} is not as it was committed; a record of a release is not rewritten, and another one would be "
                f"another baseline. Bring it back: git checkout HEAD -- {path}"
            )
    return current_release()


def refuse_beside(event: str, name: str) -> None:
    """
    Raises:
        SeatrialError: something else was interrupted, whose record would count as the last event.
    """
    for other in interrupted():
        if (other.event, other.name) != (event, name):
            raise SeatrialError(f"{other.words}; nothing else is released before that")


def undo() -> list[Interrupted]:
    """Takes back whatever was interrupted before its commit; what that was."""
    repo.require_repository()
    found = interrupted()
    for one in found:
        restore(list(one.touched))
    return found


def restore(paths: list[Path]) -> None:
    """Files as they are committed; those that are not, gone."""
    for path in paths:
        text = repo.committed(path)
        if text is None:
            path.unlink(missing_ok=True)
        else:
            atomic_write(path, text)
    repo.git("reset", "--quiet", "--", *(p.as_posix() for p in paths))
