"""Writing without leaving half of it behind: to a temporary name first, then a rename."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_dir(final: Path) -> Iterator[Path]:
    """A temporary sibling that becomes ``final`` when the block ends well and vanishes when it does not.

    What a killed run left under the temporary name is removed first. An existing ``final`` stays until the new one
    is complete.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = final.with_name(f".{final.name}.partial"), final.with_name(f".{final.name}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if final.exists():
            final.rename(old)
        temporary.rename(final)
    except BaseException as e:
        _name(e, final)
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not final.exists():
            old.rename(final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def atomic_write(path: Path, data: str | bytes) -> None:
    """Replaces a file's content in one step, or leaves the old content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        temporary.replace(path)
    except BaseException as e:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        _name(e, path)
        raise


def _name(e: BaseException, path: Path) -> None:
    """Python names no file in the error of a write to an open one; say which it was."""
    if isinstance(e, OSError) and e.filename is None:
        e.filename = str(path)


def write_json(path: Path, value: Any) -> None:
    """JSON with sorted keys; NaN and Infinity are refused (an absent figure is null with a reason beside it)."""
    atomic_write(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")
