"""Large memory on large pages where the system has them: one address translation for 2 MiB instead of 4 KiB.

A decode step reads all weights and, from places all over the pool, the keys and values of every request, once. With
small pages nearly each block of the pool costs a walk through the page tables, on a virtual machine through two.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from math import prod
from typing import Any

import torch
from torch import Tensor

PAGE_BYTES = 2 * 2**20
STRETCH_BYTES = 64 * 2**20  # of addresses that an arena reserves at once; memory comes with what is written
ALIGNMENT = 64


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As ``torch.zeros``: on pages of its own where it is large enough to fill one."""
    size = prod(shape) * dtype.itemsize
    if size < PAGE_BYTES:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(_map(size), dtype=dtype).view(shape).zero_()  # its pages are there from now on


def _map(size: int) -> mmap.mmap:
    """Zeros that nobody else sees; they are given back when the last tensor on them is gone."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Arena:
    """Tensors that stay, one behind the other in the order in which they came."""

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of it here."""
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            return tensor
        if self._pages is None or self._used + size > len(self._pages):
            self._pages, self._used = _map(max(size, STRETCH_BYTES)), 0
        kept = torch.frombuffer(self._pages, dtype=tensor.dtype, count=tensor.numel(), offset=self._used)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return kept.view(tensor.shape).copy_(tensor)


class Reused:
    """One tensor's memory, lent again as soon as nobody holds a tensor on it. What is still held is never written to:
    the next one gets memory of its own.

    A fresh tensor of megabytes costs a fault for each of its pages, at every step.
    """

    def __init__(self) -> None:
        self._pages = torch.empty(0)  # a tensor, as all memory is that stays: engine.measure counts those
        self._lent: weakref.ref[Any] | None = None

    def empty(self, rows: int, columns: int) -> Tensor:
        """float32 [rows, columns], with anything in it."""
        count = rows * columns
        if count == 0:
            return torch.empty(rows, columns)
        if len(self._pages) < count or (self._lent is not None and self._lent() is not None):
            self._pages = torch.empty(count)  # small pages: a large one would be more than it needs
        array = self._pages.numpy()[:count]
        self._lent = weakref.ref(array)  # which a tensor's storage holds as long as there is a view of it
        return torch.from_numpy(array).view(rows, columns)
