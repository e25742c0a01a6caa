"""Results on disk: complete or absent, and JSON without NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.bench.errors import BenchError


def check_writable(folder: Path) -> None:
    """Before minutes are spent on what could not be kept.

    Raises:
        BenchError: nothing can be written there.
    """
    probe = folder / ".probe"
    write_text(probe, "")
    probe.unlink()


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Replaces the file in one step by what ``write`` puts where it is told.

    Raises:
        BenchError: it cannot be written there.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except OSError as e:
        raise BenchError(f"{path} cannot be written ({e.strerror}); give another folder with --out") from e
    finally:
        if temporary.is_file():
            temporary.unlink()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Sorted keys; what is not a finite number must have become null with a reason before."""
    check_finite(value, path.name)
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda to: to.write_text(text, encoding="utf-8"))


def check_finite(value: Any, where: str) -> None:
    """
    Raises:
        ValueError: a NaN or an infinity, with its place: a defect.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            check_finite(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            check_finite(inner, f"{where}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; expected a finite number or null with a reason")
