"""Whether the machine's memory holds the servers of both sides at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from pipeline.load.metrics import tree_rss_bytes
from pipeline.targets.target import Target

MARGIN_BYTES = 1024**3  # two load clients, and what an engine takes beside its ledger
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = CGROUP) -> int:
    """What can still be taken: of the machine's memory, and of a container's limit."""
    free = psutil.virtual_memory().available
    try:
        limit, current = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return min(free, limit - current + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):  # no container, or "max"
        return free


def held_bytes(target: Target) -> int:
    """What a server that has just booted takes here at most: its ledger's total, or what it holds already. Of one that
    is no process of ours nothing.
    """
    if target.pid is None:
        return 0
    return max(_ledger_bytes(target), tree_rss_bytes(target.pid) or 0)


def _ledger_bytes(target: Target) -> int:
    try:
        info = httpx.get(f"{target.base_url}/info", timeout=30, headers=target.key.headers).json()
        return int(info["derived"]["ledger"]["total_bytes"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):  # another project's, or an older revision's
        return 0


def why_no_room(held: Sequence[int], sides: int, available: int) -> str | None:
    """Why not all of ``sides`` servers have room; None: they have.

    Args:
        held: bytes of those that are up; of the others nothing is known, so each is taken for as large as the largest.
        available: bytes before the first was booted.
    """
    needed = sum(held) + (sides - len(held)) * max(held) + MARGIN_BYTES
    if needed <= available:
        return None
    mib = [round(x / 1024**2) for x in (needed, available)]
    return f"{sides} servers at once need {mib[0]} MiB, {mib[1]} MiB are available"
