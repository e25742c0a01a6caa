"""How many CPUs this process was given: what its affinity allows, no more than the control group's quota pays for."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_cpus(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """At least 1. A quota that cannot be read is none: a container's view of the files differs from host to host."""
    quotas = [math.ceil(quota) for folder in _folders(root, own) if (quota := _quota(folder)) is not None]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def _folders(root: Path, own: Path) -> list[Path]:
    """Of this process's groups and all above them (a quota binds whatever is below), in both versions' places."""
    found = [root, root / "cpu", root / "cpu,cpuacct"]
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:  # hierarchy:controllers:/path; version 2 has no controllers
        _, controllers, path = line.split(":", 2)
        if controllers in {"", "cpu", "cpu,cpuacct"}:
            group = root / controllers / path.lstrip("/")
            found += [group, *(p for p in group.parents if p.is_relative_to(root))]
    return list(dict.fromkeys(found))


def _quota(folder: Path) -> float | None:
    """CPUs, None where there is no limit: ``cpu.max`` of version 2, ``cpu.cfs_*_us`` of version 1."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        return None if quota in {"max", "-1"} else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
