"""Where it was measured, and how busy the machine was with other things."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.cpus import available_cpus
from engine.isa import CPUINFO, isa_features

ENGINE_DIR = Path(__file__).parents[1]


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(CPUINFO),
        "cores": available_cpus(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3),
        "isa": isa_features(),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def source_digest() -> str:
    """sha256 over the engine's source files as they are: which engine it was, where no release has a name."""
    digest = hashlib.sha256()
    for path in sorted(p for p in ENGINE_DIR.rglob("*") if p.suffix in {".py", ".c", ".h"}):
        digest.update(path.relative_to(ENGINE_DIR).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def other_load() -> float:
    """Processes that wanted to run in the last minute (the 1-minute load average)."""
    return round(os.getloadavg()[0], 2)


def _cpu_name(cpuinfo: Path) -> str:
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
