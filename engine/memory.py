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

# Parameters of mallopt(3). A few threads that each have heaps of their own, and a threshold that rises with every large
# piece that was freed, are what keeps a burst's memory in pieces.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 128 * 1024  # the C library's own first value


def stay_compact() -> None:
    """For a process with bursts of large pieces: few heaps, and large pieces that go back to the system when they are
    freed. To be called before the first thread starts. Does nothing without the GNU C library."""
    if _trim is not None:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


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
