"""A device's memory: what the driver and PyTorch's allocator say of it, and what an allocation that failed failed for.

    total (driver)
    +--------------------------+------------------------------------------+-----------+
    | others: context, other   | reserved by this process's allocator     | free      |
    | processes                | +--------------------------+-----------+ |           |
    |                          | | allocated: live tensors  | cached    | |           |
    +--------------------------+------------------------------------------+-----------+

Cached and free bytes together are what an allocation can be made of. If it fails although they would do, they do not
lie in one piece: ``fragmented``. If they would not do, memory is ``exhausted``.

A grant keeps a reserve of what is free: for kernels and graphs, whose memory the driver takes beside the allocator's,
and for what the allocator rounds up, 2 to 20 MiB a segment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Cause = Literal["exhausted", "fragmented"]
RESERVE_BYTES, RESERVE_SHARE = 2**29, 1 / 16  # the less of both
UNITS = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")


@dataclass(frozen=True)
class Figures:
    """All in bytes."""

    total: int
    free: int  # to the driver
    reserved: int  # by this process's allocator
    allocated: int  # of them in tensors
    highest: int  # that were ever allocated since the peak was forgotten

    @property
    def cached(self) -> int:
        return self.reserved - self.allocated


class DeviceMemoryError(MemoryError):
    """An allocation on the device that failed: what was asked for, what was there, and why that did not do."""

    def __init__(self, wanted: int | None, figures: Figures) -> None:
        self.wanted, self.figures = wanted, figures
        self.cause: Cause = cause_of(wanted, figures)
        asked = "an allocation" if wanted is None else f"an allocation of {wanted} bytes"
        super().__init__(
            f"device memory is {self.cause}: {asked} failed with {figures.free} bytes free and {figures.cached} cached "
            f"of {figures.total}; {figures.allocated} are in tensors of this process; {ADVICE[self.cause]}"
        )


ADVICE: dict[Cause, str] = {
    "exhausted": "lower memory_limit_bytes, max_num_batched_tokens or max_num_seqs, or end what else uses the device",
    "fragmented": "enough is there, but not in one piece: start again, with PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True if it comes back",
}


def reserve_of(total: int) -> int:
    """Of a device's memory, what is left alone however high the limit is."""
    return min(RESERVE_BYTES, int(total * RESERVE_SHARE))


def cause_of(wanted: int | None, figures: Figures) -> Cause:
    """A size that the allocator did not tell is taken to be more than there is."""
    return "fragmented" if wanted is not None and wanted <= figures.free + figures.cached else "exhausted"


def wanted_of(message: str) -> int | None:
    """Bytes that the allocator's message says it tried to get, as far as it is rounded there."""
    found = _TRIED.search(message)
    return None if found is None else int(float(found[1]) * UNITS[found[2]])


class DeviceMemory:
    """Figures of one device, and its errors as ours."""

    def __init__(self, read: Callable[[], Figures], forget_peak: Callable[[], None]) -> None:
        self.read, self.forget_peak = read, forget_peak

    @classmethod
    def of_cuda(cls, device: torch.device) -> DeviceMemory:
        def read() -> Figures:
            free, total = torch.cuda.mem_get_info(device)
            stats = torch.cuda.memory_stats(device)
            reserved, allocated, highest = (
                int(stats.get(key, 0))  # before the first tensor there is nothing
                for key in ("reserved_bytes.all.current", "allocated_bytes.all.current", "allocated_bytes.all.peak")
            )
            return Figures(int(total), int(free), reserved, allocated, highest)

        return cls(read, lambda: torch.cuda.reset_peak_memory_stats(device))

    def grant(self, limit: int) -> int:
        """What of ``limit`` can be had: no more than is free or cached now, less the reserve."""
        figures = self.read()
        return max(0, min(limit, figures.free + figures.cached - reserve_of(figures.total)))

    @contextmanager
    def told(self) -> Iterator[None]:
        """
        Raises:
            DeviceMemoryError: instead of the allocator's own error.
        """
        try:
            yield
        except torch.OutOfMemoryError as e:
            raise DeviceMemoryError(wanted_of(str(e)), self.read()) from e
