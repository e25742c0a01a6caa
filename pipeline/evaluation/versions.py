"""Versions of an evalset: recording a content as one, and saying what changed between two.

A version is ``MAJOR.MINOR.PATCH``; the shorter ``1`` means 1.0.0. What the numbers say:

MAJOR   written, pinned or imported items went or changed: scores before and after are of different questions, and the
        margins of the gate must be chosen anew (they name ``NAME-vMAJOR``)
MINOR   such items came in, or production items were rotated: the composition that the margins stand for is kept
PATCH   the same questions and references; weeks, sources or explanations were mended

Every change of a byte has a version of its own, whatever its size: the content digest is recorded in the changelog.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Evalset, Item, content_digest, load_evalset
from pipeline.files import atomic_write

Size = Literal["major", "minor", "patch"]
_VERSION = re.compile(r"^\d+(\.\d+){0,2}$")
# What is asked and how it is judged; a change of anything else is a patch.
_SUBSTANCE = ("kind", "prompt", "messages", "choices", "reference", "grader", "max_tokens")


def parsed(version: str) -> tuple[int, int, int]:
    """
    Raises:
        SeatrialError: not one to three numbers with dots between.
    """
    if not _VERSION.match(version):
        raise SeatrialError(f"version {version!r} is not MAJOR, MAJOR.MINOR or MAJOR.MINOR.PATCH, such as 1.2.0")
    major, minor, patch = ([int(n) for n in version.split(".")] + [0, 0])[:3]
    return major, minor, patch


def next_version(version: str, size: Size) -> str:
    major, minor, patch = parsed(version)
    following = {"major": (major + 1, 0, 0), "minor": (major, minor + 1, 0), "patch": (major, minor, patch + 1)}
    return ".".join(map(str, following[size]))


@dataclass(frozen=True)
class Diff:
    """Ids of items; ``changed`` with the names of the fields that differ."""

    added: list[str]
    removed: list[str]
    changed: dict[str, list[str]]
    size: Size | None  # of the version that the change needs; None: the items are the same

    def lines(self) -> list[str]:
        said = [f"+ {i}" for i in self.added] + [f"- {i}" for i in self.removed]
        said += [f"~ {i}: {', '.join(fields)}" for i, fields in self.changed.items()]
        counts = f"{len(self.added)} in, {len(self.removed)} out, {len(self.changed)} changed"
        return [*said, f"{counts}; {f'a {self.size} version' if self.size else 'the same items'}"]


def diff(before: list[Item], after: list[Item]) -> Diff:
    """What happened to the items, by id."""
    old, new = {i.id: i for i in before}, {i.id: i for i in after}
    added, removed = [i for i in new if i not in old], [i for i in old if i not in new]
    changed: dict[str, list[str]] = {}
    for name in (i for i in new if i in old):
        a, b = old[name].model_dump(), new[name].model_dump()
        if fields := [k for k in a if a[k] != b[k]]:
            changed[name] = fields
    size: Size | None = None
    if any(old[i].origin != "production" for i in removed) or any(set(f) & set(_SUBSTANCE) for f in changed.values()):
        size = "major"
    elif added or removed:
        size = "minor"
    elif changed or [i.id for i in before] != [i.id for i in after]:
        size = "patch"
    return Diff(added, removed, changed, size)


@contextmanager
def opened(where: str) -> Iterator[Evalset]:
    """An evalset from a folder, or from a git revision as ``REVISION:FOLDER``.

    Raises:
        SeatrialError: no such folder, revision or path in it; or the set cannot be read.
    """
    if Path(where).is_dir():
        yield load_evalset(Path(where))
        return
    revision, colon, path = where.partition(":")
    if not colon:
        raise SeatrialError(f"{where} is not a folder; expected an evalset's folder or REVISION:FOLDER")
    with tempfile.TemporaryDirectory(prefix="seatrial-evalset-") as folder:
        archive = Path(folder) / "set.tar"
        command = ["git", "archive", "--format=tar", f"--output={archive}", revision, "--", path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as e:
            raise SeatrialError("git is not installed; REVISION:FOLDER needs it") from e
        if done.returncode != 0:
            raise SeatrialError(f"{where}: git has no such folder there: {done.stderr.strip()}")
        with tarfile.open(archive) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
            packed.extractall(folder)
        yield load_evalset(Path(folder) / path)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """``manifest.yaml`` as it stands; None where there is none."""
    path = folder / "manifest.yaml"
    if not path.is_file():
        return None
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else None


def recorded_digest(folder: Path) -> str | None:
    """The digest in the manifest; None where there is no manifest."""
    return (read_manifest(folder) or {}).get("content_digest")


def record(folder: Path, version: str, week: str, what: str) -> None:
    """Makes the present items ``version`` of the set, and counts its composition anew.

    Raises:
        SeatrialError: no manifest, not a later version, or its content is the recorded one.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise SeatrialError(f"{folder / 'manifest.yaml'} not found; write one with name and description first")
    digest, log = content_digest(folder), manifest.get("changelog") or []
    if version in {e["version"] for e in log}:
        raise SeatrialError(f"version {version} is in the changelog of {folder} already; a version is never changed")
    if log and parsed(version) <= parsed(log[-1]["version"]):
        raise SeatrialError(f"version {version} is not after {log[-1]['version']}, the last in the changelog")
    if log and log[-1]["content_digest"] == digest:
        raise SeatrialError(
            f"the content of {folder} is that of version {log[-1]['version']}; there is nothing to record"
        )
    manifest |= {
        "version": version,
        "scenarios": manifest.get("scenarios") or {},
        "content_digest": digest,
        "changelog": [*log, {"version": version, "week": week, "what": what, "content_digest": digest}],
    }
    before = (folder / "manifest.yaml").read_bytes()
    _write(folder, manifest)
    try:
        manifest["scenarios"] = _composition(folder)
    except SeatrialError:  # items that cannot be read are no version
        atomic_write(folder / "manifest.yaml", before)
        raise
    _write(folder, manifest)


def version_problems(evalset: Evalset, folder: Path) -> list[str]:
    """Content, digest and changelog must tell the same story; the message has the command that would mend it."""
    m, found = evalset.manifest, content_digest(folder)
    problems = []
    if found != m.content_digest:
        problems.append(
            f"the items' digest is {found[:12]}, but that of version {m.version} is {m.content_digest[:12]}: the "
            f"content has changed. Undo that, or make it a version: "
            f'seatrial evalset record {folder} --size major --week WEEK --what "..." (version '
            f"{next_version(m.version, 'major')}{_size_due(folder)})"
        )
    log = [(e.get("version", ""), e.get("content_digest", "")) for e in m.changelog]
    if not log or log[-1] != (m.version, m.content_digest):
        problems.append(
            f"the changelog must end with version {m.version} and its content_digest; it ends with {log[-1:]}"
        )
    problems += [f"the changelog has version {v} {n} times" for v, n in Counter(v for v, _ in log).items() if n > 1]
    return problems


def _size_due(folder: Path) -> str:
    """What says which size of version is due; nothing where no commit has the set, to be compared with."""
    try:
        done = subprocess.run(["git", "cat-file", "-e", "HEAD:./manifest.yaml"], cwd=folder, capture_output=True)
    except OSError:  # no git
        return ""
    return f"; `seatrial evalset diff HEAD:{folder} {folder}` says the size due" if done.returncode == 0 else ""


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    atomic_write(folder / "manifest.yaml", yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110))


def _composition(folder: Path) -> dict[str, dict[str, Any]]:
    """What each scenario has, in the order of the files."""
    counted: dict[str, dict[str, Any]] = {}
    for item in load_evalset(folder).items:
        entry = counted.setdefault(item.scenario, {"kind": item.kind, "items": 0, "pinned": 0})
        entry["items"] += 1
        entry["pinned"] += item.origin == "pinned"
    return counted
