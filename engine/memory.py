"""A process's memory: what the system says of it, and what was freed back to the system.

The C library keeps small pieces that were freed for later use, and what lies between them. After a burst (a large body
takes up to 200 times its size while it is tokenised; a crowd of requests with log-probabilities takes tensors of all
sizes) a process would stay as large as it ever was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path


def _find_trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of the GNU C library; None elsewhere, where nothing is done."""
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


_trim = _find_trim()

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
LEAST_KEPT_BYTES = 128 * 1024  # glibc's own threshold before it adapts
MOST_KEPT_BYTES = 2 * 1024**2  # of the core: left to itself, glibc goes to 32 MiB, and keeps twice as much unplanned


def keep_freed(most_bytes: int) -> None:
    """Blocks up to so many bytes stay with the allocator when they are freed, twice as much in all (mallopt(3): left to
    itself, glibc adapts them to what is freed). Does nothing without that library."""
    _mallopt(_M_MMAP_THRESHOLD, most_bytes)
    _mallopt(_M_TRIM_THRESHOLD, 2 * most_bytes)


def stay_compact() -> None:
    """For a process with bursts of large blocks: they go back to the system when they are freed, and threads share two
    heaps, each of which would otherwise keep its own remains. To be called before the first thread starts."""
    _mallopt(_M_ARENA_MAX, 2)
    keep_freed(LEAST_KEPT_BYTES)


def _mallopt(parameter: int, value: int) -> None:
    if _trim is not None:
        ctypes.CDLL(None).mallopt(parameter, value)


def give_back() -> None:
    """Takes some milliseconds, during which no thread of the process gets memory."""
    if _trim is not None:
        _trim(0)


def status_bytes(field: str, pid: int | None = None) -> int | None:
    """One of the sizes in proc_pid_status(5), such as ``VmHWM``, of a process (None: this one); None where the system
    does not say."""
    try:
        text = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{field}:")), None)
