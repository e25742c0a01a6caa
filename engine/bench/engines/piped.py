"""An engine behind a driver: see protocol."""

from __future__ import annotations

import io
import queue
import threading
import time
from dataclasses import asdict
from typing import cast

from engine.bench.engines.engine import EngineError, Facts, Run
from engine.bench.engines.processes import Processes
from engine.bench.engines.protocol import DriverError, decode_answer, decode_ready, encode_work
from engine.bench.engines.workloads import Workload

LONGEST_LINE = 64 * 2**20


class PipedEngine:
    """Implements engine.Engine over a driver's standard input and output."""

    def __init__(self, name: str, kind: str, command: list[str]) -> None:
        self.name, self.kind, self.command = name, kind, command
        self._processes: Processes | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def start(self, limit_s: float) -> Facts:
        self._processes = Processes(self.command)
        assert self._processes.popen.stdout is not None
        threading.Thread(
            target=_read, args=(cast(io.RawIOBase, self._processes.popen.stdout), self._lines), daemon=True
        ).start()
        line = self._line(limit_s, "not ready")
        try:
            ready = decode_ready(line)
        except DriverError as e:
            raise EngineError(str(e)) from e
        return Facts(**{k: v for k, v in ready.model_dump().items() if k in asdict(Facts(""))})

    def run(self, workload: Workload, limit_s: float) -> Run:
        assert self._processes is not None
        work = encode_work(workload.jobs)
        self._processes.forget_peak()
        began = time.monotonic()
        self._processes.write(work)
        line = self._line(limit_s, f"no answer to {workload.name}")
        try:
            answer = decode_answer(line, workload.jobs, time.monotonic() - began)
        except DriverError as e:
            raise EngineError(f"{workload.name}: {e}") from e
        return Run(
            [r.times for r in answer.requests],
            workload.output_tokens,
            [r.tokens for r in answer.requests],
            max(r.times[-1] for r in answer.requests),
            self._processes.peak_bytes(),
            answer.notes,
        )

    def ask(self, line: bytes, limit_s: float) -> bytes:
        """A line of our own drivers' beyond the protocol, and what comes back."""
        assert self._processes is not None
        self._processes.write(line)
        return self._line(limit_s, "no answer")

    def _line(self, limit_s: float, what: str) -> bytes:
        assert self._processes is not None
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise EngineError(f"{what} after {limit_s:g} s; it was ended") from None
        if not line:
            raise EngineError(f"{what}: {self._processes.last_words()}")
        if len(line) > LONGEST_LINE:
            raise EngineError(f"{what}: a line of more than {LONGEST_LINE // 2**20} MiB came instead")
        return line

    def cpu_s(self) -> float | None:
        return None if self._processes is None else self._processes.cpu_s()

    def stop(self) -> None:
        if self._processes is not None:
            self._processes.end()
            self._processes = None


def _read(pipe: io.RawIOBase, lines: queue.SimpleQueue[bytes]) -> None:
    """Every line, and an empty one at the end. Stops at a line that never ends."""
    with io.BufferedReader(pipe) as buffered:
        while line := buffered.readline(LONGEST_LINE + 1):
            lines.put(line)
            if len(line) > LONGEST_LINE:
                return
    lines.put(b"")
