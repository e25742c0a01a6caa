"""Where it was measured, and how busy the machine was with other things."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.isa import CPUINFO, isa_features


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(CPUINFO),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3),
        "isa": isa_features(),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


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
