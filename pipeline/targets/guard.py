"""Runs a command and ends it, with every process that came of it, when standard input closes.

    python -I guard.py SECONDS PROGRAM ARGUMENT...

A process of its own, started by its path and with nothing of this project in it, so that a stage that is killed leaves
no server behind: its end of the pipe closes with it. SIGTERM first, SIGKILL after ``SECONDS``. Orphans of the command
come to this process (PR_SET_CHILD_SUBREAPER), so that no server process escapes by losing its parent. Ends with the
command's own exit code where that ended by itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_EVERY_S = 0.05


def main(grace_s: float, command: list[str]) -> int:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the pipe says when it is time, also after Ctrl-C
        signal.signal(ignored, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_before)
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr, flush=True)
        return 127
    over = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(over,), daemon=True).start()
    while child.poll() is None and not over.wait(_LOOK_EVERY_S):
        pass
    _end_all(child, grace_s)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _as_before() -> None:
    for default in (signal.SIGINT, signal.SIGTERM):
        signal.signal(default, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """prctl(2); elsewhere than on Linux nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _wait_for_end_of_input(over: threading.Event) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    over.set()


def _end_all(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to all that are there, SIGKILL to all that are left; until there are none."""
    until = time.monotonic() + grace_s
    sent = set[int]()
    while left := psutil.Process().children(recursive=True):
        late = time.monotonic() > until
        for process in left:
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if late:
                    process.kill()
                elif process.pid not in sent:
                    sent.add(process.pid)
                    process.terminate()
        child.poll()
        _reap(child.pid)
        time.sleep(_LOOK_EVERY_S)


def _reap(but: int) -> None:
    """Orphans that have ended are ours to wait for; the command itself is waited for by its own handle."""
    for process in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if process.pid != but and process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


if __name__ == "__main__":
    raise SystemExit(main(float(sys.argv[1]), sys.argv[2:]))
