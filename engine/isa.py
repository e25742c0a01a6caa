"""What the CPU can do, as far as a choice in this engine depends on it, and how to make do with less."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.kernels.errors import UnavailableError

CPUINFO = Path("/proc/cpuinfo")
KNOWN = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm", "asimd")
IsaLimit = Literal["auto", "avx512", "avx2", "baseline"]


@dataclass(frozen=True)
class Level:
    """The most that a limit lets the kernels use."""

    needs: str | None  # without which there is no such level
    keeps: tuple[str, ...]  # of KNOWN
    flags: dict[str, str]  # for the compiler, by family of machines; one that is not here has no such level
    optional: dict[str, str]  # flags for features that are kept where the CPU has them


LEVELS: dict[IsaLimit, Level] = {
    "avx512": Level(
        "avx512f", ("avx2", "avx512f", "avx512_vnni"), {"x86": "-march=skylake-avx512"}, {"avx512_vnni": "-mavx512vnni"}
    ),
    "avx2": Level("avx2", ("avx2",), {"x86": "-march=haswell"}, {}),
    "baseline": Level(None, ("asimd",), {"x86": "-march=x86-64", "arm": "-march=armv8-a"}, {}),
}


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


def within(limit: IsaLimit, found: list[str]) -> list[str]:
    """What of ``found`` the limit leaves; what is not in KNOWN decides nothing and stays."""
    return found if limit == "auto" else [f for f in found if f not in KNOWN or f in LEVELS[limit].keeps]


def target_of(limit: IsaLimit, found: list[str], machine: str = platform.machine()) -> str | None:
    """The compiler's flags for a CPU that has no more than ``limit``; None where it may use all there is.

    Raises:
        UnavailableError: this CPU does not have that much.
    """
    if limit == "auto":
        return None
    level = LEVELS[limit]
    family = "x86" if machine in {"x86_64", "AMD64", "i686"} else "arm" if machine in {"aarch64", "arm64"} else machine
    if family not in level.flags or (level.needs is not None and level.needs not in found):
        has = ", ".join(f for f in found if f in KNOWN) or "none of the known features"
        raise UnavailableError(
            f"isa is {limit!r}, but this {machine} CPU has {has}; set it to auto, or to a level that the CPU has"
        )
    return " ".join([level.flags[family], *(flag for f, flag in level.optional.items() if f in found)])


def reason_of(limit: IsaLimit, found: list[str]) -> str:
    hidden = [f for f in found if f not in within(limit, found)]
    return (
        "all that the CPU has" if limit == "auto" else f"limited to {limit}; unused: {', '.join(hidden) or 'nothing'}"
    )
