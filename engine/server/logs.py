"""The step log and the request log: a ring of steps in memory, and both in parquet where ``--log-dir`` asks for it.

Files are ``steps-NNNNN.parquet`` and ``requests-NNNNN.parquet``. A segment is written when it has ``SEGMENT_ROWS`` rows
or its oldest row is ``SEGMENT_AGE_S`` old, and once more at the end; it appears under its name when it is complete.
Numbers go on where an earlier run left off, so nothing is overwritten; when all segments together exceed a bound, the
oldest go. The files' metadata name the ``schema_version`` and the UTC moment ``origin_at`` from which the columns that
end in ``_s`` and are moments (``start_s``, ``received_s``, ``first_token_s``, ``ended_s``) count.

Rows are tuples on a list until a thread writes them, so a step costs the event loop one append. A disk that is full or
gone loses rows, which are counted and logged once: it never holds up an answer.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from engine.protocol import StepRow

log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
RING_ROWS = 20_000
SEGMENT_ROWS = 5_000  # as Python objects, 3 MiB of steps or 5 MiB of requests
SEGMENT_AGE_S = 60.0
MAX_BUFFERED_ROWS = 10 * SEGMENT_ROWS  # while a slow disk is being written to
_POLL_S = 1.0


class StepRing:
    """The last ``RING_ROWS`` rows of the step log, as doubles in a block of fixed size: a server that has run for a day
    is no larger than one that has run for a minute."""

    def __init__(self, capacity: int = RING_ROWS) -> None:
        self._width = len(StepRow._fields)
        self._cells = array.array("d", bytes(8 * self._width * capacity))
        self._capacity, self._count = capacity, 0
        hints = get_type_hints(StepRow)
        self._types: list[Callable[[float], Any]] = [hints[f] for f in StepRow._fields]

    def add(self, row: StepRow) -> None:
        at = self._count % self._capacity * self._width
        self._cells[at : at + self._width] = array.array("d", row)
        self._count += 1

    def since(self, step: int) -> list[dict[str, Any]]:
        """Rows with a number above ``step``, oldest first."""
        rows = []
        for i in range(max(0, self._count - self._capacity), self._count):
            at = i % self._capacity * self._width
            if self._cells[at] > step:
                cells = self._cells[at : at + self._width]
                rows.append({f: t(c) for f, t, c in zip(StepRow._fields, self._types, cells, strict=True)})
        return rows


class LogDir:
    """Writes both logs into one directory.

    Raises:
        OSError: the directory cannot be made or written to.
    """

    def __init__(
        self,
        path: Path,
        kinds: dict[str, type[tuple[Any, ...]]],
        *,
        max_bytes: int,
        lost: Callable[[str, int], None],
        segment_rows: int = SEGMENT_ROWS,
        segment_age_s: float = SEGMENT_AGE_S,
    ) -> None:
        import polars as pl  # only a server that writes logs is as large as this

        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe.tmp"
        try:
            pl.DataFrame({"probe": [0]}).write_parquet(probe)  # takes the memory that writing takes
        except pl.exceptions.PolarsError as e:  # what it makes of a full disk
            raise OSError(errno.EIO, str(e)) from e
        finally:
            probe.unlink(missing_ok=True)
        self.path, self.max_bytes = path, max_bytes
        self.metadata = {"schema_version": str(SCHEMA_VERSION)}
        self._rows, self._age_s, self._lost = segment_rows, segment_age_s, lost
        self._buffers = {kind: _Buffer(kind, columns, self._next_number(kind)) for kind, columns in kinds.items()}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logs")
        self._failing = False

    def set_origin(self, at: datetime) -> None:
        """The moment from which the logs' seconds count."""
        self.metadata["origin_at"] = rfc3339(at)

    def add(self, kind: str, row: tuple[Any, ...]) -> None:
        buffer = self._buffers[kind]
        if len(buffer.rows) >= MAX_BUFFERED_ROWS:
            self._lost(kind, 1)
            return
        if not buffer.rows:
            buffer.since_s = time.monotonic()
        buffer.rows.append(row)

    async def run(self) -> None:
        """Writes what is due, until it is cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            for buffer in self._buffers.values():
                old = time.monotonic() - buffer.since_s > self._age_s
                if buffer.rows and (old or len(buffer.rows) >= self._rows):
                    await self._write(buffer)

    async def close(self) -> None:
        """Writes what is left."""
        for buffer in self._buffers.values():
            if buffer.rows:
                await self._write(buffer)
        self._thread.shutdown(wait=False)

    async def _write(self, buffer: _Buffer) -> None:
        rows, buffer.rows = buffer.rows, []
        name = f"{buffer.kind}-{buffer.number:05d}.parquet"
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write_file, name, buffer, rows)
            buffer.number += 1
            self._failing = False
        except Exception as e:  # whatever a disk or a library comes up with: serving goes on
            self._lost(buffer.kind, len(rows))
            if not self._failing:
                log.error(
                    "%s: %d rows of the log are lost: %s; this is not said again until it works", name, len(rows), e
                )
            self._failing = True

    def _write_file(self, name: str, buffer: _Buffer, rows: list[tuple[Any, ...]]) -> None:
        import polars as pl

        columns = zip(*rows, strict=True)  # column by column: the interpreter is held for a short time only
        series = [pl.Series(f, c, t, strict=True) for (f, t), c in zip(buffer.schema().items(), columns, strict=True)]
        temporary = self.path / f"{name}.tmp"
        try:
            pl.DataFrame(series).write_parquet(temporary, metadata=self.metadata)
            temporary.rename(self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._forget_oldest()

    def _segments(self) -> list[Path]:
        found = [(re.fullmatch(r"([a-z]+)-(\d+)\.parquet", p.name), p) for p in self.path.iterdir()]
        return [p for m, p in found if m and m[1] in self._buffers]

    def _next_number(self, kind: str) -> int:
        found = [re.fullmatch(rf"{kind}-(\d+)\.parquet", p.name) for p in self.path.iterdir()]
        return max((int(m[1]) + 1 for m in found if m), default=0)

    def _forget_oldest(self) -> None:
        """By age of the file: the two kinds count on their own."""
        files = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in self._segments())
        total = sum(size for _, size, _ in files)
        for _, size, path in files[:-1]:
            if total <= self.max_bytes:
                return
            path.unlink()
            total -= size


class _Buffer:
    def __init__(self, kind: str, columns: type[tuple[Any, ...]], number: int) -> None:
        self.kind, self.columns, self.number = kind, columns, number
        self.rows: list[tuple[Any, ...]] = []
        self.since_s = 0.0

    def schema(self) -> dict[str, Any]:
        """Column -> polars type, from the annotations of the row's class."""
        import polars as pl

        types = {
            int: pl.Int64, float: pl.Float64, str: pl.String, bool: pl.Boolean, datetime: pl.Datetime("us", "UTC"),
        }  # fmt: skip
        return {name: types[_plain(hint)] for name, hint in get_type_hints(self.columns).items()}


def _plain(hint: Any) -> type:
    """``int`` of ``int | None``."""
    options: Sequence[Any] = [a for a in get_args(hint) if a is not type(None)] or [hint]
    return options[0]  # type: ignore[no-any-return]


def rfc3339(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Clock(NamedTuple):
    """Moments of ``time.monotonic`` as seconds since the core began, and as UTC."""

    began_s: float
    origin_at: datetime

    @classmethod
    def since(cls, began_s: float) -> Clock:
        return cls(began_s, datetime.now(UTC) - timedelta(seconds=time.monotonic() - began_s))

    def seconds(self, monotonic_s: float) -> float:
        return monotonic_s - self.began_s

    def at(self, monotonic_s: float) -> datetime:
        return self.origin_at + timedelta(seconds=monotonic_s - self.began_s)
