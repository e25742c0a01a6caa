"""Builds the C kernels with the system's compiler, once for each source, compiler and instruction set.

The library is kept in the user's cache directory and put there by renaming, so that two processes may build at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.isa import isa_features
from engine.kernels.errors import UnavailableError

log = logging.getLogger(__name__)

SOURCE_DIR = Path(__file__).parent / "csrc"
# The longest first.
UNITS = (
    "attention.c",
    "products_int.c",
    "attention_step.c",
    "rows.c",
    "step.c",
    "products_float.c",
    "write_kv.c",
    "pool.c",
    "ceilings.c",
)
COMPILERS = ("cc", "gcc", "clang")
# No -ffast-math: it would let the compiler reorder sums.
FLAGS = "-O3 -std=gnu11 -fPIC -pthread -fvisibility=hidden -fno-math-errno -ffp-contract=fast -w"
BUILD_LIMIT_S = 120


def cache_dir() -> Path:
    """Where compiled kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "seatrial" / "kernels"


def target_flag() -> str:
    """The flag that lets the compiler use everything this machine has."""
    return "-march=native" if platform.machine() in {"x86_64", "AMD64", "i686"} else "-mcpu=native"


def load(directory: Path | None = None, target: str | None = None) -> ctypes.CDLL:
    """The compiled library, built if it is not in the cache.

    Raises:
        UnavailableError: no compiler, or it failed, or what it made cannot be loaded.
    """
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise UnavailableError(f"no C compiler: none of {', '.join(COMPILERS)} is on the PATH")
    flags = [*FLAGS.split(), *(target or target_flag()).split()]
    path = (directory or cache_dir()) / f"{_key(compiler, flags)}.so"
    if not path.is_file():
        _build(compiler, flags, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise UnavailableError(f"{path} cannot be loaded: {e}") from e


def _key(compiler: str, flags: list[str]) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCE_DIR.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    version = _run([compiler, "--version"]).stdout
    digest.update(repr((version, flags, isa_features(), _cpu_flags())).encode())
    return digest.hexdigest()[:32]


def _cpu_flags() -> str:
    """All feature flags: -march=native depends on more of them than the engine knows by name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def _build(compiler: str, flags: list[str], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            objects = [f"{scratch}/{unit}.o" for unit in UNITS]
            commands = [
                [compiler, *flags, "-c", str(SOURCE_DIR / unit), "-o", made]
                for unit, made in zip(UNITS, objects, strict=True)
            ]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(_run, commands))
            library = f"{scratch}/kernels.so"
            _run([compiler, "-shared", "-pthread", *objects, "-lm", "-o", library])
            Path(library).replace(path)
    except OSError as e:
        raise UnavailableError(f"the kernels cannot be built in {path.parent}: {e}") from e
    log.info("built the C kernels with %s into %s", compiler, path)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    except subprocess.CalledProcessError as e:
        tail = " / ".join(e.stderr.strip().splitlines()[:3])
        raise UnavailableError(f"`{' '.join(command[:1] + command[-3:])}` failed: {tail}") from e
    except (subprocess.TimeoutExpired, OSError) as e:
        raise UnavailableError(f"{command[0]} cannot be run: {e}") from e
