"""What the CPU can do, as far as a choice in this engine depends on it."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
KNOWN = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm", "asimd")


def isa_features(cpuinfo: Path = CPUINFO) -> list[str]:
    """The known features this CPU reports, in a fixed order, after the machine's architecture; where the operating
    system does not say, the architecture alone."""
    found: set[str] = set()
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in {"flags", "features"}:
                found = set(value.split())
                break
    return [platform.machine(), *(f for f in KNOWN if f in found)]
