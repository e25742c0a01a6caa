"""Recording a content as a version: composition, digest and changelog in ``manifest.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import content_digest, load_evalset
from pipeline.files import atomic_write


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / "manifest.yaml"
    if not path.is_file():
        return None
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else None


def recorded_digest(folder: Path) -> str | None:
    """The digest in the manifest; None where there is no manifest."""
    return (_read(folder) or {}).get("content_digest")


def record(folder: Path, version: str, week: str, what: str) -> None:
    """Makes the present items ``version`` of the set, and counts its composition anew.

    Raises:
        SeatrialError: no manifest, the version is in the changelog already, or its content is the recorded one.
    """
    manifest = _read(folder)
    if manifest is None:
        raise SeatrialError(f"{folder / 'manifest.yaml'} not found; write one with name and description first")
    digest, log = content_digest(folder), manifest.get("changelog") or []
    if version in {e["version"] for e in log}:
        raise SeatrialError(f"version {version} is in the changelog of {folder} already; a version is never changed")
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
    _write(folder, manifest)
    manifest["scenarios"] = _composition(folder)
    _write(folder, manifest)


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
