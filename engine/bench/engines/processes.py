"""An engine's processes: a command in a session of its own, with all that it starts."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import psutil

from engine.bench.engines.engine import EngineError

GRACE_S = 5.0
ERROR_BYTES, ERROR_CHARACTERS = 4096, 200  # of the end of standard error: read, shown


class Processes:
    """The command and its children. Standard input and output are pipes, standard error goes to a file without name."""

    def __init__(self, command: list[str]) -> None:
        """
        Raises:
            EngineError: the command cannot be run.
        """
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (end closes it)
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as e:
            self._errors.close()
            raise EngineError(f"`{shlex.join(command)[:ERROR_CHARACTERS]}` cannot be run: {e.strerror}") from e
        self._tree = psutil.Process(self.popen.pid)

    def write(self, line: bytes) -> None:
        """To standard input, from a thread of its own: who does not read must not hold us up. That a pipe is broken is
        seen by the end of standard output."""

        def work(left: memoryview) -> None:
            assert self.popen.stdin is not None
            with contextlib.suppress(OSError, ValueError):
                while left:
                    left = left[self.popen.stdin.write(left) or 0 :]

        threading.Thread(target=work, args=(memoryview(line),), daemon=True).start()

    def last_words(self) -> str:
        """How it ended and the last line of its standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(GRACE_S)
        code = self.popen.returncode
        ended = "still runs" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - ERROR_BYTES))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{ended}; its last words: {lines[-1][-ERROR_CHARACTERS:]}" if lines else ended

    def _members(self) -> list[psutil.Process]:
        try:
            return [self._tree, *self._tree.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def forget_peak(self) -> None:
        """From now on, the peak is that of what follows (proc(5), clear_refs); where that is refused, of all."""
        for member in self._members():
            with contextlib.suppress(OSError):
                Path(f"/proc/{member.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """Sum of the processes' most resident memory (VmHWM), file mappings included: weights that are mapped are in
        memory like others. What processes share counts in each. None where the system does not say."""
        found = [_status_bytes(member.pid, "VmHWM") for member in self._members()]
        known = [n for n in found if n is not None]
        return sum(known) if known else None

    def cpu_s(self) -> float:
        total = 0.0
        for member in self._members():
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                total += times.user + times.system
        return total

    def end(self) -> None:
        """Closes standard input, which is the polite way; then signals to the whole session and what is left of it.
        Standard output is closed by whoever reads it, at its end."""
        members = self._members()
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
        self._signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(members, timeout=GRACE_S)
        for member in alive:
            with contextlib.suppress(psutil.Error):
                member.kill()
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(GRACE_S)
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.popen.pid, number)


def _status_bytes(pid: int, key: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None
