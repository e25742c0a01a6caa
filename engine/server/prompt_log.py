"""What was asked, in the words of those who asked: a log of its own, written where ``--prompt-log`` names a folder.

It is what ``seatrial evalset rotate`` draws production items from, so a line is a request in the API's own form::

    {"schema_version": 1, "id": ..., "at": RFC 3339, "endpoint": ..., "messages" or "prompt": ..., "max_tokens": ...}

Privacy. Lines hold whatever users wrote, personal data included, as it came: scrubbing is the rotation's work, which
knows how and counts what it did. So the log is off unless asked for, holds a sample, is readable by its owner alone
(0600, a folder that is made here 0700), forgets its oldest files, and says at the start that it is there. Answers are
not kept: a rotated request is judged anew on every build, and the evaluation leaves fingerprints of those answers.

What is in it. Requests in text that were taken and answered (status 200, to whatever end), once their whole record is
complete; no refusals, no prompts given as token ids, no ``/score``. A request of several prompts has a line for each.

The sample. A request is in it if the hash of seed and request id lies below the share: the same ids and seed give the
same sample, on every machine, and whether one is drawn does not depend on any other.

The cost. The event loop draws and queues; one thread turns rows into bytes and appends each with a single write. A
disk that is slow, full or gone loses rows, which are counted (``seatrial_log_rows_lost``) and said once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import queue
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.server.logs import Clock, rfc3339
from engine.server.records import RequestRecord

log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
SEGMENTS = 8  # into which the bound is cut: with the oldest, an eighth is forgotten
MAX_WAITING = 1000  # rows, while a slow disk is being written to
CLOSE_S = 5.0  # for the last rows at the end
_NAME = re.compile(r"prompts-(\d+)\.jsonl")


@dataclass(frozen=True)
class PromptLogOptions:
    """As on the command line, behind ``--prompt-log-``.

    Raises:
        ValueError: a value out of range.
    """

    share: float = field(default=0.01, metadata={"help": "of the requests that is written, drawn by their ids"})
    seed: int = field(default=0, metadata={"help": "another draw of the same requests"})
    max_mib: float = field(default=64.0, metadata={"help": "of all its files together: the oldest go"})

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, expected more than 0 and at most 1")
        if not 0 < self.max_mib < math.inf:
            raise ValueError(f"max-mib is {self.max_mib}, expected more than 0, and not without end")


class PromptLog:
    """
    Raises:
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, path: Path, options: PromptLogOptions, lost: Callable[[int], None]) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
        self.path, self.options, self._lost = path, options, lost
        self._segment_bytes = max(1, int(options.max_mib * 2**20 / SEGMENTS))
        self._number = max((n + 1 for n in self._segments()), default=0)
        self._rows: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._failing = False
        self._thread = threading.Thread(target=self._write_all, name="prompt-log", daemon=True)
        self._thread.start()

    def takes(self, id: str) -> bool:
        """Whether the request of this id is in the sample."""
        drawn = hashlib.sha256(f"{self.options.seed}/{id}".encode()).digest()
        return int.from_bytes(drawn[:8]) < self.options.share * 2**64

    def note(self, record: RequestRecord, clock: Clock) -> None:
        """Writes what ``record`` was asked, if it is in the sample and was answered. Never waits."""
        if record.status != 200 or record.refusal:
            return
        at = rfc3339(clock.at(record.received_s))
        for asked in record.asked:
            self._add(
                {"schema_version": SCHEMA_VERSION, "id": record.id, "at": at, "endpoint": record.endpoint, **asked}
            )

    def _add(self, row: dict[str, Any]) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._lost(1)

    def close(self) -> None:
        """Writes what is left, as far as the disk takes it in a few seconds."""
        with contextlib.suppress(queue.Full):
            self._rows.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    # The thread's side

    def _write_all(self) -> None:
        while (row := self._rows.get()) is not None:
            try:
                self._append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                self._failing = False
            except OSError as e:
                self._lost(1)
                if not self._failing:
                    log.error("%s: a request is not in the prompt log: %s; not said again until it works", self.path, e)
                self._failing = True

    def _append(self, line: bytes) -> None:
        path = self.path / f"prompts-{self._number:05d}.jsonl"
        with open(path, "ab", buffering=0, opener=_private) as file:
            before = file.seek(0, os.SEEK_END)
            if file.write(line) < len(line):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if before + len(line) >= self._segment_bytes:
            self._number += 1
            self._forget_oldest()

    def _segments(self) -> dict[int, Path]:
        found = ((_NAME.fullmatch(p.name), p) for p in self.path.iterdir())
        return {int(m[1]): p for m, p in found if m}

    def _forget_oldest(self) -> None:
        """Leaves room for the segment that comes."""
        segments = sorted(self._segments().items())
        total = sum(p.stat().st_size for _, p in segments)
        for _, path in segments:
            if total <= (SEGMENTS - 1) * self._segment_bytes:
                return
            total -= path.stat().st_size
            path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
