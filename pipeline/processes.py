"""Child processes: that they end with their parent, and what they said last."""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Asks the kernel to send ``sig`` to this process when its parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, sig)


def tail(log: Path, lines: int = 15, before: str | None = None) -> str:
    """The last lines of a log, of the part that stands before a mark if one is given; or why it cannot be read."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        return f"({e})"
    told = text if before is None else text.partition(before)[0]
    return "\n".join(told.splitlines()[-lines:]) or "(empty)"
