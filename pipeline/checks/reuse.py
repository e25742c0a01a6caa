"""Verdicts of trials by the commit that was judged, so that a change which alters no code can repeat that of its base.

    .seatrial/verdicts/COMMIT.json     the verdict, and the summary that a comment shows

A verdict is kept where the work tree is that commit's, and found again for every commit whose code is the same. It is
repeated as it is, a hold as a hold; only a waiver that has expired since changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.checks.changes import commit_here, same_code
from pipeline.files import write_json
from pipeline.gate.model import Verdict
from pipeline.gate.verdict import VERDICT, held_today

KEPT = Path(".seatrial/verdicts")
MOST = 40  # files; a cache carries them from run to run


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")
    schema_version: Literal[1] = 1
    commit: str
    verdict: Verdict
    summary: str


@dataclass(frozen=True)
class Kept:
    """``code``: 0 ship, 1 hold, 2 undecided, as it holds today; ``text``: why, the reason first."""

    commit: str
    as_of: str
    code: int
    text: str
    summary: str


def keep(summary: str, verdict: Path = VERDICT, folder: Path = KEPT) -> Path | None:
    """Keeps a verdict that was just judged; None where it is of no commit, because files that count were altered beside
    it, or where there is none to keep.
    """
    commit = commit_here()
    if commit is None or not verdict.is_file():
        return None
    try:
        value = Verdict.model_validate_json(verdict.read_bytes())
    except ValidationError:  # the trial has said so, and called it undecided
        return None
    path = folder / f"{commit}.json"
    write_json(path, _Record(commit=commit, verdict=value, summary=summary).model_dump(mode="json"))
    for old in sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime_ns)[:-MOST]:
        old.unlink()
    return path


def kept_for(base: str, folder: Path = KEPT) -> Kept | None:
    """The newest verdict of ``base``, or of a commit with the same code; None if there is none here.

    A record of another version of this program is none: it cannot be held to today's date.
    """
    known: list[_Record] = []
    for path in sorted(folder.glob("*.json")):
        try:
            known.append(_Record.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            continue
    for record in sorted(known, key=lambda r: r.verdict.as_of, reverse=True):
        if record.commit == base or same_code(record.commit, base):
            code, text = held_today(record.verdict)
            return Kept(record.commit, record.verdict.as_of, code, text, record.summary)
    return None
