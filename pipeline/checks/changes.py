"""Whether a change alters anything that a trial or an A/B runs, or only words, tests and workflows.

Python counts by its syntax tree without docstrings, as in an engine's identity; every other file by its bytes. Where
nothing counts, what was measured of the base holds for the head as well (:mod:`pipeline.checks.reuse`).
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import PurePosixPath

from pipeline.errors import SeatrialError
from pipeline.provenance import stripped

WORDS = {".md", ".png", ".svg", ".txt"}
NOT_RUN = ("tests/", ".github/", ".ci/", "releases/proposed/")  # the gate's baseline is a record of releases/
NOT_RUN_FILES = {".gitignore", "Makefile"}
LEFT_BY_A_TRIAL = {"dvc.lock"}
DATA = ("evalsets/", "pipeline/quantize/calibration/", "requirements/")  # whose text files are no mere words


@dataclass(frozen=True)
class Change:
    """``counts``: changed files that a trial or an A/B can notice; ``others``: those that it cannot."""

    base: str
    head: str
    counts: list[str]
    others: list[str]

    @property
    def alters_code(self) -> bool:
        return bool(self.counts)

    def words(self) -> str:
        if self.counts:
            more = f" and {len(self.counts) - 3} more" if len(self.counts) > 3 else ""
            return f"altered: {', '.join(self.counts[:3])}{more}"
        of = ", ".join(self.others[:3]) + (f" and {len(self.others) - 3} more" if len(self.others) > 3 else "")
        said = f"no code is altered ({of or 'no file differs'})"
        return f"{said}: the verdict of {self.base[:12]} holds, nothing was measured"


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True)
    if done.returncode:
        raise SeatrialError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def change_between(base: str, head: str = "HEAD") -> Change:
    """What ``head`` changes since it left ``base``.

    Raises:
        SeatrialError: no such revisions, or no common ancestor (a shallow clone).
    """
    a, b = (_commit_of(r) for r in (base, head))
    try:
        root = _git("merge-base", a, b).decode().strip()
    except SeatrialError as e:
        raise SeatrialError(f"{base} and {head} have no common ancestor here (git fetch --unshallow)") from e
    return _between(root, b)


def same_code(one: str, other: str) -> bool:
    """Whether nothing that counts differs between two commits; False where either is not here."""
    try:
        return not _between(_commit_of(one), _commit_of(other)).counts
    except SeatrialError:
        return False


def commit_here() -> str | None:
    """The commit that this work tree runs: HEAD's; None where files that may count differ, or there is no git."""
    try:
        head = _commit_of("HEAD")
        listed = _git("status", "--porcelain", "--no-renames", "--untracked-files=all", "-z").decode()
    except (SeatrialError, OSError):
        return None
    names = [entry[3:] for entry in listed.split("\0") if entry]
    return None if any(_may_count(n) and n not in LEFT_BY_A_TRIAL for n in names) else head


def _between(a: str, b: str) -> Change:
    names = _git("diff", "--name-only", "--no-renames", "-z", a, b).decode().split("\0")
    counts: list[str] = []
    others: list[str] = []
    for name in sorted(filter(None, names)):
        (counts if _counts(name, a, b) else others).append(name)
    return Change(a, b, counts, others)


def _commit_of(revision: str) -> str:
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    except SeatrialError as e:
        raise SeatrialError(f"{revision} names no commit here; a shallow clone has few (git fetch --unshallow)") from e


def _may_count(name: str) -> bool:
    """By its name alone."""
    if name.startswith(NOT_RUN) or name in NOT_RUN_FILES:
        return False
    suffix = PurePosixPath(name).suffix
    return suffix not in WORDS or (suffix == ".txt" and name.startswith(DATA))


def _counts(name: str, base: str, head: str) -> bool:
    if not _may_count(name):
        return False
    if PurePosixPath(name).suffix != ".py":
        return True
    before, after = (_content(name, revision) for revision in (base, head))
    if before is None or after is None:
        return True
    try:
        return stripped(before) != stripped(after)
    except (SyntaxError, ValueError):  # a null byte
        return True


def _content(name: str, revision: str) -> str | None:
    done = subprocess.run(["git", "show", f"{revision}:{name}"], capture_output=True)
    return None if done.returncode else done.stdout.decode("utf-8", errors="replace")
