"""What every stage has in common: a lock, a watch on its parent, progress, and a note of time and memory.

    with stage("evaluate", tier="int8", measuring=True) as s:
        for item in s.track(items, "items"):
            ...

The note goes to ``reports/stages/NAME[@TIER].json`` when the stage ends well. Until it does, ``.seatrial/failed`` has
``NAME[@TIER].txt`` with what its error said, for whoever asks why its results are missing, or of an earlier run.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import psutil

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.provenance import utc_now

T = TypeVar("T")
NOTES = Path("reports/stages")
FAILED = Path(".seatrial/failed")
UNWRITABLE = {
    errno.ENOSPC: "no space left on the device: free some",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the file system is read-only: make it writable",
    errno.EACCES: "permission denied: make it readable and writable for this user",
}
_MOST_CHARS = 600
_MEASURING_LOCK = Path(tempfile.gettempdir()) / "seatrial-measuring.lock"


class Progress:
    """A bar with an estimate on a terminal; elsewhere a line at each tenth."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self._began, self._tenth = time.monotonic(), 0
        self._bar = None
        if sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Rich

            self._bar = Rich(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._task = self._bar.add_task(label, total=total)
            self._bar.start()

    def advance(self, n: int = 1) -> None:
        self.done = min(self.total, self.done + n)
        if self._bar:
            self._bar.update(self._task, completed=self.done)
        elif self.total and self.done * 10 // self.total > self._tenth:
            self._tenth = self.done * 10 // self.total
            gone = time.monotonic() - self._began
            left = gone / self.done * (self.total - self.done)
            say(f"{self.label}: {self.done}/{self.total}, {gone:.0f} s gone, about {left:.0f} s left")

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


class Stage:
    def __init__(self, name: str, tier: str | None) -> None:
        self.name, self.tier = name, tier
        self.label = f"{name}@{tier}" if tier else name

    @contextmanager
    def progress(self, total: int, what: str = "") -> Iterator[Progress]:
        bar = Progress(f"{self.label} {what}".strip(), total)
        try:
            yield bar
        finally:
            bar.close()

    def track(self, values: Iterable[T], what: str = "") -> Iterator[T]:
        values = list(values)
        with self.progress(len(values), what) as bar:
            for value in values:
                yield value
                bar.advance()

    def say(self, text: str) -> None:
        say(f"{self.label}: {text}")


def why_it_failed(label: str, root: Path = Path()) -> str | None:
    """What became of the stage's last run, in one line, if it did not end well; None: it did, or there was none."""
    try:
        said = (root / FAILED / f"{label}.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return " ".join(said.split())[:_MOST_CHARS] or None


def say(text: str) -> None:
    """One milestone line on standard error."""
    print(text, file=sys.stderr, flush=True)


class _MemoryWatch(threading.Thread):
    """Peak of the summed resident memory of this process and its descendants, sampled five times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes, self._end = 0, threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while True:
            total = 0
            for p in [me, *me.children(recursive=True)]:
                try:
                    total += p.memory_info().rss
                except psutil.Error:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)
            if self._end.wait(0.2):
                return

    def stop(self) -> int:
        self._end.set()
        self.join()
        return self.peak_bytes


def _end_with_driver() -> None:
    """Ends this process when the ``dvc`` that started it dies, so that a SIGKILL there leaves no stage behind.

    DVC starts a stage through a shell, so the parent's death is not enough to see; the driver is looked for among
    the ancestors. Servers of a stage end with the stage, by their own pipe to it.
    """
    me = psutil.Process()
    ancestors = me.parents()
    driver = next((p for p in ancestors if any("dvc" in Path(a).name or a == "dvc" for a in _argv(p)[:4])), None)
    if driver is None:
        return

    def watch() -> None:
        while driver.is_running() and driver.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.25)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _argv(p: psutil.Process) -> list[str]:
    try:
        return p.cmdline()
    except psutil.Error:
        return []


@contextmanager
def _measuring_lock(label: str) -> Iterator[None]:
    """One measuring stage at a time per machine. The kernel frees the lock when its holder dies."""
    with _MEASURING_LOCK.open("a+") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            f.seek(0)
            say(f"{label}: waiting for {f.read().strip() or 'another measuring stage'} ({_MEASURING_LOCK})")
            fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        f.truncate()
        f.write(f"{label} (process {os.getpid()})")
        f.flush()
        yield


@contextmanager
def stage(name: str, tier: str | None = None, *, measuring: bool = False, note: bool = True) -> Iterator[Stage]:
    """Runs the body as a stage; see the module's docstring. ``note=False``: it leaves no note of either kind, being the
    stage that reads them or a look at something that is no part of the trial.
    """
    s = Stage(name, tier)
    _end_with_driver()
    if measuring:
        with _measuring_lock(s.label):
            yield from _watched(s, note)
    else:
        yield from _watched(s, note)


def _watched(s: Stage, note: bool) -> Iterator[Stage]:
    began_at, began = utc_now(), time.monotonic()
    memory = _MemoryWatch()
    memory.start()
    s.say("begins")
    failed = FAILED / f"{s.label}.txt"
    if note:
        atomic_write(failed, f"it began at {began_at} and has not come to its end: killed, or running still\n")
    try:
        yield s
    except BaseException as e:
        with suppress(OSError):  # a full disk: what stands there from the beginning says enough
            if note:
                atomic_write(failed, f"{e if isinstance(e, SeatrialError) else repr(e)}\n")
        raise
    finally:
        peak = memory.stop()
    if note:
        failed.unlink(missing_ok=True)
    took = time.monotonic() - began
    if note:
        write_json(
            NOTES / f"{s.label}.json",
            {
                "schema_version": 1,
                "stage": s.name,
                "tier": s.tier,
                "began_at": began_at,
                "wall_s": round(took, 3),
                "peak_rss_bytes": peak,
            },
        )
    s.say(f"done in {took:.1f} s, peak memory {peak / 1024**2:.0f} MiB")


def run_main(main: Callable[[], None]) -> NoReturn:
    """Entry point of a stage module: a :class:`SeatrialError`, a full disk or Ctrl-C becomes one clear message."""
    from engine.artifact import ArtifactError
    from pipeline.project.anchors import anchor_of

    try:
        main()
    except (SeatrialError, ArtifactError) as e:
        more = anchor_of(e)
        say(f"error: {e}" + (f"\n(more on this: {more})" if more else ""))
        raise SystemExit(3) from None
    except OSError as e:
        if e.errno not in UNWRITABLE:
            raise
        what = e.filename or "an output"
        say(f"error: {what}: {UNWRITABLE[e.errno]}, then run again; finished stages are kept")
        raise SystemExit(3) from None
    except KeyboardInterrupt:
        say("interrupted; finished stages are kept")
        raise SystemExit(130) from None
    raise SystemExit(0)
