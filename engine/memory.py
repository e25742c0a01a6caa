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
