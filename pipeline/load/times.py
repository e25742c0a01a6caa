"""A load profile with other times than its file's, as a file of its own that the load client can read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from loadtests.workload import ProfileError, load_profile, profile_path
from pipeline.errors import SeatrialError
from pipeline.files import atomic_write

WORK = Path(".seatrial/work/profiles")


def with_times(name: str, warmup_s: float | None, duration_s: float | None) -> str:
    """The name of the profile, or the path of a copy with these times.

    Raises:
        SeatrialError: there is no such profile, or it is not valid with these times.
    """
    if warmup_s is None and duration_s is None:
        return name
    try:
        profile = load_profile(name, warmup_s=warmup_s, duration_s=duration_s)
    except ProfileError as e:
        raise SeatrialError(str(e)) from e
    text = yaml.safe_dump(profile.model_dump(mode="json", exclude_none=True), sort_keys=False)
    path = WORK / f"{profile_path(name).stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    atomic_write(path, text)
    return str(path)
