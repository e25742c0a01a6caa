"""A load profile with other times than its file's, as a file of its own that the load client can read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from loadtests.workload import ProfileError, load_profile, profile_path, read_profile_file
from pipeline.errors import SeatrialError

WORK = Path(".seatrial/work/profiles")


def with_times(name: str, warmup_s: float | None, duration_s: float | None) -> str:
    """The name of the profile, or the path of a copy with these times.

    Raises:
        SeatrialError: there is no such profile, or it is not valid with these times.
    """
    if warmup_s is None and duration_s is None:
        return name
    try:
        load_profile(name, warmup_s=warmup_s, duration_s=duration_s)
        value = read_profile_file(name, warmup_s=warmup_s, duration_s=duration_s)
    except ProfileError as e:
        raise SeatrialError(str(e)) from e
    text = yaml.safe_dump(_absolute(value, profile_path(name).parent), sort_keys=False)
    path = WORK / f"{profile_path(name).stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _absolute(value: Any, folder: Path) -> Any:
    """Paths of files as seen from the copy."""
    if isinstance(value, dict):
        return {k: str((folder / v).resolve()) if k == "file" else _absolute(v, folder) for k, v in value.items()}
    return [_absolute(v, folder) for v in value] if isinstance(value, list) else value
