"""What this machine can do at most: memory read bandwidth and arithmetic peaks, from csrc/ceilings.c; with a device,
its own.

Measured between the engines in every round, because a shared machine is not the same from minute to minute.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from engine.bench.gpu.clock import Clock
from engine.kernels.cpu import compile as compiler
from engine.kernels.errors import UnavailableError

PEAKS = ("int8", "bf16", "float32")
TRIES = 3  # the best of them: nothing makes a machine faster than it is
TARGET_S = 0.015  # of one try of a peak
FIRST_TURNS = 2000
LEAST_BYTES, MOST_BYTES, CACHES = 256 * 2**20, 1024 * 2**20, 4  # read: so many times the last level cache
CACHE_DIR = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Ceilings:
    """``gops``: operations (a multiplication and an addition are two) a nanosecond, by PEAKS; those that the machine
    has no instructions for are absent."""

    read_gb_per_s: float
    gops: dict[str, float]


class Meter(Protocol):
    """``names``: what stands behind each peak."""

    names: dict[str, str]

    def measure(self) -> Ceilings: ...


class DeviceMeter:
    """Of a CUDA device: a copy's bytes, read and written, and PyTorch's products."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.names = {"int8": "PyTorch's int8 product", "bf16": "PyTorch's bf16 product"}

    def measure(self) -> Ceilings:
        found = self._clock.ceilings()
        peaks = {"int8": found.int8_tops, "bf16": found.bf16_tflops}
        return Ceilings(found.copy_gb_per_s, {name: 1000 * v for name, v in peaks.items() if v is not None})


class CeilingMeter:
    """Loads the compiled kernels' library. ``names``: the instructions behind each peak."""

    def __init__(self, threads: int, target: str | None = None) -> None:
        """
        Raises:
            UnavailableError: no compiler.
        """
        self.threads = threads
        self._c = compiler.load(target=target)
        self._c.ceiling_read.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
        self._c.ceiling_turns.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
        self._c.ceiling_name.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_long)]
        self._c.ceiling_read.restype = self._c.ceiling_turns.restype = ctypes.c_double
        self._c.ceiling_name.restype = ctypes.c_char_p
        self.names: dict[str, str] = {}
        self._ops: dict[str, int] = {}
        for what in PEAKS:
            ops = ctypes.c_long()
            if name := self._c.ceiling_name(what.encode(), ctypes.byref(ops)):
                self.names[what], self._ops[what] = name.decode(), ops.value

    def measure(self) -> Ceilings:
        """Takes about half a second."""
        return Ceilings(self._read(), {what: self._peak(what) for what in self.names})

    def _read(self) -> float:
        step = 512 * self.threads
        size = max(LEAST_BYTES, min(MOST_BYTES, CACHES * _last_cache_bytes())) // step * step
        buffer = torch.ones(size, dtype=torch.uint8)  # written: a page that is only promised is no memory
        seconds = min(self._c.ceiling_read(buffer.data_ptr(), size, self.threads) for _ in range(TRIES))
        return float(size / seconds / 1e9)

    def _peak(self, what: str) -> float:
        turns = FIRST_TURNS
        while (taken := self._c.ceiling_turns(what.encode(), turns, self.threads)) < TARGET_S / 4:
            turns = int(turns * min(16.0, max(2.0, TARGET_S / max(taken, 1e-6))))
        best = min(self._c.ceiling_turns(what.encode(), turns, self.threads) for _ in range(TRIES))
        return float(self._ops[what] * turns * self.threads / best / 1e9)


def meter(threads: int, backend: str = "cpu") -> tuple[Meter | None, str]:
    """And, without one, why."""
    try:
        if backend == "cuda":
            from engine.kernels.cuda.device import current

            own = current()
            return DeviceMeter(Clock(own.device, own.graphs)), ""
        return CeilingMeter(threads), ""
    except UnavailableError as e:
        return None, str(e)


def _last_cache_bytes(directory: Path = CACHE_DIR) -> int:
    """0 where the system does not say."""
    sizes = []
    for path in directory.glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 1024, "M": 1024**2}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * factor)
    return max(sizes, default=0)
